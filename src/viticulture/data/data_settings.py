# SPDX-License-Identifier: Apache-2.0
"""Which images a run is trained and evaluated on, the `data` section of a recipe."""

from dataclasses import dataclass
from typing import Literal

from ..errors import UserError
from ..keywords import check_fields


@dataclass(frozen=True)
class DataSettings:
    """Which images to train on, and which to hold out.

    Args:
        val_fraction: share of the training images held out for validation where the data has no validation split;
            0 holds out none.
        test_fraction: share of the training images held out for the test, before any for validation, where the data has
            no test split; 0 holds out none.
        fraction: share of every class's training images to train on, in (0, 1]; null for all.
        per_class: training images of every class to train on; null for all.
        rule: how a fraction is drawn. balanced: by a seed; bootstrapping: the one fixed subset of the paper, drawn from
            all training images, so that val_fraction must be 0 where the data has no validation split.
        near_duplicates: what to do about near-duplicates, images that are the same picture saved again, shrunk or
            slightly changed, such as frames of a video. together: random splits keep them on one side, and for the
            data's own splits it is reported how many held-out images have some among the training images; leave_out:
            these training images are left out as well, and the held-out images stay; ignore: do not search for them.
        leave_out: a CSV with a column image, such as the list that `viticulture review` writes: its training images are
            left out; held-out images stay, as results without the difficult ones would be too good. null for none.
        unlabeled: images without labels (a folder or archive, whose classes are not read), which a teacher's guides, or
            a method without labels, learn from as well; near-duplicates of held-out images are left out. null for none.
        skip_unreadable: leave out images that cannot be read, instead of stopping.
        split_seed: seed of what is held out; separate from the run's seed, so that runs share their test images.
        subset_seed: seed of the training subset, in place of the run's seed, so that runs of other seeds, such as a
            student and its teacher, are trained on the same images.
        train_on: train, or train+val to train on the data's own validation images as well.
        test_on: test, or val to test on the data's own validation images, as papers do where no test has labels; none
            to leave test images aside, for a later `evaluate`.
        sampling: natural: every training image once an epoch; balanced: every class as often as any other, images
            of small classes several times.
        folds: number of folds that the images are divided into, of which one is held out, in place of test_fraction;
            where the data has its own test images, in place of val_fraction. null for no folds.
        fold: the one that is held out, from 0 on.
        class_weights: factors of classes in the loss, scaled to mean 1 over the training images. balanced: every
            class weighs as much as any other; or a mapping, such as {ill: 5}, where other classes have 1.
    """

    val_fraction: float = 0.1
    test_fraction: float = 0.2
    fraction: float | None = None
    per_class: int | None = None
    rule: Literal["balanced", "bootstrapping"] = "balanced"
    near_duplicates: Literal["together", "leave_out", "ignore"] = "together"
    leave_out: str | None = None
    unlabeled: str | None = None
    skip_unreadable: bool = False
    split_seed: int = 0
    subset_seed: int | None = None
    train_on: Literal["train", "train+val"] = "train"
    test_on: Literal["test", "val", "none"] = "test"
    sampling: Literal["natural", "balanced"] = "natural"
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    folds: int | None = None
    fold: int = 0

    def __post_init__(self) -> None:
        check_fields("data", self)
        share, each, fixed = self.fraction, self.per_class, self.rule == "bootstrapping"
        is_fixed = "the rule bootstrapping is one fixed subset of all training images"
        for key, value in (("val_fraction", self.val_fraction), ("test_fraction", self.test_fraction)):
            if not 0 <= value < 1:
                raise UserError(f"{key} must lie in [0, 1), got {value}")
        if share is not None and not 0 < share <= 1:
            raise UserError(f"fraction must lie in (0, 1], got {share}; ten percent are 0.1")
        if each is not None and each < 1:
            raise UserError(f"per_class must be at least 1, got {each}")
        if share is not None and each is not None:
            raise UserError(f"set fraction or per_class, not both, got {share} and {each}")
        if fixed and share is None:
            raise UserError("the rule bootstrapping draws a fraction; set one, such as --fraction 0.1")
        if self.folds is not None and self.folds < 2:
            raise UserError(f"folds must be at least 2, got {self.folds}; five or ten are usual")
        if not 0 <= self.fold < (self.folds or 1):
            raise UserError(f"fold must lie in 0..{(self.folds or 1) - 1}, got {self.fold}; folds is {self.folds}")
        if fixed and self.near_duplicates == "leave_out":
            raise UserError(f"{is_fixed}, and data.near_duplicates leave_out takes some of them away; choose one")
        if fixed and self.leave_out is not None:
            raise UserError(f"{is_fixed}, and data.leave_out takes some of them away; choose one")
        if fixed and self.folds is not None:
            raise UserError(f"{is_fixed}; leave the folds out")
        if self.train_on == "train+val" and self.test_on == "val":
            raise UserError("train_on train+val and test_on val would test on training images; choose one of them")
        if self.folds is not None and self.test_on == "none":
            raise UserError("data.folds holds out images to test on, and data.test_on is none; choose one")
        if self.class_weights is not None and self.sampling == "balanced":
            raise UserError("data.sampling and data.class_weights balance classes twice; leave one of them out")
        for key, seed in (("split_seed", self.split_seed), ("subset_seed", self.subset_seed or 0)):
            if seed < 0:
                raise UserError(f"{key} must not be negative, got {seed}")
