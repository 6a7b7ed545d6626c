# SPDX-License-Identifier: Apache-2.0
"""SEED: train without labels to find an image as similar to others as a frozen, self-supervised teacher does.

Paper: Fang et al., "SEED: Self-supervised Distillation for Visual Representation", ICLR 2021, arXiv:2101.04731; "A
Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, Sec. 3, pre-trains EfficientNet-B0 by
it. Recipes: recipes/mae/seed-*.yaml.

    z_T = teacher(image), z_S = head(student(image)), of length 1 each; D: a queue of the teacher's last K, and z_T
    loss = CE(softmax(z_T D / T_T), softmax(z_S D / T_S))                                mean over images, nats

Teacher and student process the same view, and an image's teacher embedding is in D. Temperatures, queue, head and the
queue's random start are those of the released code, github.com/jacobswan1/SEED. Deviations: embeddings are the features
under the teacher's classifier, where the authors' teachers have the projection head that they were pre-trained with,
128 wide, which published weights seldom hold; the queue moves once a step, whatever its micro-batches.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Capability
from ..losses import cross_entropy
from ..models.heads import token_logits
from ..models.shared_batch_norm import gathered, normalized
from ..models.students import feature_width
from ..models.teachers.frozen import load_embedding
from .method import BatchSpec, Method, Setup


class Seed(Method):
    """Pass one view of every image through student and teacher.

    Args:
        teacher: a run; a timm name with pretrained weights, such as vit_small_patch16_224.dino; or ARCHITECTURE=FILE
            with weights from a file, such as resnet50=moco_v2_800ep_pretrain.pth.tar. Its classes do not matter.
        queue: K, images that each image is compared with, besides itself.
        temperature: T_S, of the student.
        teacher_temperature: T_T; the smaller, the more an image is similar to itself alone.
        teacher_size: side of the teacher's images, pixels; null: the size it was trained at.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.PATCHES})
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
        self.temperatures = temperature, teacher_temperature
        self.teacher = load_embedding(teacher, setup.data_spec, teacher_size)
        side, channels = setup.data_spec.image_size, setup.data_spec.channels
        teacher_width = self.teacher(torch.zeros(1, channels, *side)).shape[1]
        width = feature_width(setup.student, side, channels)
        self.auxiliary["head"] = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, teacher_width))
        self.register_buffer("queue", normalized(torch.randn(queue, teacher_width)))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))  # row of the queue that is replaced next
        self.waiting: list[Tensor] = []  # the step's embeddings

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compare the student's similarities to the queue with the teacher's; guides read this pass."""
        readings = self.taps(batch["image"])
        embedding = self._embedding(batch["image"])
        loss = similarity_loss(self._projection(readings.outputs[0]), embedding, self.queue, self.temperatures)
        if not self.step.perturbed:
            self.waiting.append(embedding)
        return {"similarity": loss, **self.guide_losses(batch, readings)}

    def after_step(self) -> None:
        """Replace the oldest embeddings by the step's, of all processes."""
        newest = gathered(torch.cat(self.waiting))[: len(self.queue)]
        self.waiting.clear()
        places = (self.oldest + torch.arange(len(newest), device=newest.device)) % len(self.queue)
        self.queue.index_copy_(0, places, newest.to(self.queue.dtype))
        self.oldest.add_(len(newest)).remainder_(len(self.queue))

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the same loss, with the queue as it is."""
        projection = self._projection(token_logits(self.student(batch["image"]))[0])
        return {"loss": similarity_loss(projection, self._embedding(batch["image"]), self.queue, self.temperatures)}

    def _embedding(self, images: Tensor) -> Tensor:
        return normalized(self.teacher(images))

    def _projection(self, features: Tensor) -> Tensor:
        return normalized(self.auxiliary["head"](features))


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
