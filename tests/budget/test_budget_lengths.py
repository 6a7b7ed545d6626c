# SPDX-License-Identifier: Apache-2.0
"""Stages of a budget, as pure functions of given step times: nothing here trains or reads a clock."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from refusals import refused
from viticulture.budget import choices, lengths
from viticulture.budget.budget import TimeBudget
from viticulture.budget.choices import CANDIDATES, MAX_EPOCHS, Kind, SizedStudent, candidates, stage_shares
from viticulture.budget.follow import Stopwatch, calibrated, corrected
from viticulture.budget.lengths import (
    CALIBRATION_SECONDS,
    MARGIN,
    MAX_SLOWDOWN,
    RESERVE,
    calibration_epochs,
    divide_time,
    epochs_within,
    largest_that_fits,
    remaining_epochs,
    stage_seconds,
)
from viticulture.budget.plan import BudgetPlan, Stage
from viticulture.models.students import fitting_patch
from viticulture.report.stages import stages_table
from viticulture.study.step_times import StepTimes
from viticulture.tasks.results import Headline


@pytest.mark.parametrize(
    ("words", "seconds", "processors"),
    [
        ("90s", 90, False),
        ("30m", 1800, False),
        ("30", 1800, False),
        ("1.5 h", 5400, False),
        ("1night", 36000, False),
        ("15core-m", 900, True),
        ("900 core-s", 900, True),
        ("1COREh", 3600, True),
        ("5 core", 300, True),
    ],
)
def test_a_time_is_parsed(words: str, seconds: float, processors: bool) -> None:
    assert TimeBudget(words).seconds == seconds
    assert TimeBudget(words).counts_processors is processors


@pytest.mark.parametrize("words", ["", "soon", "0m", "-5m", "core-m", "1e3s", "3 weeks", "15m core", "9" * 400])
def test_what_is_no_time_is_refused(words: str) -> None:
    refused("a budget is a time such as", TimeBudget, words)


def drawn(random_numbers: random.Random) -> tuple[dict[tuple[Kind, bool], StepTimes], int]:
    """Draw step times of every stage, on slow and fast machines, and a number of images."""
    images = int(10 ** random_numbers.uniform(1, 5))
    steps = max(1, images // 32)

    def pace() -> StepTimes:
        step = 10 ** random_numbers.uniform(-3, 1)
        return StepTimes(step, steps, step / 100, images // 10, images // 4, random_numbers.uniform(0, 0.5))

    keys: list[tuple[Kind, bool]] = [("mae", False), ("teacher", False), ("student", False), ("student", True)]
    return {key: pace() for key in keys}, images


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_fits_and_more_time_buys_no_less(seed: int) -> None:
    """For any step times."""
    random_numbers = random.Random(seed)
    paces, images = drawn(random_numbers)
    before: tuple[lengths.StageLength, ...] = ()
    for seconds in sorted(10 ** random_numbers.uniform(0, 6) for _ in range(60)):
        search, startable = random_numbers.random() < 0.8, random_numbers.random() < 0.8
        found = divide_time(seconds, images, lambda kind, taught: paces[kind, taught], search, startable)
        always = divide_time(seconds, images, lambda kind, taught: paces[kind, taught], True, True)
        for plan in (found, always):
            assert sum(length.seconds for length in plan) <= seconds
            assert all(length.epochs >= 1 for length in plan)
            assert [length.kind for length in plan][-1:] == ["student"] * bool(plan)
        assert always or not before
        if before and [length.kind for length in always] == [length.kind for length in before]:
            rest = sum(paces[length.kind, False].epoch for length in always[:-1])  # what whole epochs may shift
            assert all(now.epochs >= then.epochs for now, then in zip(always[:-1], before[:-1], strict=True))
            own = paces["student", len(always) > 1 and always[-2].kind == "teacher"].epoch
            assert always[-1].seconds > before[-1].seconds - rest - own
        assert len(found) <= 1 or search
        assert "mae" not in {length.kind for length in found} or startable
        before = always


def test_nearly_all_of_the_time_is_used() -> None:
    paces: dict[tuple[Kind, bool], StepTimes] = {
        ("mae", False): StepTimes(0.1, 50, 0.001, 0, 0),
        ("teacher", False): StepTimes(0.5, 50, 0.001, 100, 200),
        ("student", False): StepTimes(0.05, 50, 0.001, 100, 200),
        ("student", True): StepTimes(0.1, 50, 0.001, 100, 200),
    }
    plan = divide_time(1200, 2000, lambda kind, taught: paces[kind, taught], True, True)
    assert [length.kind for length in plan] == ["mae", "teacher", "student"]
    assert 1200 - sum(length.seconds for length in plan) < paces["student", True].epoch
    capped = divide_time(10**7, 2000, lambda kind, taught: paces[kind, taught], True, True)
    assert [length.epochs for length in capped] == [MAX_EPOCHS] * 3


def test_a_stage_that_would_be_too_short_is_left_out() -> None:
    fast, slow = StepTimes(0.1, 100, 0.001, 0, 0), StepTimes(20.0, 100, 0.001, 0, 0)
    keys: list[tuple[Kind, bool]] = [("mae", False), ("teacher", False), ("student", False), ("student", True)]
    paces = dict.fromkeys(keys, fast)
    seconds = 1.1 * choices.MAE_FROM * fast.step + 10
    every = divide_time(seconds, 2000, lambda kind, taught: paces[kind, taught], True, False)
    assert [length.kind for length in every] == ["teacher", "student"]
    alone = divide_time(
        seconds, 2000, lambda kind, taught: {**paces, ("teacher", False): slow}[kind, taught], True, False
    )
    assert [length.kind for length in alone] == ["student"]
    alone = divide_time(
        seconds, 2000, lambda kind, taught: {**paces, ("student", True): slow}[kind, taught], True, False
    )
    assert [length.kind for length in alone] == ["student"]
    assert divide_time(RESERVE, 2000, lambda kind, taught: slow, True, False) == ()


@pytest.mark.parametrize("power", [0.7, 0.9, 1.0])
def test_more_time_buys_no_smaller_student(power: float) -> None:
    """Step times that grow as a power of the MACs."""
    ladder = candidates(224)
    macs = {rung: 4**i for i, rung in enumerate(ladder)}
    taken = []
    for seconds in [10 * 2**k for k in range(20)]:
        measured: list[SizedStudent] = []

        def pace(rung: SizedStudent, measured: list[SizedStudent] = measured) -> StepTimes:
            measured.append(rung)
            return StepTimes(0.01 * macs[rung] ** power, 50, 0.0001, 100, 300)

        rung = largest_that_fits(ladder, lambda seconds=seconds: seconds, pace, macs.__getitem__)  # type: ignore[misc]
        taken.append(ladder.index(rung))
        assert rung == ladder[0] or lengths.has_time_for(rung, pace(rung), seconds)
        assert len(set(measured)) <= len(ladder)
        assert seconds > 100 or ladder[-1] not in measured
    assert taken == sorted(taken)
    assert taken[-1] == len(ladder) - 1
    assert taken[0] == 0


def test_a_single_rung_is_not_measured() -> None:
    def pace(rung: SizedStudent) -> StepTimes:
        raise AssertionError(rung)

    assert largest_that_fits(CANDIDATES[:1], lambda: 1.0, pace, lambda rung: 1) == CANDIDATES[0]


def test_candidates_fit_images_of_any_size() -> None:
    assert candidates(224) == CANDIDATES
    for side in (8, 17, 28, 32, 45, 64, 96, 128, 160, 224):
        found = candidates(side)
        assert len(set(found)) == len(found)
        enlarged = 32 <= side < 64
        assert (found[-2:] == CANDIDATES[:2]) == (enlarged or side == 64)
        for rung in found[:-2] if enlarged else found:
            patch = rung.patch_size or fitting_patch(rung.student, (rung.image_size, rung.image_size))
            assert patch is not None
            assert rung.image_size <= side
            assert rung.image_size > side - patch or side > 64
            assert rung.image_size % patch == 0
    assert {rung.student for rung in candidates(32)} == {rung.student for rung in CANDIDATES}
    assert candidates(32, "botnet14t") == (SizedStudent("botnet14t", 32),)
    assert [rung.student for rung in candidates(32, image_size=32)] == ["botnet14n", "botnet14t"]
    assert {rung.student for rung in candidates(96, "vit_tiny")} == {"vit_tiny"}
    assert {rung.image_size for rung in candidates(224, image_size=50)} == {50}
    assert candidates(224, "vit_tiny", 50) == (SizedStudent("vit_tiny", 50),)


@pytest.mark.parametrize(
    ("side", "rung", "epochs", "taken"),
    [
        (224, 1, 59, ("botnet14n", 64)),
        (224, 1, 61, ("botnet14t", 64)),
        (48, 2, 19, ("botnet14n", 48)),
        (48, 2, 21, ("botnet14n", 64)),
    ],
    ids=str,
)
def test_a_larger_student_needs_more_epochs_than_larger_images(
    side: int, rung: int, epochs: int, taken: tuple[str, int]
) -> None:
    ladder = candidates(side)[0], candidates(side)[rung]
    paces = {ladder[0]: StepTimes(0.5, 100, 0.0, 0, 0), ladder[1]: StepTimes(1.0, 100, 0.0, 0, 0)}
    seconds = lengths.stage_seconds(paces[ladder[1]], epochs) + 0.5
    found = largest_that_fits(ladder, lambda: seconds, paces.__getitem__, lambda rung: 1 + ladder.index(rung))
    assert (found.student, found.image_size) == taken


def test_stages_share_the_time() -> None:
    for images in (10, choices.MAE_FROM_IMAGES, 10**6):
        for steps in (0, choices.TEACHER_FROM, choices.MAE_FROM):
            found = dict(stage_shares(images, steps, True))
            assert sum(found.values()) == pytest.approx(1)
            assert min(found.values()) > 0
            assert ("teacher" in found) is (steps >= choices.TEACHER_FROM)
            assert ("mae" in found) is (steps >= choices.MAE_FROM and images >= choices.MAE_FROM_IMAGES)
    assert dict(stage_shares(10**6, 10**6, False)).keys() == {"teacher", "student"}


def planned(budget: str = "1000s") -> BudgetPlan:
    """Plan two stages, 400 and 500 seconds of 1,000, 50 being spent."""
    pace = StepTimes(0.1, 40, 0.0, 0, 0)
    epochs = epochs_within(pace, 400), epochs_within(pace, 500)
    values = {"student": {"name": "vit_nano"}, "images": {"image_size": 8}, "train": {"epochs": 100}}
    stages = [
        Stage(f"{n}-{kind}", kind, "r", values, pace, epochs[n - 1], stage_seconds(pace, epochs[n - 1]))  # type: ignore[arg-type]
        for n, kind in ((1, "teacher"), (2, "student"))
    ]
    return BudgetPlan(budget, "digits", None, 0, "", 50.0, tuple(stages))


@pytest.mark.parametrize("slowness", [0.8, 1.0, 1.25])
def test_a_later_stage_compensates_for_an_earlier_one(slowness: float) -> None:
    plan = corrected(planned(), 0)
    first = plan.stages[0]
    assert (first.epochs, first.begun) == (planned().stages[0].epochs, True)
    plan = plan.with_stage(0, replace(first, spent=slowness * first.seconds))
    last = corrected(plan, 1).stages[1]
    took = plan.spent + slowness * stage_seconds(last.step_times, last.epochs)
    assert took <= 1000 * (1 - MARGIN)
    assert took > 1000 * (1 - MARGIN) - slowness * last.step_times.epoch
    assert last.seconds == pytest.approx(slowness * stage_seconds(last.step_times, last.epochs))


@pytest.mark.parametrize("slowness", [0.5, 2.0])
def test_a_calibrated_stage_informs_the_next(slowness: float) -> None:
    plan = corrected(planned(), 0)
    pace = plan.stages[0].step_times
    took = slowness * pace.epoch * 20
    plan = calibrated(plan, 0, 20, took, took)
    first = plan.stages[0]
    plan = plan.with_stage(0, replace(first, spent=slowness * stage_seconds(pace, first.epochs)))
    last = corrected(plan, 1).stages[1]
    took = plan.spent + slowness * stage_seconds(last.step_times, last.epochs)
    assert 1000 * (1 - MARGIN) - 2 * slowness * pace.epoch < took <= 1000 * (1 - MARGIN)


@pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
def test_a_stages_length_is_calibrated_by_its_first_epochs(slowness: float) -> None:
    plan = corrected(planned(), 0)
    first, tried = plan.stages[0], 20
    opened = 3.0
    took = slowness * first.step_times.epoch * tried
    plan = calibrated(plan, 0, tried, took, opened + took)
    stage = plan.stages[0]
    spent = opened + slowness * (stage.step_times.epoch * stage.epochs + stage_seconds(stage.step_times, 0))
    share = first.seconds / sum(stage.seconds for stage in planned().stages)
    aim = share * (1000 * (1 - MARGIN) - plan.prepared)
    assert stage.seconds == pytest.approx(spent)
    assert aim - slowness * stage.step_times.epoch < spent <= aim


def test_a_calibrated_stage_is_longer_than_its_warm_up() -> None:
    """Catches: a length that no training can have, written into the plan, so that the run cannot be resumed."""
    plan = corrected(planned(), 0)
    took = MAX_SLOWDOWN * plan.stages[0].step_times.epoch * 5
    assert calibrated(plan, 0, 5, took, took).stages[0].epochs < (warmup := 0.8 * plan.stages[0].epochs)
    assert calibrated(plan, 0, 5, took, took, warmup).stages[0].epochs == int(warmup) + 1


def test_an_implausible_calibration_is_limited() -> None:
    """A machine that slept in it, or a clock that stood."""
    plan = corrected(planned(), 0)
    pace, tried = plan.stages[0].step_times, 20
    slept = calibrated(plan, 0, tried, 1e6, 30.0).stages[0]
    assert slept.epochs - tried == max(1, epochs_within(pace, (plan.stages[0].seconds - 30) / MAX_SLOWDOWN))
    assert tried < calibrated(plan, 0, tried, 0.0, 0.0).stages[0].epochs <= MAX_EPOCHS


@pytest.mark.parametrize(
    ("epochs", "warmup", "seconds", "tried"),
    [
        (100, 5.0, 10.0, 5),
        (130, 5.9, 10.0, 5),
        (130, 20.0, 10.0, 7),
        (100, 5.0, CALIBRATION_SECONDS / 6, 0),
        (100, 0.0, 10.0, 0),
        (15, 0.75, 100.0, 0),
    ],
)
def test_a_calibration_lies_within_the_warm_up(epochs: int, warmup: float, seconds: float, tried: int) -> None:
    assert calibration_epochs(StepTimes(seconds / 2, 2, 0.0, 0, 0), epochs, warmup) == tried


def test_an_epoch_of_one_step_calibrates_nothing() -> None:
    assert calibration_epochs(StepTimes(100.0, 1, 0.0, 0, 0), 1000, 50.0) == 0


@pytest.mark.parametrize(("epochs", "steps"), [(1, 2), (1, 5), (3, 2)])
def test_a_stopwatch_counts_epochs_without_setup(epochs: int, steps: int) -> None:
    """Steps of a second, the first one of ten, and five seconds of validation."""
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    trainer: Any = None
    for epoch in range(epochs):
        for step in range(steps):
            now[0] += 1.0 if epoch or step else 10.0
            watch.on_train_batch_end(trainer, trainer, None, None, step)
        now[0] += 5.0
        watch.on_train_epoch_end(trainer, trainer)
    assert watch.seconds == pytest.approx(epochs * (steps + 5))


def test_evaluation_has_its_step_time() -> None:
    """Held-out images are evaluated in float32, validation ones in bfloat16."""
    pace = StepTimes(1.0, 10, 0.25, 4, 100, evaluation=0.5)
    assert pace.training(3) == pytest.approx(3 * pace.epoch + 50)
    assert replace(pace, evaluation=None).training(3) == pytest.approx(3 * pace.epoch + 25)
    assert pace.scaled(2).training(0) == pytest.approx(100)


def test_a_stage_trains_however_late_it_is() -> None:
    assert remaining_epochs(StepTimes(1.0, 100, 0.0, 0, 0), [10.0], -50.0, 2.0) == 1


def test_epochs_grow_with_seconds() -> None:
    pace = StepTimes(0.1, 40, 0.001, 50, 100, 0.02)
    epochs = [epochs_within(pace, seconds) for seconds in range(0, 2000, 7)]
    assert epochs[0] == 0
    assert all(now >= before for before, now in pairwise(epochs))
    assert all(
        stage_seconds(pace, n) <= s < stage_seconds(pace, n + 1)
        for n, s in zip(epochs, range(0, 2000, 7), strict=True)
        if n
    )


@pytest.mark.parametrize("name", ["top-1", "mAP", "AP", "mIoU"])
def test_stages_report_the_tasks_metric(name: str) -> None:
    """mAP of several labels, not top-1."""
    plan = planned()
    values = {**plan.stages[0].values, "engine": {"precision": "auto"}}
    plan = replace(plan, stages=tuple(replace(stage, values=values) for stage in plan.stages))
    table = stages_table(plan, [None, Headline(name, 0.75, (0.7, 0.8), 4, "test")])
    assert table.columns[-1].name == name
    assert [row[-1] for row in table.rows] == [None, None, 0.75]
