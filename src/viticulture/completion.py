# SPDX-License-Identifier: Apache-2.0
"""A script by which a shell completes verbs, options, recipes and files as they are typed; shtab writes it."""

import argparse
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from .errors import UserError, unknown

FILES = ("data", "run", "images", "out", "networks", "boxes", "beside", "folder", "like")
"""Arguments that are files or folders, or may be."""

WAYS = {
    "bash": "viticulture completion bash > ~/.local/share/bash-completion/completions/viticulture",
    "zsh": "viticulture completion zsh > DIR/_viticulture, for a DIR of $fpath",
    "fish": "viticulture completion fish > ~/.config/fish/completions/viticulture.fish",
}
"""Shell -> how its script is kept."""


def script(
    shell: str,
    verbs: Mapping[str, argparse.ArgumentParser],
    of_a_table: Mapping[str, argparse.ArgumentParser],
    short: Iterable[str],
) -> str:
    """The script.

    Args:
        shell: bash, zsh or fish.
        verbs: parser of each verb.
        of_a_table: parser of those that take a paper's table, with --table.
        short: options of recipe keys, that verbs with `takes_recipe` take besides.

    Raises: UserError for another shell, or where shtab is not installed.
    """
    if shell not in WAYS:
        raise unknown("shell", shell, WAYS)
    if find_spec("shtab") is None:
        raise UserError("completion is written by shtab, which is not installed: pip install 'viticulture[completion]'")
    import shtab

    whole = argparse.ArgumentParser("viticulture")
    every = whole.add_subparsers()
    named = {"recipe": _names("recipes"), "table": _names("tables")}
    for verb, parser in verbs.items():
        options = _options(parser)
        shown = every.add_parser(
            verb, help=(parser.description or "").split("\n")[0], parents=[parser]
        )  # unseen without help
        further = list(short) if getattr(parser, "takes_recipe", False) else []
        if verb in of_a_table:
            further += _options(of_a_table[verb])
        for option in dict.fromkeys(further):
            if option not in options:
                shown.add_argument(option)
        for action in shown._actions:
            if action.dest in named:
                action.choices = named[action.dest]
            elif action.dest in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(whole, shell)


def _names(folder: str) -> list[str]:
    """What lies in one of the package's folders of YAML files, as a command names it."""
    root = Path(__file__).parent / folder
    return [path.relative_to(root).with_suffix("").as_posix() for path in sorted(root.rglob("*.yaml"))]


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]
