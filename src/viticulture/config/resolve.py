# SPDX-License-Identifier: Apache-2.0
"""A recipe as one typed, frozen `Config`, checked once against the constructors that it configures.

Sections are the keywords of dataclasses (`student`, `data`, `images`, `optim`, `schedule`, `train`, `engine`) and of
classes chosen by name: `method: {name: supervised, ...}`, `guides: {logits: {...}}`, `augment: {flip: {...}}`. An entry
of guides or of an augmentation may have another name and set its `class`. A name is a short one of `schema`, or
the dotted path of the user's class: training by such a recipe imports its module (see `user_code`). Types, defaults
and help come from the signatures; jsonargparse writes the help, and never receives a value.
"""

import inspect
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import timm
from timm.models import register_model

from ..data.dataset import DataSettings, ImageSettings
from ..data.transforms.view import Augment
from ..errors import UserError, counted, received, unknown
from ..keywords import filled, leaf_keys
from ..methods.method import Method
from ..models.students import is_hybrid_student
from ..optim import Optim, Schedule, shortened_warmup
from ..text import read_yaml, write_yaml
from ..user_code import imported
from .keys import METHOD, NAMED, ORDER, VIEWS, check_keys, check_names, flat, leaves, nested, override, plain
from .schema import GIVEN, LEARNING, SECTIONS, constructors_of, find_method, transforms
from .sections import Engine, Student, Train

AUTO = "auto"  # `optim: {name: auto}` in recipes for any images: the optimizer goes by the student
MUON: dict[str, Any] = {"name": "muon", "lr": 2e-3, "momentum": 0.95}
KERNELS = 10.0
"""A hybrid that learns classes trains by `MUON`, its kernels at this multiple of the rate; evidence: benchmarks/log.

In the same time that is worth four points over AdamW with 40 images a class. A step takes a tenth to a fifth longer in
batches of 64, and 1.4 to 1.6 times as long in batches of 16, which do better with few images. Kernels before a batch
norm bear their rate, which is most of the gain; matrices of a ViT's blocks do not, and other methods were not tried.
"""


