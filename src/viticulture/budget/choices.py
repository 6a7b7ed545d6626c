# SPDX-License-Identifier: Apache-2.0
"""Choices of a budget: the student, its image size and the stages. Every threshold stands here.

The thresholds come from benchmarks/ and are its experiments' to change; where there is no experiment, they favor
the plain run. (The epochs that larger images need are in the plan of a study.) A step is an optimizer step; `plain
steps` are those that the whole budget would buy for the student alone.

    plain steps          stages
    any                  the student on labels; with `--teacher`, a classifier on that network's features first
    from TEACHER_FROM    a CNN on the same images first, whose predictions are labels besides the true ones
    from MAE_FROM        before both, the student reconstructs masked patches of all images

Both are for plain ViTs alone: patches that other students have convolved with their neighbors cannot be masked, and a
teacher is worth less to a hybrid than the time it takes, and to DHVT nothing.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..study.plan import LARGER_EPOCHS

Kind = Literal["mae", "teacher", "student"]  # stages in the order of training; the last one's student is the result

MIN_EPOCHS, MIN_STEPS = 20, 1000
"""Small images enlarged are taken only where the budget buys so many epochs, a larger student, or photographs of more
pixels, where it buys `LARGER_EPOCHS` (in the time of 27 to 57 epochs a narrower one does better, in the time of 48 one
of fewer pixels), and so many steps; the smallest always is."""
MAX_EPOCHS = 2000  # of any stage; a longer budget ends early

WHOLE_WARMUP_FROM = 3
"""Epochs from which a warm-up that a recipe leaves open takes a whole one at least: else the first epoch could not
calibrate the length. Of four it is as good as a fifth of an epoch."""

FINE_TUNED_SIZES = (96, 128, 160)
"""Image sizes of a trained network (`--init`) below its own; the largest that there is time for is taken."""
FINE_TUNED_EPOCHS, FINE_TUNED_STEPS = 4, 150
"""Minimum that the time must buy at such a size: the start is worth more than many epochs."""

PUBLIC = "tf_efficientnet_lite0.in1k"
"""timm's name of a small public network, trained on ImageNet, that a budget without `--init` names."""

VALIDATION_SHARE = 0.05  # of the training time; where validation after every epoch takes more, epochs are skipped

VIEWS_SHARE = 0.3
"""Of the time; where test-time augmentation would take more, images are evaluated once. A third more epochs are worth a
point or so, several views up to six."""

TEACHER_FROM, TEACHER_SHARE = 2000, 0.35
MAE_FROM, MAE_FROM_IMAGES, MAE_SHARE = 5000, 1000, 0.25
"""Minimum of plain steps (and images), and the stage's share of the time."""
MIN_STAGE_EPOCHS: dict[Kind, int] = {"mae": 20, "teacher": 5, "student": 10}
"""A stage that gets fewer is left out; where it is the student's, the student trains alone."""

MIX_FROM, MIX_STEPS, MIX_PER_CLASS = 25, 1200, 50
"""Epochs, steps and images a class from which a hybrid's images are mixed: it keeps a network from memorizing many
images (worth two points at 150 a class). Of ten a class it costs three, in 62 epochs and in 180."""
MIX: dict[str, Any] = {"mixup": 0.0, "cutmix": 1.0, "probability": 0.5}  # keys of `augment.mix` then
MIX_DECAY, DECAY_EPOCHS = 0.5, 3.0
"""Weight decay of Muon then: at most the first, and such that kernels, at their rate, forget in so many epochs. Worth
one to three points where it was tried, though behind for the first third of a training; forgetting within half an
epoch, as many small batches do, costs seven. Where images are not mixed it is worth nothing."""

STRONG_TEACHER_FROM = 20000  # plain steps from which the teacher is the larger one

AFTER_MAE: dict[str, Any] = {"optim.layer_decay": 0.85}
UNDER_TEACHER: dict[str, Any] = {"method.label_weight": 0.5, "guides.logits": {"kind": "hard", "weight": 0.5}}
"""Recipe keys of the student's stage, where the user sets nothing else."""

