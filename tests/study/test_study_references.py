# SPDX-License-Identifier: Apache-2.0
"""Candidates of one study train on each other's runs: `row:NAME` is the run of that name, on the same images."""

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import viticulture
from refusals import refused
from viticulture.config.load import parse
from viticulture.config.references import references, replaced
from viticulture.config.resolve import resolve
from viticulture.study.cell import train_cell
from viticulture.study.clusters import write_script
from viticulture.study.declare import grid_of_recipes, grid_of_table
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.paper_tables import read_table
from viticulture.study.plan import StudyPlan
from viticulture.study.run import plan_study
from viticulture.study.study import Study
from viticulture.study.terms import Subsets, Terms
from viticulture.study.work import Worker

SMALL = {
    "train.batch_size": 4,
    "student.options": {"embed_dim": 16, "depth": 1, "num_heads": 2},
    "data.test_fraction": 0.2,
    "schedule.warmup_epochs": 0,
}
TEACHER = Candidate("a teacher", "default/digits", SMALL)
OTHER = Candidate("another teacher", "default/digits", SMALL, seed_offset=10)
TAUGHT = Candidate("taught", "default/digits", {**SMALL, "guides.logits": {"teacher": "row:a teacher"}})
TWICE = Candidate(
    "taught by the other", "default/digits", {**SMALL, "guides.logits": {"teacher": "row:another teacher"}}
)
MASKED = Candidate(
    "without labels", "mae/cifar100", {**SMALL, "student.patch_size": 2, "images.image_size": 8, "images.cache_size": 8}
)
STARTED = Candidate("started", "default/digits", {**SMALL, "student.init": "row:without labels"})


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two classes of 15 random pictures each."""
    root, draw = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for c in range(2):
        (root / f"class {c}").mkdir(parents=True)
        for i in range(15):
            pixels = draw.integers(0, 255 // (c + 1), (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"class {c}" / f"{i}.png")
    return root


def made(path: Path, photos: Path, *candidates: Candidate, seeds: tuple[int, ...] = (0,), **more: Any) -> StudyFolder:
    """Create a study of one epoch, without measured step times."""
    of = Grid(str(photos), candidates, Subsets(per_class=(4,)), seeds, {}, epochs=1, **more)
    study = StudyFolder.create(path, of, "viticulture compare photos")
    lengths = {(one.name, subset.name): 1 for one in candidates for subset in of.subsets.each()}
    names = [one.name for one in candidates]
    study.update(plan=StudyPlan(lengths, {}, dict.fromkeys(names, 1), dict.fromkeys(names, 0.0)).to_dict())
    return study


def work(study: StudyFolder) -> list[str]:
    said: list[str] = []
    Worker(study, said.append).run()
    return said


def split(study: StudyFolder, name: str, seed: int) -> list[str]:
    (cell,) = [cell for cell in study.grid.cells() if cell.candidate.name == name and cell.seed == seed]
    names: list[str] = json.loads((study.run(cell).path / "split.json").read_text())["names"]["train"]
    return names


def test_references_are_replaced_at_any_depth() -> None:
    values = {"student.init": "row:MAE ", "guides.co_advise.teachers": {"conv": "row:A: b", "inv": "runs/x"}, "n": 1}
    assert references(values) == {"student.init": "MAE", "guides.co_advise.teachers.conv": "A: b"}
    assert replaced(values, {"MAE": "m", "A: b": "a"}) == {
        "student.init": "m",
        "guides.co_advise.teachers": {"conv": "a", "inv": "runs/x"},
    }


@pytest.mark.parametrize(
    ("candidates", "terms", "words"),
    [
        ((TAUGHT,), Terms(), "unknown candidate that"),
        ((TEACHER, TAUGHT), Terms(halving=True), "halving cannot be used"),
        ((Candidate("a", "x", {"student.init": "row:a"}),), Terms(), "circle: a"),
        (
            (Candidate("a", "x", {"student.init": "row:b"}), Candidate("b", "x", {"student.init": "row:a"})),
            Terms(),
            "circle: a, b",
        ),
    ],
)
def test_a_study_that_could_never_end_is_refused(candidates: tuple[Candidate, ...], terms: Terms, words: str) -> None:
    refused(words, Grid, "digits", candidates, terms=terms)


def test_teachers_are_trained_first_and_every_student_has_its_own(photos: Path, tmp_path: Path) -> None:
    study = made(tmp_path / "s", photos, TAUGHT, TWICE, TEACHER, OTHER, seeds=(0, 1))
    said = work(study)
    assert len(said) == 8
    assert not [line for line in said if "failed" in line]
    order = [line.partition("] ")[2].partition(",")[0] + line.partition("seed ")[2][:1] for line in said]
    for seed in "01":
        assert order.index("taught" + seed) > order.index("a teacher" + seed)
        assert order.index("taught by the other" + seed) > order.index("another teacher" + seed)
    for cell in study.grid.cells():
        recipe = parse((study.run(cell).path / "recipe.yaml").read_text(), "")
        if cell.candidate is TAUGHT:
            named = Path(recipe["guides"]["logits"]["teacher"])
            assert named.name == f"a-teacher.4-a-class.seed-{cell.seed}"
    assert split(study, "a teacher", 1) == split(study, "another teacher", 1) == split(study, "taught", 1)
    assert split(study, "a teacher", 0) != split(study, "a teacher", 1)
    first, second = (study.path / f"cells/{name}.4-a-class.seed-0" for name in ("a-teacher", "another-teacher"))
    one, two = ((path / "weights/last/model.safetensors").read_bytes() for path in (first, second))
    assert one != two


def test_a_subset_chosen_by_the_study_holds_for_every_teacher() -> None:
    """`--data.subset_seed 0` for all."""
    of = Grid("digits", (TEACHER, OTHER), Subsets(per_class=(4,)), (1,))
    other = of.cells()[1]
    assert other.overrides({}) == {"data.per_class": 4, "data.subset_seed": 1}
    assert other.overrides({"data.subset_seed": 0}) == {"data.per_class": 4}


def test_a_moved_study_resumes_a_student(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = made(tmp_path / "old", photos, TEACHER, TAUGHT)
    plan = StudyPlan.from_dict(study.metadata["plan"])
    teacher, student = study.grid.cells()
    train_cell(study, teacher, plan)
    with monkeypatch.context() as stopped:
        stopped.setattr("viticulture.study.cell.fit", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_cell(study, student, plan)
    assert "old" in study.run(student).text("recipe.yaml")
    study.path.rename(tmp_path / "new")
    moved = StudyFolder.open(tmp_path / "new")
    train_cell(moved, student, plan)
    assert moved.finished(student)


def test_relative_weights_of_a_study_work_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "mine.safetensors"
    weights.touch()
    teachers = {"conv": "mine.safetensors", "inv": "hf-hub:a/b"}
    logits = {"teacher": "mine.safetensors", "kind": "soft"}
    given = {"student.init": "mine.safetensors", "guides.co_advise.teachers": teachers, "guides.logits": logits}
    own = grid_of_recipes("digits", ["default/digits"], Subsets(), 1, Terms(), given)
    assert own.conditions["student.init"] == str(weights)
    assert own.conditions["guides.co_advise.teachers"] == {"conv": str(weights), "inv": "hf-hub:a/b"}
    assert own.conditions["guides.logits"] == {**logits, "teacher": str(weights)}
    called = grid_of_recipes("digits", ["default/digits"], Subsets(), 1, Terms(), {"guides.teacher.kind": weights.name})
    assert called.conditions["guides.teacher.kind"] == weights.name  # the guide's name, not its keyword
    rows = [
        {"name": "own", "overrides": {"student.init": "mine.safetensors"}},
        {"name": "of a row", "overrides": {"student.init": "row:own"}},
        {"name": "given"},
    ]
    Path("table.yaml").write_text(
        json.dumps({"title": "t", "data": "digits", "recipe": "default/digits", "rows": rows})
    )
    named = {"student.init": {"given": "mine.safetensors"}}
    table = grid_of_table("table.yaml", "", Subsets(), 1, Terms(), named)
    assert [one.overrides["student.init"] for one in table.candidates] == [str(weights), "row:own", str(weights)]


def test_a_cells_command_names_its_teachers_run(photos: Path, tmp_path: Path) -> None:
    study = made(tmp_path / "s", photos, TEACHER, TAUGHT)
    work(study)
    told = json.loads((study.path / "cells/taught.4-a-class.seed-0/run.json").read_text())["command"]
    assert "row:" not in told
    assert "a-teacher.4-a-class.seed-0" in told


def test_a_row_without_labels_has_no_accuracy(photos: Path, tmp_path: Path) -> None:
    study = made(tmp_path / "s", photos, STARTED, MASKED, TEACHER, seeds=(0, 1))
    said = work(study)
    assert not [line for line in said if "failed" in line]
    found = Study(study.path)
    assert [row["test_accuracy"] is None for row in found.rows] == [False, True, False] * 2
    loaded = json.loads((study.path / "cells/started.4-a-class.seed-0/run.json").read_text())["loaded"]
    assert any("started from" in line and "without-labels" in line for line in loaded)
    from viticulture.report.study_page import write_study

    write_study(found)
    assert "without labels" in (study.path / "report.html").read_text()
    assert {one.candidate.name for one in found.comparisons[0].ranking} == {"started", "a teacher"}


def test_a_failed_teacher_fails_its_students_alone(photos: Path, tmp_path: Path) -> None:
    bad = Candidate("a teacher", "default/digits", {**SMALL, "train.batch_size": 4000})
    study = made(tmp_path / "s", photos, TAUGHT, bad, Candidate("alone", "default/digits", SMALL))
    work(study)
    found = {row["candidate"]: row for row in Study(study.path).rows}
    assert found["alone"]["status"] == "finished"
    assert "must not exceed" in found["a teacher"]["error"]
    assert found["taught"]["error"] == "it uses the run of a teacher, which failed"


def test_a_single_task_trains_what_it_needs_and_waits_for_others(photos: Path, tmp_path: Path) -> None:
    study = made(tmp_path / "s", photos, TAUGHT, TEACHER)
    taught, teacher = study.grid.cells()
    plan = StudyPlan.from_dict(study.metadata["plan"])
    said: list[str] = []
    with study.claim(teacher) as mine:
        assert mine
        worker, looks = Worker(study, said.append), threading.Semaphore(0)
        worker._unmet = lambda cell, unmet=worker._unmet: (looks.release(), unmet(cell))[1]  # type: ignore[method-assign]
        data_spec = threading.Thread(target=worker.train, args=(taught,))
        data_spec.start()
        for _ in range(3):  # it looks for its teacher, waits, and looks again
            while not looks.acquire(timeout=1):
                assert data_spec.is_alive()
        assert not study.finished(taught)
        train_cell(study, teacher, plan)
    data_spec.join()
    assert [line.partition("] ")[2][:6] for line in said] == ["taught"]
    study = made(tmp_path / "t", photos, TAUGHT, TEACHER)
    Worker(study, said.append).train(study.grid.cells()[0])
    assert all(study.finished(cell) for cell in study.grid.cells())


def test_students_are_measured_with_untrained_teachers(photos: Path, tmp_path: Path) -> None:
    told: list[str] = []
    of = Grid(str(photos), (TAUGHT, TEACHER, STARTED, MASKED), Subsets(per_class=(4,)), (0,), {}, epochs=1)
    study = StudyFolder.create(tmp_path / "s", of, "viticulture compare photos")
    plan = plan_study(study, 1, told.append)
    assert not told
    assert {name for name, _ in plan.step_times} == {one.name for one in of.candidates}
    assert plan.total(of)
    minutes = re.search(r"--time=(\d+)", write_script(study, plan).read_text())
    assert minutes
    assert int(minutes[1]) >= 10
    paces = {key: replace(pace, step=60.0, steps=10) for key, pace in plan.step_times.items()}  # 10 minutes an epoch
    minutes = re.search(r"--time=(\d+)", write_script(study, replace(plan, step_times=paces)).read_text())
    assert minutes
    assert 40 <= int(minutes[1]) < 42  # twice what the student and its teacher take
    assert not list(study.path.rglob("*.safetensors"))


def test_a_row_that_needs_another_is_not_trained_alone(photos: Path, tmp_path: Path) -> None:
    refused(
        r"guides.co_advise.teachers.conv is the run of another row, 'ResNet-10, a teac",
        viticulture.train_row,
        "co_advise/cpu",
        "one convolution teacher",
        str(photos),
        out=str(tmp_path / "r"),
    )
    assert not (tmp_path / "r").exists()


def test_a_row_alone_has_its_cells_seed_and_images(photos: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"name": "a"}, {"name": "b", "seed_offset": 3}]
    shared: dict[str, Any] = {
        "recipe": "default/digits",
        "data": str(photos),
        "overrides": {**SMALL, "data.per_class": 4},
    }
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"title": "t", "rows": [{**row, **shared} for row in rows]}))
    found = []
    for row in ("a", "b"):
        run = viticulture.train_row(str(file), row, seed=2, out=str(tmp_path / row), overrides={"train.epochs": 1})
        found.append((run.metadata["seed"], json.loads((run.path / "split.json").read_text())["names"]["train"]))
    assert [seed for seed, _ in found] == [2, 5]
    assert found[0][1] == found[1][1]


def test_a_table_may_be_a_users_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nrecipe: default/digits\ndata: digits\nrows: [{name: a}, {name: b, seed_offset: 3}]\n")
    assert [row.seed_offset for row in read_table(str(file)).rows] == [0, 3]
    for text, told in (
        ("rows: [", "not valid YAML"),
        ("- 1", "malformed"),
        ("title: t\nrows: [{nam: a}]", "'nam'.*did you mean name"),
        ("title: t\nrows: [{name: a, seeds: 3}]", "unknown key of table .*, rows 'seeds'"),
    ):
        file.write_text(text)
        refused(told, read_table, str(file))
    refused("No such file", read_table, str(tmp_path / "other.yaml"))


def test_a_cells_changes_leave_the_recipe_alone() -> None:
    recipe, shared = resolve("r", {"student": {"options": {"depth": 3}}}), {"num_heads": 2}
    assert recipe.changed({"student.options.depth": 1}, by="command").student.options == {"depth": 1}
    assert recipe.student.options == {"depth": 3}
    recipe.changed({"student.options": shared, "student.options.depth": 1}, by="command")
    assert shared == {"num_heads": 2}
