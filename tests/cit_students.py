# SPDX-License-Identifier: Apache-2.0
"""The authors' aligned student with their weights."""

from collections.abc import Callable

from conftest import Golden
from viticulture.models.cit import rednet
from viticulture.models.cit.cit import CiT, checkpoint_filter_fn

Load = Callable[[str], Golden]


def aligned(golden: Load) -> tuple[CiT, Golden]:
    """Create the authors' student with narrow stems and their weights."""
    data = golden("cit_tiny")
    sizes = {key: data.about["config"][key] for key in ("embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes")}
    model = CiT(stems=("conv", "inv"), stem_width=8, img_size=64, patch_size=16, inference="mean", **sizes)
    model.patch_embed.stems["inv"].body = rednet.stem((16, 8))
    model.load_state_dict(checkpoint_filter_fn({"model": data.part("w/")}, model))
    return model, data
