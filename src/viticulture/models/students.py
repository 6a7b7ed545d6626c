# SPDX-License-Identifier: Apache-2.0
"""Any timm classifier as a student, checked against the data before it is built.

Importing this file registers our own students with timm.
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models import build_model_with_cfg
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..errors import UserError, unknown
from .agent import registered as agents  # noqa: F401  (registers its students)
from .cit import cit, many_heads
from .data_spec import DataSpec
from .dhvt import registered as dhvt_models
from .vit import (
    botnet,
    cvt,  # noqa: F401  (registers its student)
    hybrid_vit,
    mae_vit,
    plain_vit,
)

FROM_DATA = {"num_classes", "img_size", "in_chans", "patch_size"}
"""Keywords that no option may set: the data_spec, or `patch_size` beside the options, decides them."""
HYBRIDS = frozenset({*hybrid_vit.SIZES, *botnet.SIZES})
"""Students that convolve down to few patches, and then attend between these."""
LIST = "viticulture models"
"""Lists students, and by a pattern timm's."""
DEEPEST = 1000
"""Blocks of the deepest student; building many more takes minutes before anybody hears of a slip."""
LARGEST = 10**10
"""Parameters of the largest one."""
TRIED: dict[tuple[Callable[..., Any], str], dict[str, Any]] = {}
"""timm's function of a student, what was asked of it -> the arguments that work; a trial costs more than building."""


def _factory_keywords() -> set[str]:
    """Keywords that timm's factories keep for themselves: where weights come from, what is wrapped around a model."""
    named = [inspect.signature(factory).parameters for factory in (timm.create_model, build_model_with_cfg)]
    return {name for parameters in named for name in parameters} | {"features_only", "out_indices", "pruned"}


@dataclass(frozen=True)
class Blueprint:
    """timm's name of a student's architecture and the arguments that build it without this package.

    Args:
        name: what `create_student` was asked for.
        architecture: the name for `timm.create_model`; it differs from `name` for our plain ViTs.
        arguments: keywords for `timm.create_model`, as JSON can hold them.
    """

    name: str
    architecture: str
    arguments: dict[str, Any]


def matching(pattern: str = "") -> list[str]:
    """Names of students: our own, or every timm classifier that matches a pattern such as `*tiny*`.

    Raises: UserError if none matches.
    """
    if not pattern:  # timm's own filter by module knows the last part of its name alone
        registered = f"{__package__}."
        return [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith(registered)]
    names: list[str] = timm.list_models(pattern)
    if not names:
        raise unknown("student", pattern, timm.list_models(), LIST)
    return names


def takes_patch_size(name: str) -> bool:
    """Whether a student leaves its patch size open, for the data to decide."""
    vits = (plain_vit.SIZES, plain_vit.SPARSE, mae_vit.SIZES, HYBRIDS)
    return any(name in family for family in (*vits, dhvt_models.OPEN, cit.SIZES, many_heads.OPEN))


def fitting_patch(name: str, image_size: tuple[int, int]) -> int | None:
    """The patch for a student that leaves it open, pixels; None where its name fixes one.

    The largest power of two that leaves at least 8 patches a side: images of 8 to 31 pixels get patches of 2, 32 to 63
    of 4, 64 to 127 of 8, larger ones 16. Hybrids, which convolve first, have larger ones (hybrid_vit.py).
    """
    if not takes_patch_size(name):
        return None
    if name in HYBRIDS:
        return hybrid_vit.fitting_patch(image_size)
    return next((patch for patch in (16, 8, 4) if min(image_size) >= 8 * patch), 2)


