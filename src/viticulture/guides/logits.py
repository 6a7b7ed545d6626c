# SPDX-License-Identifier: Apache-2.0
"""Distillation from a frozen teacher's predictions: DeiT's soft and hard distillation.

Paper: Touvron et al., "Training data-efficient image transformers & distillation through attention", ICML 2021,
arXiv:2012.12877. It minimizes, for a share alpha,

    (1 - alpha) CE(class head, label) + alpha D(distillation head, teacher)         Eq. (2) and (3)

The guide adds weight * D, and the label term is the method's: write alpha as this `weight` and 1 - alpha as
`method.label_weight`. DeiT's alpha is 0.5. Any other pair with the same ratio differs in scale alone.

Deviation: the soft D is averaged over images, where DeiT's code averages over classes too; to repeat that code, give
alpha / C as the weight.
"""

from typing import Literal

from torch import Tensor, nn

from ..errors import UserError
from ..losses import binary_distillation, hard_distillation, soft_distillation
from ..models.data_spec import DataSpec
from ..models.taps import Readings
from ..models.teachers.outputs import load_teacher
from .guide import Batch, Capability, Guide, check_positive, teacher_images


class Logits(Guide):
    """Match a teacher's predictions on the student's images, mixed ones included.

    The student's last head is trained: the distillation token's in a distilled ViT, else the only one.

    Args:
        student: the student; its architecture does not matter here.
        teacher: a run; a timm name with pretrained weights; or ARCHITECTURE=FILE with weights from a file.
        kind: soft matches the teacher's distribution (of several labels an image that of each), hard takes its most
            likely class as label.
        temperature: softens both distributions of the soft kind; 1 leaves them unchanged.
        weight: factor of this guide's term.
        teacher_size: side of the teacher's input, pixels; null: images.teacher_size, else the size it was trained at.
    """

    requires = frozenset({Capability.CLASSES})
    capturable = True
    trains_last_head = True

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        teacher: str,
        kind: Literal["soft", "hard"] = "hard",
        temperature: float = 3.0,
        weight: float = 0.5,
        teacher_size: int | None = None,
    ) -> None:
        super().__init__()
        if kind not in ("soft", "hard"):
            raise UserError(f"kind must be soft or hard, got {kind!r}")
        if kind == "hard" and data_spec.multilabel:
            raise UserError("kind hard takes one class of an image as its label; of several labels take kind: soft")
        check_positive(temperature=temperature, weight=weight)
        self.teacher = load_teacher(teacher, data_spec, teacher_size)
        self.kind, self.temperature, self.weight = kind, temperature, weight
        self.soft = binary_distillation if data_spec.multilabel else soft_distillation

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return one term, `logits`, in nats (times the squared temperature when soft)."""
        head, teacher = readings.outputs[-1], self.teacher(teacher_images(batch))
        if self.kind == "hard":
            return {"logits": self.weight * hard_distillation(head, teacher)}
        return {"logits": self.weight * self.soft(head, teacher, self.temperature)}
