# SPDX-License-Identifier: Apache-2.0
"""What a budget buys: which student on how many pixels, in which stages. Every threshold of it stands here.

The thresholds come from LOG.md and are its experiments' to change; nothing else needs to change with them. (How many
epochs larger images ask for, a study's plan says, which keeps it too.) Where no experiment has been made yet they are
guesses, on the side of the plain run. A step is an optimizer step, and the steps that count here are those which the
whole budget would buy for the student alone (`plain steps`).

    plain steps          stages
    any                  the student on labels
    from TEACHER_FROM    a CNN on the same images first, whose decisions are labels besides the true ones
    from MAE_FROM        before both, the student paints masked patches of all images

Both are for plain ViTs alone: patches that other students have convolved with their neighbors cannot be masked, and a
teacher is worth less to a hybrid than the time it takes, and to DHVT nothing.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..study.plan import LARGER_EPOCHS

Kind = Literal["mae", "teacher", "student"]
"""Stages in the order in which they are trained; the last one's student is kept."""

LEAST_EPOCHS, LEAST_STEPS = 20, 1000
"""Small images enlarged are taken only where the budget buys so many epochs, a larger student, or photographs of more
pixels, where it buys `LARGER_EPOCHS` (in the time of 27 to 57 epochs a narrower one learns more, in the time of 48 one
of fewer pixels), and so many steps; the smallest always is."""
MOST_EPOCHS = 2000
"""Of any stage; a longer budget ends early."""

WHOLE_WARMUP_FROM = 3
"""Epochs from which a warm-up that a recipe leaves open takes a whole one at least: else the first epoch could not tell
how many there are to be. Of four it is as good as a fifth of an epoch."""

VALIDATION_SHARE = 0.05
"""Of the time that images are learned from; where measuring after every epoch takes more, epochs are left out."""

VIEWS_SHARE = 0.3
"""Of the time; where asking held-out images by several views would take more, a student is asked once. A third more
epochs are worth a point or so, several views up to six."""

TEACHER_FROM, TEACHER_SHARE = 2000, 0.35
MAE_FROM, MAE_FROM_IMAGES, MAE_SHARE = 5000, 1000, 0.25
"""From so many plain steps (and images), and the stage's share of the time."""
FEWEST_EPOCHS: dict[Kind, int] = {"mae": 20, "teacher": 5, "student": 10}
"""A stage that gets fewer is left out; where it is the student's own, it trains alone."""

MIX_FROM, MIX_STEPS, MIX_PER_CLASS = 25, 1200, 50
"""Epochs, steps and images a class from which a hybrid's images are mixed: it keeps a network from learning many images
by heart (worth two points at 150 a class). Of ten a class it takes three, in 62 epochs and in 180."""
MIX: dict[str, Any] = {"mixup": 0.0, "cutmix": 1.0, "probability": 0.5}
"""Keys of `augment.mix` then."""
MIX_DECAY, DECAY_EPOCHS = 0.5, 3.0
"""Decay of Muon's weights then: at most the first, and such that kernels, at their rate, forget in so many epochs.
Worth one to three points where it was tried, though behind for the first third of a training; forgetting within half an
epoch, as many small batches do, takes seven. Where images are not mixed it is worth nothing."""

STRONG_TEACHER_FROM = 20000
"""Plain steps from which the teacher is the larger one."""

AFTER_MAE: dict[str, Any] = {"optim.layer_decay": 0.85}
UNDER_TEACHER: dict[str, Any] = {
    "method.label_weight": 0.5,
    "guides.logits": {"kind": "hard", "weight": 0.5},
}
"""Recipe keys of the student's stage besides, where a person says nothing else of them."""


@dataclass(frozen=True)
class Rung:
    """A student and the images that it sees.

    Args:
        student: its name.
        image_size: side at which they are shown, pixels.
        patch_size: side of a patch, pixels; None goes by the images, as for any recipe.
        epochs: that a budget must buy of it.
    """

    student: str
    image_size: int
    patch_size: int | None = None
    epochs: int = field(default=LEAST_EPOCHS, compare=False)

    @property
    def overrides(self) -> dict[str, Any]:
        """Recipe keys that ask for it."""
        keys = {"student.name": self.student, "images.image_size": self.image_size}
        return keys if self.patch_size is None else {**keys, "student.patch_size": self.patch_size}


LADDER = (
    Rung("botnet14n", 64),
    Rung("botnet14t", 64, None, LARGER_EPOCHS),
    Rung("botnet14t", 96, None, LARGER_EPOCHS),
    Rung("botnet14t", 128, 16, LARGER_EPOCHS),
    Rung("botnet14t", 224, 16, LARGER_EPOCHS),
)
"""From cheap to large."""
SMALL = 64
"""Images of fewer pixels stay as they are, or are enlarged to so many: a hybrid's first convolution halves them."""
TINY, TINY_LADDER = 32, tuple(Rung(name, 64) for name in ("dhvt_nano", "dhvt_micro", "dhvt_mini"))
"""Images of fewer pixels leave a hybrid nothing to convolve; DHVT leads there."""


def rungs(side: int, student: str = "", image_size: int | None = None) -> tuple[Rung, ...]:
    """The ladder for images of a size, from cheap to large.

    Args:
        side: of the images, pixels.
        student: the one that a person wants; "" leaves it open. A named one's patches go by the images.
        image_size: the side that a person wants; None leaves it open.
    """
    tried: dict[Rung, None] = {}  # an ordered set
    for rung in LADDER if side >= TINY else TINY_LADDER:
        size = image_size or min(rung.image_size, side)
        patch = rung.patch_size if size == rung.image_size and not student else None
        if image_size is None and size < SMALL:
            size = max(size - size % 4, 4) if size >= 32 else size - size % 2  # what patches of that size tile
        tried[Rung(student or rung.student, size, patch, rung.epochs)] = None
    if TINY <= side < SMALL and image_size is None and not student:
        tried.update(dict.fromkeys(rung for rung in LADDER if rung.image_size == SMALL))
    return tuple(tried)


def kinds(images: int, steps: int, startable: bool) -> tuple[tuple[Kind, float], ...]:
    """Stages and their shares of the time; the student's own takes what the others leave.

    Args:
        images: to learn from.
        steps: plain ones.
        startable: whether the student may start from what it has painted.
    """
    shares: list[tuple[Kind, float]] = []
    if startable and steps >= MAE_FROM and images >= MAE_FROM_IMAGES:
        shares.append(("mae", MAE_SHARE))
    if steps >= TEACHER_FROM:
        shares.append(("teacher", TEACHER_SHARE))
    return (*shares, ("student", 1 - sum(share for _, share in shares)))


def teacher(steps: int) -> str:
    """The CNN that teaches, for so many plain steps."""
    return "resnet18" if steps >= STRONG_TEACHER_FROM else "resnet10t"
