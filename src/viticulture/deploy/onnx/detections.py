# SPDX-License-Identifier: Apache-2.0
"""A detector's predictions for one image as a graph of fixed operations.

torchvision's code from maps to boxes branches on the number of boxes, which no exporter can follow. Here its layers,
coders and rules are the same, and only the length of tensors depends on the image: boxes are selected by index,
suppressed by one call over levels or classes that are moved apart, and pooled level by level into their rows. A test
compares both. Of anchors with equal objectness the first ones are taken, in torch as in ONNX: on an empty image a
detector scores thousands of them equally, and torchvision's choice depends on its sort.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import clip_boxes_to_image, nms, remove_small_boxes, roi_align

from ...models.detection.detector import Detector

MIN_SIDE = 1e-2  # pixels, of a detection, as in torchvision
CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # a box of that side is pooled from the map of stride 2^4: FPN, Eq. (1)
EPSILON = 1e-6  # keeps a side on its level if rounding lowers the logarithm, as in torchvision


class Detections(nn.Module):
    """[1, channels, H, W] normalized -> boxes [n, 4], scores [n], labels [n] from 0 and, of a detector with masks,
    shares [n, 28, 28], as `Detector` predicts them; the highest scores first.
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
        return boxes, scores, labels, masks[:, -self.detector.classes :].gather(1, of_label)[:, 0].sigmoid()

    def _proposals(self, images: Tensor, maps: list[Tensor]) -> Tensor:
        """Return boxes [R, 4] that may hold an object."""
        rpn: Any = self.detector.rpn
        objectness, deltas = rpn.head(maps)
        counts = [level[0].numel() for level in objectness]  # anchors of a level
        anchors = rpn.anchor_generator(ImageList(images, [self.size]), maps)
        flat, moves = concat_box_prediction_layers(objectness, deltas)
        best = _top(flat[:, 0], counts, rpn.pre_nms_top_n())
        boxes = clip_boxes_to_image(rpn.box_coder.decode(moves, anchors)[:, 0][best], self.size)
        levels = torch.cat([torch.full((count,), level) for level, count in enumerate(counts)])[best]
        scores = flat[:, 0][best].sigmoid()
        solid = remove_small_boxes(boxes, rpn.min_size)
        boxes, scores, levels = boxes[solid], scores[solid], levels[solid]
        return boxes[self._suppressed(boxes, scores, levels, rpn.nms_thresh)[: rpn.post_nms_top_n()]]

    def _chosen(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Select predictions from boxes [R, C, 4] with scores [R, C]."""
        heads: Any = self.detector.roi_heads
        boxes = clip_boxes_to_image(boxes, self.size)
        proposal, label = (scores > heads.score_thresh).nonzero(as_tuple=True)
        boxes, scores = boxes[proposal, label], scores[proposal, label]
        solid = remove_small_boxes(boxes, MIN_SIDE)
        boxes, scores, label = boxes[solid], scores[solid], label[solid]
        chosen = self._suppressed(boxes, scores, label, heads.nms_thresh)[: heads.detections_per_img]
        return boxes[chosen], scores[chosen], label[chosen]

    def _suppressed(self, boxes: Tensor, scores: Tensor, groups: Tensor, overlap: float) -> Tensor:
        """Return the boxes that remain after suppression within groups, by falling score: groups are moved apart."""
        return nms(boxes + groups.to(boxes)[:, None] * (max(self.size) + 1), scores, overlap)

    def _pooled(self, maps: list[Tensor], boxes: Tensor, pool: Any) -> Tensor:
        """Pool each box [n, 4] from the map for its size, [n, channels, grid, grid]."""
        height, width = pool.output_size
        # Half an odd number of tokens is rounded down on the coarsest map: its stride is that of torchvision
        strides = [2 ** round(math.log2(self.size[0] / features.shape[-2])) for features in maps]
        first, last = (stride.bit_length() - 1 for stride in (strides[0], strides[-1]))
        sides = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
        level = torch.floor(CANONICAL_LEVEL + torch.log2(sides / CANONICAL_SIDE) + EPSILON).clamp(first, last)
        rois = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)
        out = boxes.new_zeros(boxes.shape[0], maps[0].shape[1], height, width)
        for number, (features, stride) in enumerate(zip(maps, strides, strict=True)):
            (rows,) = (level == first + number).nonzero(as_tuple=True)
            aligned = getattr(pool, "aligned", False)
            part = roi_align(features, rois[rows], (height, width), 1 / stride, pool.sampling_ratio, aligned)
            out = out.index_put((rows,), part)
        return out


def _top(objectness: Tensor, counts: list[int], limit: int) -> Tensor:
    """Return the anchors of each level with the highest objectness, in falling order; of equals the first."""
    numbers, start = [], 0
    for level, count in zip(torch.split(objectness, counts), counts, strict=True):
        if torch.compiler.is_compiling():  # exporters have no stable sort, and ONNX's TopK takes the first of equals
            order = level.topk(min(limit, count)).indices
        else:
            order = torch.sort(level, descending=True, stable=True).indices[: min(limit, count)]
        numbers.append(start + order)
        start += count
    return torch.cat(numbers)
