# SPDX-License-Identifier: Apache-2.0
"""Open trained networks: runs, folders of weights, timm's names, files."""

from pathlib import Path
from typing import Any

import timm
import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from ...errors import UserError, unknown
from ...text import log
from ..data_spec import DataSpec
from ..weights.checkpoint_keys import encoder, own_names
from ..weights.files import fetch, find_weights, load, read_weights


def open_teacher(source: str) -> tuple[nn.Module, DataSpec]:
    """Load a trained network with the classes and input of its training; `source` as for `load_teacher`.

    A file contains no normalization: the assumed one is logged.
    """
    folder = find_weights(source)
    architecture, equals, file = source.partition("=")
    if folder is not None:
        net, spec, _ = load(folder)
        return net, spec
    if not equals:
        net = fetch(source)
        return net, _described(net)
    net = _from_file(architecture, Path(file))
    spec = _described(net) if timm.get_pretrained_cfg(architecture) else _assumed(net)
    log(
        f"{source}: a file does not contain the normalization of images; assumed are mean {_numbers(spec.mean)} and "
        f"deviation {_numbers(spec.std)}, as of {architecture}. For others name an architecture or tag that has them "
        "(vit_small_patch16_224.dino=FILE), or a folder whose config.json does"
    )
    return net, spec


def _numbers(of_channels: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in of_channels)


def _from_file(architecture: str, file: Path) -> nn.Module:
    """Build a timm architecture with the weights, and hence the number of classes, of a file."""
    if not timm.is_model(architecture):
        raise unknown("architecture of a teacher", architecture, timm.list_models())
    weights = encoder(read_weights(file))
    with torch.device("meta"):
        weights = own_names(timm.create_model(architecture), weights)
    described = timm.get_pretrained_cfg(architecture)  # None for students of ours
    heads = (described and described.classifier) or "head"
    scores = weights.get(f"{heads if isinstance(heads, str) else heads[0]}.weight")
    try:
        net = timm.create_model(architecture, num_classes=0 if scores is None else len(scores))
        net.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{file} does not fit {architecture}: {' '.join(str(error).split())[:200]}") from error
    return net


def _described(net: Any) -> DataSpec:
    """Return timm's description of a network's input and classes; classes without names are numbered."""
    described = net.pretrained_cfg
    names = described.get("label_names") or map(str, range(net.num_classes))
    height, width = described["input_size"][1:]
    return DataSpec(tuple(names), (height, width), tuple(described["mean"]), tuple(described["std"]))


def _assumed(net: Any) -> DataSpec:
    """The same for a student of ours, which timm does not describe: ImageNet's normalization, its image size."""
    size = net.patch_embed.img_size if hasattr(net, "patch_embed") else net.pretrained_cfg["input_size"][1:]
    classes = tuple(map(str, range(net.num_classes)))
    return DataSpec(classes, tuple(size), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
