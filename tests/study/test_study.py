# SPDX-License-Identifier: Apache-2.0
"""A study trains every cell once and loses nothing, with killed processes, full disks and moved folders."""

import csv
import errno
import json
import os
import resource
import shlex
import shutil
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from PIL import Image

import viticulture
from children import die_at, start
from made_results import save_classes
from noise import photographs
from refusals import refused
from untrained import untrained
from viticulture.api.training import winner
from viticulture.errors import UserError
from viticulture.evaluation.outputs import Predictions
from viticulture.report.study_tables import all_results_table, results_table
from viticulture.study.cell import command, is_damaged, train_cell
from viticulture.study.comparison import compare
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import CONDITIONS, Candidate, Grid
from viticulture.study.halving import current_outcomes, decide, every_cell, write_table
from viticulture.study.outcomes import Outcome, Outcomes
from viticulture.study.plan import StudyPlan
from viticulture.study.run import plan_study, run_study
from viticulture.study.study import Study, conclusion
from viticulture.study.terms import Subsets, Terms, Where
from viticulture.study.work import Worker, changed
from viticulture.study.workers import claimed_by
from viticulture.tasks.results import read_predictions
from viticulture.tasks.task import task_of
from viticulture.text import comment, read_yaml
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of

SMALL = {"train.batch_size": 8}
PLAIN = Candidate("plain ViT", "default/digits", {**SMALL, "augment.padded_crop": None})
MOMENTS = (10, 25, 45, 70)
CROPPED = Candidate("cropped", "default/digits", SMALL)
ABLE = (  # to learn something in a few steps
    Candidate("plain ViT", "default/digits", {"train.batch_size": 8, "augment.padded_crop": None}),
    Candidate("cropped", "default/digits", {"train.batch_size": 8}),
)


def grid(*candidates: Candidate, seeds: tuple[int, ...] = (0,), epochs: int = 1, **more: Any) -> Grid:
    """Create the smallest study."""
    photos = str(Path(os.environ["STUDY_PHOTOS"]))
    return Grid(photos, candidates or (PLAIN, CROPPED), Subsets(per_class=(4,)), seeds, epochs=epochs, **more)


