# SPDX-License-Identifier: Apache-2.0
"""Boxes, and optionally masks, of the objects in an image: torchvision's Mask R-CNN around a student.

    student -> one map -> simple feature pyramid -> proposals (2 convolutions) -> box head (4 convolutions, 1 linear)
                                                                               -> mask head (4 convolutions)

Convolutions of the heads are followed by LayerNorm, as in ViTDet, "Exploring Plain Vision Transformer Backbones for
Object Detection", Li et al., ECCV 2022, arXiv:2203.16527, whose SimpleFeaturePyramid makes of the one map:

    scale 4     transposed convolution 2x2, LayerNorm, GELU, transposed convolution 2x2, which each halve the width
    scale 2     transposed convolution 2x2
    scale 1     the map
    scale 1/2   max pooling 2x2
    each        convolution 1x1, LayerNorm, convolution 3x3, LayerNorm; over the channels of each place
    last        the coarsest level, every second place

Images arrive as one batch of one size, padded at the right and the bottom; nothing is resized or normalized here.

Another detector is a module with the interface of `Detector`: `losses(images, targets)`, a dictionary of scalars, and
in evaluation mode `forward(images)`, one dictionary an image of `boxes` [n, 4] in pixels of the batch, `scores` [n],
`labels` [n] from 0 and, where it has masks, `masks` [n, 28, 28], shares of each box; images are normalized.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNN, MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead

from ...errors import UserError
from .backbone import MapBackbone
from .detectron2 import build_heads

SCALES = (4.0, 2.0, 1.0, 0.5)


class SimpleFeaturePyramid(nn.Module):
    """[B, D, h, w] -> "0" to "3", [B, width, s h, s w] for scales s, finest first, and "pool", half as large as "3".
    `dim`: D, a multiple of 4. `width`: channels of every level.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        for scale in SCALES:
            channels = {4.0: dim // 4, 2.0: dim // 2}.get(scale, dim)
            self.levels.append(
                nn.Sequential(
                    *_resize(dim, scale),
                    nn.Conv2d(channels, width, 1, bias=False),
                    LayerNorm2d(width),
                    nn.Conv2d(width, width, 3, padding=1, bias=False),
                    LayerNorm2d(width),
                )
            )

    def forward(self, features: Tensor) -> "OrderedDict[str, Tensor]":
        maps = OrderedDict((str(number), level(features)) for number, level in enumerate(self.levels))
        maps["pool"] = F.max_pool2d(maps[str(len(SCALES) - 1)], kernel_size=1, stride=2)
        return maps


def _resize(dim: int, scale: float) -> list[nn.Module]:
    if scale == 4:
        wide = nn.ConvTranspose2d(dim, dim // 2, 2, 2)
        return [wide, LayerNorm2d(dim // 2), nn.GELU(), nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)]
    if scale == 2:
        return [nn.ConvTranspose2d(dim, dim // 2, 2, 2)]
    return [nn.MaxPool2d(2, 2)] if scale == 0.5 else []


Target = dict[str, Tensor]
"""Objects of an image: boxes [n, 4] left, top, right, bottom in pixels, labels [n] int64 from 0, and masks [n, H, W]
uint8 where masks are trained."""

ANCHOR = 8  # side of an anchor, in strides of its level
RATIOS = (0.5, 1.0, 2.0)
BOX_GRID, MASK_GRID = 7, 14
FC = 4  # width of the box head's linear layer over that of the pyramid


@dataclass(frozen=True)
class DetectorSizes:
    """Sizes of the layers after the backbone.

    Args:
        width: channels of the pyramid and of the heads' convolutions; the box head's linear layer has four times that.
        masks: predict masks as well.
        samples: proposals of an image in the heads' losses; up to four times as many are considered.
        min_score: detections with lower scores are left out, in [0, 1).
        max_detections: of an image.
        heads: torchvision, or detectron2 (detectron2.py).
    """

    width: int = 256
    masks: bool = False
    samples: int = 512
    min_score: float = 0.05
    max_detections: int = 100
    heads: Literal["torchvision", "detectron2"] = "torchvision"

    def __post_init__(self) -> None:
        if self.width < 8:
            raise UserError(f"method.width must be at least 8, got {self.width}")
        if self.samples < 1:
            raise UserError(f"method.samples must be at least 1, got {self.samples}")
        if not 0 <= self.min_score < 1:
            raise UserError(f"min_score must lie in [0, 1), got {self.min_score}")
        if self.heads not in ("torchvision", "detectron2"):
            raise UserError(f"method.heads must be torchvision or detectron2, got {self.heads!r}")
        if self.max_detections < 1:
            raise UserError(f"max_detections must be at least 1, got {self.max_detections}")


class Detector(nn.Module):
    """A backbone with the heads of Mask R-CNN, or of Faster R-CNN without masks.

    Args:
        backbone: returns one map, whose stride is a power of two of at least 4 pixels.
        sizes: of the heads.
    """

    def __init__(self, backbone: MapBackbone, classes: int, sizes: DetectorSizes) -> None:
        super().__init__()
        (stride,), (dim,), width = backbone.strides, backbone.widths, sizes.width
        if stride < 4 or stride & (stride - 1):
            raise UserError(f"detection needs patches of 4, 8, 16 or 32 pixels, got {stride}; set student.patch_size")
        if dim % 4:
            raise UserError(f"detection needs a student whose width is a multiple of 4, got {dim}")
        self.backbone, self.pyramid, self.classes = backbone, SimpleFeaturePyramid(dim, width), classes
        sides = tuple((ANCHOR * stride * 2**level // 4,) for level in range(5))
        anchors = AnchorGenerator(sides, (RATIOS,) * len(sides))
        fc = FC * width
        rpn_head = RPNHead(width, len(RATIOS), conv_depth=2)
        box_head = FastRCNNConvFCHead((width, BOX_GRID, BOX_GRID), [width] * 4, [fc], LayerNorm2d)
        box_predictor = FastRCNNPredictor(fc, classes + 1)
        if sizes.heads == "detectron2":
            mask = (
                MASK_GRID,
                MaskRCNNHeads(width, [width] * 4, 1, LayerNorm2d),
                MaskRCNNPredictor(width, width, classes),
            )
            self.rpn, self.roi_heads = build_heads(
                anchors, rpn_head, (BOX_GRID, box_head, box_predictor),
                mask if sizes.masks else None, sizes.samples, sizes.min_score, sizes.max_detections,
            )  # fmt: skip
            return
        parts: dict[str, Any] = {
            "rpn_anchor_generator": anchors,
            "rpn_head": rpn_head,
            "box_head": box_head,
            "box_predictor": box_predictor,
            "box_batch_size_per_image": sizes.samples,
            "rpn_post_nms_top_n_train": min(4 * sizes.samples, 2000),
            "rpn_post_nms_top_n_test": min(2 * sizes.samples, 1000),
            "box_score_thresh": sizes.min_score,
            "box_detections_per_img": sizes.max_detections,
        }
        body = _Width(width)
        if sizes.masks:
            # Both predictors are passed: torchvision's assume 256 channels, and `num_classes` must then be left out
            parts["mask_head"] = MaskRCNNHeads(width, [width] * 4, 1, LayerNorm2d)
            parts["mask_predictor"] = MaskRCNNPredictor(width, width, classes + 1)
            whole = MaskRCNN(body, **parts)
        else:
            whole = FasterRCNN(body, **parts)
        self.rpn, self.roi_heads = whole.rpn, whole.roi_heads

    def maps(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        """Levels of the pyramid, [B, width, h, w] each, finest first."""
        (features,) = self.backbone(images)
        return self.pyramid(features)

    def losses(self, images: Tensor, targets: list[Target]) -> dict[str, Tensor]:
        """torchvision's terms: objectness and box of proposals, class and box of objects, mask; means, no weights.
        `images`: [B, channels, H, W], normalized. `targets`: one an image; an image without objects has boxes [0, 4].
        """
        theirs = [{**target, "labels": target["labels"] + 1} for target in targets]  # 0 is the background
        listed, maps = _listed(images), self.maps(images)
        proposals, first = self.rpn(listed, maps, theirs)
        _, second = self.roi_heads(maps, proposals, listed.image_sizes, theirs)
        terms: dict[str, Tensor] = {**first, **second}
        return {name.removeprefix("loss_"): term for name, term in terms.items()}

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Return each image's detections, highest score first, in the format of this file's docstring."""
        listed, maps = _listed(images), self.maps(images)
        proposals, _ = self.rpn(listed, maps)
        results: list[dict[str, Tensor]]
        results, _ = self.roi_heads(maps, proposals, listed.image_sizes)
        for result in results:
            result["labels"] = result["labels"] - 1
            if "masks" in result:
                result["masks"] = result["masks"][:, 0]  # [n, 28, 28]
        return results

    def no_weight_decay(self) -> set[str]:
        return self.backbone.no_weight_decay()


class _Width(nn.Identity):
    """Placeholder for torchvision's backbone, of which it reads this attribute alone."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels


def _listed(images: Tensor) -> ImageList:
    """The whole canvas is the image: poolers derive the maps' scales from it, and padding is trained as background."""
    height, width = images.shape[-2:]
    return ImageList(images, [(height, width)] * len(images))
