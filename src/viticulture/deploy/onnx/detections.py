# SPDX-License-Identifier: Apache-2.0
"""A detector's answers to one image as a graph of fixed operations.

torchvision's own way from maps to boxes branches on how many boxes there are, which no exporter can follow. Here its
layers, coders and rules are the same, and what depends on the image is the length of tensors alone: boxes are chosen by
place, suppressed by one call over levels or classes that lie apart, and pooled level by level into their rows. A test
holds both together. Of places that are equally likely to hold an object the first ones are taken, in torch as in ONNX:
where nothing is to be seen a detector gives thousands the very same number, and torchvision's choice among them is its
sort's.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image, nms, remove_small_boxes, roi_align

from ...models.detection.detector import Detector

SMALLEST = 1e-2  # pixels that a detection keeps each way, as in torchvision
CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # a box of that side is pooled from the map of stride 2^4: FPN, Eq. (1)
NEXT = 1e-6  # keeps a side on its level where the logarithm falls just short, as in torchvision


class Detections(nn.Module):
    """[1, channels, H, W] normalized -> what `Detector` tells of it: boxes [n, 4], scores [n], labels [n] from 0 and,
    of a detector with masks, shares [n, 28, 28]; most certain first.

    Args:
        detector: in evaluation mode.
        side: H and W, pixels.
    """

    def __init__(self, detector: Detector, side: int) -> None:
        super().__init__()
        self.detector, self.size = detector, (side, side)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        maps = self.detector.maps(images)
        heads: Any = self.detector.roi_heads
        features = [maps[name] for name in heads.box_roi_pool.featmap_names if name in maps]
        proposals = self._proposals(images, list(maps.values()))
        pooled = self._pooled(features, proposals, heads.box_roi_pool)
        logits, deltas = heads.box_predictor(heads.box_head(pooled))
        boxes = heads.box_coder.decode(deltas, [proposals])  # [R, C + 1, 4]
        scores = logits.softmax(-1)
        boxes, scores, labels = self._chosen(boxes[:, 1:], scores[:, 1:])  # 0 is the background
        if heads.mask_predictor is None:
            return boxes, scores, labels
        masks = heads.mask_predictor(heads.mask_head(self._pooled(features, boxes, heads.mask_roi_pool)))
        of_label = labels[:, None, None, None].expand(-1, 1, *masks.shape[-2:])
        return boxes, scores, labels, masks[:, 1:].gather(1, of_label)[:, 0].sigmoid()

    def _proposals(self, images: Tensor, maps: list[Tensor]) -> Tensor:
        """Boxes [R, 4] that may hold an object."""
        rpn: Any = self.detector.rpn
        objectness, deltas = rpn.head(maps)
        counts = [level[0].numel() for level in objectness]  # anchors of a level
        anchors = rpn.anchor_generator(ImageList(images, [self.size]), maps)
        flat, moves = concat_box_prediction_layers(objectness, deltas)
        best = _best(flat[:, 0], counts, rpn.pre_nms_top_n())
        boxes = clip_boxes_to_image(rpn.box_coder.decode(moves, anchors)[:, 0][best], self.size)
        levels = torch.cat([torch.full((count,), level) for level, count in enumerate(counts)])[best]
        scores = flat[:, 0][best].sigmoid()
        solid = remove_small_boxes(boxes, rpn.min_size)
        boxes, scores, levels = boxes[solid], scores[solid], levels[solid]
        return boxes[self._apart(boxes, scores, levels, rpn.nms_thresh)[: rpn.post_nms_top_n()]]

    def _chosen(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is told of boxes [R, C, 4] with scores [R, C]."""
        heads: Any = self.detector.roi_heads
        boxes = clip_boxes_to_image(boxes, self.size)
        proposal, label = (scores > heads.score_thresh).nonzero(as_tuple=True)
        boxes, scores = boxes[proposal, label], scores[proposal, label]
        solid = remove_small_boxes(boxes, SMALLEST)
        boxes, scores, label = boxes[solid], scores[solid], label[solid]
        chosen = self._apart(boxes, scores, label, heads.nms_thresh)[: heads.detections_per_img]
        return boxes[chosen], scores[chosen], label[chosen]

    def _apart(self, boxes: Tensor, scores: Tensor, groups: Tensor, overlap: float) -> Tensor:
        """Which boxes stay where those of a group suppress each other, by falling score: groups are moved apart."""
        return nms(boxes + groups.to(boxes)[:, None] * (max(self.size) + 1), scores, overlap)

    def _pooled(self, maps: list[Tensor], boxes: Tensor, pool: Any) -> Tensor:
        """What each box [n, 4] shows of the map that suits its size, [n, channels, grid, grid]."""
        height, width = pool.output_size
        # Of an odd number of tokens the coarsest map holds half, rounded down: its stride is taken as torchvision does
        shortest = [2 ** round(math.log2(self.size[0] / features.shape[-2])) for features in maps]
        first, last = (stride.bit_length() - 1 for stride in (shortest[0], shortest[-1]))
        sides = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
        level = torch.floor(CANONICAL_LEVEL + torch.log2(sides / CANONICAL_SIDE) + NEXT).clamp(first, last)
        rois = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)
        out = boxes.new_zeros(boxes.shape[0], maps[0].shape[1], height, width)
        for number, (features, stride) in enumerate(zip(maps, shortest, strict=True)):
            (rows,) = (level == first + number).nonzero(as_tuple=True)
            part = roi_align(features, rois[rows], (height, width), 1 / stride, pool.sampling_ratio)
            out = out.index_put((rows,), part)
        return out


def _best(objectness: Tensor, counts: list[int], most: int) -> Tensor:
    """Numbers of the likeliest places of each level, by falling objectness; of equals the first.

    Args:
        objectness: of all levels, one after the other.
        counts: places of each level.
        most: taken of a level.
    """
    numbers, start = [], 0
    for level, count in zip(torch.split(objectness, counts), counts, strict=True):
        if torch.compiler.is_compiling():  # no exporter knows a stable sort, and ONNX's TopK takes the first of equals
            order = level.topk(min(most, count)).indices
        else:
            order = torch.sort(level, descending=True, stable=True).indices[: min(most, count)]
        numbers.append(start + order)
        start += count
    return torch.cat(numbers)
