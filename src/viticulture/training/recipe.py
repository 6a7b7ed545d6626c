# SPDX-License-Identifier: Apache-2.0
"""A recipe: one complete YAML file that trains one thing, checked against the constructors it configures.

Sections are the keywords of dataclasses (`student`, `data`, `images`, `optim`, `schedule`, `train`, `engine`) and of
classes chosen by name: `method: {name: supervised, ...}`, `guides: {logits: {...}}`, `augment: {flip: {...}}`. An entry
of guides or of an augmentation may have a name of its own and say its `class`. A name is a short one of those below, or
the dotted path of a person's own class: reading such a recipe imports its module (see `dotted`). Types, defaults and
help come from the signatures (jsonargparse).
"""

import re
from argparse import ArgumentError
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from torch import nn

from ..data.augment.augment import TRANSFORMS, Augment
from ..data.augment.transform import Transform
from ..data.dataset import ImageSettings, Selection
from ..disk import read_text
from ..dotted import class_of
from ..errors import UserError, shortened, unknown
from ..guides.guide import Guide
from ..keywords import check_keywords
from ..methods.method import Method
from ..optim import Optim, Schedule, shortened_warmup
from ..text import read_yaml, write_yaml
from .older import check_older
from .plugins import register_student
from .settings import Engine, Student, Train

