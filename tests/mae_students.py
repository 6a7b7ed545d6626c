# SPDX-License-Identifier: Apache-2.0
"""A tiny encoder, MAE around it, and the authors' names for its weights."""

from typing import Any

import timm
import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from viticulture.methods.mae import MAE
from viticulture.methods.method import Setup
from viticulture.models.data_spec import DataSpec
from viticulture.models.vit.patches import check

HALF = (0.5, 0.5, 0.5)


def vit(image_size: Any = 32, patch: int = 8, **options: Any) -> VisionTransformer:
    """Create a tiny student, the golden one by default."""
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 0, **options}
    torch.manual_seed(0)
    return check(timm.create_model("mae_tiny", img_size=image_size, patch_size=patch, **sizes))


def method(student: nn.Module, side: int = 32, **options: Any) -> MAE:
    return MAE(Setup(student, DataSpec((), (side, side), HALF, HALF)), **options)


def ours(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Convert the authors' weights to our encoder's and decoder's."""
    renamed = {"mask_token": "mask_token", "decoder_pred": "predict"}
    decoder, encoder = {}, {}
    for key, value in state.items():
        first, _, rest = key.partition(".")
        if first == "decoder_pos_embed":
            continue
        if first in renamed or first.startswith("decoder_"):
            if first == "decoder_pred":
                patch = int((len(value) / 3) ** 0.5)
                value = value.unflatten(0, (patch, patch, 3)).movedim(2, 0).flatten(0, 2)
            decoder[".".join(filter(None, [renamed.get(first, first.removeprefix("decoder_")), rest]))] = value
        else:
            encoder[key] = value
    return encoder, decoder
