# SPDX-License-Identifier: Apache-2.0
"""A recipe as one typed, frozen `Config`, checked once against the constructors that it configures; and the numbers of
a training that follow from it and how many images it has, its `Plan`.

Sections are the keywords of dataclasses (`student`, `data`, `images`, `optim`, `schedule`, `train`, `engine`) and of
classes chosen by name: `method: {name: supervised, ...}`, `guides: {logits: {...}}`, `augment: {flip: {...}}`. An entry
of guides or of an augmentation may have another name and set its `class`. A name is a short one of `schema`, or the
dotted path of the user's class: training by such a recipe imports its module (see `user_code`). Types, defaults and
help come from the signatures; jsonargparse writes the help, and never receives a value.
"""

import inspect
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

import timm
import torch
from timm.models import register_model

from ..data.batches.sampling import repeated
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
from .schema import GIVEN, LEARNING, SECTIONS, constructors_of, find_method, of_class, transforms
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


BATCHES, MUON_BATCHES = 40, 80
"""Batches in an epoch, at most twice as many, where a recipe leaves them open; evidence: benchmarks/log. With Muon
small batches train better: of 3,000 images 32 at once are worth two points over 64."""
FINE_TUNED = 32
"""Images per step at most where a recipe leaves them open and the classifier of a trained network is probed first: 224
pixels of 64 images take 8.5 GB."""


@dataclass(frozen=True)
class Plan:
    """Images per step, and steps of a training."""

    batch_size: int  # images per optimizer step, over all processes
    steps_per_epoch: int  # optimizer steps; an epoch's remainder is left out
    epochs: int  # passes over the training images


def plan_of(config: Config, images: int) -> Plan:
    """Return the plan of a training on this number of images. Raises: UserError, as `_batch_size`."""
    size = _batch_size(config, images)
    taken = len(repeated(torch.arange(images), config.train.repeats, config.engine.processes))
    return Plan(size, taken // size, config.train.epochs)


def _batch_size(config: Config, images: int) -> int:
    """Return the recipe's batch size, or a power of two from 16 to 512 (or `FINE_TUNED`), the largest that leaves an
    epoch `BATCHES`, cut to what processes and micro-batches can share. Where images are mixed, each of several
    processes has an even number: then every image's partner, half a batch away, is in the same process, as with one.

    Raises: UserError for a batch larger than an epoch, or one that cannot be shared.
    """
    train, processes = config.train, config.engine.processes
    epoch = len(repeated(torch.arange(images), train.repeats, 1))
    mixed = processes > 1 and any(of_class(config.values[view], "mix") for view in VIEWS)
    shares = lcm(train.accumulate, 2 if mixed else 1) * processes
    rule = f"a multiple of {shares}: train.accumulate is {train.accumulate}, there are {processes} process(es)"
    rule += ", and mixing pairs the images of each" if mixed else ""
    if shares > epoch:
        raise UserError(f"a batch must be {rule}, but an epoch has {epoch} training images; take fewer devices")
    if train.batch_size is None:
        batches = MUON_BATCHES if config.optim.name == "muon" else BATCHES
        size, most = 16, 512 if config.student.head is None else FINE_TUNED
        while size < most and 2 * size * batches <= images:
            size *= 2
        size = min(size, epoch)
        return max(size - size % shares, shares)
    if train.batch_size > epoch:
        raise UserError(
            f"train.batch_size must not exceed the {epoch} training images of an epoch, got {train.batch_size}; "
            "null (--batch-size null) has it chosen"
        )
    if train.batch_size % shares:
        raise UserError(f"train.batch_size must be {rule}; got {train.batch_size}")
    return train.batch_size