METHODS = {
    "supervised": "viticulture.methods.supervised.Supervised",
    "mae": "viticulture.methods.mae.MAE",
    "simmim": "viticulture.methods.simmim.SimMIM",
    "moco_v3": "viticulture.methods.moco_v3.MoCoV3",
    "dino": "viticulture.methods.dino.DINO",
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
VIEWS = ("augment", "augment2", "augment_local_crops")  # sections that say how a view of an image is made
ORDER = ("student", "method", "guides", "data", "images", *VIEWS, "optim", "schedule", "train", "engine")
NAMED = ("guides", *VIEWS)  # sections of the form {name: keywords}
KNOWN: dict[tuple[ArgumentParser, str], dict[str, Any]] = {}
MOST_KNOWN = 256  # recipes that were filled in, by their parser and their values' text
METHOD_GIVEN, GUIDE_GIVEN = ("setup",), ("student", "task")  # constructors' arguments that no recipe sets


@dataclass(frozen=True)
class Recipe:
    """A checked recipe with every default filled in; `resolve` makes one, and shares no value with what it was given.

    Args:
        name: where it came from: a shipped recipe's name or a path.
        values: section -> keyword -> value, plain YAML types; not to be written to.
        remarks: what a person should know about the choices that were made for them.
    """

    name: str
    values: dict[str, Any]
    remarks: tuple[str, ...] = ()

    def section(self, name: str) -> Any:
        """One of the dataclass sections as its object: `recipe.section("train").epochs`."""
        return SECTIONS[name](**deepcopy(self.values[name]))

    def with_section(self, name: str, section: Any) -> "Recipe":
        """The recipe with a dataclass section replaced, now that its automatic choices are made."""
        return replace(self, values={**self.values, name: asdict(section)})

    def to_yaml(self) -> str:
        """The recipe as a file that trains the same thing."""
        return write_yaml(_plain(self.values))


def shipped() -> dict[str, Path]:
    """Name -> file of every recipe in the package, `PAPER/NAME`."""
    root = Path(str(resources.files("viticulture"))) / "recipes"
    return {str(path.relative_to(root).with_suffix("")): path for path in sorted(root.rglob("*.yaml"))}


def read(name: str) -> dict[str, Any]:
    """The raw values of a shipped recipe, or of a YAML file given by its path."""
    files = shipped()
    if name not in files and not name.endswith((".yaml", ".yml")):
        raise unknown("recipe", name, files)
    return parse(read_text(files.get(name, Path(name)), "recipe"), name)


def parse(text: str, name: str) -> dict[str, Any]:
    """YAML text as raw recipe values."""
    raw = read_yaml(text, f"recipe {name}")
    if not isinstance(raw, dict):
        raise UserError(f"recipe {name} must hold sections such as 'student:' and 'train:', got {type(raw).__name__}")
    return raw


def about(name: str) -> dict[str, str]:
    """A shipped recipe's header comment: `What` it trains, then Command, Published, Hardware, Result, Note as given."""
    lines = shipped()[name].read_text(encoding="utf-8").splitlines()
    found, key = {"What": ""}, "What"
    for line in (line[1:].strip() for line in lines if line.startswith("#")):
        if match := re.match(r"([A-Z][a-z]+):\s+(.*)", line):
            key, line = match[1], match[2]
        found[key] = f"{found.get(key, '')} {line}".strip()
    return found


def resolve(name: str, raw: dict[str, Any], overrides: dict[str, Any] | None = None) -> Recipe:
    """Check raw values and dotted overrides (`{"train.epochs": 3}`) and fill in the defaults.

    Raises: UserError naming the key, the value and the valid alternatives.
    """
    values = _nested(raw)
    own = values["train"].get("epochs")
    _check_keys(overrides)
    for key, value in (overrides or {}).items():
        _override(values, key, _plain(value))
    _check_names(values)
    check_older(values)
    if values["engine"].get("precision") == 32:  # YAML reads a number, and so does the command line
        values["engine"]["precision"] = "32"
    parser = _parser(values)
    valid = {action.dest for action in parser._actions}
    for key in _leaves(values, valid):
        raise unknown(
            "recipe key", key, valid - {"help"} - {k for k in valid if any(v.startswith(k + ".") for v in valid)}
        )
    checked = _filled_in(parser, values)
    for named in NAMED:
        checked[named] = {key: checked.get(named, {}).get(key) or {} for key in values[named]}
    recipe = Recipe(name, {section: checked[section] for section in ORDER})
    _check(recipe)
    register_student(recipe.values["student"]["name"])
    if overrides and "train.epochs" in overrides and "schedule.warmup_epochs" not in overrides:
        recipe = _warmed_up(recipe, own)
    recipe.section("schedule").warmup(recipe.section("train").epochs)
    return recipe


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
    """The recipe with a warm-up that ends before the training, which is shorter than its own; told as a remark."""
    schedule, train = recipe.section("schedule"), recipe.section("train")
    warmup = schedule.warmup_epochs
    if warmup is None or warmup < train.epochs:
        return recipe
    fitted = replace(schedule, warmup_epochs=shortened_warmup(warmup, own or Train.epochs, train.epochs))
    remark = f"the warm-up takes {fitted.warmup_epochs:g} of {train.epochs} epochs; the recipe's own takes {warmup:g}"
    return replace(recipe.with_section("schedule", fitted), remarks=(*recipe.remarks, remark))


def reference() -> str:
    """Every key of every section with type, default and meaning, for `--help`."""
    every = {
        "method": {"name": "supervised"},
        "guides": {name: {} for name in GUIDES},
        "augment": {cls_name(transform): {} for transform in TRANSFORMS},
    }
    return _parser(_nested(every)).format_help()


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


def _parser(values: dict[str, Any]) -> ArgumentParser:
    """A parser that knows exactly the keys that these values may use."""
    with_class = [f"{section}.{name}" for section in NAMED for name, made in values[section].items() if "class" in made]
    return _parser_of(tuple(_constructors(values).items()), tuple(with_class))


@lru_cache(
    maxsize=64
)  # a study, a table or a test reads many recipes of few forms; reading signatures is the slow part
def _parser_of(constructors: tuple[tuple[str, type], ...], with_class: tuple[str, ...]) -> ArgumentParser:
    """A parser of the keywords of (place, class); `with_class` are the entries that say their class."""
    parser = ArgumentParser(exit_on_error=False, prog="viticulture train DATA")
    parser.add_argument("--method.name", type=str, default="supervised", help=f"{', '.join(METHODS)}, or MODULE.CLASS")
    for place in with_class:
        parser.add_argument(f"--{place}.class", type=str, help="a short name, or MODULE.CLASS")
    for place, made in constructors:
        parser.add_class_arguments(made, place, skip={*METHOD_GIVEN, *GUIDE_GIVEN})
    return parser


def _filled_in(parser: ArgumentParser, values: dict[str, Any]) -> dict[str, Any]:
    """The values with every default. A run's recipe is asked for by all that look at the run, so answers are kept."""
    key = (parser, repr(values))
    if key not in KNOWN:
        try:
            filled = parser.parse_object(values, defaults=True).clone(with_meta=False).as_dict()
        except ArgumentError as error:
            raise UserError(_one_line(str(error))) from error
        if len(KNOWN) >= MOST_KNOWN:
            KNOWN.clear()
        KNOWN[key] = filled
    return deepcopy(KNOWN[key])


def _constructors(values: dict[str, Any]) -> dict[str, type]:
    """Dotted place -> the class that takes the keywords that stand there."""
    found: dict[str, type] = dict(SECTIONS)
    found["method"] = find_method(values["method"].get("name", "supervised"))
    found |= {f"guides.{name}": guide_class(name, made) for name, made in values["guides"].items()}
    return found | {
        f"{view}.{name}": transform_class(name, made) for view in VIEWS for name, made in values[view].items()
    }


def transform_class(name: str, keywords: Mapping[str, Any] | None = None) -> type:
    """The class of an augmentation: what its keywords say, else its name does."""
    named = {cls_name(cls): f"{cls.__module__}.{cls.__name__}" for cls in TRANSFORMS}
    return class_of("augmentation", (keywords or {}).get("class", name), named, Transform)


def transforms(section: dict[str, Any]) -> list[Any]:
    """The transforms of a view, as its section of a recipe describes them."""
    return [transform_class(name, made)(**settings(made)) for name, made in section.items()]


def settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's keywords in an entry of a recipe: all but what names its class."""
    return {key: value for key, value in entry.items() if key != "class"}


def _nested(raw: dict[str, Any]) -> dict[str, Any]:
    """A deep copy in which every section exists and an empty one is an empty mapping."""
    _check_keys(raw)
    raw = _plain(raw)
    for section in raw:
        if section not in ORDER:
            raise unknown("recipe section", section, ORDER)
    values: dict[str, Any] = {}
    for section in ORDER:
        content = raw.get(section)
        if isinstance(content, str) and section in ("student", "method"):
            content = {"name": content}  # one dial first: `student: vit_tiny`
        if not isinstance(content, dict | None):
            raise UserError(f"recipe section {section} must hold keywords, got {shortened(repr(content))}")
        values[section] = {
            key: {} if value is None and section in NAMED else value for key, value in (content or {}).items()
        }
    return values


def _check_names(values: dict[str, Any]) -> None:
    """Entries' own names are Python's, and not those of torch's dictionary of modules. Raises: UserError for others."""
    for section in NAMED:
        for name in values[section]:
            if "." in name:
                short = re.sub(r"\W", "_", name.rpartition(".")[2].lower())
                raise UserError(
                    f"{section}.{name}: an entry needs a name without dots beside its class: "
                    f"{section}: {{{short}: {{class: {name}}}}}"
                )
            if not name.isidentifier() or (section == "guides" and hasattr(nn.ModuleDict, name)):
                raise UserError(f"{name!r} cannot be the name of an entry of {section}; take a word like first_teacher")


def _check_keys(values: Any, place: str = "") -> None:
    """Keys are words, however deep. Raises: UserError for one that is a number."""
    if isinstance(values, dict):
        for key, content in values.items():
            if not isinstance(key, str):
                raise UserError(f"a recipe's keys are words, got {key!r}{place and f' in {place}'}")
            _check_keys(content, f"{place}.{key}" if place else key)


def _override(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; `--student vit_tiny` is short for its name, `--augment.mix null` takes an entry out."""
    parts = key.split(".")
    if parts[0] not in values:
        raise unknown("recipe section", parts[0], values)
    if len(parts) == 1:
        if parts[0] not in ("student", "method"):
            raise UserError(f"--{key} is a whole section; set one of its keys, as --{key}.KEY VALUE")
        parts.append("name")
    if parts[0] in NAMED and len(parts) == 2 and value is None:
        values[parts[0]].pop(parts[1], None)
        return
    place = values
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise UserError(f"--{key} asks for a key inside {part!r}, which holds {place!r}")
    if parts[0] in NAMED and len(parts) == 2 and not isinstance(value, dict):
        raise UserError(f"--{key} needs keywords, as --{key}.KEY VALUE, or null to take it out; got {value!r}")
    place[parts[-1]] = value


def _leaves(values: dict[str, Any], valid: set[str], prefix: str = "") -> list[str]:
    """Dotted keys that the parser does not know."""
    wrong = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and (key not in valid or any(v.startswith(f"{key}.") for v in valid)):
            wrong += _leaves(value, valid, f"{key}.")
        elif key not in valid:
            wrong.append(key)
    return wrong


def _plain(value: Any) -> Any:
    """A copy of YAML's types that shares no part with the original, nor one part of itself with another."""
    if isinstance(value, dict):
        return {str(key): _plain(content) for key, content in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _one_line(message: str) -> str:
    """jsonargparse's message as one sentence that names the key first."""
    message = message.replace("typing.", "").replace("<class '", "").replace("'>", "").replace("NoneType", "null")
    return " ".join(message.replace("Parser key", "recipe key").split())