TEACHER_VIEW = 0.1  # of the time of a teacher's pass: what its larger images take in epochs that replay its predictions


@dataclass(frozen=True)
class SizedStudent:
    """A student and the size of its input."""

    student: str
    image_size: int
    patch_size: int | None = None  # side of a patch, pixels; None goes by the images, as for any recipe
    epochs: int = field(default=MIN_EPOCHS, compare=False)  # minimum that a budget must buy of it
    steps: int = field(default=MIN_STEPS, compare=False)  # the same in steps

    @property
    def overrides(self) -> dict[str, Any]:
        """Recipe keys that choose it."""
        keys = {"student.name": self.student, "images.image_size": self.image_size}
        return keys if self.patch_size is None else {**keys, "student.patch_size": self.patch_size}


CANDIDATES = (
    SizedStudent("botnet14n", 64),
    SizedStudent("botnet14t", 64, None, LARGER_EPOCHS),
    SizedStudent("botnet14t", 96, None, LARGER_EPOCHS),
    SizedStudent("botnet14t", 128, 16, LARGER_EPOCHS),
    SizedStudent("botnet14t", 224, 16, LARGER_EPOCHS),
)
"""From cheap to expensive."""
SMALL = 64  # images of fewer pixels stay as they are, or are enlarged to this: a hybrid's first convolution halves them
TINY, TINY_CANDIDATES = 32, tuple(SizedStudent(name, 64) for name in ("dhvt_nano", "dhvt_micro", "dhvt_mini"))
"""Images of fewer pixels leave a hybrid nothing to convolve; DHVT leads there."""


def candidates(side: int, student: str = "", image_size: int | None = None) -> tuple[SizedStudent, ...]:
    """Return the candidates for images of a size, from cheap to expensive.

    Args:
        student: the one that the user named; "" leaves it open. A named one's patches go by the images.
        image_size: the side that the user named; None leaves it open.
    """
    sized: dict[SizedStudent, None] = {}  # an ordered set
    for candidate in CANDIDATES if side >= TINY else TINY_CANDIDATES:
        size = image_size or min(candidate.image_size, side)
        patch = candidate.patch_size if size == candidate.image_size and not student else None
        if image_size is None and size < SMALL:
            size = max(size - size % 4, 4) if size >= 32 else size - size % 2  # what patches of that size tile
        sized[SizedStudent(student or candidate.student, size, patch, candidate.epochs)] = None
    if TINY <= side < SMALL and image_size is None and not student:
        sized.update(dict.fromkeys(candidate for candidate in CANDIDATES if candidate.image_size == SMALL))
    return tuple(sized)


def fine_tuned_candidates(side: int, student: str, own: int) -> tuple[SizedStudent, ...]:
    """Return the sizes of a trained network for images of a size, from cheap to expensive; small images are enlarged.
    `own`: the image size that the network was trained on, pixels.
    """
    sizes = [*(size for size in FINE_TUNED_SIZES if size < own), own]
    enlarged = [size for size in sizes if size <= 2 * side] or sizes[:1]
    return tuple(SizedStudent(student, size, None, FINE_TUNED_EPOCHS, FINE_TUNED_STEPS) for size in enlarged)


def stage_shares(images: int, steps: int, startable: bool) -> tuple[tuple[Kind, float], ...]:
    """Return the stages and their shares of the time; the student's takes what the others leave."""
    shares: list[tuple[Kind, float]] = []
    if startable and steps >= MAE_FROM and images >= MAE_FROM_IMAGES:
        shares.append(("mae", MAE_SHARE))
    if steps >= TEACHER_FROM:
        shares.append(("teacher", TEACHER_SHARE))
    return (*shares, ("student", 1 - sum(share for _, share in shares)))


def teacher(steps: int) -> str:
    """Return the name of the CNN that teaches, for a number of plain steps."""
    return "resnet18" if steps >= STRONG_TEACHER_FROM else "resnet10t"
