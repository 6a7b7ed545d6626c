# SPDX-License-Identifier: Apache-2.0
"""Build detectors and segmenters from their settings, and load them from a folder of weights.

A segmenter is a linear layer on the student's map, upsampled to the image: on ADE20K with a ViT-Tiny as good as a mask
transformer (Strudel et al., "Segmenter", ICCV 2021, arXiv:2105.05633, Table 3).

    logits = upsample(linear(map))        linear: a 1x1 convolution; several maps are normalized and concatenated first

Windows keep attention of large images affordable: a plain ViT's tokens attend to those of their window of w x w places
(the map's edge is padded with zeros), and those of some blocks to all, which connects the windows (ViTDet, Sec. 3).
Scores get relative positions as in MViTv2, arXiv:2112.01526, trained from zero: + q . R_h[down] + q . R_w[across]. The
layer is timm's of its ViT-SAM, with the weights of the layer that it replaces.

A folder of weights is one as of any student (weights/files.py); its config.json describes under `network` what is built
around the student: {"kind": "detection" or "segmentation", and the keywords of `detector` or `segmenter`}.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention
from timm.layers.norm import LayerNorm2d
from timm.models import VisionTransformer
from timm.models.vision_transformer_sam import Attention as MapAttention
from timm.models.vision_transformer_sam import window_partition, window_unpartition
from torch import Tensor, nn

from ...errors import UserError, unknown
from ..data_spec import DataSpec
from ..students import FROM_DATA, blueprint, create_student
from ..vit.attention import is_plain
from ..vit.patches import PatchGrid
from ..weights.checksum import FILES
from ..weights.files import parsed_config, read_config, read_weights
from ..weights.fill import filled
from .backbone import MapBackbone
from .detector import Detector, DetectorSizes

DEFAULT_SIZES = DetectorSizes()


class Segmenter(nn.Module):
    """[B, channels, H, W] -> logits [B, C, H, W] of every pixel.

    Args:
        backbone: returns one map or several, of one stride each.
        classes: C.
        dropout: probability of dropping a channel of the concatenated maps while training.
    """

    def __init__(self, backbone: MapBackbone, classes: int, dropout: float) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes
        self.norms = nn.ModuleList(LayerNorm2d(width) for width in backbone.widths)
        self.dropout = nn.Dropout2d(dropout)
        self.predict = nn.Conv2d(sum(backbone.widths), classes, 1)
        nn.init.trunc_normal_(self.predict.weight, std=0.02)
        assert self.predict.bias is not None
        nn.init.zeros_(self.predict.bias)

    def forward(self, images: Tensor) -> Tensor:
        maps = [norm(features) for norm, features in zip(self.norms, self.backbone(images), strict=True)]
        size = maps[0].shape[-2:]  # the finest comes first
        stacked = torch.cat([maps[0], *(_resized(features, size) for features in maps[1:])], dim=1)
        return _resized(self.predict(self.dropout(stacked)), images.shape[-2:])

    def no_weight_decay(self) -> set[str]:
        return self.backbone.no_weight_decay()


def detector(
    student: nn.Module,
    data_spec: DataSpec,
    *,
    heads: DetectorSizes = DEFAULT_SIZES,
    window: int = 0,
    global_blocks: Sequence[int] = (),
    relative_positions: bool = False,
) -> Detector:
    """Build a detector around a student.

    Args:
        student: without classes, weights loaded already; it becomes a part of the detector.
        window: side of the attention windows, tokens; 0 leaves attention global.
        global_blocks: numbers of the blocks whose attention stays global.

    Raises: UserError for a map that the pyramid cannot halve.
    """
    open_windows(student, window, global_blocks, relative_positions)
    backbone = MapBackbone(student, data_spec.image_size, channels=data_spec.channels)
    (height, width), (stride,) = data_spec.image_size, backbone.strides
    if min(height, width) < 2 * stride:  # the pyramid halves the map
        raise UserError(
            f"detection needs a map of at least 2x2 tokens, got images of {height}x{width} pixels and patches of "
            f"{stride}; set images.image_size or student.patch_size"
        )
    network = Detector(backbone, len(data_spec.classes), heads)
    vars(network)["blueprint"] = blueprint(student)
    return network


def segmenter(
    student: nn.Module, data_spec: DataSpec, *, blocks: Sequence[int] = (), dropout: float = 0.0
) -> Segmenter:
    """Build a segmenter around a student. `blocks`: numbers of the blocks whose maps are read; empty takes the last."""
    if not 0 <= dropout < 1:
        raise UserError(f"method.dropout must lie in [0, 1), got {dropout}")
    backbone = MapBackbone(student, data_spec.image_size, blocks, channels=data_spec.channels)
    network = Segmenter(backbone, len(data_spec.classes), dropout)
    vars(network)["blueprint"] = blueprint(student)
    return network


def load_network(folder: Path) -> tuple[Detector | Segmenter, DataSpec]:
    """Load the detector or segmenter in a folder of weights, in inference mode, with its data_spec.

    Raises: UserError if files are missing, damaged or do not belong together, or if it holds a classifier.
    """
    config = read_config(folder)
    data_spec, name, arguments = parsed_config(config, folder / FILES[1])
    described = config.get("network")
    if not isinstance(described, dict):
        raise UserError(f"{folder} holds a classifier, no detector or segmenter")
    options = {key: value for key, value in arguments.items() if key not in FROM_DATA}

    def make() -> tuple[Detector | Segmenter, DataSpec]:
        student = create_student(name, replace(data_spec, classes=()), arguments.get("patch_size"), options)
        return built(student, data_spec, described), data_spec

    try:
        network, _ = filled(make, read_weights(folder / FILES[0]))
    except (KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{folder} is damaged: its files do not fit together ({str(error).splitlines()[0]})") from error
    return network.eval(), data_spec


def built(student: nn.Module, data_spec: DataSpec, described: dict[str, Any]) -> Detector | Segmenter:
    """Build around a student what `network` in a config.json describes."""
    kinds: dict[str, Callable[..., Detector | Segmenter]] = {"detection": detector, "segmentation": segmenter}
    keywords = {key: value for key, value in described.items() if key != "kind"}
    if described["kind"] not in kinds:
        raise unknown("kind of network", described["kind"], kinds)
    if isinstance(keywords.get("heads"), dict):
        keywords["heads"] = DetectorSizes(**keywords["heads"])
    return kinds[described["kind"]](student, data_spec, **keywords)


class WindowAttention(MapAttention):
    """Attention over the places of a map, or of each of its windows. Shape: [B, P, D] -> [B, P, D].

    Args:
        layer: its parameters are used, not copied.
        grid: rows and columns of the P tokens.
        window: side of a window, tokens; 0 attends to all tokens.
        relative: train relative positions.
    """

    def __init__(self, layer: Attention, grid: PatchGrid, window: int, relative: bool) -> None:
        side = (window, window) if window else grid
        super().__init__(layer.qkv.in_features, layer.num_heads, use_rel_pos=relative, input_size=side)
        self.qkv, self.proj, self.q_norm, self.k_norm = layer.qkv, layer.proj, layer.q_norm, layer.k_norm
        self.attn_drop, self.proj_drop = layer.attn_drop, layer.proj_drop
        self.grid, self.window = grid, window

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        places = torch.unflatten(x, 1, self.grid)  # [B, rows, columns, D]
        if not self.window:
            return self._attend(places).flatten(1, 2)
        windows, padded = window_partition(places, self.window)
        return window_unpartition(self._attend(windows), self.window, self.grid, padded).flatten(1, 2)

    def _attend(self, places: Tensor) -> Tensor:
        return super().forward(places)  # type: ignore[no-untyped-call]


def open_windows(student: nn.Module, window: int, global_blocks: Sequence[int], relative: bool) -> None:
    """Give a plain ViT windowed attention, in place.

    Args:
        window: side of a window, tokens; 0 leaves all blocks global.
        global_blocks: numbers of the blocks that stay global.

    Raises: UserError for a student that has no such layers, or prefix tokens.
    """
    if not window and not relative:
        return
    vit: Any = student
    if type(student) is not VisionTransformer or not all(
        isinstance(block.attn, Attention) and is_plain(block.attn) for block in vit.blocks
    ):
        raise UserError(
            "method.window and method.relative_positions need a plain ViT, such as mae_tiny, "
            f"got a {type(student).__name__}"
        )
    if vit.num_prefix_tokens:
        raise UserError(
            "method.window and method.relative_positions need a ViT without class token; "
            "take student.options {class_token: false, global_pool: avg}"
        )
    if wrong := [number for number in global_blocks if not 0 <= number < len(vit.blocks)]:
        raise UserError(
            f"method.global_blocks must name blocks of the student, 0 to {len(vit.blocks) - 1}, got {wrong[0]}"
        )
    if window < 0 or window > max(vit.patch_embed.grid_size):
        rows, columns = vit.patch_embed.grid_size
        raise UserError(f"method.window must lie between 0 and the {rows}x{columns} tokens of an image, got {window}")
    for number, block in enumerate(vit.blocks):
        side = 0 if number in global_blocks else window
        block.attn = WindowAttention(block.attn, vit.patch_embed.grid_size, side, relative)


def _resized(maps: Tensor, size: torch.Size) -> Tensor:
    return maps if maps.shape[-2:] == size else F.interpolate(maps, size=tuple(size), mode="bilinear")
