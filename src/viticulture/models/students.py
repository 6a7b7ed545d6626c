# SPDX-License-Identifier: Apache-2.0
"""Any timm classifier as a student, checked against the data before it is built.

Importing this file registers our students with timm.
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import timm
import torch
from timm.layers.patch_embed import PatchEmbed
from timm.models import build_model_with_cfg
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ..errors import UserError, unknown
from .data_spec import DataSpec
from .heads import token_logits
from .registering import student_info

for folder in ("agent", "cit", "dhvt", "vit"):
    for file in iter_modules([str(Path(__file__).parent / folder)]):
        import_module(f"{__package__}.{folder}.{file.name}")

FROM_DATA = {"num_classes", "img_size", "in_chans", "patch_size"}
"""Keywords that no option may set: the data or the recipe decides them."""
LIST_COMMAND = "viticulture models"
MAX_DEPTH = 1000  # blocks; building many more takes minutes before a mistake is reported
MAX_PARAMETERS = 10**10
CHECKED: dict[tuple[Callable[..., Any], str], dict[str, Any]] = {}
"""timm's function of a student and the requested arguments -> the working ones; a check costs more than building."""


def _factory_keywords() -> set[str]:
    """Return the keywords that timm's factories take themselves, such as where weights come from."""
    signatures = [inspect.signature(factory).parameters for factory in (timm.create_model, build_model_with_cfg)]
    return {name for parameters in signatures for name in parameters} | {"features_only", "out_indices", "pruned"}


@dataclass(frozen=True)
class Blueprint:
    """timm's name of a student's architecture and the arguments that build it without this package."""

    name: str  # as requested from `create_student`
    architecture: str  # the name for `timm.create_model`; it differs from `name` for our plain ViTs
    arguments: dict[str, Any]  # keywords for `timm.create_model`, as JSON can hold them


def matching(pattern: str = "") -> list[str]:
    """Return the names of our students, or of every timm classifier that matches a pattern such as `*tiny*`.

    Raises: UserError if none matches.
    """
    if not pattern:  # timm's filter by module compares the last part of its name alone
        registered = f"{__package__}."
        return [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith(registered)]
    names: list[str] = timm.list_models(pattern)
    if not names:
        raise unknown("student", pattern, timm.list_models(), LIST_COMMAND)
    return names


def takes_patch_size(name: str) -> bool:
    """Return whether a student leaves its patch size to the data."""
    info = student_info(name)
    return info is not None and info.fitting_patch is not None


def is_hybrid_student(name: Any) -> bool:
    """Return whether a student of ours shrinks the image to few patches by convolutions."""
    info = student_info(name) if isinstance(name, str) else None
    return info is not None and info.hybrid


def fitting_patch(name: str, image_size: tuple[int, int]) -> int | None:
    """Return the patch size in pixels for a student that leaves it to the data; None where its name fixes one.

    Plain ViTs: images of 8 to 31 pixels get patches of 2, 32 to 63 of 4, 64 to 127 of 8, larger ones 16. Hybrids have
    larger ones (hybrid_vit.py).
    """
    info = student_info(name)
    return info.fitting_patch(image_size) if info and info.fitting_patch else None


def check_student(name: str) -> str:
    """Return a student's name without its module. Raises: UserError for an unknown name, or one with a tag."""
    name = registered_name(name)
    if "." in name or not timm.is_model(name):
        base = name.partition(".")[0]
        if timm.is_model(base):
            raise UserError(
                f"a student starts from random weights and has no tag, got {name!r}; set the student to {base!r} and "
                f"init to {name!r}"
            )
        raise unknown("student", name, timm.list_models(), LIST_COMMAND)
    return name


