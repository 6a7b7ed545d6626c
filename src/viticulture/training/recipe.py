# SPDX-License-Identifier: Apache-2.0
"""A recipe: one complete YAML file that trains one thing, checked against the constructors it configures.

Sections are the keywords of dataclasses (`student`, `data`, `images`, `optim`, `schedule`, `train`, `engine`) and of
classes chosen by name: `method: {name: supervised, ...}`, `guides: {logits: {...}}`, `augment: {flip: {...}}`. An entry
of guides or of an augmentation may have a name of its own and say its `class`. A name is a short one of those below, or
the dotted path of the user's own class: training by such a recipe imports its module (see `dotted`). Types, defaults
and help come from the signatures; jsonargparse writes the help, and is never given a value.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from ..data.augment.augment import TRANSFORMS, Augment
from ..data.augment.transform import Transform
from ..data.dataset import ImageSettings, Selection
from ..disk import read_text
from ..dotted import class_of
from ..errors import UserError, counted, unknown
from ..guides.guide import Guide
from ..keywords import check_keywords, filled
from ..methods.method import Method
from ..optim import Optim, Schedule, shortened_warmup
from ..text import read_yaml, write_yaml
from .auto_optimizer import with_optimizer
from .plugins import register_student
from .raw import NAMED, ORDER, VIEWS, check_keys, check_names, leaves, nested, override, plain
from .references import where_they_lie
from .retired_keys import refuse_retired
from .settings import Engine, Student, Train

METHODS = {
    "supervised": "viticulture.methods.supervised.Supervised",
    "multilabel": "viticulture.methods.multilabel.Multilabel",
    "mae": "viticulture.methods.mae.MAE",
    "simmim": "viticulture.methods.simmim.SimMIM",
    "moco_v3": "viticulture.methods.moco_v3.MoCoV3",
    "dino": "viticulture.methods.dino.DINO",
    "seed": "viticulture.methods.seed.Seed",
    "detection": "viticulture.methods.detection.Detection",
    "segmentation": "viticulture.methods.segmentation.Segmentation",
}
GUIDES = {
    "logits": "viticulture.guides.logits.Logits",
    "attention_distillation": "viticulture.guides.attention_distillation.AttentionDistillation",
    "attention_link": "viticulture.guides.attention_link.AttentionLink",
    "bootstrap": "viticulture.guides.bootstrap.Bootstrap",
    "co_advise": "viticulture.guides.co_advise.CoAdvise",
}
"""Short names of what ships with the package."""
SECTIONS: dict[str, type] = {
    "student": Student,
    "data": Selection,
    "images": ImageSettings,
    "optim": Optim,
    "schedule": Schedule,
    "train": Train,
    "engine": Engine,
}
LEARNING = ("student", "augment", "optim", "schedule", "train")
"""Sections whose defaults are no good guess for any images."""
METHOD_GIVEN, GUIDE_GIVEN = ("setup",), ("student", "data_spec")  # constructors' arguments that no recipe sets
GIVEN = {*METHOD_GIVEN, *GUIDE_GIVEN}


@dataclass(frozen=True)
class Recipe:
    """A checked recipe with every default filled in; `resolve` makes one, and shares no value with what it was given.

    Args:
        name: where it came from: a shipped recipe's name or a path.
        values: section -> keyword -> value, plain YAML types; not to be written to.
        warnings: what a person should know about the choices that were made for them.
    """

    name: str
    values: dict[str, Any]
    warnings: tuple[str, ...] = ()

    def section(self, name: str) -> Any:
        """One of the dataclass sections as its object: `recipe.section("train").epochs`."""
        return SECTIONS[name](**deepcopy(self.values[name]))

    def with_section(self, name: str, section: Any) -> "Recipe":
        """The recipe with a dataclass section replaced, now that its automatic choices are made."""
        return replace(self, values={**self.values, name: asdict(section)})

    def with_keys(self, keys: Mapping[str, Any]) -> "Recipe":
        """The recipe with dotted keys changed (`{"train.epochs": 3}`), checked anew; its warnings stay."""
        changed = resolve(self.name, self.values, keys)
        return replace(changed, warnings=tuple(dict.fromkeys((*self.warnings, *changed.warnings))))

    def to_yaml(self) -> str:
        """The recipe as a file that trains the same thing."""
        return write_yaml(plain(self.values))


def shipped() -> dict[str, Path]:
    """Name -> file of every recipe in the package, `PAPER/NAME`."""
    root = Path(str(resources.files("viticulture"))) / "recipes"
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}


def read(name: str) -> dict[str, Any]:
    """The raw values of a shipped recipe, or of a YAML file given by its path."""
    files = shipped()
    if name not in files and not name.endswith((".yaml", ".yml")):
        raise unknown("recipe", name, files, "viticulture recipes")
    path = files.get(name, Path(name))
    return where_they_lie(path.parent, parse(read_text(path, "recipe"), name))


def parse(text: str, name: str) -> dict[str, Any]:
    """YAML text as raw recipe values."""
    raw = read_yaml(text, f"recipe {name}")
    if not isinstance(raw, dict):
        raise UserError(f"recipe {name} must hold sections such as 'student:' and 'train:', got {type(raw).__name__}")
    return raw


def about(name: str) -> dict[str, str]:
    """A shipped recipe's header comment: `What` it trains, then Command, Published, Hardware, Result, Note as given."""
    lines = shipped()[name].read_text(encoding="utf-8").splitlines()
    sections, key = {"What": ""}, "What"
    for line in (line[1:].strip() for line in lines if line.startswith("#")):
        if match := re.match(r"([A-Z][a-z]+):\s+(.*)", line):
            key, line = match[1], match[2]
        sections[key] = f"{sections.get(key, '')} {line}".strip()
    return sections