@dataclass(frozen=True)
class Config:
    """A checked recipe with every default filled in: `config.train.epochs`, `config.images.image_size`."""

    name: str  # a shipped recipe's name or a path
    values: dict[str, Any]  # section -> keyword -> value, plain YAML types, shared with nothing; read-only
    warnings: tuple[str, ...] = ()  # about automatic choices
    # Dotted key -> what set it in place of the recipe, such as "command" or "budget".
    changes: dict[str, str] = field(default_factory=dict)
    student: Student = field(init=False, repr=False, compare=False)
    data: DataSettings = field(init=False, repr=False, compare=False)
    images: ImageSettings = field(init=False, repr=False, compare=False)
    optim: Optim = field(init=False, repr=False, compare=False)
    schedule: Schedule = field(init=False, repr=False, compare=False)
    train: Train = field(init=False, repr=False, compare=False)
    engine: Engine = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, section in SECTIONS.items():
            object.__setattr__(self, name, section(**deepcopy(self.values[name])))

    @property
    def method_name(self) -> str:
        """Short name or dotted path of the method."""
        return str(self.values["method"]["name"])

    @property
    def method_class(self) -> type[Method]:
        """The class of the method."""
        return find_method(self.method_name)

    @property
    def guides(self) -> dict[str, dict[str, Any]]:
        """Name of each guide -> its keywords."""
        guides: dict[str, dict[str, Any]] = self.values["guides"]
        return guides

    def changed(self, keys: Mapping[str, Any], by: str) -> "Config":
        """Return the config with dotted keys set (`{"train.epochs": 3}`), checked again.

        Args:
            keys: dotted key -> value; null takes an entry of guides or an augmentation out.
            by: what sets them, for `changes`; keys that had these values already are not recorded.

        Raises: UserError, as `resolve`.
        """
        if not keys:
            return self
        config, before = resolve(self.name, self.values, keys), flat(self.values)
        after = flat(config.values)
        changes = {key: who for key, who in self.changes.items() if key in after}
        changes |= {key: by for key, value in after.items() if key not in before or before[key] != value}
        return replace(config, changes=changes, warnings=tuple(dict.fromkeys((*self.warnings, *config.warnings))))

    def to_yaml(self) -> str:
        """Return the config as a recipe file that trains the same thing; comments say what changed a key."""
        text = write_yaml(plain(self.values))
        commented, path = list[str](), list[str]()
        lines = text.splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if match := re.match(r"( *)([\w.-]+):(?: |$)", line):
                path = [*path[: len(match[1]) // 2], match[2]]
                by = self.changes.get(".".join(path))
                whole = line.endswith(":") or len(after) - len(after.lstrip()) <= len(match[1])  # not a folded text
                line += f"  # set by {by}" if by and whole else ""
            commented.append(line)
        annotated = "\n".join(commented) + "\n"
        return annotated if read_yaml(annotated, self.name) == read_yaml(text, self.name) else text


def resolve(name: str, raw: dict[str, Any], overrides: Mapping[str, Any] | None = None, by: str = "command") -> Config:
    """Check raw values and dotted overrides (`{"train.epochs": 3}`) and fill in the defaults.

    Raises: UserError naming the key, the value and the valid alternatives.
    """
    values = nested(raw)
    recipe_epochs = values["train"].get("epochs")
    check_keys(overrides)
    for key, value in sorted((overrides or {}).items(), key=lambda item: item[0] not in METHOD):
        override(values, key, plain(value))
    check_names(values)
    left_out = [section for section in LEARNING if section not in raw and not values[section]]
    values["optim"] = _chosen_optimizer(values)
    if values["engine"].get("precision") == 32:  # YAML reads a number, and so does the command line
        values["engine"]["precision"] = "32"
    constructors = constructors_of(values)
    _check_known(values, constructors)
    checked: dict[str, Any] = {section: {} for section in ORDER}
    for place, made in constructors.items():
        section, _, entry = place.partition(".")
        written = values[section][entry] if entry else values[section]
        names = {"class": written["class"]} if entry and "class" in written else {}
        names |= {"name": written.get("name", "supervised")} if section == "method" else {}
        into, key = (checked[section], entry) if entry else (checked, section)
        into[key] = {**names, **filled(place, made, written, GIVEN)}
    changes = {
        key: by
        for key in (flat(checked) if overrides else ())
        if any(f"{key}.".startswith(f"{each}." if "." in each else f"{each}.name.") for each in overrides or ())
    }
    config = Config(name, checked, (*_about_defaults(name, left_out), *_about_optimizer(raw, checked)), changes)
    for view in VIEWS:
        Augment(transforms(checked[view]), (1, 1), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), classes=2)
    register_student(config.student.name)
    if overrides and "train.epochs" in overrides and "schedule.warmup_epochs" not in overrides:
        config = _shorter_warmup(config, recipe_epochs or Train.epochs)
    config.schedule.warmup(config.train.epochs)
    return config


def _check_known(values: dict[str, Any], constructors: dict[str, type]) -> None:
    """Raises: UserError for a key that no constructor takes, with the valid ones."""
    valid = {"method.name"}
    for place, made in constructors.items():
        section, _, entry = place.partition(".")
        valid |= {place, *leaf_keys(place, made, GIVEN)}
        valid |= {f"{place}.class"} if section in NAMED and "class" in values[section][entry] else set()
    for key in leaves(values, valid):
        raise unknown("recipe key", key, valid - {key.rpartition(".")[0] for key in valid} - set(ORDER))


def _chosen_optimizer(values: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of the optimizer; where its name is `auto`, Muon for hybrids that learn classes, else AdamW.

    Other keywords stay; kernels take `KERNELS` times the rate unless they have their own.
    """
    others = {key: value for key, value in values["optim"].items() if key != "name"}
    if values["optim"].get("name") != AUTO:
        return dict(values["optim"])
    classes = values["method"].get("name", "supervised") == "supervised"
    if not (classes and is_hybrid_student(values["student"].get("name"))):
        return {**others, "name": "adamw"}
    chosen = {**MUON, **others}
    with suppress(TypeError, ValueError):  # what is no number is refused with everything else
        chosen.setdefault("kernel_lr", KERNELS * float(chosen["lr"]))
    return chosen


def _about_optimizer(raw: dict[str, Any], values: dict[str, Any]) -> tuple[str, ...]:
    """Return a warning where `auto` cannot know whether a student of the user's code is a hybrid."""
    name = values["student"]["name"]
    automatic = isinstance(raw.get("optim"), dict) and raw["optim"].get("name") == AUTO
    if not automatic or values["optim"]["name"] != "adamw" or "." not in name or timm.is_model(name.partition(".")[0]):
        return ()
    muon = {**MUON, "kernel_lr": KERNELS * MUON["lr"]}
    words = " ".join(
        f"--optim.{key} {value:g}" if key != "name" else f"--optim.name {value}" for key, value in muon.items()
    )
    return (f"student {name} is code from outside, so optim.name auto is adamw; for a hybrid: {words}",)


def _about_defaults(name: str, sections: list[str]) -> tuple[str, ...]:
    """Return a warning about sections that a user's file leaves out; shipped recipes do so on purpose."""
    if not sections or not name.endswith((".yaml", ".yml")):
        return ()
    return (
        f"{name} leaves out {', '.join(sections)}: every key there has its default (`viticulture train --help-all`), "
        "not the default recipe's value; `viticulture train DATA --print-config` prints a whole recipe to start from",
    )


def _shorter_warmup(config: Config, recipe_epochs: int) -> Config:
    """Return the config with a warm-up that ends before a training that is shorter than its recipe's, and a warning."""
    warmup, epochs = config.schedule.warmup_epochs, config.train.epochs
    if warmup is None or warmup < epochs:
        return config
    shorter = shortened_warmup(warmup, recipe_epochs, epochs)
    values = {**config.values, "schedule": {**config.values["schedule"], "warmup_epochs": shorter}}
    changes = {**config.changes, "schedule.warmup_epochs": "train.epochs"}
    warning = f"the warm-up takes {shorter:g} of {counted(epochs, 'epoch')}; the recipe's takes {warmup:g}"
    return replace(config, values=values, changes=changes, warnings=(*config.warnings, warning))


def register_student(name: str) -> None:
    """Import the module of a student MODULE.FUNCTION and register the function with timm, unless its decorator has.

    A name that timm has, with or without a tag, is left to `create_student`.

    Raises: UserError if it cannot be imported, is no function, or timm has another network of that name.
    """
    if "." not in name or timm.is_model(name.partition(".")[0]):
        return
    function, short = imported("student", name), name.rpartition(".")[2]
    if not inspect.isfunction(function):
        raise UserError(f"student {name} must be a function that timm can register, got {received(function)}")
    if function.__name__ != short:
        raise UserError(f"student {name} is called {function.__name__} where it is defined; name it so")
    registered = timm.model_entrypoint(short) if timm.is_model(short) else None
    if registered is not None and registered.__module__ != function.__module__:
        raise UserError(f"student {name}: timm has a network {short!r} already; give the function another name")
    if registered is not function:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a module that was imported anew
            register_model(function)
