# SPDX-License-Identifier: Apache-2.0
"""Studies that search recipe keys."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import viticulture
from refusals import refused
from viticulture.cli import main
from viticulture.command import parse_command
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.study import search as searching
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Cell
from viticulture.study.outcomes import Outcome
from viticulture.study.plan import cost, make_plan
from viticulture.study.step_times import StepTimes
from viticulture.study.study import Study
from viticulture.study.terms import ALL_IMAGES, Terms

SPACE = {"optim.lr": "1e-4..1e-2", "student.options.depth": "1..3", "optim.name": "adamw,sgd"}
TIMES = StepTimes(step=0.1, steps=10, inference=0.001, val_images=1, held_out_images=1)
DEPTH = "student.options.depth"
WORDS = [f"{key}={text}" for key, text in SPACE.items()]


def outcome(candidate: Candidate, val: float | None) -> Outcome:
    cell = Cell(candidate, ALL_IMAGES.each()[0], 0, 0, candidate.name)
    return Outcome(cell, "finished" if val is not None else "failed", val=val)


def test_ranges_and_choices_are_read() -> None:
    space = searching.space_of({**SPACE, "engine.replay_gb": "true,null,0.5"})
    assert space == {
        "optim.lr": (1e-4, 1e-2), "student.options.depth": (1, 3), "optim.name": ["adamw", "sgd"],
        "engine.replay_gb": [True, None, 0.5],
    }  # fmt: skip
    assert isinstance(space["student.options.depth"][0], int)


def test_a_range_of_a_key_of_numbers_with_a_point_is_continuous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: proposals of 0 and 1 alone for a share."""
    monkeypatch.setattr(searching, "_optuna", lambda: None)
    words = ["augment.erase.probability=0..1", "optim.weight_decay=0..2", "student.options.depth=1..3"]
    grid = searching.grid_of_search("digits", "default/digits", words, 3, Terms("2h"), {})
    ends = [type(end) for values in searching.space_of(grid.search).values() for end in values]
    assert ends == [float] * 4 + [int] * 2


def test_a_search_from_a_trained_network_fine_tunes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_optuna", lambda: None)
    spec = DataSpec(("a", "b"), (32, 32), (0.5,) * 3, (0.25,) * 3)
    save(create_student("resnet10t", spec), tmp_path / "net", spec)
    keys = {"student.init": str(tmp_path / "net")}
    grid = searching.grid_of_search("digits", "", ["optim.lr=1e-4..1e-2"], 3, Terms("2h"), keys)
    assert (grid.baseline.recipe, grid.baseline.overrides) == ("finetune/photos", {})
    assert grid.conditions["student.name"] == "resnet10t"
    assert grid.conditions["student.init"] == str(tmp_path / "net")


def test_what_cannot_be_searched_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each before anything is opened or trained."""
    monkeypatch.setattr(searching, "_optuna", lambda: None)

    def grid(*words: str, terms: Terms = Terms("2h")) -> None:  # noqa: B008
        searching.grid_of_search("digits", "default/digits", words, 3, terms, {})

    refused(
        "begins with its smaller end, got optim.lr=1e-2..1e-4; write optim.lr=1e-4..1e-2", grid, "optim.lr=1e-2..1e-4"
    )
    refused(
        r"two different ends, got optim.lr=1e-3..1e-3; leave it out, or set --optim.lr 1e-3",
        grid,
        "optim.lr=1e-3..1e-3",
    )
    for key in ("student", "student.name"):
        refused("unknown student 'nosuch'", grid, f"{key}=vit_nano,nosuch")
    refused("ends of a range are numbers", grid, "optim.lr=a..1")
    refused("two or more different choices", grid, "optim.name=adamw")
    refused("two or more different choices", grid, "optim.name=adamw,adamw")
    refused("takes KEY=LOW..HIGH or KEY=A,B, got 'optim.lr'", grid, "optim.lr")
    for key, option in (("data.per_class", "--per-class"), ("data.folds", "--folds")):
        overrides = {key: 5}
        with pytest.raises(UserError, match=f"trains on all training images; leave {option} out"):
            searching.grid_of_search("digits", "default/digits", WORDS, 3, Terms("2h"), overrides)
    refused("optim.lr twice", grid, "optim.lr=1..2", "optim.lr=3..4")
    refused("did you mean", grid, "optim.lrr=1e-4..1e-2")
    refused("learning_rate|lr", grid, "optim.lr=adamw,sgd")
    refused("train.epochs is the same for all", grid, "train.epochs=1..9")
    refused("data.fraction is the same for all", grid, "data.fraction=0.1..0.9")
    for terms in (Terms(), Terms("auto"), Terms("2h", halving=True)):
        refused("--budget 2h, or by --epochs", grid, *WORDS, terms=terms)
    where = viticulture.Where(str(tmp_path / "s"), slurm=True)
    refused("on this machine", viticulture.compare_search, "digits", WORDS, terms=Terms("2h"), where=where)
    assert not (tmp_path / "s").exists()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused(r"pip install 'viticulture\[search\]'", grid, *WORDS)


def test_the_shell_takes_several_keys_and_the_budget_is_that_of_all_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 of 12 + 12 trainings' worth are the baseline's. Catches: a budget that is spent several times, and an error
    that counts the baseline's part alone."""
    monkeypatch.setattr(searching, "_optuna", lambda: None)
    command = parse_command(["compare", "digits", "--search", *WORDS, "--budget", "2h", "--lr", "1e-3"])
    assert command.function is viticulture.compare_search
    assert command.keywords["search"] == WORDS
    grid = searching.grid_of_search("digits", "", WORDS, 3, Terms("2h"), {})
    name = grid.baseline.name
    plan = make_plan(grid, {name: 10**6}, {name: None}, {(name, "all images"): TIMES})
    assert cost(grid, plan) == pytest.approx(900, abs=3)
    short = replace(grid, terms=Terms("20s"))
    refused("are too short|is too short.* 1 min", make_plan, short, {name: 9}, {name: None}, plan.step_times)
    assert grid.search == SPACE
    assert type(grid).from_yaml(grid.to_yaml(), "study.yaml") == grid


