# SPDX-License-Identifier: Apache-2.0
"""Learn without labels to find an image as alike to others as a frozen, self-supervised teacher finds it: SEED.

Paper: Fang et al., "SEED: Self-supervised Distillation for Visual Representation", ICLR 2021, arXiv:2101.04731; "A
Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, Sec. 3, pre-trains EfficientNet-B0 by
it. Recipes: recipes/mae/seed-*.yaml.

    z_T = teacher(image), z_S = head(student(image)), of length 1 each; D: a queue of the teacher's last K, and its own
    loss = CE(softmax(z_T D / T_T), softmax(z_S D / T_S))                                mean over images, nats

Teacher and student see the same view, and of an image its teacher's own embedding is in D. Temperatures, queue, head
and the queue's random start are those of the released code, github.com/jacobswan1/SEED. Deviations: embeddings are the
features under the teacher's classifier, where the authors' teachers have the projection head that they were pre-trained
with, 128 wide, which published weights seldom hold; the queue moves once a step, whatever its micro-batches.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Given
from ..losses import cross_entropy
from ..models.heads import token_logits
from ..models.shared_batch_norm import gathered, normalized
from ..models.students import feature_width
from ..models.teachers.frozen import load_embedding
from .method import BatchSpec, Method, Setup


class Seed(Method):
    """One view of every image, shown to student and teacher.

    Args:
        teacher: a run; a timm name with pretrained weights, such as vit_small_patch16_224.dino; or ARCHITECTURE=FILE
            with weights from a file, such as resnet50=moco_v2_800ep_pretrain.pth.tar. Its classes do not matter.
        queue: K, images that each image is compared with, besides itself.
        temperature: T_S, of the student.
        teacher_temperature: T_T; the smaller, the more an image is alike itself alone.
        teacher_size: show the teacher images of so many pixels on a side; null: of the size it learned with.
    """

    gives: ClassVar[frozenset[Given]] = frozenset({Given.PATCHES})
    batch_spec = BatchSpec(labels=False)
    queue: Tensor
    oldest: Tensor

    def __init__(
        self,
        setup: Setup,
        *,
        teacher: str,
        queue: int = 65536,
        temperature: float = 0.2,
        teacher_temperature: float = 1e-4,
        teacher_size: int | None = None,
    ) -> None:
        super().__init__(setup)
        if min(temperature, teacher_temperature) <= 0:
            raise UserError(
                "method.temperature and method.teacher_temperature must be positive, "
                f"got {temperature} and {teacher_temperature}"
            )
        if queue < 1:
            raise UserError(f"method.queue must be positive, got {queue}")
        self.temperature, self.teacher_temperature = temperature, teacher_temperature
        self.teacher = load_embedding(teacher, setup.data_spec, teacher_size)
        side = setup.data_spec.image_size
        channels = setup.data_spec.channels
        theirs = self.teacher(torch.zeros(1, channels, *side)).shape[1]
        width = feature_width(setup.student, side, channels)
        self.auxiliary["head"] = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, theirs))
        self.register_buffer("queue", normalized(torch.randn(queue, theirs)))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))  # row of the queue that goes next
        self.waiting: list[Tensor] = []

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The student's likeness to what the teacher has seen, taught by the teacher's own; guides read this pass."""
        readings = self.taps(batch["image"])
        embedded = self._embedded(batch["image"])
        loss = likeness_loss(self._projected(readings.outputs[0]), embedded, self.queue, self._temperatures)
        if not self.perturbed:
            self.waiting.append(embedded)
        return {"likeness": loss, **self.guided(batch, readings)}

    def after_backward(self) -> None:
        """The step's embeddings, of all processes, take the place of the oldest; after SAM's second pass alone, so that
        both passes are compared with the same."""
        if self.sam is not None and not self.perturbed:
            return
        newest = gathered(torch.cat(self.waiting))[: len(self.queue)]
        self.waiting.clear()
        places = (self.oldest + torch.arange(len(newest), device=newest.device)) % len(self.queue)
        self.queue.index_copy_(0, places, newest.to(self.queue.dtype))
        self.oldest.add_(len(newest)).remainder_(len(self.queue))

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """The same loss, with the queue as it is."""
        projected = self._projected(token_logits(self.student(batch["image"]))[0])
        return {"loss": likeness_loss(projected, self._embedded(batch["image"]), self.queue, self._temperatures)}

    @property
    def _temperatures(self) -> tuple[float, float]:
        return self.temperature, self.teacher_temperature

    def _embedded(self, images: Tensor) -> Tensor:
        return normalized(self.teacher(images))

    def _projected(self, features: Tensor) -> Tensor:
        return normalized(self.auxiliary["head"](features))


def likeness_loss(student: Tensor, teacher: Tensor, queue: Tensor, temperatures: tuple[float, float]) -> Tensor:
    """Cross-entropy between two networks' likeness of an image to itself and to others.

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