def create_student(
    name: str, data_spec: DataSpec, patch_size: int | None = None, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build a network for a data_spec, with random weights from torch's global generator.

    The combination is tried first on torch's meta device, which computes and draws nothing: a failure there is an
    error before any work is done. A student with a distillation token returns both heads' logits in training. Without
    classes a student has no head and returns its pooled features.

    Args:
        name: a timm classifier, ours included, without a pretrained tag; or MODULE.NAME for one that a module of a
            person's own has registered.
        data_spec: gives image size, channels and classes.
        patch_size: side of a patch, pixels; None keeps the student's own.
        options: further keywords of the student's class, such as drop_path_rate.

    Raises: UserError for an unknown name or option, or where image size, patch size and options do not fit.
    """
    spelling, name = name, _registered(name)
    if "." in name or not timm.is_model(name):
        base = name.partition(".")[0]
        if timm.is_model(base):
            raise UserError(
                f"a student starts from random weights and has no tag, got {name!r}; ask for {base!r}, init {name!r}"
            )
        raise unknown("student", name, timm.list_models(), LIST)
    options = dict(options or {})
    for key in options.keys() & (FROM_DATA | _factory_keywords()):
        raise UserError(
            f"options of a student must leave {key} alone, got {options[key]!r}; the data or the recipe decides it"
        )
    for key, value in options.items():
        check_option(key, value)
    arguments = {**options, "num_classes": len(data_spec.classes), "img_size": data_spec.image_size}
    if data_spec.channels != 3:  # timm's default
        arguments["in_chans"] = data_spec.channels
    if patch_size is not None:
        arguments["patch_size"] = patch_size
    trial = (timm.model_entrypoint(name), repr((arguments, data_spec.image_size, len(data_spec.classes))))
    if trial not in TRIED:
        TRIED[trial] = _tried(name, arguments, data_spec, options)
    arguments = dict(TRIED[trial])
    student = timm.create_model(name, **arguments)
    return_both_heads: Callable[[bool], None] | None = getattr(student, "set_distilled_training", None)
    if return_both_heads is not None:
        return_both_heads(True)
    plain = next((family for family in (plain_vit, mae_vit) if name in family.SIZES), None)
    made = (plain.ARCHITECTURE, plain.timm_arguments(name, arguments)) if plain else (name, arguments)
    vars(student)["blueprint"] = Blueprint(spelling, *made)
    return student


def _registered(name: str) -> str:
    """timm's name of a student; of MODULE.NAME, whose module must be there already: weights name it too, and they never
    lead to an import."""
    module, _, short = name.rpartition(".")
    if not module or timm.is_model(name.partition(".")[0]):
        return name
    if module not in sys.modules:
        raise UserError(
            f"student {name} is code of its author's, which weights alone do not load: import {module} first"
        )
    if not timm.is_model(short) or timm.model_entrypoint(short) is not getattr(sys.modules[module], short, None):
        raise UserError(f"student {name} is not registered with timm; decorate it with timm.models.register_model")
    return short


def blueprint(student: nn.Module) -> Blueprint:
    """How a student was made. Raises UserError for a network that `create_student` did not make."""
    made_by = vars(student).get("blueprint")
    if not isinstance(made_by, Blueprint):
        raise UserError(f"this {type(student).__name__} has no blueprint; make students with create_student")
    return made_by


def check_option(key: str, value: Any) -> None:
    """Raises: UserError for a number that a network takes, and then cannot train with or takes hours to build."""
    if key.endswith("_rate") and value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
        raise UserError(f"option {key} of a student must lie in [0, 1), got {value!r}")
    depths = value if isinstance(value, list | tuple) else [value]
    if "depth" in key and any(isinstance(depth, int) and depth > DEEPEST for depth in depths):
        raise UserError(f"option {key} of a student must be at most {DEEPEST}, got {value!r}")


def _tried(name: str, arguments: dict[str, Any], data_spec: DataSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that build a student for a DataSpec; img_size only where its class takes it.

    A TypeError is a person's only where it names one of their options, or where there is none without the options.
    """
    height, width = data_spec.image_size
    try:
        with torch.device("meta"), torch.no_grad():
            trial = timm.create_model(name, **arguments).eval()
            if (size := sum(weight.numel() for weight in trial.parameters())) > LARGEST:
                raise UserError(f"{name} with {options} would have {size:,} parameters, at most {LARGEST:,} are built")
            _check_patches(trial, data_spec)
            (logits, *_) = token_logits(trial(torch.zeros(1, data_spec.channels, height, width)))
    except UserError:
        raise
    except TypeError as error:
        match = re.search(r"(unexpected keyword|multiple values for).* argument '(\w+)'", str(error))
        key = match[2] if match and match[2] in arguments else ""
        if key == "in_chans":
            raise UserError(
                f"{name} takes three channels alone, and images.channels is {data_spec.channels}"
            ) from error
        if key == "img_size":  # convolutional networks
            return _tried(
                name, {key: value for key, value in arguments.items() if key != "img_size"}, data_spec, options
            )
        if key == "patch_size":
            raise UserError(
                f"{name} has no patches to size; leave patch_size out, got {arguments['patch_size']}"
            ) from error
        if match and key and match[1].startswith("multiple"):
            raise UserError(
                f"{name} decides {key} itself; leave it out of its options, got {options[key]!r}"
            ) from error
        if key:
            raise unknown(f"option of {name}", key, _keywords(name)) from error
        if not options:
            raise
        _tried(name, {key: value for key, value in arguments.items() if key not in options}, data_spec, {})
        raise UserError(f"{name} cannot be built with {options}: {str(error).splitlines()[0]}") from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{name} does not work on {height}x{width} images with {arguments}: {reason}") from error
    if data_spec.classes and logits.shape != (1, len(data_spec.classes)):
        raise UserError(
            f"a student must give one score a class, {name} gives {tuple(logits.shape)}; it is no classifier"
        )
    return arguments


def _check_patches(trial: nn.Module, data_spec: DataSpec) -> None:
    """Patches must tile the image; timm would cut off the rest."""
    patches = getattr(trial, "patch_embed", getattr(trial, "stem", None))  # a mixer's is its stem
    if isinstance(patches, PatchEmbed) and not patches.dynamic_img_pad:
        for side, patch in zip(data_spec.image_size, patches.patch_size, strict=True):
            if side % patch:
                near = sorted({max(side // patch, 1) * patch, (side // patch + 1) * patch})
                raise UserError(
                    f"the image size must be a multiple of the patch size, got {side} and {patch} pixels; "
                    f"take images of {' or '.join(map(str, near))}, or another patch size"
                )


def _keywords(name: str) -> set[str]:
    """Options of a student: the constructor's keywords, its base classes' where it hands keywords on."""
    with torch.device("meta"):
        cls = type(timm.create_model(name))
    keywords = set(inspect.signature(plain_vit.build).parameters) if name in plain_vit.SIZES else set()
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        parameters = inspect.signature(constructor).parameters if constructor else {}
        keywords |= parameters.keys()
        if constructor and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    decided = {"attn_layer"} if name in plain_vit.SIZES else set()  # by `build`
    return keywords - decided - FROM_DATA - {"self", "args", "kwargs", "options", "name", "device", "dtype"}


def token_logits(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A student's output as one [B, C] per token head, class token first."""
    return (output,) if isinstance(output, Tensor) else tuple(output)


def feature_width(student: nn.Module, image_size: tuple[int, int], channels: int) -> int:
    """Length of a student's first output, such as the pooled features of one without classes; it is left as it is."""
    copied = copy.deepcopy(student).to("meta").eval()
    with torch.no_grad():
        (features, *_) = token_logits(copied(torch.zeros(1, channels, *image_size, device="meta")))
    return features.shape[1]


def count(student: nn.Module, image_size: tuple[int, int], channels: int = 3) -> tuple[int, int]:
    """Parameters, and multiply-accumulates of one forward pass over one image.

    Counted are convolutions and matrix products, those of attention included (torch's FLOP counter / 2); papers
    call these FLOPs. Norms, activations and element-wise products are not counted.

    Args:
        student: left as it is.
        image_size: height and width, pixels.
        channels: of the image.
    """
    copied = copy.deepcopy(student).to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copied(torch.zeros(1, channels, *image_size, device="meta"))
    return sum(parameter.numel() for parameter in student.parameters()), counter.get_total_flops() // 2
