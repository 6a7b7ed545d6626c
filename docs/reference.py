# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/: python.md from signatures, recipes.md from the recipes' headers, config.md from the help of
recipe keys; count what the students cost, for `viticulture models`.

python docs/reference.py
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from docstring_parser import Docstring, parse

import viticulture
from viticulture import api
from viticulture.models import catalog
from viticulture.models.students import matching

HERE = Path(__file__).parent
API = """# Commands and Python

Every command is a function of the package, with the same names and defaults: `viticulture train DATA --seed 1` is
`viticulture.train(DATA, seed=1)`, and `viticulture COMMAND --help` prints the same text. Made by `python
docs/reference.py`.
"""
CONFIG = """# Configuration

Every key of a recipe, as `viticulture train --help-all` prints it. On the command line a key is an option (`--optim.lr
1e-4`), in Python an entry of `overrides`. Defaults are those of the key; a recipe may set another value, which
`--print-config` prints. Made by `python docs/reference.py`.
"""
RECIPES = """# Recipes

One complete YAML file each; its header has the command, the published number, hardware and the result here.
`viticulture recipes` lists those with a result, `--all` all of them, and `--print-config` prints every key of one.
Made by `python docs/reference.py`.
"""
SECTIONS = {
    "default": "What `viticulture train` takes by itself",
    "dhvt": "DHVT, a hybrid ViT for small sets (Lu et al., NeurIPS 2022)",
    "bootstrap": "Bootstrapping ViTs (Zhang et al., CVPR 2022)",
    "attention_link": "AAL, adaptive attention links (Jin and Choi, 2022)",
    "co_advise": "Co-advise (Ren et al., CVPR 2022)",
    "mae": "Learning without labels (A Closer Look at Self-Supervised Lightweight Vision Transformers)",
    "small_vit": "SL-ViT, a benchmark of small ViTs on small sets (Lee, Lee and Song, 2021)",
    "finetune": "A trained network, fine-tuned",
    "probe": "A frozen network with a new classifier",
    "distill": "Label-free distillation from a public network",
    "multilabel": "Several labels an image",
    "regression": "A number an image",
    "detection": "Objects",
    "segmentation": "Pixels",
}


def render_api() -> str:
    """The page of functions and classes as Markdown."""
    parts = [API.strip()]
    for name in sorted(viticulture.__all__, key=str.lower):
        thing = (
            getattr(api, name) if hasattr(api, name) else getattr(viticulture, name)
        )  # a room and its verb share a name
        if name == "__version__" or (name == "data" and thing is api.inspect):
            continue
        if isinstance(thing, type):
            parts += _class(name, thing)
        else:
            parts += ["", f"## {name}", "", *_callable(name, thing)]
    return "\n".join(parts) + "\n"


def _class(name: str, cls: type) -> Iterator[str]:
    about = parse(inspect.getdoc(cls) or "")
    yield from ["", f"## {name}", "", *_words(about), *_arguments(about)]
    for member, value in vars(cls).items():
        if member.startswith("_") or not (callable(value) or isinstance(value, property)):
            continue
        if isinstance(value, property):
            words = _words(parse(inspect.getdoc(value) or ""))
            yield from ["", f"### {name}.{member}", "", *words]
        else:
            yield from ["", f"### {name}.{member}()", "", *_callable(f"{name}.{member}", value)]


def _callable(name: str, function: Callable[..., Any]) -> list[str]:
    about = parse(inspect.getdoc(function) or "")
    signature = inspect.signature(function)
    shown = [
        str(parameter.replace(annotation=parameter.empty)).replace("'", '"')  # as our formatter wants it
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    short, long = f"{name}({', '.join(shown)})", f"{name}(\n" + "".join(f"    {words},\n" for words in shown) + ")"
    lines = ["```python", short if len(short) <= 100 else long, "```", "", *_words(about), *_arguments(about)]
    if about.returns is not None:
        lines += ["", f"Returns: {_line(about.returns.description)}"]
    for raised in about.raises:
        lines += ["", f"Raises: {raised.type_name + ': ' if raised.type_name else ''}{_line(raised.description)}"]
    return lines


def _words(about: Docstring) -> list[str]:
    paragraphs = [about.short_description or ""]
    paragraphs += re.split(r"\n\s*\n", about.long_description) if about.long_description else []
    return [word for paragraph in paragraphs if paragraph for word in (_line(paragraph), "")][:-1]


def _arguments(about: Docstring) -> list[str]:
    if not about.params:
        return []
    rows = [f"| `{param.arg_name}` | {_cell(param.description)} |" for param in about.params]
    return ["", "| argument | meaning |", "|---|---|", *rows]


def _line(text: str | None) -> str:
    """Words on one line that is no markup."""
    return " ".join((text or "").split()).replace("<", "&lt;").replace("[", "\\[")


def _cell(text: str | None) -> str:
    """A line that ends no cell of a table."""
    return _line(text).replace("|", "\\|")


def render_config() -> str:
    """The page of recipe keys as Markdown."""
    parts = [CONFIG.strip()]
    with patch.dict(os.environ, COLUMNS="100000"):  # argparse wraps text at the terminal's width
        text = viticulture.reference()
    for line in re.split(r"\n(?=  --|\S)", "The method:\n" + text):
        option = re.match(r"  --(\S+)(?: [A-Z]\S*)*\s+(.*)", line, re.DOTALL)
        if option is None:
            parts.append(
                f"\n## {_line(line).removesuffix(':')}\n\n| key | meaning | type | default |\n|---|---|---|---|"
            )
            continue
        kind = re.search(r"\(type:\s+(.*),\s+default:\s+(.*)\)\s*$", option[2], re.DOTALL)
        words = option[2][: kind.start()] if kind else option[2]
        cells = [f"`{option[1]}`", _cell(words), *(_cell(text) for text in (kind.groups() if kind else ("", "")))]
        parts.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"


def render_recipes() -> str:
    """The page of recipes as Markdown."""
    parts = [RECIPES.strip()]
    known: dict[str, list[tuple[str, Path]]] = {}
    root = Path(viticulture.__file__).parent / "recipes"
    for path in sorted(root.rglob("*.yaml")):
        name = str(path.relative_to(root).with_suffix(""))
        known.setdefault(name.partition("/")[0], []).append((name, path))
    for folder, entries in sorted(known.items(), key=lambda item: list(SECTIONS).index(item[0])):
        parts += [f"\n## {SECTIONS[folder]}\n", "| recipe | what | our result |", "|---|---|---|"]
        parts += [f"| `{name}` | {what} | {result} |" for name, path in entries for what, result in [_header(path)]]
    return "\n".join(parts) + "\n"


def _header(path: Path) -> tuple[str, str]:
    """What a recipe's header says it trains, and what came out."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    words = " ".join(lines)
    labels = r"(?:Commands?|Published|Hardware|Result|Deviations?|Time|Memory|Cost|Notes?|Untested)"
    what = re.split(rf"\s{labels}:", words)[0]
    result = re.search(rf"\bResult:\s*(.*?)(?=\s{labels}:|$)", words)
    return _cell(what), _cell(result[1]) if result else ""


def render_costs() -> str:
    """Sizes of our students as JSON, one a line."""
    lines = [f'"{name}": {json.dumps(catalog.measured(name))}' for name in matching()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    catalog.COSTS.write_text(render_costs(), encoding="utf-8")
    (HERE / "reference" / "config.md").write_text(render_config(), encoding="utf-8")
    (HERE / "reference" / "python.md").write_text(render_api(), encoding="utf-8")
    (HERE / "reference" / "recipes.md").write_text(render_recipes(), encoding="utf-8")
