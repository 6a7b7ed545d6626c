# SPDX-License-Identifier: Apache-2.0
"""Co-advise: several frozen teachers train one student, each through a separate token or head.

Paper: Ren et al., "Co-advise: Cross Inductive Bias Distillation", CVPR 2022, arXiv:2106.12378. Students: cit.py and
many_heads.py in models/cit/. Recipes: recipes/co_advise/. With teacher k training token k, Eq. (1) is

    L = CE(class token, label) + sum over k of weight_k T_k^2 KL(softmax(teacher_k / T_k) || softmax(token_k / T_k))

The guide adds the sum; the label term is the method's. KL is averaged over images. Deviation: none from the authors'
code; Eq. (1) writes the arguments of KL the other way round, its text and code mean the above.
"""

import copy
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown
from ..losses import soft_distillation
from ..models.data_spec import DataSpec
from ..models.heads import every_head, token_logits
from ..models.taps import Readings
from ..models.teachers.outputs import load_teacher
from .guide import Batch, Capability, Guide, teacher_images


class CoAdvise(Guide):
    """Match each teacher's predictions on the student's images by a separate token.

    Logs KL(teacher || token) in nats without temperature and weight, and each token's accuracy on held-out images.

    Args:
        student: has the class token and as many more tokens or heads as there are teachers.
        teachers: name -> teacher, in the order of the tokens after the class token; a teacher is a run, a timm name
            with pretrained weights, or ARCHITECTURE=FILE.
        token: "own" gives each teacher a separate token; with "class" all train the one head of a student with one.
        temperature: softens both distributions; one for all, or one a teacher by name.
        weight: factor of a teacher's term; one for all, or one a teacher by name.
        teacher_size: side of the teachers' input, pixels; null: images.teacher_size, else the size each was trained
            at.
    """

    requires = frozenset({Capability.LABELS, Capability.CLASSES})
    capturable = True
    trains_every_head = True

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        teachers: dict[str, str],
        token: Literal["own", "class"] = "own",
        temperature: float | dict[str, float] = 1.0,
        weight: float | dict[str, float] = 1.0,
        teacher_size: int | None = None,
    ) -> None:
        super().__init__()
        if token not in ("own", "class"):
            raise UserError(f"token must be own or class, got {token!r}")
        for name in teachers:
            if not name.isidentifier():
                raise UserError(f"a teacher's name in teachers must be a plain word, got {name!r}")
        _check_heads(student, data_spec, len(teachers), token)
        self.temperatures = _per_teacher("temperature", temperature, teachers)
        self.weights = _per_teacher("weight", weight, teachers)
        self.teachers = nn.ModuleDict(
            {name: load_teacher(net, data_spec, teacher_size) for name, net in teachers.items()}
        )
        self.student: nn.Module
        vars(self)["student"] = student  # not a child: its parameters are not the guide's
        self.token = token
        self.divergences: dict[str, Tensor] = {}

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return one term a teacher, by its name, in nats (times the squared temperature)."""
        heads = readings.outputs[1:] if self.token == "own" else readings.outputs[:1] * len(self.teachers)
        terms, self.divergences = {}, {}
        for (name, teacher), head in zip(self.teachers.items(), heads, strict=True):
            logits = teacher(teacher_images(batch))
            terms[name] = self.weights[name] * soft_distillation(head, logits, self.temperatures[name])
            self.divergences[f"{name}_kl"] = soft_distillation(head.detach(), logits)
        return terms

    def after_backward(self) -> dict[str, Tensor]:
        """Return KL(teacher || token) of the step, nats."""
        return self.divergences

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the accuracy of the class token and of every teacher's token."""
        if self.token == "class":
            return {}
        heads = zip(("class", *self.teachers), every_head(self.student, batch["image"]), strict=True)
        return {f"{name}_accuracy": (head.argmax(-1) == batch["label"]).float().mean() for name, head in heads}


def _per_teacher(key: str, value: float | dict[str, float], teachers: Mapping[str, str]) -> dict[str, float]:
    """Return a positive number for each teacher, 1 where a dict of numbers leaves it out."""
    by_name = value if isinstance(value, dict) else dict.fromkeys(teachers, value)
    for name in by_name:
        if name not in teachers:
            raise unknown(f"teacher in {key}", name, teachers)
    numbers = {name: by_name.get(name, 1.0) for name in teachers}
    if any(number <= 0 for number in numbers.values()):
        raise UserError(f"{key} must be positive, got {value}; to switch a teacher off, leave it out")
    return numbers


def _check_heads(student: nn.Module, data_spec: DataSpec, teachers: int, token: str) -> None:
    """Raises: UserError unless there is a head for every teacher and a teacher for every head."""
    if not teachers:
        raise UserError("teachers must name at least one teacher, got none")
    trial = copy.deepcopy(student).to("meta").train()
    with torch.no_grad():
        heads = len(token_logits(trial(torch.zeros(2, data_spec.channels, *data_spec.image_size, device="meta"))))
    needed = 1 + teachers if token == "own" else 1
    if heads != needed:
        raise UserError(
            f"{teachers} teachers with token={token} need a student of {needed} heads, this {type(student).__name__} "
            f"has {heads}; choose another with student.options.tokens, stems or heads, or another number of teachers"
        )
