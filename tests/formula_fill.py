# SPDX-License-Identifier: Apache-2.0
"""Weights and images by a formula (an integer hash of element and stream), which `full_*` figures depend on."""

from collections.abc import Iterable, Sequence
from math import prod, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IMAGE_STREAM = 9999


def hash_uniform(count: int, stream: int) -> NDArray[np.float32]:
    """Return `count` numbers in [-1, 1)."""
    bits = np.uint64(0xFFFFFFFF)
    u = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761)
    u = (u + np.uint64((stream + 1) * 2246822519 % 2**32)) & bits
    u ^= u >> np.uint64(15)
    u = (u * np.uint64(2246822519)) & bits
    u ^= u >> np.uint64(13)
    u = (u * np.uint64(3266489917)) & bits
    u ^= u >> np.uint64(16)
    return (u.astype(np.float64) / 2**31 - 1.0).astype(np.float32)


def value(name: str, shape: Sequence[int], stream: int) -> NDArray[np.float32]:
    """Return a tensor, scaled by its name and shape."""
    u = hash_uniform(prod(shape), stream).reshape(shape)
    if len(shape) >= 3 and shape[0] == 1:  # tokens, position tables, affine scales and shifts
        filled = 1 + 0.1 * u if name.endswith("alpha") else 0.1 * u
    elif len(shape) > 1:  # matrices and kernels, of variance 1 / fan-in
        filled = u * np.float32(sqrt(3.0 / (prod(shape) / shape[0])))
    elif name.endswith("running_var"):
        filled = 1 + 0.5 * u
    elif name.endswith("weight"):  # scales of norms
        filled = 1 + 0.1 * u
    else:  # biases and running means
        filled = 0.1 * u
    return filled.astype(np.float32)


def fill(state: Iterable[tuple[str, Sequence[int]]]) -> dict[str, Tensor]:
    """Return a state dict for names and shapes; the stream is a name's place among all names, sorted."""
    return {name: torch.from_numpy(value(name, shape, k)) for k, (name, shape) in enumerate(sorted(state))}


def image(shape: Sequence[int], stream: int = IMAGE_STREAM) -> Tensor:
    """Return numbers in [-1.5, 1.5)."""
    return torch.from_numpy((1.5 * hash_uniform(prod(shape), stream)).reshape(shape))
