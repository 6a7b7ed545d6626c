# SPDX-License-Identifier: Apache-2.0
"""Train a segmenter: the class of every pixel.

loss = mean over labeled pixels of CE(logits, class), all of a step's, however processes and micro-batches share them

The network is a linear layer on the student's map (models/detection/networks.py). Recipes: recipes/segmentation/.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.targets.objects import UNLABELED
from ..guides.guide import Batch, Capability
from ..models.detection.networks import segmenter
from ..models.shared_batch_norm import averaged
from ..models.taps import Taps
from ..scores.pixels import confusion, mean_iou
from .method import BatchSpec, Method, Setup, check_no_classifier


class Segmentation(Method):
    """A linear segmenter around the student.

    Args:
        blocks: numbers of the blocks, from 0, whose maps are concatenated; empty for the last one's.
        dropout: probability of dropping a channel of these maps while training.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset()
    task = "viticulture.tasks.segmentation.Segmentation"
    batch_spec: BatchSpec = BatchSpec(contents="pixels")
    best_metric: ClassVar[str] = "iou"

    def __init__(self, setup: Setup, *, blocks: Sequence[int] = (), dropout: float = 0.0) -> None:
        check_no_classifier(setup, "segmentation")
        around = {"blocks": list(blocks), "dropout": dropout}
        network = segmenter(setup.student, setup.data_spec, **around)  # type: ignore[arg-type]
        super().__init__(replace(setup, student=network))
        self.taps = Taps(network.backbone)  # the part that is compiled
        self.extra_config = {"network": {"kind": "segmentation", **around}}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits, classes = self.student(batch["image"]), batch["classes"]
        total = F.cross_entropy(logits.float(), classes, ignore_index=UNLABELED, reduction="sum")
        labeled = len(classes) * averaged(batch["labeled"].mean())  # of the whole step: pixels of all parts weigh alike
        return {"pixels": total / labeled.clamp(min=torch.finfo().eps)}  # 0 for a batch without labeled pixels

    def num_evaluated(self, batch: Batch) -> int:
        """Return the number of images with labeled pixels."""
        return int((batch["classes"] != UNLABELED).any((1, 2)).sum())

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the means over images with labeled pixels of each image's mIoU and pixel accuracy; 0 without any."""
        predicted = self.student(batch["image"]).argmax(1).cpu().numpy()
        truth, classes = batch["classes"].cpu().numpy(), len(self.data_spec.classes)
        counts = [confusion(ours, true, classes) for ours, true in zip(predicted, truth, strict=True)]
        labeled = [count for count in counts if count.sum()]
        ious = [mean_iou(count) for count in labeled]
        accuracies = [float(count.trace() / count.sum()) for count in labeled]
        device = batch["image"].device
        return {
            name: torch.tensor(values or [0.0]).mean().to(device)
            for name, values in (("iou", ious), ("accuracy", accuracies))
        }
