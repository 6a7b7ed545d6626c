# SPDX-License-Identifier: Apache-2.0
"""DINO: train without labels by predicting a slow copy's output for another part of the image.

Paper: Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021, arXiv:2104.14294; one of
the methods that "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, compares.
Recipes: recipes/mae/dino-*.yaml.

    loss = mean over pairs of a large view v and another view w of CE(P_t(v), P_s(w))                    [Eq. (3)]
    P_s = softmax(student / 0.1)    P_t = softmax((teacher - center) / temperature)                      [Eq. (1)]
    center <- 0.9 center + 0.1 mean over the batch and both large views of teacher                       [Eq. (4)]

Student and teacher are each a ViT and a head (`Head`). The teacher has no gradient and follows the student
(`models.momentum_encoder`). The network that remains is the student with gradient; `train.ema_decay` saves an average
of it, too. Deviation: the authors use the teacher, whose weights are such an average. Here it moves at the start of the
next step, by the share of the step before, so that the last step's weights never reach it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Capability
from ..keywords import check_fields
from ..models.heads import token_logits
from ..models.layout import layout
from ..models.momentum_encoder import MomentumEncoder
from ..models.shared_batch_norm import averaged, normalized
from ..models.taps import feature_width
from ..models.vit.patches import at_any_size, check_size
from .method import BatchSpec, Method, Setup

TEMPERATURE = 0.1  # of the student
CENTER_MOMENTUM = 0.9
BOTTLENECK = 256  # width in which a head compares with its prototypes
FROZEN_EPOCHS = 1  # in which the prototypes are not trained
LOCAL = 3 / 7  # side of a local crop over the image's: 96 pixels at 224


@dataclass(frozen=True)
class LocalCrops:
    """Local crops of an image, besides its two large views; `augment_local_crops` augments them.

    Args:
        count: of an image; 0 compares the two large views alone.
        size: their side, pixels, a multiple of the patch; null takes about three sevenths of the image's. The student's
            positions are resampled for them.
    """

    count: int = 8
    size: int | None = None

    def __post_init__(self) -> None:
        check_fields("method.local_crops", self)
        if self.count < 0:
            raise UserError(f"method.local_crops.count must not be negative, got {self.count}")


class DINO(Method):
    """Compare two large views (recipe sections `augment`, `augment2`) and local crops (`augment_local_crops`).

    Args:
        local_crops: the local crops.
        temperature: of the teacher, at first and in the end; smaller is sharper.
        temperature_epochs: in which it goes from the first to the last, linearly from epoch to epoch.
        momentum: share of the teacher that stays in the first step; it rises to 1. Take more for small batches.
        prototypes: that views are compared with, the length of P_s and P_t.
        hidden_width: of the head's two hidden layers.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.PATCHES})
    batch_spec = BatchSpec(labels=False, views=2)
    center: Tensor

    def __init__(
        self,
        setup: Setup,
        *,
        local_crops: LocalCrops = LocalCrops(),
        temperature: tuple[float, float] = (0.04, 0.04),
        temperature_epochs: int = 0,
        momentum: float = 0.996,
        prototypes: int = 65536,
        hidden_width: int = 2048,
    ) -> None:
        super().__init__(setup, forward=at_any_size(setup.student))
        if min(temperature) <= 0 or not 0 <= momentum < 1:
            raise UserError(
                "method.temperature must be positive and method.momentum lie in [0, 1), "
                f"got {tuple(temperature)} and {momentum}"
            )
        if temperature_epochs < 0 or min(prototypes, hidden_width) < 1:
            raise UserError(
                "method.temperature_epochs must not be negative, method.prototypes and method.hidden_width must be "
                f"positive, got {temperature_epochs}, {prototypes} and {hidden_width}"
            )
        self.temperature, self.temperature_epochs = temperature, temperature_epochs
        student, image_size, channels = setup.student, setup.data_spec.image_size, setup.data_spec.channels
        if local_crops.count:
            side = local_side(student, image_size[0]) if local_crops.size is None else local_crops.size
            check_size(student, side, channels)
            self.batch_spec = replace(self.batch_spec, local_crops=local_crops.count, local_size=side)
        head = Head(feature_width(student, image_size, channels), hidden_width, prototypes)
        self.auxiliary["head"] = head
        self.auxiliary["teacher"] = MomentumEncoder(student, head, momentum, lag=1)
        self.register_buffer("center", torch.zeros(prototypes))
        self._teacher_logits: list[Tensor] = []  # of the step's micro-batches so far

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compare the student's prediction from each view with the teacher's output for the other large ones.

            predictions = head(student(view))            of both large views and the local crops, [B, prototypes] each
            targets = P_t = softmax((teacher(large view) - center) / temperature)                 [B, prototypes] twice
            views   = mean over pairs of different views of CE(target, softmax(prediction / 0.1))      Eq. (3), nats

        Guides read the pass over both large views, [2 B, 3, H, W]. The teacher moves before it runs, the center after.
        """
        large, crops = (batch["image"], batch["image2"]), self.batch_spec.local_crops
        both = torch.cat(large)
        readings = self.taps(both)
        features = [readings.outputs[0]]
        if crops:
            features.append(self._features(torch.cat([batch[f"image{3 + k}"] for k in range(crops)])))
        teacher, head = self._teacher(), self.auxiliary["head"]
        if self.step.begins:
            teacher.update(self.student, head, self.length.steps)
        teacher_logits = teacher(*large)
        predictions = head(torch.cat(features)).chunk(2 + crops)
        targets = [self._sharpened(logits) for logits in teacher_logits]
        entropies = [torch.special.entr(target).sum(-1).mean() for target in targets]
        self.logs["teacher_entropy"] = torch.stack(entropies).mean()
        if not self.step.perturbed:
            self._move_center(torch.cat(teacher_logits).float().mean(0))
        return {"views": view_loss(predictions, targets), **self.guide_losses({**batch, "image": both}, readings)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of a prediction from each image's mirror image."""
        (logits,) = self._teacher()(batch["image"])
        prediction = self.auxiliary["head"](self._features(batch["image"].flip(-1)))
        return {"loss": cross_entropy(prediction, self._sharpened(logits))}

    def after_backward(self) -> None:
        """Leave prototypes untrained in the first epoch, which hinders a collapse onto one of them."""
        if self._epoch() < FROZEN_EPOCHS:
            for parameter in self.auxiliary["head"].get_submodule("prototypes").parameters():
                parameter.grad = None

    def _move_center(self, mean: Tensor) -> None:
        """Move the center, after a step's last micro-batch, towards the mean [prototypes] over all of them."""
        self._teacher_logits = [*([] if self.step.first else self._teacher_logits), mean.detach()]
        if self.step.last:
            with torch.no_grad():
                self.center.lerp_(averaged(torch.stack(self._teacher_logits).mean(0)), 1 - CENTER_MOMENTUM)
            self._teacher_logits = []

    def _features(self, images: Tensor) -> Tensor:
        return token_logits(self.taps.output(images))[0]

    def _sharpened(self, logits: Tensor) -> Tensor:
        """Return P_t, [B, prototypes]."""
        first, last = self.temperature
        done = min(self._epoch() / max(self.temperature_epochs - 1, 1), 1.0) if self.temperature_epochs else 1.0
        return ((logits.float() - self.center) / (first + (last - first) * done)).softmax(-1)

    def _teacher(self) -> MomentumEncoder:
        teacher = self.auxiliary["teacher"]
        assert isinstance(teacher, MomentumEncoder)
        return teacher

    def _epoch(self) -> int:
        """Return the current step's epoch, from 0."""
        return max(self._teacher().updates - 1, 0) // self.length.steps_per_epoch


