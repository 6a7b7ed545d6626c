# SPDX-License-Identifier: Apache-2.0
"""Learn the class of every pixel.

loss = mean over labeled pixels of CE(logits, class), all of a step's, however processes and micro-batches share them

The network is a linear layer on the student's map (models/detection/segmenter.py). Recipes: recipes/segmentation/.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.targets.objects import UNLABELED
from ..guides.guide import Batch, Given
from ..models.detection.networks import segmenter
from ..models.shared_batch_norm import averaged
from ..models.taps import Taps
from ..scores.pixels import confusion, mean_iou
from .method import BatchSpec, Method, Setup, check_dense


class Segmentation(Method):
    """A linear segmenter around the student.

    Args:
        blocks: numbers of the blocks, from 0, whose maps are joined; without any, the last one's is read.
        dropout: probability of dropping a channel of these maps while training.
    """

    gives: ClassVar[frozenset[Given]] = frozenset()
    task = "viticulture.tasks.segmentation.Segmentation"
    batch_spec: BatchSpec = BatchSpec(contents="pixels")
    chosen_by: ClassVar[str] = "iou"

    def __init__(
        self,
        setup: Setup,
        *,
        blocks: Sequence[int] = (),
        dropout: float = 0.0,
    ) -> None:
        check_dense(setup, "segmentation")
        around = {"blocks": list(blocks), "dropout": dropout}
        network = segmenter(setup.student, setup.data_spec, **around)  # type: ignore[arg-type]
        super().__init__(replace(setup, student=network))
        self.taps = Taps(network.backbone)  # the part that is compiled
        self.extra_config = {"dense": {"kind": "segmentation", **around}}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        logits, classes = self.student(batch["image"]), batch["classes"]
        total = F.cross_entropy(logits.float(), classes, ignore_index=UNLABELED, reduction="sum")
        known = len(classes) * averaged(batch["labeled"].mean())  # a part may have few, and they weigh as others do
        return {"pixels": total / known.clamp(min=torch.finfo().eps)}  # a batch without a labeled pixel teaches nothing

    def judged(self, batch: Batch) -> int:
        """Images with labeled pixels."""
        return int((batch["classes"] != UNLABELED).any((1, 2)).sum())

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """Mean over the batch's images with labeled pixels of the mIoU of each by itself, and of the share of its
        pixels that are right; 0 where none has any."""
        predicted = self.student(batch["image"]).argmax(1).cpu().numpy()
        counts = [
            confusion(each, true, len(self.data_spec.classes))
            for each, true in zip(predicted, batch["classes"].cpu().numpy(), strict=True)
        ]
        labeled = [each for each in counts if each.sum()]
        values = [mean_iou(each) for each in labeled]
        right = [float(each.trace() / each.sum()) for each in labeled]
        device = batch["image"].device
        return {
            name: torch.tensor(shares or [0.0]).mean().to(device)
            for name, shares in (("iou", values), ("accuracy", right))
        }