@pytest.fixture(scope="module", autouse=True)
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the pictures of all studies of this file."""
    root = photographs(tmp_path_factory.mktemp("data") / "photos")
    os.environ["STUDY_PHOTOS"] = str(root)
    return root


def made(path: Path, of: Grid) -> StudyFolder:
    """Create a study with a plan that was not measured."""
    study = StudyFolder.create(path, of, "viticulture compare digits")
    study.update(plan=unmeasured(study).to_dict())
    return study


def unmeasured(study: StudyFolder) -> StudyPlan:
    names = [one.name for one in study.grid.candidates]
    epochs = {(name, subset.name): study.grid.epochs or 1 for name in names for subset in study.grid.subsets.each()}
    return StudyPlan(epochs, {}, dict.fromkeys(names, 100), dict.fromkeys(names, 5.0))


def work(path: Path, study: StudyFolder | None = None) -> list[str]:
    """Train what is missing in this process; return the printed lines."""
    said: list[str] = []
    Worker(study or StudyFolder.open(path), said.append).run()
    return said


def child(path: Path, log: Path, limit: int = 0, dies: int | None = None) -> Any:
    """In a child: work on a study."""
    return start(_child, str(path), str(log), limit, dies)


def _child(path: str, log: str, limit: int, dies: int | None) -> None:
    if dies is not None:
        die_at(Path(path), dies)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    with Path(log).open("a", buffering=1) as file:
        Worker(StudyFolder.open(path), lambda words: print(words, file=file)).run()


def table(path: Path) -> list[dict[str, str]]:
    with (path / "table.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("weights/*/model.safetensors"))}


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two candidates, two seeds, two epochs each, without disturbance; to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    os.environ["VITICULTURE_CACHE"] = str(folder / "cache")
    made(folder / "study", grid(*ABLE, seeds=(0, 1), epochs=2))
    work(folder / "study")
    return folder / "study"


def test_a_cell_equals_its_command(finished: Path, tmp_path: Path) -> None:
    """Bit for bit the weights of `viticulture train`, by the recorded command."""
    study = StudyFolder.open(finished)
    cell = study.grid.cells()[-1]
    words = command(study, cell, StudyPlan.from_dict(study.metadata["plan"]))
    import shlex

    from viticulture.cli import main

    assert main([*shlex.split(words)[1:], "--out", str(tmp_path / "alone")]) == 0
    alone, ours = tmp_path / "alone", study.run(cell).path
    assert weights(alone) == weights(ours)
    one, other = (json.loads((path / "evaluation.json").read_text()) for path in (alone, ours))
    assert one == other


def test_the_table_has_a_line_per_cell(finished: Path) -> None:
    rows = table(finished)
    assert [row["status"] for row in rows] == ["finished"] * 4
    assert {(row["candidate"], row["seed"]) for row in rows} == {
        (name, seed) for name in ("plain ViT", "cropped") for seed in "01"
    }
    study = StudyFolder.open(finished)
    for row, cell in zip(rows, study.grid.cells(), strict=True):
        results = task_of(study.run(cell)).read_results()
        assert results is not None
        assert float(row["test_accuracy"]) == results["best/test"].top1
        assert float(row["val_accuracy"]) == results["best/val"].top1
        assert row["folder"] == f"cells/{cell.name}"
        kept = read_predictions(study.run(cell))
        assert (kept.predicted == kept.labels).mean() == pytest.approx(results["best/test"].top1)
        assert int(row["epochs"]) == 2
        assert int(row["train_images"]) == 12


def test_the_report_of_a_study_writes_its_table_too(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "study")
    before = (copy / "table.csv").read_text()
    (copy / "table.csv").write_text("of an earlier cell")
    viticulture.report(copy)
    assert (copy / "table.csv").read_text() == before


def test_a_studys_page_is_drawn_again_without_images_and_networks(
    finished: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from viticulture.report.study_page import write_study

    copy = shutil.copytree(finished, tmp_path / "study")
    away = photos.rename(photos.with_name("away"))
    try:
        assert "The test images cannot be shown" in write_study(Study(copy)).read_text()
        moved = shutil.copytree(copy, tmp_path / "moved")
        viticulture.compare_resume(str(moved), str(away))
        assert " is correct, " in (moved / "report.html").read_text()
    finally:
        away.rename(photos)
    page = write_study(Study(copy)).read_bytes()
    assert b" is correct, " in page
    assert b"attention of the class token in the last layer" in page
    photos.rename(away)
    for folder in copy.glob("cells/*/weights"):
        shutil.rmtree(folder)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.Module, "__call__", None)
            assert write_study(Study(copy)).read_bytes() == page
        cell = StudyFolder.open(copy).grid.cells()[0]
        answers = read_predictions(StudyFolder.open(copy).run(cell))
        right = Predictions(torch.eye(3)[torch.from_numpy(answers.labels).long()], torch.from_numpy(answers.labels), [])
        save_classes(StudyFolder.open(copy).run(cell), "best/test", {"best/test": right})
        assert b"The test images cannot be shown" in write_study(Study(copy)).read_bytes()
    finally:
        away.rename(photos)


def test_all_cells_share_their_held_out_images(finished: Path, tmp_path: Path) -> None:
    study = StudyFolder.open(finished)
    names = [json.loads((study.run(c).path / "split.json").read_text())["names"] for c in study.grid.cells()]
    assert all(one["test"] == names[0]["test"] and one["val"] == names[0]["val"] for one in names)
    assert names[0]["train"] == names[1]["train"] != names[2]["train"]  # seeds draw their own training images
    other = Candidate("other", "default/digits", {"data.split_seed": 5, "train.batch_size": 8})
    made(tmp_path / "study", grid(PLAIN, other, conditions={"train.validate": "none"}))
    work(tmp_path / "study")
    rows = table(tmp_path / "study")
    assert [row["status"] for row in rows] == ["finished", "failed"]
    assert "not those of the study's other cells" in rows[1]["error"]
    shared = made(tmp_path / "again", grid(PLAIN, other, conditions=CONDITIONS))
    assert all(shared.recipe(one).data.split_seed == 0 for one in (PLAIN, other))


def test_cells_of_replaced_images_are_refused(tmp_path: Path) -> None:
    root, bare = photographs(tmp_path / "photos"), {"images.image_size": None}  # a size that the images choose
    plain, cropped = (replace(each, overrides={**each.overrides, **bare}) for each in (PLAIN, CROPPED))
    study = made(tmp_path / "study", Grid(str(root), (plain, cropped), Subsets(per_class=(4,)), (0, 1, 2), epochs=1))
    plan, cells = unmeasured(study), {(cell.candidate.name, cell.seed): cell for cell in study.grid.cells()}
    train_cell(study, cells["plain ViT", 0], plan)
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    train_cell(StudyFolder.open(study.path, str(tmp_path / "copy")), cells["plain ViT", 1], plan)
    names = study.run(cells["plain ViT", 0]).image_names

    def larger(_: str) -> None:
        for image in root.rglob("*.png"):
            Image.open(image).resize((24, 24)).save(image)

    def swapped(split: str) -> None:
        shutil.copyfile(root / names[split][1], root / names[split][0])

    for change, split, word, name in (
        (swapped, "train", "training", ("cropped", 0)),
        (swapped, "test", "test", ("plain ViT", 2)),
        (larger, "all", "(validation|test)", ("plain ViT", 2)),
    ):
        change(split)
        with pytest.raises(UserError, match=f"the {word} images of .*photos differ from those of .* has changed since"):
            train_cell(study, cells[name], plan)
        shutil.copytree(tmp_path / "copy", root, dirs_exist_ok=True)
    train_cell(study, cells["plain ViT", 2], plan)
    swapped("test")
    (study.path / "contents.json").unlink()
    train_cell(study, cells["cropped", 2], plan)


def test_a_failure_is_recorded_and_only_missing_cells_run_again(tmp_path: Path) -> None:
    hopeless = Candidate("hopeless", "default/digits", {"train.batch_size": 500})
    study = made(tmp_path / "study", grid(hopeless, PLAIN, seeds=(0, 1)))
    said = work(tmp_path / "study")
    assert [row["status"] for row in table(study.path)] == ["failed", "finished"] * 2
    assert "must not exceed the 12 training images" in table(study.path)[0]["error"]
    assert "UserError" not in table(study.path)[0]["error"]
    assert "Traceback" in json.loads(next((study.path / "failures").iterdir()).read_text())["traceback"]
    assert len(said) == 4
    before = weights(study.path)
    again = work(tmp_path / "study")
    assert len(again) == 2
    assert all("hopeless" in words and "failed" in words for words in again)
    assert weights(study.path) == before


@pytest.mark.children
def test_a_killed_study_resumes_exactly(finished: Path, tmp_path: Path) -> None:
    """kill -9 four times, anywhere."""
    path, log = tmp_path / "study", tmp_path / "log"
    made(path, grid(*ABLE, seeds=(0, 1), epochs=2))
    for moment in MOMENTS:
        process = child(path, log, dies=moment)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        rows = table(path) if (path / "table.csv").exists() else []
        assert len(rows) in (0, 4)
    work(path)
    assert weights(path) == weights(finished)
    drop = {"seconds", "core_seconds", "images_per_second"}
    assert [{k: v for k, v in row.items() if k not in drop} for row in table(path)] == [
        {k: v for k, v in row.items() if k not in drop} for row in table(finished)
    ]


def test_leftovers_of_killed_writers_block_nothing_and_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "study"
    left = [path / ".study.json.77.part", path / "failures" / ".plain.json.77.part"]

    def killed(part: Path) -> None:
        part.parent.mkdir()
        part.write_text("half")
        os.utime(part, (0, 0))

    killed(left[0])
    study = made(path, grid(PLAIN))
    killed(left[1])
    run_study(study, Where(slurm=True), lambda words: None, lambda study, plan: None)
    assert not any(part.exists() for part in left)


@pytest.mark.children
def test_processes_share_a_study_and_train_no_cell_twice(tmp_path: Path) -> None:
    path = tmp_path / "study"
    made(path, grid(seeds=(0, 1, 2)))
    logs = [tmp_path / "one", tmp_path / "two"]
    for process in [child(path, log) for log in logs]:
        process.join()
        assert process.exitcode == 0
    told = [log.read_text().splitlines() for log in logs]
    names = [words.split("] ")[1].split(":")[0] for lines in told for words in lines]
    assert len(names) == len(set(names)) == 6
    assert all(told)
    assert [row["status"] for row in table(path)] == ["finished"] * 6


@pytest.mark.children
def test_a_full_disk_costs_only_time(tmp_path: Path) -> None:
    """A limit on file sizes stands for a full disk."""
    path, log = tmp_path / "study", tmp_path / "log"
    large = {"train.batch_size": 8}  # its checkpoint does not fit, all else does
    made(path, grid(Candidate("one", "default/digits", large), Candidate("two", "dhvt/digits", large)))
    process = child(path, log, limit=1_000_000)
    process.join()
    assert [row["status"] for row in table(path)] == ["failed", "failed"]
    assert "free some space" in table(path)[0]["error"]
    work(path)
    assert [row["status"] for row in table(path)] == ["finished", "finished"]


def test_a_study_moves_with_its_half_trained_cells(finished: Path, tmp_path: Path) -> None:
    photographs(tmp_path / "photos")
    of = Grid(str(tmp_path / "photos"), (CROPPED,), seeds=(0,), epochs=3)
    study = made(tmp_path / "study", of)
    shutil.copytree(study.path, tmp_path / "undisturbed")
    cell = of.cells()[0]
    plan = unmeasured(study)
    session_of_first_epoch(study, cell, plan)
    epoch = torch.load(study.run(cell).checkpoint, weights_only=True)["epoch"]
    assert epoch == 0
    work(tmp_path / "undisturbed")
    shutil.move(study.path, tmp_path / "elsewhere")
    shutil.move(tmp_path / "photos", tmp_path / "pictures")
    refused("photos", lambda: train_cell(StudyFolder.open(tmp_path / "elsewhere"), cell, plan))
    Worker(StudyFolder.open(tmp_path / "elsewhere", str(tmp_path / "pictures")), str).run()
    assert weights(tmp_path / "elsewhere") == weights(tmp_path / "undisturbed")


def session_of_first_epoch(study: StudyFolder, cell: Any, plan: StudyPlan) -> None:
    """Train a cell until its second epoch is about to begin, then stop as Ctrl-C does."""
    from viticulture.training.module import TrainingModule

    honest = TrainingModule.on_train_epoch_start

    def stop(self: TrainingModule) -> None:
        if self.current_epoch == 1:
            raise KeyboardInterrupt
        honest(self)

    TrainingModule.on_train_epoch_start = stop  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            train_cell(study, cell, plan)
    finally:
        TrainingModule.on_train_epoch_start = honest  # type: ignore[method-assign]


def test_defaults_of_a_users_recipe_are_reported_whenever_a_study_resumes(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("student: vit_nano\n")
    study = made(tmp_path / "study", grid(Candidate("mine", str(recipe)), PLAIN))
    for _ in range(2):
        (warning,) = study.extend()
        assert warning.startswith(f"mine: {recipe} leaves out augment, optim, schedule")


def test_changes_under_a_study_are_noticed(finished: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text((Path(viticulture.__file__).parent / "recipes/default/digits.yaml").read_text())
    mine = Candidate("mine", str(recipe))
    study = made(tmp_path / "study", grid(mine))
    assert study.extend() == []
    recipe.write_text(recipe.read_text().replace("1.0e-3", "2.0e-3"))
    (warning,) = study.extend()
    assert "was edited after the study began" in warning
    assert study.recipe(mine).optim.lr == 1e-3
    recipe.unlink()
    assert study.extend() == []  # moved to a machine without it

    copy = study.path / "recipes" / "mine.yaml"
    text = copy.read_text()
    copy.write_text(text.replace("lr: 0.001", "lr: 0.002"))
    refused("was edited after cells were trained", study.extend)
    copy.write_text(text)

    yaml = (study.path / "study.yaml").read_text()
    for old, new, words in (
        ("epochs: 1", "epochs: 2", "conditions, terms, folds or epochs"),
        ("data.split_seed: 0", "data.split_seed: 1", "conditions, terms, folds or epochs"),
        (f"recipe: {recipe}", "recipe: dhvt/digits", "mine was changed"),
    ):
        assert old in yaml
        (study.path / "study.yaml").write_text(yaml.replace(old, new))
        with pytest.raises(UserError, match=words):
            StudyFolder.open(study.path).extend()
    (study.path / "study.yaml").write_text(yaml.replace("seeds:\n- 0", "seeds:\n- 0\n- 4"))
    StudyFolder.open(study.path).extend()
    assert len(StudyFolder.open(study.path).grid.cells()) == 2


def test_candidates_keep_their_folders(tmp_path: Path) -> None:
    first, second, third = (
        Candidate(name, PLAIN.recipe, {**PLAIN.overrides, "optim.lr": lr})
        for name, lr in (("基线", 1e-3), ("方法一", 2e-3), ("方法零", 3e-3))
    )
    study = made(tmp_path / "study", grid(first, second))
    known = study.slugs
    assert len(set(known.values())) == 2
    declared, found = study.path / "study.yaml", list[dict[str, str]]()
    for candidates in ((first, third, second), (third, second), (second, first)):
        declared.write_text(grid(*candidates).to_yaml())
        opened = StudyFolder.open(study.path)
        opened.extend()
        found.append(opened.slugs)
        assert [opened.recipe(one).optim.lr for one in candidates] == [one.overrides["optim.lr"] for one in candidates]
    assert {slugs.get(first.name, known[first.name]) for slugs in found} == {known[first.name]}
    assert {slugs[second.name] for slugs in found} == {known[second.name]}
    assert found[0][third.name] == found[1][third.name] not in known.values()


def test_a_cells_command_preserves_types(tmp_path: Path) -> None:
    values = {"a": None, "b": "1.5", "c": "on", "d": 1e-5, "e": ["2", 2]}
    made_of = replace(PLAIN, overrides={"student.options": values, "student.patch_size": None})
    study = StudyFolder.create(tmp_path / "study", grid(PLAIN), "x")
    words = shlex.split(command(study, replace(study.grid.cells()[0], candidate=made_of), StudyPlan({}, {}, {}, {})))
    told = {key.removeprefix("--"): read_yaml(value, key) for key, value in pairwise(words) if key.startswith("--")}
    assert {key: told[key] for key in made_of.overrides} == made_of.overrides


def test_a_claim_of_a_dead_process_accuses_no_other_cell(tmp_path: Path) -> None:
    study = StudyFolder.create(tmp_path / "study", grid(PLAIN), "x")
    (cell,) = study.grid.cells()
    with study.claim(cell) as mine:
        assert mine
        assert claimed_by(study, os.getpid()) == cell
    assert claimed_by(study, os.getpid()) is None


def test_a_cell_of_other_settings_is_refused(finished: Path, tmp_path: Path) -> None:
    study = StudyFolder.open(shutil.copytree(finished, tmp_path / "study"))
    plan = StudyPlan.from_dict(study.metadata["plan"])
    assert changed(study, plan) == []
    longer = StudyPlan(dict.fromkeys(plan.epochs, 3), plan.step_times, plan.recipe_epochs, plan.warmups)
    assert changed(study, longer) == [cell.name for cell in every_cell(study.grid)]


def test_halving_trains_in_rounds_and_logs_dropped_candidates(tmp_path: Path) -> None:
    """Four candidates, one of them hopeless: rungs of 1, 2 and 4 epochs."""
    others = [
        Candidate(f"lr {rate}", "default/digits", {"optim.lr": rate, "train.batch_size": 8}) for rate in (1e-7, 2e-7)
    ]
    study = made(tmp_path / "study", grid(*ABLE, *others, epochs=4, terms=Terms(halving=True)))
    said = work(study.path)
    trained = [words for words in said if words.startswith("[")]
    assert [words.count("rung 1") for words in trained] == [1] * 4 + [0] * 4
    assert len(trained) == 4 + 2 + 2
    assert ", by validation images: " in study.metadata["decisions"][0]
    assert "dropped lr" in study.metadata["decisions"][0]
    assert study.metadata["decisions"][1].endswith("all continue")
    rows = table(study.path)
    assert [row["status"] for row in rows if row["candidate"].startswith("lr") and row["rung"] != "1"] == [
        "dropped"
    ] * 4
    assert {row["epochs"] for row in rows if row["rung"] == "1"} == {"1"}
    found = compare(study, current_outcomes(study.grid, Outcomes(study)))
    assert {one.candidate.name for one in found[0].ranking} == {"plain ViT", "cropped"}


def test_halving_without_validation_is_reported() -> None:
    of = grid(*ABLE, terms=Terms(halving=True))
    cells, subset = of.cells(0), of.subsets.each()[0]
    by_test = decide(of, 0, subset, [Outcome(cell, "finished", test=0.5) for cell in cells])
    assert "by test images (there are no validation images): " in by_test.sentence
    by_val = decide(of, 0, subset, [Outcome(cell, "finished", test=0.5, val=0.5) for cell in cells])
    assert "by validation images: " in by_val.sentence


def test_halving_of_two_is_refused_before_training(tmp_path: Path) -> None:
    study = StudyFolder.create(tmp_path / "s", grid(terms=Terms(halving=True), epochs=4), "test")
    refused(r"of 2 it drops none .* leave --halving out", plan_study, study, 1, print)


def test_a_study_without_held_out_images_is_refused_before_training(tmp_path: Path) -> None:
    held_out = {"data.val_fraction": 0, "data.test_fraction": 0}
    study = StudyFolder.create(tmp_path / "s", grid(conditions={**CONDITIONS, **held_out}), "test")
    refused("no validation or test images to compare by", plan_study, study, 1, print)


def test_halving_is_refused_without_labels(tmp_path: Path) -> None:
    candidates = (Candidate("mae", "mae/photos"), Candidate("other", "mae/photos", {"optim.lr": 0.01}))
    with pytest.raises(UserError, match="mae/photos trains without labels; leave --halving or that recipe out"):
        StudyFolder.create(tmp_path / "s", grid(*candidates, terms=Terms(halving=True)), "test")
    assert not (tmp_path / "s").exists()


def test_no_winner_is_named_within_chance(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = StudyFolder.open(finished)
    (comparison,) = compare(study, current_outcomes(study.grid, Outcomes(study)))
    assert comparison.ranked_by == "val"
    means = {one.candidate.name: one.val.mean for one in comparison.ranking if one.val}
    assert comparison.leader.candidate.name == max(means, key=lambda name: means[name])
    assert not comparison.has_winner
    assert winner(str(finished))[0] == str(study.recipe_file(comparison.leader.candidate))
    leads = f"has no clear winner; {comparison.leader.candidate.name} leads on validation images"
    assert leads in capsys.readouterr().err
    words = conclusion(study.grid, [comparison], 4, 4)
    assert words.startswith("No winner on ")
    assert " to " in words
    assert comparison.leader.vit
    (other,) = [one for one in comparison.ranking if one.candidate.name == "cropped"]
    assert other.versus_baseline is not None
    assert other.versus_baseline.over_seeds.values == pytest.approx(
        [a - b for a, b in zip(other.test.values, verdict_of(comparison, "plain ViT"), strict=True)]
    )


def verdict_of(comparison: Any, name: str) -> tuple[float, ...]:
    (found,) = [one.test.values for one in comparison.ranking if one.candidate.name == name]
    return found


def test_a_row_of_another_metric_shares_the_training(tmp_path: Path) -> None:
    loss = Candidate("its loss", PLAIN.recipe, PLAIN.overrides, published=3.0, measure="loss")
    later = Candidate("its robustness", PLAIN.recipe, PLAIN.overrides, measure="robustness/imagenet-a/student")
    study = made(tmp_path / "study", grid(PLAIN, loss, later))
    assert len(work(study.path)) == 1
    outcomes = current_outcomes(study.grid, Outcomes(study))
    assert [one.status for one in outcomes] == ["finished"] * 3
    assert outcomes[2].test is outcomes[2].val is None
    assert [one.candidate.name for one in compare(study, outcomes)[0].ranking].count("its robustness") == 0
    assert outcomes[1].val is not None
    assert outcomes[1].val > 1  # nats
    assert outcomes[1].test is None, "it was logged on validation images"
    assert [one.row["measure"] for one in outcomes] == ["accuracy", "loss", "robustness/imagenet-a/student"]
    (comparison,) = compare(study, outcomes)
    assert comparison.measure.title == "Results, each row by its measure"
    assert not comparison.images_interval
    assert comparison.reported == "test"
    assert all(entry.versus_baseline is None for entry in comparison.ranking)
    assert results_table(Study(study.path)).note.endswith(" On validation images: its loss.")
    note = all_results_table(Study(study.path)).note
    assert (
        "Student's over seeds; of accuracy the wider of Student's over seeds and the binomial interval over the test"
        in note
    )
    assert "the wider of Student's interval and, for accuracies, the interval over seeds and test images." in note
    place = [column.name for column in all_results_table(Study(study.path)).columns].index("test, %")
    shown = {row[0]: row[place] for row in all_results_table(Study(study.path)).rows}
    assert [name for name, number in shown.items() if number is None] == ["its loss"]
    write_table(study, Outcomes(study))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"status": "running"}'])
def test_a_cell_with_damaged_metadata_is_not_finished(tmp_path: Path, raw: bytes) -> None:
    study = made(tmp_path / "study", grid())
    cell, other = study.grid.cells()
    for one in (cell, other):
        study.run(one).write("run.json", {"status": "finished"})
    (study.run(cell).path / "run.json").write_bytes(raw)
    assert not study.finished(cell)
    assert study.finished(other)


def test_a_cell_is_trained_again_only_where_its_files_are_broken(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run")
    run.write("split.json", {"names": {}})
    run.write("recipe.yaml", run.text("recipe.yaml").replace("name: supervised", "name: gone_today.Mine"))
    refused("gone_today", config_of, run)
    assert not is_damaged(run)
    run.checkpoint.parent.mkdir()
    torch.save({"state_dict": {}}, run.checkpoint)

    torchs = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes.")
    failing = OSError(errno.EIO, os.strerror(errno.EIO))
    for error, words in ((torchs, "enough memory"), (MemoryError(), "enough memory"), (failing, "cannot be read")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.load", Mock(side_effect=error))
            refused(words, is_damaged, run)
    run.checkpoint.unlink()
    for path in (run.checkpoint, run.path / "split.json", run.path / "recipe.yaml"):
        whole = path.read_bytes() if path.exists() else None
        path.write_bytes(b"{")
        assert is_damaged(run), path
        path.unlink()
        if whole is not None:
            path.write_bytes(whole)
    assert not is_damaged(run)


def test_damaged_files_of_a_study_are_named(tmp_path: Path) -> None:
    study = made(tmp_path / "study", grid())
    for name in ("study.yaml", "recipes/plain-vit.yaml", "study.json"):
        path = study.path / name
        kept = path.read_bytes()
        path.write_bytes(b"\xff\xfa" + kept)
        with pytest.raises(UserError, match=f"{name}.* is (not UTF-8 text|damaged)"):
            StudyFolder.open(study.path).recipe(PLAIN)
        path.write_bytes(kept)
    StudyFolder.open(study.path).recipe(PLAIN)


def test_a_folder_in_use_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("years of work")
    refused("exists already", lambda: StudyFolder.create(tmp_path / "used", grid(), "x"))
    refused("not a study folder", StudyFolder.open, tmp_path / "used")
    (tmp_path / "used" / "run.json").write_text("{}")
    refused(r"is a run, not a study; .* --recipe .*used/recipe\.yaml", StudyFolder.open, tmp_path / "used")
    (tmp_path / "ranked").mkdir()
    (tmp_path / "ranked" / "study.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a study, no run; to go on .* resume .*; its runs lie in .*ranked/cells"):
        RunFolder.open(tmp_path / "ranked")
    with pytest.raises(UserError, match=r"nowhere does not exist; runs are made .*, studies by `viticulture compare`"):
        viticulture.report(str(tmp_path / "nowhere"))
    refused("unknown recipe", lambda: StudyFolder.create(tmp_path / "new", grid(Candidate("a", "default/digit")), "x"))
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="one device"):
        StudyFolder.create(tmp_path / "new", grid(Candidate("a", "default/digits", {"engine.devices": 2})), "x")
    torn, mine = tmp_path / "torn" / "recipes", tmp_path / "mine" / "recipes"
    for folder in (torn, mine):
        folder.mkdir(parents=True)
        (folder / "plain-vit.yaml").write_text("mine")
    theirs = torn.parent / "study.yaml"
    theirs.write_text("# what I want to compare")
    refused("exists already", lambda: StudyFolder.create(torn.parent, grid(), "x"))
    assert theirs.read_text() == "# what I want to compare"
    theirs.write_text(comment("x") + grid().to_yaml())  # killed before it was complete
    StudyFolder.create(torn.parent, grid(), "x")
    refused("exists already", lambda: StudyFolder.create(mine.parent, grid(), "x"))
    assert (mine / "plain-vit.yaml").read_text() == "mine"
