# SPDX-License-Identifier: Apache-2.0
"""Build the network that a file describes only if it fits the weights in its folder."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeVar

import timm
import torch
from timm.models import load_model_config_from_hf
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...errors import UserError, shortened
from ..data_spec import DataSpec
from ..students import check_option
from .load_matching import State

TIMES = 10
"""Construction stops beyond so many times the expected number of tensors: networks may be built in several tries."""
MAX_HUB_TENSORS = 2_000
MAX_NUMBER = 1_000_000
"""In a config.json. Computations before the first block would take hours for a hundred million blocks."""
MAX_BUFFER_BYTES = 2**32  # of tables that a network computes; Swin's at 1024 pixels take a twentieth

_Net = TypeVar("_Net", bound=nn.Module)


@contextmanager
def at_most(tensors: int) -> Iterator[None]:
    """Stop a network's construction at far more parameters than this number of tensors. Raises: UserError."""
    count, most, thread = 0, TIMES * (tensors + 100), get_ident()

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        if parameter is not None and get_ident() == thread:
            count += 1
            if count > most:
                raise UserError(
                    f"its config.json describes a network of over {most:,} tensors, which the folder does not hold"
                )

    hook = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        hook.remove()


def check_numbers(described: Any) -> None:
    """Check every number in a part of a config.json. Raises: ValueError for one beyond any network's."""
    left = [described]
    while left:
        value = left.pop()
        if isinstance(value, dict | list | tuple):
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            raise ValueError(f"config.json describes a network by {shortened(str(value))}")


def check_pretrained(name: str) -> None:
    """Let timm build a network of the Hub and load its weights on the meta device, as in `filled`.

    Raises: RuntimeError where a name or a shape disagrees, UserError where it has far too many tensors or blocks,
        ValueError as `check_numbers`. Other errors are left to the real construction.
    """
    *described, arguments = load_model_config_from_hf(name.removeprefix("hf-hub:"))
    check_numbers([*described, arguments])
    for key, value in arguments.items():
        check_option(key, value)
    with warnings.catch_warnings(), at_most(MAX_HUB_TENSORS), torch.device("meta"):
        warnings.simplefilter("ignore")  # that weights are not copied to meta tensors
        try:
            timm.create_model(name, pretrained=True)
        except UserError:
            raise
        except RuntimeError as error:
            if "loading state_dict" in str(error):
                raise
        except Exception:
            return


def filled(make: Callable[[], tuple[_Net, DataSpec]], weights: State) -> tuple[_Net, DataSpec]:
    """Build a network and its data_spec, and load its weights.

    It is first built on torch's meta device, where its tensors take no memory, until every name and shape agrees: a few
    words of a config.json may describe a network of any size.

    Raises: RuntimeError where they do not agree, UserError where it has far more tensors, or takes far more memory.
    """
    with at_most(len(weights)), torch.device("meta"):
        empty, _ = make()
    empty.load_state_dict(weights, assign=True)
    if (size := sum(buffer.nbytes for buffer in empty.buffers())) > MAX_BUFFER_BYTES:
        raise UserError(f"its config.json describes a network that computes {size:,} bytes of tables; it is damaged")
    network, data_spec = make()
    network.load_state_dict(weights)
    return network, data_spec