def create_student(
    name: str, data_spec: DataSpec, patch_size: int | None = None, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build a network for a data set, with random weights from torch's global generator.

    The combination is first built on torch's meta device, which computes and draws nothing: what fails there is an
    error before any work is done. A student with a distillation token returns both heads' logits in training. Without
    classes a student has no head and returns its pooled features.

    Args:
        name: a timm classifier, ours included, without a pretrained tag; or MODULE.NAME for one that a module outside
            the package has registered.
        patch_size: side of a patch, pixels; None leaves the student's default.
        options: further keywords of the student's class, such as drop_path_rate.

    Raises: UserError for an unknown name or option, or where image size, patch size and options do not fit.
    """
    full_name, name = name, check_student(name)
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
    request = (timm.model_entrypoint(name), repr((arguments, data_spec.image_size, len(data_spec.classes))))
    if request not in CHECKED:
        CHECKED[request] = _checked(name, arguments, data_spec, options)
    arguments = dict(CHECKED[request])
    student = timm.create_model(name, **arguments)
    return_both_heads: Callable[[bool], None] | None = getattr(student, "set_distilled_training", None)
    if return_both_heads is not None:
        return_both_heads(True)
    info = student_info(name)
    timm_form = info.timm_form(name, arguments) if info and info.timm_form else (name, arguments)
    vars(student)["blueprint"] = Blueprint(full_name, *timm_form)
    return student


def registered_name(name: str) -> str:
    """Return timm's name of a student; of MODULE.NAME, whose module must be imported already: weights contain the name
    as well, and loading weights must never import code."""
    module, _, short = name.rpartition(".")
    if not module or timm.is_model(name.partition(".")[0]):
        return name
    if module not in sys.modules:
        raise UserError(
            f"student {name} is code from outside, which loading weights does not import: import {module} first"
        )
    if not timm.is_model(short) or timm.model_entrypoint(short) is not getattr(sys.modules[module], short, None):
        raise UserError(f"student {name} is not registered with timm; decorate it with timm.models.register_model")
    return short


def blueprint(student: nn.Module) -> Blueprint:
    """Return how a student was built. Raises: UserError for a network that `create_student` did not build."""
    built_by = vars(student).get("blueprint")
    if not isinstance(built_by, Blueprint):
        raise UserError(f"this {type(student).__name__} has no blueprint; make students with create_student")
    return built_by


def check_option(key: str, value: Any) -> None:
    """Raises: UserError for a number that a network accepts, but cannot train with or takes hours to build."""
    if key.endswith("_rate") and value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
        raise UserError(f"option {key} of a student must lie in [0, 1), got {value!r}")
    depths = value if isinstance(value, list | tuple) else [value]
    if "depth" in key and any(isinstance(depth, int) and depth > MAX_DEPTH for depth in depths):
        raise UserError(f"option {key} of a student must be at most {MAX_DEPTH}, got {value!r}")


def _checked(name: str, arguments: dict[str, Any], data_spec: DataSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that build a student, without img_size where its class takes none.

    A TypeError is reported as the user's where it names one of the options, or where none is raised without them.
    """
    height, width = data_spec.image_size
    try:
        with torch.device("meta"), torch.no_grad():
            student = timm.create_model(name, **arguments).eval()
            if (size := sum(weight.numel() for weight in student.parameters())) > MAX_PARAMETERS:
                raise UserError(
                    f"{name} with {options} would have {size:,} parameters, at most {MAX_PARAMETERS:,} are built"
                )
            _check_patches(student, data_spec)
            (logits, *_) = token_logits(student(torch.zeros(1, data_spec.channels, height, width)))
    except UserError:
        raise
    except TypeError as error:
        match = re.search(r"(unexpected keyword|multiple values for).* argument '(\w+)'", str(error))
        key = match[2] if match and match[2] in arguments else ""
        if key == "img_size":  # convolutional networks
            without = {key: value for key, value in arguments.items() if key != "img_size"}
            return _checked(name, without, data_spec, options)
        if key == "in_chans":
            reason = f"{name} takes three channels alone, and images.channels is {data_spec.channels}"
        elif key == "patch_size":
            reason = f"{name} has no patches to size; leave patch_size out, got {arguments['patch_size']}"
        elif match and key and match[1].startswith("multiple"):
            reason = f"{name} decides {key} itself; leave it out of its options, got {options[key]!r}"
        elif key:
            raise unknown(f"option of {name}", key, _keywords(name)) from error
        elif not options:
            raise
        else:
            _checked(name, {key: value for key, value in arguments.items() if key not in options}, data_spec, {})
            reason = f"{name} cannot be built with {options}: {str(error).splitlines()[0]}"
        raise UserError(reason) from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{name} does not work on {height}x{width} images with {arguments}: {reason}") from error
    if data_spec.classes and logits.shape != (1, len(data_spec.classes)):
        raise UserError(
            f"a student must give one score a class, {name} gives {tuple(logits.shape)}; it is no classifier"
        )
    return arguments


def _check_patches(student: nn.Module, data_spec: DataSpec) -> None:
    """Raises: UserError where patches do not tile the image; timm would cut off the rest."""
    patches = getattr(student, "patch_embed", getattr(student, "stem", None))  # a mixer's is its stem
    if isinstance(patches, PatchEmbed) and not patches.dynamic_img_pad:
        for side, patch in zip(data_spec.image_size, patches.patch_size, strict=True):
            if side % patch:
                near = sorted({max(side // patch, 1) * patch, (side // patch + 1) * patch})
                raise UserError(
                    f"the image size must be a multiple of the patch size, got {side} and {patch} pixels; "
                    f"take images of {' or '.join(map(str, near))}, or another patch size"
                )


def _keywords(name: str) -> set[str]:
    """Return a student's options: keywords of its function and its constructor, and where the latter passes keywords
    on, those of its base classes."""
    with torch.device("meta"):
        cls = type(timm.create_model(name))
    info = student_info(name)
    keywords = set(inspect.signature(info.create).parameters) if info and info.create else set()
    for base in cls.__mro__:
        constructor = vars(base).get("__init__")
        parameters = inspect.signature(constructor).parameters if constructor else {}
        keywords |= parameters.keys()
        if constructor and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    no_options = {"self", "args", "arguments", "kwargs", "options", "settings", "name", "variant", "device", "dtype"}
    fixed = {"attn_layer"} if info and info.timm_form else set()  # decided by its function
    return keywords - FROM_DATA - _factory_keywords() - no_options - fixed


def count(student: nn.Module, image_size: tuple[int, int], channels: int = 3) -> tuple[int, int]:
    """Count the parameters, and the MACs (multiply-accumulates) of one forward pass over one image.

    Counted are convolutions and matrix products, those of attention included (torch's FLOP counter / 2); papers
    call these FLOPs. Norms, activations and element-wise products are not counted. The student is not changed.
    """
    copied = copy.deepcopy(student).to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        copied(torch.zeros(1, channels, *image_size, device="meta"))
    return sum(parameter.numel() for parameter in student.parameters()), counter.get_total_flops() // 2