def test_proposals_lie_in_the_space_are_new_and_follow_results() -> None:
    """Catches: a minimized result, a linear scale, numbers beyond the ends, a proposal twice, other proposals after a
    stop."""
    pytest.importorskip("optuna")
    space = searching.space_of(SPACE)
    first = searching._proposed(space, "default/digits", [], 200)
    assert len({each.name for each in first}) == len(first) > 50
    rates = np.array([each.overrides["optim.lr"] for each in first])
    assert rates.min() >= 1e-4
    assert rates.max() <= 1e-2
    assert 0.2 < (rates < 1e-3).mean() < 0.8
    assert {each.overrides["student.options.depth"] for each in first} == {1, 2, 3}
    past = [outcome(each, -abs(np.log10(each.overrides["optim.lr"] / 1e-3))) for each in first[:40]]
    next_ones = searching._proposed(space, "default/digits", past, 30)
    assert next_ones == searching._proposed(space, "default/digits", past, 30)
    assert not {each.name for each in next_ones} & {each.name for each in first[:40]}
    distance = [abs(np.log10(each.overrides["optim.lr"] / 1e-3)) for each in next_ones]
    assert np.median(distance) < 0.6 * np.median(np.abs(np.log10(rates / 1e-3)))
    failing = [replace(each, val=None, status="failed") for each in past if each.cell.candidate.overrides[DEPTH] == 3]
    others = [each for each in past if each.cell.candidate.overrides[DEPTH] != 3]
    deep = [
        sum(each.overrides[DEPTH] == 3 for each in searching._proposed(space, "default/digits", known, 30))
        for known in (others, others + failing)
    ]
    assert deep[0] > 1.5 * deep[1], "what fails is proposed less than what is new"
    assert searching._importance(space, others + failing) == searching._importance(space, others)
    importance = searching._importance(space, past)
    assert max(importance, key=lambda key: importance[key]) == "optim.lr"
    few = searching.space_of({"optim.name": "adamw,sgd"})
    (sgd,) = (each for each in searching._proposed(few, "default/digits", [], 2) if each.name == "name=sgd")
    assert [each.name for each in searching._proposed(few, "default/digits", [outcome(sgd, None)], 5)] == ["name=adamw"]


def test_a_search_is_trained_resumed_and_concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of the proposals. Catches: proposals that change or are trained again, finalists that were
    not the best, a failed proposal that is tried again for ever, a page without them."""
    pytest.importorskip("optuna")
    monkeypatch.setattr(searching, "TRIALS", 4)
    monkeypatch.setattr(searching, "RANDOM", 2)
    monkeypatch.setattr(searching, "FINALISTS", 1)
    proposed, calls = searching._proposed, list[list[Candidate]]()

    def stopped(*arguments: Any) -> list[Candidate]:
        calls.append(proposed(*arguments))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(searching, "_proposed", stopped)
    small = {"student.options": {"embed_dim": 16, "depth": 1, "num_heads": 2}, "train.batch_size": 64}
    small |= {"schedule.warmup_epochs": 0, "train.epochs": 2, "data.test_fraction": 0.6}
    out = tmp_path / "s"
    words = ["optim.lr=1e-4..1e-2", "student.patch_size=2,3"]  # 3 does not divide 8 pixels
    with pytest.raises(KeyboardInterrupt, match="compare resume"):
        viticulture.compare_search(
            "digits", words, "default/digits", 1, where=viticulture.Where(str(out)), overrides=small
        )
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    finished = sum(each.status == "finished" for each in Study(out / "search").outcomes)
    assert len(before) == 2 * (1 + finished), "best and last weights of the baseline and of proposals"
    failures = {path: path.stat().st_mtime_ns for path in (out / "search" / "failures").glob("*.json")}
    assert len(failures) == 3 - finished
    assert main(["compare", "resume", str(out)]) == 0
    assert {path: path.stat().st_mtime_ns for path in {**before, **failures}} == {**before, **failures}
    assert calls[3] == calls[2], "the same proposal after a stop"
    trials, study = Study(out / "search").outcomes, Study(out)
    assert len(trials) == 4
    best = max(trials, key=lambda each: each.val or 0)
    names = [each.name for each in study.folder.grid.candidates]
    assert names == ["default/digits", best.cell.candidate.name]
    assert study.counts == (2, 2)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Which settings of default/digits are best" in page
    assert all(each.cell.candidate.name.split("=")[1].split()[0] in page for each in trials)
    assert main(["compare", "resume", str(out)]) == 0
    assert len(StudyFolder.open(out).grid.candidates) == 2
