# SPDX-License-Identifier: Apache-2.0
"""A recipe: one complete YAML file that trains one thing, checked against the constructors it configures.

Sections are the keywords of dataclasses (`student`, `data`, `images`, `optim`, `schedule`, `train`, `engine`) and of
classes chosen by name: `method: {name: supervised, ...}`, `guides: {logits: {...}}`, `augment: {flip: {...}}`. An entry
of guides or of an augmentation may have a name of its own and say its `class`. A name is a short one of those below, or
the dotted path of the user's own class: training by such a recipe imports its module (see `user_code`). Types, defaults
and help come from the signatures; jsonargparse writes the help, and is never given a value.
"""

import inspect
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import timm
from jsonargparse import ArgumentParser
from timm.models import register_model

from ..data.dataset import ImageSettings, Selection
from ..data.transforms.view import Augment
from ..errors import UserError, counted, received, unknown
from ..keywords import check_keywords, filled
from ..methods.method import Method
from ..optim import Optim, Schedule, shortened_warmup
from ..text import write_yaml
from ..user_code import imported
from .auto_optimizer import with_optimizer
from .keys import NAMED, ORDER, VIEWS, check_keys, check_names, leaves, nested, override, plain
from .retired_keys import refuse_retired
from .schema import GIVEN, LEARNING, SECTIONS, constructors_of, find_method, parser_of, transforms
from .sections import Engine, Student, Train


@dataclass(frozen=True)
class Config:
    """A checked recipe with every default filled in; `resolve` makes one, and shares no value with what it was given.

    Args:
        name: where it came from: a shipped recipe's name or a path.
        values: section -> keyword -> value, plain YAML types; not to be written to.
        warnings: what a person should know about the choices that were made for them.
    """

    name: str
    values: dict[str, Any]
    warnings: tuple[str, ...] = ()
    student: Student = field(init=False, repr=False, compare=False)
    data: Selection = field(init=False, repr=False, compare=False)
    images: ImageSettings = field(init=False, repr=False, compare=False)
    optim: Optim = field(init=False, repr=False, compare=False)
    schedule: Schedule = field(init=False, repr=False, compare=False)
    train: Train = field(init=False, repr=False, compare=False)
    engine: Engine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, section in SECTIONS.items():
            object.__setattr__(self, name, section(**deepcopy(self.values[name])))

    @property
    def method_class(self) -> type[Method]:
        """The class that `method.name` names."""
        return find_method(self.values["method"]["name"])

    def with_section(self, name: str, section: Any) -> "Config":
        """The recipe with a dataclass section replaced, now that its automatic choices are made."""
        return replace(self, values={**self.values, name: asdict(section)})

    def with_keys(self, keys: Mapping[str, Any]) -> "Config":
        """The recipe with dotted keys changed (`{"train.epochs": 3}`), checked anew; its warnings stay."""
        changed = resolve(self.name, self.values, keys)
        return replace(changed, warnings=tuple(dict.fromkeys((*self.warnings, *changed.warnings))))

    def to_yaml(self) -> str:
        """The recipe as a file that trains the same thing."""
        return write_yaml(plain(self.values))


def resolve(name: str, raw: dict[str, Any], overrides: Mapping[str, Any] | None = None) -> Config:
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
    constructors = constructors_of(values)
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
    recipe = Config(name, checked, _defaults_told(name, left_out))
    _check(recipe)
    register_student(recipe.values["student"]["name"])
    if overrides and "train.epochs" in overrides and "schedule.warmup_epochs" not in overrides:
        recipe = _warmed_up(recipe, own)
    recipe.schedule.warmup(recipe.train.epochs)
    return recipe


def _defaults_told(name: str, sections: list[str]) -> tuple[str, ...]:
    """A warning about sections that a person's own file leaves out, which shipped recipes do on purpose."""
    if not sections or not name.endswith((".yaml", ".yml")):
        return ()
    return (
        f"{name} leaves out {', '.join(sections)}: every key there has its default (`viticulture train --help-all`), "
        "not the default recipe's value; `viticulture train DATA --print-config` prints a whole recipe to start from",
    )


def _check(recipe: Config) -> None:
    """Everything that can be checked without images. Sections and transforms check their values at construction."""
    for place, made in constructors_of(recipe.values).items():
        content: Any = recipe.values
        for part in place.split("."):
            content = content[part]
        check_keywords(place, made, content)
    for view in VIEWS:
        Augment(transforms(recipe.values[view]), (1, 1), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), classes=2)


def _warmed_up(recipe: Config, own: int | None) -> Config:
    """The recipe with a warm-up that ends before the training, which is shorter than its own; told as a warning."""
    schedule, train = recipe.schedule, recipe.train
    warmup = schedule.warmup_epochs
    if warmup is None or warmup < train.epochs:
        return recipe
    fitted = replace(schedule, warmup_epochs=shortened_warmup(warmup, own or Train.epochs, train.epochs))
    length = counted(train.epochs, "epoch")
    warning = f"the warm-up takes {fitted.warmup_epochs:g} of {length}; the recipe's own takes {warmup:g}"
    return replace(recipe.with_section("schedule", fitted), warnings=(*recipe.warnings, warning))


def _parsers(values: dict[str, Any], constructors: dict[str, type]) -> dict[str, ArgumentParser]:
    """Dotted place -> a parser of the keys that may stand there. One for all would look every key up among all keys."""
    named = {f"{section}.{name}" for section in NAMED for name, made in values[section].items() if "class" in made}
    return {place: parser_of(((place, made),), place in named) for place, made in constructors.items()}


def register_student(name: str) -> None:
    """Import the module of a student MODULE.FUNCTION and make the function known to timm, unless its decorator has.

    A name that timm knows, with or without a tag, is left to `create_student`.

    Raises: UserError if it cannot be had, is no function, or timm has another network of that name.
    """
    if "." not in name or timm.is_model(name.partition(".")[0]):
        return
    function, short = imported("student", name), name.rpartition(".")[2]
    if not inspect.isfunction(function):
        raise UserError(f"student {name} must be a function that timm can register, got {received(function)}")
    if function.__name__ != short:
        raise UserError(f"student {name} is called {function.__name__} where it is defined; name it so")
    known = timm.model_entrypoint(short) if timm.is_model(short) else None
    if known is not None and known.__module__ != function.__module__:
        raise UserError(f"student {name}: timm has a network {short!r} already; give the function another name")
    if known is not function:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a module that was imported anew
            register_model(function)
