# SPDX-License-Identifier: Apache-2.0
"""Feature distillation: the student finds an image as similar to others as a frozen teacher does.

Paper: Fang et al., "SEED: Self-supervised Distillation for Visual Representation", ICLR 2021, arXiv:2101.04731; "A
Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, Sec. 3, pre-trains EfficientNet-B0 by
it. Recipes: recipes/distill/; recipes/mae/seed-*.yaml with SEED's settings.

    z_T = teacher's features, z_S = head(student's features), of length 1 each; D: a queue of the last K z_T, and z_T
    loss = weight CE(softmax(z_T D / T_T), softmax(z_S D / T_S))                         mean over images, nats

Teacher and student read the same crop, and an image's teacher features are in D. SEED's temperatures are 0.2 and 1e-4;
head and the queue's random start are those of its released code, github.com/jacobswan1/SEED. Deviations: features are
those under the teacher's classifier, where SEED's teachers have the projection head that they were pre-trained with;
the queue moves once a step, whatever its micro-batches.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..losses import cross_entropy
from ..models.data_spec import DataSpec
from ..models.shared_batch_norm import gathered, normalized
from ..models.taps import Readings, feature_width
from ..models.teachers.outputs import load_teacher
from .guide import Batch, Capability, Guide, check_positive, teacher_images


class FeatureDistillation(Guide):
    """Match a teacher's similarities between an image and a queue of others; its classes do not matter.

    Args:
        student: any classifier, or network without classes.
        teacher: a run; a timm name with pretrained weights; or ARCHITECTURE=FILE with weights from a file. It reads
            images of images.teacher_size, else the student's, enlarged to the size it was trained at.
        queue: K, images that each image is compared with, besides itself.
        temperature: T_S, of the student.
        teacher_temperature: T_T; the smaller, the more an image is similar to itself alone.
        weight: factor of this guide's term.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    requires = frozenset({Capability.FEATURES})
    capturable = True
    queue: Tensor
    oldest: Tensor

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        teacher: str,
        queue: int = 4096,
        temperature: float = 0.1,
        teacher_temperature: float = 0.05,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(weight=weight, temperature=temperature, teacher_temperature=teacher_temperature, queue=queue)
        self.temperatures, self.weight = (temperature, teacher_temperature), weight
        self.teacher = load_teacher(teacher, data_spec, output="features")
        width, teacher_width = feature_width(student, data_spec.image_size, data_spec.channels), self.teacher.width
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, teacher_width))
        self.register_buffer("queue", normalized(torch.randn(queue, teacher_width)))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))  # row of the queue that is replaced next
        self.pending: list[Tensor] = []  # teacher's features of the step's micro-batches
        self.newest: Tensor | None = None  # of the whole step

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return one term, `feature_distillation`, nats."""
        theirs = normalized(self.teacher(teacher_images(batch)))
        if self.training:
            self.pending.append(theirs)
        ours = normalized(self.head(readings.features[0]))
        return {"feature_distillation": self.weight * similarity_loss(ours, theirs, self.queue, self.temperatures)}

    def after_backward(self) -> dict[str, Tensor]:
        self.newest, self.pending = torch.cat(self.pending), []  # again in SAM's second pass, which sees the same
        return {}

    def after_step(self) -> None:
        """Replace the oldest features by the step's, of all processes."""
        if self.newest is None:
            return
        newest, self.newest = gathered(self.newest)[: len(self.queue)], None
        places = (self.oldest + torch.arange(len(newest), device=newest.device)) % len(self.queue)
        self.queue.index_copy_(0, places, newest.to(self.queue.dtype))
        self.oldest.add_(len(newest)).remainder_(len(self.queue))


def similarity_loss(student: Tensor, teacher: Tensor, queue: Tensor, temperatures: tuple[float, float]) -> Tensor:
    """Return the cross-entropy between two networks' similarities of an image to itself and to others.

        p_S = softmax([z_S z_T, z_S Q] / T_S)    p_T = softmax([z_T z_T, z_T Q] / T_T)    loss = -sum p_T log p_S

    Args:
        student: z_S, rows of length 1, [B, D].
        teacher: z_T, likewise; receives no gradient.
        queue: Q, the others, [K, D].
        temperatures: T_S and T_T.

    Returns: scalar, nats, mean over images.
    """
    teacher = teacher.detach()
    with torch.autocast(student.device.type, enabled=False):  # bfloat16 is too coarse for a small temperature
        ours, theirs = (torch.cat([(z * teacher).sum(1, keepdim=True), z @ queue.T], 1) for z in (student, teacher))
        return cross_entropy(ours / temperatures[0], (theirs / temperatures[1]).softmax(1))
