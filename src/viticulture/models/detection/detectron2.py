# SPDX-License-Identifier: Apache-2.0
"""Proposals, heads and losses as in ViTDet's code, in place of torchvision's (detector.py). Recipe: detection/coco.

    proposals     1,000 an image in training, too; anchors with the sides that their ratios give, not rounded
    pooling       RoIAlign between the centers of pixels, with as many samples as a bin has pixels
    boxes         mean absolute error of the four deltas, summed over them
    masks         one output a class, none for the background; targets cut out in the same way, then 0 or 1
    start         classes N(0, 0.01^2), boxes and masks N(0, 0.001^2), the linear layer uniform by its inputs, biases 0

Deltas: detectron2 draws no box for the background; here its four outputs exist and are not used.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_inference
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import MultiScaleRoIAlign, roi_align

LEVELS = ("0", "1", "2", "3")
CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # a box of this side is pooled from the map of stride 2^4
PROPOSALS = 1000
BEFORE_SUPPRESSION = {"training": 2000, "testing": 1000}


class AlignedPool(MultiScaleRoIAlign):  # type: ignore[misc]
    """Pools each box from the level for its size, aligned to the centers of pixels, sampled adaptively."""

    aligned = True

    def __init__(self, grid: int) -> None:
        super().__init__(list(LEVELS), grid, 0)

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:
        rois = torch.cat([torch.cat([b.new_full((len(b), 1), i), b], 1) for i, b in enumerate(boxes)])  # [n, 5]
        sides = ((rois[:, 3] - rois[:, 1]) * (rois[:, 4] - rois[:, 2])).sqrt()
        wanted = torch.floor(CANONICAL_LEVEL + torch.log2(sides / CANONICAL_SIDE + 1e-8))
        # Half an odd number of tokens is rounded down on the coarsest map, whose stride is a power of two nevertheless
        powers = [round(math.log2(image_shapes[0][0] / x[name].shape[-2])) for name in LEVELS]
        level = (wanted - powers[0]).clamp(0, len(LEVELS) - 1)
        maps = [x[name] for name in LEVELS]
        pooled = maps[0].new_zeros(len(rois), maps[0].shape[1], *self.output_size)
        for number, (features, power) in enumerate(zip(maps, powers, strict=True)):
            (rows,) = (level == number).nonzero(as_tuple=True)
            part = roi_align(features, rois[rows].to(features), self.output_size, 2.0**-power, 0, aligned=True)
            pooled = pooled.index_put((rows,), part)
        return pooled


class Proposals(RegionProposalNetwork):  # type: ignore[misc]
    """torchvision's, with absolute errors of boxes."""

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        chosen = [torch.cat(part).nonzero()[:, 0] for part in self.fg_bg_sampler(labels)]
        positive, every = chosen[0], torch.cat(chosen)
        error = (pred_bbox_deltas[positive] - torch.cat(regression_targets)[positive]).abs().sum() / max(len(every), 1)
        scores = objectness.flatten()[every]
        return F.binary_cross_entropy_with_logits(scores, torch.cat(labels)[every].to(scores)), error


class Heads(RoIHeads):  # type: ignore[misc]
    """torchvision's, with absolute errors of boxes and a mask for every class but the background."""

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if not self.training:
            return self._detections(features, proposals, image_shapes), {}
        assert targets is not None
        proposals, matched, labels, deltas = self.select_training_samples(proposals, targets)
        scores, moves = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, image_shapes)))
        every = torch.cat(labels)
        (positive,) = (every > 0).nonzero(as_tuple=True)
        chosen = moves.unflatten(1, (-1, 4))[positive, every[positive]]
        terms = {
            "loss_classifier": F.cross_entropy(scores, every),
            "loss_box_reg": (chosen - torch.cat(deltas)[positive]).abs().sum() / len(every),
        }
        if self.mask_predictor is not None:
            objects = [label > 0 for label in labels]
            boxes = [box[here] for box, here in zip(proposals, objects, strict=True)]
            logits = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, image_shapes)))
            logits = logits[torch.arange(len(positive), device=logits.device), every[positive] - 1]
            cut = [
                cut_masks(target["masks"], box, number[here], logits.shape[-1])
                for target, box, number, here in zip(targets, boxes, matched, objects, strict=True)
            ]
            error = F.binary_cross_entropy_with_logits(logits, torch.cat(cut).to(logits), reduction="sum")
            terms["loss_mask"] = error / max(logits.numel(), 1)
        return [], terms

    def _detections(
        self, features: dict[str, Tensor], proposals: list[Tensor], shapes: list[tuple[int, int]]
    ) -> list[dict[str, Tensor]]:
        scores, moves = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, shapes)))
        found = self.postprocess_detections(scores, moves, proposals, shapes)
        results = [dict(zip(("boxes", "scores", "labels"), each, strict=True)) for each in zip(*found, strict=True)]
        if self.mask_predictor is not None:
            boxes, labels = [result["boxes"] for result in results], [result["labels"] - 1 for result in results]
            logits = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, shapes)))
            for result, masks in zip(results, maskrcnn_inference(logits, labels), strict=True):
                result["masks"] = masks
        return results


def cut_masks(masks: Tensor, boxes: Tensor, numbers: Tensor, side: int) -> Tensor:
    """Cut one mask out for each box, [n, side, side] of 0 and 1.

    Args:
        masks: [m, H, W] of an image's objects.
        boxes: [n, 4] in pixels.
        numbers: [n] of the object in each box.
    """
    rois = torch.cat([numbers[:, None].to(boxes), boxes], 1)
    return (roi_align(masks[:, None].to(boxes), rois, side, 1.0, 0, aligned=True)[:, 0] >= 0.5).float()


def build_heads(
    anchors: AnchorGenerator,
    rpn_head: RPNHead,
    box: tuple[int, nn.Module, nn.Module],
    mask: tuple[int, nn.Module, nn.Module] | None,
    samples: int,
    min_score: float,
    max_detections: int,
) -> tuple[Proposals, Heads]:
    """Build both parts around torchvision's layers, which start as detectron2's do.

    Args:
        box: side of the pooled grid, head and predictor of boxes.
        mask: the same of masks; None predicts none.
        samples: proposals of an image in the heads' losses.
    """
    scales = [torch.tensor(ratios).sqrt() for ratios in anchors.aspect_ratios]  # of heights; widths have the inverse
    anchors.cell_anchors = [
        torch.stack([-1 / scale, -scale, 1 / scale, scale], 1) * side / 2
        for (side,), scale in zip(anchors.sizes, scales, strict=True)
    ]
    with torch.no_grad():
        for layer in box[1].modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_uniform_(layer.weight, a=1)
                nn.init.zeros_(layer.bias)
        for name, layer in box[2].named_modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.01 if name == "cls_score" else 0.001)
                nn.init.zeros_(layer.bias)
        if mask is not None:
            nn.init.normal_(mask[2].get_submodule("mask_fcn_logits").weight, std=0.001)  # type: ignore[arg-type]
            for name, parameter in mask[2].named_parameters():
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
    after = {"training": PROPOSALS, "testing": PROPOSALS}
    rpn = Proposals(anchors, rpn_head, 0.7, 0.3, 256, 0.5, BEFORE_SUPPRESSION, after, 0.7)
    masks = (AlignedPool(mask[0]), *mask[1:]) if mask is not None else ()
    return rpn, Heads(
        AlignedPool(box[0]), *box[1:], 0.5, 0.5, samples, 0.25, None, min_score, 0.5, max_detections, *masks
    )