class Head(nn.Module):
    """Cosines between a perceptron's output and trained prototypes, [B, D] -> [B, prototypes].

    Three linear layers with GELU between them, the result scaled to length 1, then a layer without bias whose rows
    count as directions alone (weight normalization with lengths of 1).
    """

    def __init__(self, width: int, hidden_width: int, prototypes: int) -> None:
        super().__init__()
        layers = (
            nn.Linear(width, hidden_width),
            nn.Linear(hidden_width, hidden_width),
            nn.Linear(hidden_width, BOTTLENECK),
        )
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.perceptron = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
        self.prototypes = nn.Linear(BOTTLENECK, prototypes, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(normalized(self.perceptron(features)), normalized(self.prototypes.weight))


def view_loss(predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Return the mean over all pairs of a target and a prediction from another view, Eq. (3).

    Args:
        predictions: the student's logits [B, K] of each view; the views of the targets come first.
        targets: the teacher's probabilities [B, K].

    Returns: scalar >= 0, nats, mean over the batch.
    """
    others = [[target for i, target in enumerate(targets) if i != j] for j in range(len(predictions))]
    pairs = zip(predictions, others, strict=True)
    terms = [cross_entropy(logits, torch.stack(theirs).sum(0)) for logits, theirs in pairs if theirs]
    return torch.stack(terms).sum() / sum(map(len, others))


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return H(target, softmax(logits / 0.1)), nats, mean over the batch; the target receives no gradient."""
    return F.cross_entropy(logits.float() / TEMPERATURE, target.detach())


def local_side(student: nn.Module, side: int) -> int:
    """Return about three sevenths of an image's side, in whole patches."""
    patch = layout(student).patch
    return max(round(LOCAL * side / patch), 1) * patch