def resolve(name: str, raw: dict[str, Any], overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Check raw values and dotted overrides (`{"train.epochs": 3}`) and fill in the defaults.

    Raises: UserError naming the key, the value and the valid alternatives.
    """
    values = nested(raw)
    own = values["train"].get("epochs")
    check_keys(overrides)
    for key, value in (overrides or {}).items():
        override(values, key, plain(value))
    check_names(values)
    refuse_retired(values)
    left_out = [section for section in LEARNING if section not in raw and not values[section]]
    values["optim"] = with_optimizer(values)
    if values["engine"].get("precision") == 32:  # YAML reads a number, and so does the command line
        values["engine"]["precision"] = "32"
    constructors = _constructors(values)
    parsers = _parsers(values, constructors)
    valid = {action.dest for parser in parsers.values() for action in parser._actions}
    for key in leaves(values, valid):
        raise unknown(
            "recipe key", key, valid - {"help"} - {k for k in valid if any(v.startswith(k + ".") for v in valid)}
        )
    checked: dict[str, Any] = {section: {} for section in ORDER}
    for place, made in constructors.items():
        section, _, entry = place.partition(".")
        written = values[section][entry] if entry else values[section]
        names = {"class": written["class"]} if entry and "class" in written else {}
        names |= {"name": written.get("name", "supervised")} if section == "method" else {}
        into, key = (checked[section], entry) if entry else (checked, section)
        into[key] = {**names, **filled(place, made, written, GIVEN)}
    recipe = Recipe(name, checked, _defaults_told(name, left_out))
    _check(recipe)
    register_student(recipe.values["student"]["name"])
    if overrides and "train.epochs" in overrides and "schedule.warmup_epochs" not in overrides:
        recipe = _warmed_up(recipe, own)
    recipe.section("schedule").warmup(recipe.section("train").epochs)
    return recipe


def _defaults_told(name: str, sections: list[str]) -> tuple[str, ...]:
    """A warning about sections that a person's own file leaves out, which shipped recipes do on purpose."""
    if not sections or not name.endswith((".yaml", ".yml")):
        return ()
    return (
        f"{name} leaves out {', '.join(sections)}: every key there has its default (`viticulture train --help-all`), "
        "not the default recipe's value; `viticulture train DATA --print-config` prints a whole recipe to start from",
    )


def _check(recipe: Recipe) -> None:
    """Everything that can be checked without images. Sections and transforms check their values at construction."""
    for place, made in _constructors(recipe.values).items():
        content: Any = recipe.values
        for part in place.split("."):
            content = content[part]
        check_keywords(place, made, content)
    for section in SECTIONS:
        recipe.section(section)
    for view in VIEWS:
        Augment(transforms(recipe.values[view]), (1, 1), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), classes=2)


def _warmed_up(recipe: Recipe, own: int | None) -> Recipe:
    """The recipe with a warm-up that ends before the training, which is shorter than its own; told as a warning."""
    schedule, train = recipe.section("schedule"), recipe.section("train")
    warmup = schedule.warmup_epochs
    if warmup is None or warmup < train.epochs:
        return recipe
    fitted = replace(schedule, warmup_epochs=shortened_warmup(warmup, own or Train.epochs, train.epochs))
    length = counted(train.epochs, "epoch")
    warning = f"the warm-up takes {fitted.warmup_epochs:g} of {length}; the recipe's own takes {warmup:g}"
    return replace(recipe.with_section("schedule", fitted), warnings=(*recipe.warnings, warning))


