# SPDX-License-Identifier: Apache-2.0
"""Train a detector: boxes, and masks if requested, from images with annotated objects.

loss = objectness + rpn_box_reg of proposals + classifier + box_reg of objects (+ mask), each a mean, as torchvision has
them (models/detection/detector.py). Settings as in "A Closer Look at Self-Supervised Lightweight Vision Transformers",
arXiv:2205.14443, Sec. A.5, and Li et al., arXiv:2203.16527: recipes/detection/.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batches.targets import unpacked
from ..guides.guide import Batch, Capability
from ..models.detection.detector import Detector, DetectorSizes, Target
from ..models.detection.networks import detector
from ..models.taps import Taps
from ..scores.objects import Matches, box_areas, box_overlaps, image_precision, match
from .method import BatchSpec, Method, Setup, check_no_classifier


class Detection(Method):
    """Mask R-CNN, or Faster R-CNN without masks, around the student.

    Args:
        masks: predict masks besides boxes; the data must have them.
        width: channels of the pyramid and of the heads; 256 is usual, a quarter of it is for a CPU.
        window: side of the windows within which blocks attend, tokens; 0 lets all attend to all. For plain ViTs.
        global_blocks: numbers of the blocks, from 0, that attend to all nevertheless.
        relative_positions: learn relative positions besides the student's positions. For plain ViTs.
        samples: proposals of an image that the heads are trained on; up to four times as many are considered.
        heads: torchvision: its proposals, pooling and losses; detectron2: those of ViTDet's code
            (models/detection/detectron2.py), for large sets.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset()
    task = "viticulture.tasks.detection.Detection"
    batch_spec: BatchSpec = BatchSpec(contents="objects")
    best_metric: ClassVar[str] = "ap50"

    def __init__(  # noqa: PLR0913  (its keywords are a recipe's section)
        self,
        setup: Setup,
        *,
        masks: bool = False,
        width: int = 256,
        window: int = 0,
        global_blocks: Sequence[int] = (),
        relative_positions: bool = False,
        samples: int = 512,
        heads: Literal["torchvision", "detectron2"] = "torchvision",
    ) -> None:
        check_no_classifier(setup, "detection")
        sizes = DetectorSizes(width, masks, samples, heads=heads)
        around = {"window": window, "global_blocks": list(global_blocks), "relative_positions": relative_positions}
        network = detector(setup.student, setup.data_spec, heads=sizes, **around)  # type: ignore[arg-type]
        super().__init__(replace(setup, student=network))
        self.taps = Taps(network.backbone)  # the part that is compiled
        self.batch_spec = replace(self.batch_spec, masks=masks)
        self.extra_config = {"network": {"kind": "detection", "heads": asdict(sizes), **around}}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return self._detector().losses(batch["image"], targets_of(batch))

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean over images of each image's average precision at an overlap of 0.5, crowds ignored."""
        detections = self._detector()(batch["image"])
        pairs = zip(detections, targets_of(batch), crowds_of(batch), strict=True)
        values = [image_precision(matched(*pair)) for pair in pairs]
        return {"ap50": torch.tensor(values).mean().to(batch["image"].device)}

    @property
    def counted_network(self) -> nn.Module:
        """Backbone and pyramid: the heads' MACs depend on the objects found."""
        return nn.Sequential(self._detector().backbone, _First(), self._detector().pyramid, _Finest())

    def _detector(self) -> Detector:
        assert isinstance(self.student, Detector)
        return self.student


def targets_of(batch: Batch) -> list[Target]:
    """Return the objects of each image of a batch."""
    targets = []
    counts = (batch["labels"] >= 0).sum(1).tolist()  # of all images at once: waits for a GPU
    for i, (labels, count) in enumerate(zip(batch["labels"], counts, strict=True)):
        target = {"boxes": batch["boxes"][i, :count], "labels": labels[:count]}
        if "masks" in batch:
            target["masks"] = unpacked(batch["masks"][i], count)
        targets.append(target)
    return targets


def crowds_of(batch: Batch) -> list[Target]:
    """Return boxes and labels of each image's crowds; a training batch has none."""
    none = {"boxes": batch["boxes"][:, :0], "labels": batch["labels"][:, :0]}
    return targets_of({name: batch.get(f"crowd_{name}", value) for name, value in none.items()})


def matched(detections: Target, true: Target, crowds: Target) -> list[Matches]:
    """Match an image's detected boxes with true ones and crowds, class by class."""
    # On the CPU, as an Apple GPU has no float64.
    boxes, scores = detections["boxes"].cpu().double().numpy(), detections["scores"].cpu().double().numpy()
    labels, true_labels = (
        detections["labels"].cpu().numpy(),
        torch.cat([true["labels"], crowds["labels"]]).cpu().numpy(),
    )
    every = torch.cat([true["boxes"], crowds["boxes"]]).cpu().double().numpy()
    crowded = np.arange(len(true_labels)) >= len(true["labels"])
    matches = []
    for label in sorted({*labels.tolist(), *true_labels.tolist()}):
        ours, theirs, crowd = boxes[labels == label], every[true_labels == label], crowded[true_labels == label]
        overlap = box_overlaps(ours, theirs, crowd)
        matches.append(match(scores[labels == label], box_areas(ours), box_areas(theirs), crowd, overlap))
    return matches


class _First(nn.Module):
    """Selects the single map of a list."""

    def forward(self, maps: list[Tensor]) -> Tensor:
        return maps[0]


class _Finest(nn.Module):
    """Selects the finest map of a pyramid."""

    def forward(self, maps: dict[str, Tensor]) -> Tensor:
        return maps["0"]