def reference() -> str:
    """Every key of every section with type, default and meaning, for `--help`."""
    every = {
        "method": {"name": "supervised"},
        "guides": {name: {} for name in GUIDES},
        "augment": {cls_name(transform): {} for transform in TRANSFORMS},
    }
    text = _parser_of(tuple(_constructors(nested(every)).items())).format_help()
    for name in (name for name in METHODS if name != "supervised"):
        of_method = _parser_of((("method", find_method(name)),)).format_help()
        _, _, *sections = re.split(r"\n\n(?=\S)", of_method.rstrip())  # its usage and its name go first
        text += "".join(f"\nwith --method.name {name}: {section}\n" for section in sections)
    return re.sub(r"^  --\S+ CONFIG\s+Path to a configuration file\.\n", "", text, flags=re.MULTILINE)


def cls_name(cls: type) -> str:
    """ResizedCrop -> resized_crop: the name of a transform in a recipe."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def method_class(recipe: Recipe) -> type[Method]:
    """The class that `method.name` names."""
    return find_method(recipe.values["method"]["name"])


def find_method(name: str) -> type[Method]:
    """The class of a method by its short name or dotted path."""
    return class_of("method", name, METHODS, Method, METHOD_GIVEN)


def guide_class(name: str, keywords: Mapping[str, Any] | None = None) -> type[Guide]:
    """The class of a guide: what its keywords say, else its name does."""
    return class_of("guide", (keywords or {}).get("class", name), GUIDES, Guide, GUIDE_GIVEN)


def of_class(section: Mapping[str, Any], *names: str) -> dict[str, dict[str, Any]]:
    """Entries of guides or of an augmentation that are of some shipped classes, by the names that the recipe gives."""
    return {key: entry for key, entry in section.items() if entry.get("class", key) in names}


def _parsers(values: dict[str, Any], constructors: dict[str, type]) -> dict[str, ArgumentParser]:
    """Dotted place -> a parser of the keys that may stand there. One for all would look every key up among all keys."""
    named = {f"{section}.{name}" for section in NAMED for name, made in values[section].items() if "class" in made}
    return {place: _parser_of(((place, made),), place in named) for place, made in constructors.items()}


@lru_cache(maxsize=256)  # a study, a table or a test reads many recipes of few parts; reading signatures is slow
def _parser_of(constructors: tuple[tuple[str, type], ...], with_class: bool = False) -> ArgumentParser:
    """A parser of the keywords of (place, class); `with_class`: of an entry that says its class."""
    parser = ArgumentParser(exit_on_error=False, add_help=False, prog="viticulture train DATA")
    for place, made in constructors:
        if place == "method":
            about = f"{', '.join(METHODS)}, or MODULE.CLASS"
            parser.add_argument("--method.name", type=str, default="supervised", help=about)
        if with_class:
            parser.add_argument(f"--{place}.class", type=str, help="a short name, or MODULE.CLASS")
        parser.add_class_arguments(made, place, skip=GIVEN)
    return parser


def _constructors(values: dict[str, Any]) -> dict[str, type]:
    """Dotted place -> the class that takes the keywords that stand there."""
    constructors: dict[str, type] = dict(SECTIONS)
    constructors["method"] = find_method(values["method"].get("name", "supervised"))
    constructors |= {f"guides.{name}": guide_class(name, made) for name, made in values["guides"].items()}
    return constructors | {
        f"{view}.{name}": transform_class(name, made) for view in VIEWS for name, made in values[view].items()
    }


def transform_class(name: str, keywords: Mapping[str, Any]) -> type:
    """The class of an augmentation: what its keywords say, else its name does."""
    named = {cls_name(cls): f"{cls.__module__}.{cls.__name__}" for cls in TRANSFORMS}
    return class_of("augmentation", keywords.get("class", name), named, Transform)


def transforms(section: dict[str, Any]) -> list[Any]:
    """The transforms of a view, as its section of a recipe describes them."""
    return [transform_class(name, made)(**settings(made)) for name, made in section.items()]


def settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's keywords in an entry of a recipe: all but what names its class."""
    return {key: value for key, value in entry.items() if key != "class"}
