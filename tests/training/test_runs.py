# SPDX-License-Identifier: Apache-2.0
"""A run's folder: one writer, nothing lost, no partial file taken for a complete one."""

import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

import viticulture
from photographs import pictures
from refusals import file_limit, refused
from resumed import check_same_weights, whole_and_resumed
from viticulture.api.lists import resolved
from viticulture.cache import locked
from viticulture.config import start as config_start
from viticulture.config.load import load_config
from viticulture.config.references import where_they_lie
from viticulture.data.open import open_source
from viticulture.disk import replacing, unwritable
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights import sources
from viticulture.models.weights.files import load, save
from viticulture.report.terminal import bar
from viticulture.study.paper_tables import read_table
from viticulture.study.study import data_name
from viticulture.text import shell_word
from viticulture.training import length
from viticulture.training.assemble import assemble
from viticulture.training.data import default_recipe, load_dataset, resolve_default
from viticulture.training.length import change_length, set_length
from viticulture.training.metrics import MetricsFile, StepMetrics, cut, read_curves, read_history
from viticulture.training.module import TrainingModule
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder, claimed
from viticulture.training.session import Session, begin, other_machine, reopen, run_path
from viticulture.training.state import Ema, KeepLast, WholeCheckpointIO, load_checkpoint
from viticulture.training.watching import BestCheckpoint

FAST: dict[str, Any] = {"data.per_class": 4, "train.epochs": 2, "schedule.warmup_epochs": 0}


def small(out: Path, **overrides: Any) -> Any:
    """Open a session of two short epochs on digits."""
    return begin("digits", "default/digits", 0, str(out), False, {**FAST, **overrides}, "test")


@pytest.mark.parametrize(("minutes", "kept"), [(5.0, [0, 5, 10, 11]), (1e-9, list(range(12)))])
def test_work_after_short_epochs_is_limited(minutes: float, kept: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve epochs of 4 s whose checkpoint takes 1 s: a twentieth of the time."""
    now, saved = [0.0], list[int]()
    monkeypatch.setattr(
        "viticulture.training.state.time", SimpleNamespace(monotonic=lambda: now[0], process_time=float)
    )
    keep = KeepLast(RunFolder("nowhere"), minutes)
    for epoch in range(12):

        def save(path: Path, epoch: int = epoch) -> None:
            saved.append(epoch)
            now[0] += 1

        stub = {"is_global_zero": False, "world_size": 1, "should_stop": False, "max_epochs": 12}
        now[0] += 4
        trainer: Any = SimpleNamespace(**stub, current_epoch=epoch, save_checkpoint=save)
        keep.on_train_epoch_end(trainer, trainer)
    assert saved == kept
    keep.load_state_dict({"seconds": 7.0})  # of a run before core-seconds were counted
    assert keep.state_dict() == {"seconds": 7.0 + now[0], "core_seconds": 0.0}


def black_and_white(root: Path) -> Path:
    """Draw images of two classes that a student separates within a few steps."""
    for name, level in (("black", 0), ("white", 200)):
        (root / name).mkdir(parents=True)
        for i in range(12):
            Image.fromarray(np.full((8, 8, 3), level + 4 * i, np.uint8)).save(root / name / f"{i}.png")
    return root


PERFECT = {
    **{
        "train.epochs": 24,
        "train.batch_size": 4,
        "train.validate": "val",
        "schedule.warmup_epochs": 0,
        "optim.lr": 0.003,
    },
    **{"data.val_fraction": 0.3, "data.per_class": None, "student.name": "vit_nano", "images.image_size": 8},
}


def test_early_stopping_after_perfect_validation_resumes_exactly(tmp_path: Path) -> None:
    data = str(black_and_white(tmp_path / "data"))

    def start(out: Path, **overrides: Any) -> Session:
        wanted = {**PERFECT, "train.stop_when_perfect": 4, **overrides}
        return begin(data, "default/digits", 0, str(out), False, wanted, "test")

    whole, again = whole_and_resumed(start, tmp_path, steps=10)
    check_same_weights(whole, again, ("last", "best"))
    accuracies = [row["val/accuracy"] for row in read_history(whole.run.metrics)]
    assert len(accuracies) < 24
    assert accuracies[-4:] == [1.0] * 4
    assert accuracies[-5:-4] != [1.0]
    assert read_history(again.run.metrics)[-1]["epoch"] == len(accuracies)
    for session in (whole, again):
        assert json.loads((session.run.weights("last") / "config.json").read_text())["epoch"] == len(accuracies)
        said = session.run.read("run.json")["ended"]
        assert said.startswith(
            f"ended after epoch {len(accuracies)} of 24: validation, on 6 images, was perfect 4 times"
        )
    again.run.unlock()
    fit(reopen(str(again.run.path)))
    check_same_weights(whole, again, ("last", "best"))
    assert read_history(again.run.metrics)[-1]["epoch"] == len(accuracies)


def test_perfect_epochs_are_reported_and_none_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(black_and_white(tmp_path / "data"))
    session = begin(data, "default/digits", 0, str(tmp_path / "run"), False, PERFECT, "test")
    fit(session)
    history = read_history(session.run.metrics)
    assert history[-1]["epoch"] == 24
    right = [row["val/accuracy"] == 1 for row in history]
    first = next(epoch for epoch in range(1, 25) if all(right[epoch - 1 :]))
    said = f"was perfect from epoch {first} to the last, 24, so it cannot compare these; --stop-when-perfect"
    assert said in session.run.read("run.json")["ended"]
    assert said in capsys.readouterr().err
    for wrong in ({"train.stop_when_perfect": 0}, {"train.stop_when_perfect": 3, "train.validate": "test"}):
        with pytest.raises(UserError, match="counts validations, at least 1"):
            begin(data, "default/digits", 0, str(tmp_path / "other"), False, {**PERFECT, **wrong}, "test")


def test_a_loss_that_is_not_finite_stops_the_run_with_step_and_terms(tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    honest, step = session.method.losses, itertools.count()

    def losses(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = honest(batch)
        return {name: term * (float("nan") if next(step) == 2 else 1.0) for name, term in terms.items()}

    session.method.losses = losses
    refused(r"step 3 \(label nan\)", fit, session)
    state = load_checkpoint(session.run.checkpoint)["state_dict"]  # of the end of the first epoch, two steps long
    assert all(value.isfinite().all() for value in state.values())


def test_epochs_without_validation_are_the_same_after_a_stop(tmp_path: Path) -> None:
    """Every third of five epochs and the last."""
    keys = {"train.epochs": 5, "train.validate_every": 3, "data.val_fraction": 0.2, "train.validate": "val"}
    runs = whole_and_resumed(lambda out, **more: small(out, **keys, **more), tmp_path)
    for session in runs:
        found = [row["epoch"] for row in read_history(session.run.metrics) if "val/accuracy" in row]
        assert found == [3, 5]
    check_same_weights(*runs, ("best", "last"))


@pytest.mark.parametrize(
    ("measure", "values", "images", "kept"),
    [
        ("accuracy", [0.5, 0.7, 0.6, 0.5], 10, 3),
        ("accuracy", [0.5, 0.7, 0.6, 0.5], 100, 2),
        ("accuracy", [0.5, 0.7, 0.7, 0.6], 100, 3),
        ("accuracy", [0.5, 0.6, 0.5, 0.9, 0.7], 10, 4),
        ("accuracy", [0.0, 0.0, 0.0], 10, 3),
        ("accuracy", [1.0, 0.9, 1.0, 0.9], 10, 3),
        ("balanced_accuracy", [1.0 + 1e-7, 0.9], 10, 1),
        ("accuracy", [float("nan"), 0.5], 10, 2),
        ("balanced_accuracy", [0.5, 0.7, 0.6, 0.5], 10, 3),
        ("loss", [-0.7, -0.5, -0.6], 10, 2),
    ],
)
def test_the_best_weights_are_the_last_within_a_standard_error(
    measure: str, values: list[float], images: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten images 70 and 60 % are level (14.5 points), of a hundred they are not (4.6)."""
    saved = list[int]()

    def save(student: nn.Module, folder: Path, data_spec: Any, facts: dict[str, Any]) -> None:
        saved.append(facts["epoch"])

    monkeypatch.setattr("viticulture.training.watching.save", save)
    method: Any = small(tmp_path / "run").method
    run: Any = SimpleNamespace(check_there=lambda: None, weights=lambda name: tmp_path)

    def callback() -> BestCheckpoint:
        return BestCheckpoint(run, {}, images, measure if measure != "accuracy" and measure != "loss" else None)

    method = TrainingModule(method)
    watch = callback()
    for epoch, value in enumerate(values):
        found = {"val/loss": -value} if measure == "loss" else {f"val/{measure}": value}
        trainer: Any = SimpleNamespace(
            callback_metrics=found, current_epoch=epoch, is_global_zero=True, sanity_checking=False
        )
        watch.on_validation_epoch_end(trainer, method)
        resumed = callback()
        resumed.load_state_dict(watch.state_dict())
        watch = resumed
    assert saved[-1] == watch.best_epoch + 1 == kept


@pytest.mark.parametrize(("values", "kept"), [([0.6, 0.55, 0.5], 0), ([0.6, 0.5, 0.7, 0.6], 3), ([0.6, 0.7, 0.55], 1)])
def test_a_validated_start_stays_where_all_epochs_are_worse(
    values: list[float], kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten images all of these are level, but a trained network below its start is no result."""
    monkeypatch.setattr("viticulture.training.watching.save", lambda *_: None)
    run: Any = SimpleNamespace(check_there=lambda: None, weights=lambda name: tmp_path)
    module, watch = TrainingModule(small(tmp_path / "run").method), BestCheckpoint(run, {}, 10)
    for epoch, value in enumerate(values):
        trainer: Any = SimpleNamespace(
            callback_metrics={"val/accuracy": value}, current_epoch=max(epoch - 1, 0), is_global_zero=True,
            sanity_checking=not epoch,
        )  # fmt: skip
        watch.on_validation_epoch_end(trainer, module)
        resumed = BestCheckpoint(run, {}, 10)
        resumed.load_state_dict(watch.state_dict())
        watch = resumed
    assert watch.best_epoch + 1 == kept


def test_balanced_accuracy_counts_each_image_once_over_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viticulture.training.watching.save", lambda *_: None)
    method: Any = small(tmp_path / "run").method
    method = TrainingModule(method)
    method.sums["recalls"] = torch.tensor([[3.0, 3.0], [4.0, 4.0]])
    run: Any = SimpleNamespace(check_there=lambda: None, weights=lambda name: tmp_path)
    watch = BestCheckpoint(run, {}, 8, "balanced_accuracy")
    found = {"val/balanced_accuracy": 0.75}
    two = SimpleNamespace(reduce=lambda counts, reduce_op: 2 * counts)
    trainer: Any = SimpleNamespace(
        callback_metrics=found, current_epoch=0, is_global_zero=True, strategy=two, sanity_checking=False
    )
    watch.on_validation_epoch_end(trainer, method)
    assert watch.error == pytest.approx((2 * 0.75 * 0.25 / 4) ** 0.5 / 2)


def with_terms(terms: dict[str, float]) -> TrainingModule:
    """Create a module whose last step had these terms."""
    method: Any = nn.Identity()
    method.student, method.logs = nn.Identity(), {name: torch.tensor(value) for name, value in terms.items()}
    module = TrainingModule(method)
    module.terms = tuple(terms)
    return module


def test_saving_checks_the_loss() -> None:
    watch = StepMetrics(every_steps=50)
    trainer: Any = SimpleNamespace(
        global_step=2, num_training_batches=100, accumulate_grad_batches=1, log_every_n_steps=50
    )
    for step, value in ((2, 1.0), (3, float("inf")), (4, 1.0)):
        trainer.global_step = step
        module = with_terms({"label": value})
        watch.on_train_batch_end(trainer, module, None, None, step - 1)
    refused(r"step 3 \(label inf\)", watch.on_save_checkpoint, trainer, module, {})


def test_weights_spoiled_by_an_epochs_last_step_are_not_saved(tmp_path: Path) -> None:
    class Spared(Callback):
        state_key = "Spoil"

    class Spoil(Spared):
        def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
            if trainer.global_step + 1 == 2 * trainer.num_training_batches:
                for weight in pl_module.parameters():
                    weight.grad = torch.full_like(weight, float("inf"))

    held = {"data.val_fraction": 0.3, "train.validate": "val"}
    out, settings = str(tmp_path / "run"), {**FAST, **held, "train.epochs": 3, "engine.checkpoint_minutes": 1e-9}
    with pytest.raises(UserError, match=r"weights are no finite numbers after step"):
        viticulture.train("digits", "default/digits", out=out, overrides=settings, callbacks=[Spoil()], progress=False)
    run = RunFolder(Path(out))
    kept = [load_checkpoint(run.checkpoint)["state_dict"], load_file(run.weights("best") / "model.safetensors")]
    assert all(value.isfinite().all() for weights in kept for value in weights.values())
    assert viticulture.resume(out, callbacks=[Spared()], progress=False).metadata["status"] == "finished"


def test_a_training_by_single_images_starts_unchanged(tmp_path: Path) -> None:
    """BatchNorm over one image works where its maps have several pixels."""
    keys = {"student.name": "dhvt_nano", "train.batch_size": 1, "data.per_class": 2, "train.epochs": 1}
    session = begin("digits", "default/digits", 0, str(tmp_path / "run"), False, keys, "test")
    numbers = torch.rand(3)
    fresh, _ = assemble(session.config, session.dataset, 0)
    assert torch.equal(torch.rand(3), numbers)
    states = session.method.state_dict(), fresh.state_dict()
    assert any("running_mean" in name for name in states[0])
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    session.run.unlock()


def test_terms_of_a_loss_may_start_and_end() -> None:
    watch = StepMetrics(every_steps=50)
    trainer: Any = SimpleNamespace(
        global_step=0, num_training_batches=100, accumulate_grad_batches=1, log_every_n_steps=50
    )
    for step, terms in enumerate(({"label": 1.0}, {"guide": 2.0, "label": 1.0}, {"guide": float("nan"), "label": 1.0})):
        trainer.global_step = step + 1
        module = with_terms(terms)
        watch.on_train_batch_end(trainer, module, None, None, step + 1)
    watch.on_train_batch_end(trainer, with_terms({"label": 1.0}), None, None, 4)
    with pytest.raises(UserError, match=r"step 3 \(guide nan, label 1\)"):
        watch.read()


def test_a_batch_without_anything_to_measure_is_no_part_of_the_mean() -> None:
    """As the accuracy of a batch without labels."""
    watch = StepMetrics(every_steps=1)
    trainer: Any = SimpleNamespace(
        global_step=1, num_training_batches=4, accumulate_grad_batches=1, log_every_n_steps=50
    )
    for accuracy in (0.5, math.nan, 1.0):
        module = with_terms({"label": 1.0})
        module.method.logs = {"label": torch.tensor(1.0), "accuracy": torch.tensor(accuracy)}
        watch.on_train_batch_end(trainer, module, None, None, 1)
    assert watch.means == {"label": 1.0, "accuracy": 0.75}


def test_an_empty_history_has_its_header(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").touch()
    for step in (1, 2):
        MetricsFile(tmp_path / "metrics.csv").log_metrics({"epoch": float(step), "val/accuracy": 0.5}, step)
    assert len(read_history(tmp_path / "metrics.csv")) == 2


@pytest.mark.parametrize(("made_by", "goes_on"), [("1.2.0", True), ("1.2", True), ("1.3.3", False), ("2.2.3", False)])
def test_a_run_resumes_under_patches_of_its_version_alone(
    made_by: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under 1.2.3."""
    session = small(tmp_path / "run")
    session.run.unlock()
    session.run.update(versions={**session.run.read("run.json")["versions"], "viticulture": made_by})
    monkeypatch.setattr("viticulture.version.VERSION", "1.2.3")
    with nullcontext() if goes_on else pytest.raises(UserError, match=f"was begun by viticulture {made_by}"):
        reopen(str(tmp_path / "run")).run.unlock()


def test_a_run_may_be_a_folder_at_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = small(tmp_path / "run")
    monkeypatch.setattr(session.run, "path", Path("/run-that-is-nowhere"))
    assert bar(session).forecast is not None


def test_a_resumed_run_gets_no_advice_of_budgets(tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    session.run.unlock()
    resumed = reopen(str(tmp_path / "run"))
    resumed.run.unlock()
    assert bar(resumed).forecast is None


def test_a_row_of_another_study_is_not_used(tmp_path: Path) -> None:
    ours, theirs = (tmp_path / study / "cells" / "mae.seed-0" for study in "ab")
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
    run = ours.with_name("fine.seed-0")
    assert where_they_lie(run, {"student": {"init": str(theirs)}}) == {"student": {"init": str(theirs)}}
    theirs.rmdir()
    assert where_they_lie(run, {"student": {"init": str(theirs)}}) == {"student": {"init": str(ours)}}


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    program = (
        "import sys; from viticulture.training.run_folder import RunFolder; from viticulture.errors import UserError\n"
        "try: RunFolder(sys.argv[1]).lock()\n"
        "except UserError as error: print(error)\n"
    )
    seen = subprocess.run([sys.executable, "-c", program, str(session.run.path)], capture_output=True, text=True)
    assert "in use by another process" in seen.stdout
    session.run.unlock()
    seen = subprocess.run([sys.executable, "-c", program, str(session.run.path)], capture_output=True, text=True)
    assert seen.stdout == ""


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    fit(session)
    whole = session.run.checkpoint.read_bytes()
    with file_limit(len(whole) // 2):
        content = load_checkpoint(session.run.checkpoint)
        refused("free some space", WholeCheckpointIO().save_checkpoint, content, session.run.checkpoint)
    assert session.run.checkpoint.read_bytes() == whole
    assert [path.name for path in session.run.checkpoint.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.slow
def test_a_run_resumes_once_a_full_disk_has_room(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    program = (
        "import resource, sys, torch; torch.set_num_threads(1)\n"
        "from viticulture.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = ["train", "digits", "--recipe", "default/digits"]
    for key, value in FAST.items():
        command += [f"--{key}", str(value)]
    seen = subprocess.run(
        [sys.executable, "-c", program, *command, "--out", str(run)], capture_output=True, text=True, check=False
    )
    assert seen.returncode == 2, seen.stderr
    assert "free some space" in seen.stderr
    viticulture.resume(str(run))
    viticulture.train("digits", "default/digits", out=str(other), overrides=FAST)
    assert (run / "weights/last/model.safetensors").read_bytes() == (
        other / "weights/last/model.safetensors"
    ).read_bytes()


CHECKPOINT = "checkpoints/last.ckpt"
Damage = Callable[[Path], object]


def changed(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Return a change of run.json."""

    def apply(run: Path) -> None:
        metadata = json.loads((run / "run.json").read_text())
        change(metadata)
        (run / "run.json").write_text(json.dumps(metadata))

    return apply


def written(file: str, content: Callable[[bytes], bytes] | bytes) -> Damage:
    """Return a change of a file's content."""
    return lambda run: (run / file).write_bytes(
        content if isinstance(content, bytes) else content((run / file).read_bytes())
    )


def of_another(run: Path) -> None:
    WholeCheckpointIO("other").save_checkpoint(load_checkpoint(run / CHECKPOINT), run / CHECKPOINT)


def without(key: str) -> Damage:
    return changed(lambda metadata: metadata.pop(key))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def to_a_folder(run: Path) -> None:
    (run / "metrics.csv").unlink()
    (run / "metrics.csv").mkdir()


class Evil:
    """Runs a command when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run that is not marked as finished, in a folder to copy."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    os.environ["VITICULTURE_CACHE"] = str(path.parent / "cache")
    session = small(path)
    fit(session)
    session.run.unlock()
    return path


DAMAGED: dict[str, tuple[Damage, str]] = {
    "layout": (changed(lambda metadata: metadata.update(format=0)), "another version"),
    "version": (changed(lambda metadata: metadata["versions"].update(viticulture="9.9.9")), "9.9.9"),
    "images": (changed(lambda metadata: metadata["data"].update(fingerprint="", portable="")), "are not those"),
    "json": (written("run.json", b"{"), "damaged"),
    "deep": (written("run.json", b'{"a":' * 100_000), "run.json is damaged"),
    "checkpoint": (written(CHECKPOINT, lambda content: content[:1000]), "damaged"),
    "pickle": (lambda run: torch.save({"state_dict": Evil()}, run / CHECKPOINT), "damaged or no checkpoint"),
    "bits": (written(CHECKPOINT, flipped), "damaged or no checkpoint.*train anew"),
    "nothing": (lambda run: torch.save({"state_dict": {}}, run / CHECKPOINT), "not of this run"),
    "other": (of_another, "not of this run"),
    "recipe": (without("recipe"), "recipe is missing"),
    "seed": (without("seed"), "seed is missing"),
    "data": (without("data"), "data.source is missing"),
    "status": (without("status"), "status is missing"),
    "student": (without("student"), "student.name is missing"),
    "warnings": (without("warnings"), "warnings is missing"),
    "text": (changed(lambda metadata: metadata.update(seed="one")), "seed must be a whole number, got 'one'"),
    "splits": (written("split.json", b'{"names": {"train": [1]}}'), "split.json is damaged"),
    "no recipe": (lambda run: (run / "recipe.yaml").unlink(), "holds no recipe.yaml"),
    "binary recipe": (written("recipe.yaml", b"\xff\xfe\x00"), "recipe.yaml is not UTF-8 text.*bring back a copy"),
    "binary metrics": (written("metrics.csv", b"\xff\xfe\x00"), "metrics.csv is damaged"),
    "folder": (to_a_folder, "metrics.csv is damaged"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_run_that_cannot_resume_exactly_says_why(tmp_path: Path, stopped: Path, what: str) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    damage, words = DAMAGED[what]
    damage(run)
    refused(words, viticulture.resume, str(run))
    assert not Path("evil").exists()


def test_a_run_and_its_images_may_move(tmp_path: Path, stopped: Path) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "elsewhere"))
    assert viticulture.resume(str(run)).metadata["status"] == "finished"
    assert (run / "report.html").exists()
    (left := run / ".predictions.npz.77.part").write_text("half")  # of a killed evaluate
    os.utime(left, (0, 0))
    assert viticulture.resume(str(run)).accuracy == viticulture.Run(run).accuracy  # nothing left to do
    assert not left.exists()


def _shard(folder: Path) -> None:
    """Pack a folder of classes into a shard of WebDataset, and remove the pictures."""
    with tarfile.open(folder / "all-0.tar", "w") as shard:
        for path in sorted(folder.rglob("*.png")):
            shard.add(path, f"{path.parent.name}{path.stem}.png")
            label = tarfile.TarInfo(f"{path.parent.name}{path.stem}.cls")
            label.size = len(path.parent.name)
            shard.addfile(label, io.BytesIO(path.parent.name.encode()))
            path.unlink()


def test_streamed_shards_may_move(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", {"0": 6, "1": 6})
    _shard(photos)
    overrides = {**FAST, "data.per_class": None, "train.validate": "none", "images.stream": True}
    begun = begin(str(photos), "default/photos", 0, str(tmp_path / "run"), False, overrides, "t")
    begun.run.unlock()
    photos.rename(tmp_path / "moved")
    again = reopen(str(tmp_path / "run"), str(tmp_path / "moved"))
    assert (again.fingerprint, again.dataset.split_names) == (begun.fingerprint, begun.dataset.split_names)
    again.run.unlock()
    os.utime(tmp_path / "moved" / "all-0.tar", (0, 0))
    refused("are not those", reopen, str(tmp_path / "run"), str(tmp_path / "moved"))


@pytest.mark.parametrize("stream", [False, True])
def test_resume_takes_the_new_place_of_the_images(stream: bool, tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", {"a": 12, "b": 12})
    overrides = {**FAST, "data.per_class": None, "train.validate": "none", "images.stream": stream}
    session = begin(
        str(photos), "default/photos", 0, str(tmp_path / "run"), False, {**overrides, "student.name": "vit_nano"}, "t"
    )
    session.run.unlock()
    photos.rename(tmp_path / "moved")
    refused(r"photos.*viticulture resume .* DATA", reopen, str(tmp_path / "run"))
    again = reopen(str(tmp_path / "run"), str(tmp_path / "moved"))
    assert again.dataset.split_names == session.dataset.split_names
    assert again.fingerprint == session.fingerprint
    again.run.unlock()
    reopen(str(tmp_path / "run")).run.unlock()
    changed = tmp_path / "moved" / session.dataset.split_names["train"][0]
    Image.new("RGB", (20, 30)).save(changed)
    with pytest.raises(UserError, match=r"are not those.*bring them back.*train anew: viticulture train") as error:
        reopen(str(tmp_path / "run"), str(tmp_path / "moved"))
    assert ("cp -a" in str(error.value)) is stream


@pytest.mark.parametrize("stream", [False, True])
def test_a_copy_of_the_images_is_accepted(stream: bool, tmp_path: Path) -> None:
    """As `cp -a` and rsync copy them, with other permissions."""
    photos = pictures(tmp_path / "photos", {"a": 12, "b": 12})
    overrides = {**FAST, "data.per_class": None, "train.validate": "none", "images.stream": stream}
    begun = begin(str(photos), "default/photos", 0, str(tmp_path / "run"), False, overrides, "t")
    begun.run.unlock()
    shutil.copytree(photos, tmp_path / "copy")
    for path in [*photos.rglob("*.png"), *(tmp_path / "copy").rglob("*.png")]:
        path.chmod(0o400)
    for data in ("", str(tmp_path / "copy")):
        again = reopen(str(tmp_path / "run"), data)
        again.run.unlock()
        assert again.fingerprint == begun.fingerprint
        assert again.dataset.contents == begun.dataset.contents


@pytest.mark.parametrize("data", ["photos/*", "digits", "shards/all-*.tar"])
def test_a_run_finds_its_images_from_any_folder(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("photos/x", "digits", "shards"):
        pictures(tmp_path / folder, {"0": 6, "1": 6})
    _shard(tmp_path / "shards")
    pictures(tmp_path / "photos/y", {"2": 6, "3": 6})
    monkeypatch.chdir(tmp_path)
    overrides = {**FAST, "data.per_class": None, "train.validate": "none"}
    begun = begin(data, "default/photos", 0, str(tmp_path / "run"), False, overrides, "t")
    begun.run.unlock()
    for folder in ("photos", "digits"):
        monkeypatch.chdir(tmp_path / folder)
        again = reopen(str(tmp_path / "run"))
        again.run.unlock()
        assert again.fingerprint == begun.fingerprint
        assert again.dataset.classes == begun.dataset.classes
    if data != "digits":
        (tmp_path / data).parent.rename(tmp_path / "moved")
        refused(r"which is not there.*resume .* DATA", reopen, str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("data", "name"),
    [("/a/photos/*", "photos"), ("/a/photos/", "photos"), ("shards/all-*.tar", "shards"), ("hf:me/pets", "pets")],
)
def test_runs_and_studies_are_named_by_their_data(
    data: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_path("", data) == Path("runs") / name
    assert data_name(data) == (name if "tar" not in data else "all-*.tar")


def test_a_finished_run_takes_the_new_place_of_its_images(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", {"a": 12, "b": 12})
    overrides = {**FAST, "data.per_class": None, "student.name": "vit_nano", "train.epochs": 1}
    run = viticulture.train(str(photos), "default/photos", out=str(tmp_path / "run"), overrides=overrides)
    photos.rename(tmp_path / "moved")
    others = pictures(tmp_path / "others", {"a": 12, "b": 12}, side=20)
    for images in ("", str(others)):
        with pytest.raises(UserError, match=r"resume .* DATA" if not images else "are not those"):
            viticulture.resume(run, images) if images else viticulture.evaluate(run)
    before = run.metrics
    viticulture.resume(run, tmp_path / "moved")
    viticulture.evaluate(run)
    assert run.metrics.equals(before)


@pytest.mark.parametrize("change", ["pixels", "label", "class"])
def test_a_run_is_evaluated_on_its_own_images_alone(change: str, tmp_path: Path) -> None:
    pictures(tmp_path / "photos", {"a": 12, "b": 12})
    rows = [(f"photos/{name}/{i}.png", name) for name in "ab" for i in range(12)]

    def listed(rows: list[tuple[str, str]]) -> None:
        (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))

    listed(rows)
    out = str(tmp_path / "run")
    overrides = {**FAST, "data.per_class": None, "student.name": "vit_nano", "train.epochs": 1}
    run = viticulture.train(str(tmp_path / "list.csv"), "default/photos", out=out, overrides=overrides)
    before, tested = (run.path / "evaluation.json").read_text(), run.folder.image_names["test"]
    if change == "pixels":
        Image.new("RGB", (20, 30)).save(tmp_path / tested[0])
    if change == "label":
        listed([(path, "ba"["ab".index(label)] if path == tested[0] else label) for path, label in rows])
    if change == "class":
        listed([(path, "c" if label == "a" else label) for path, label in rows])
    refused(r"are not those.*viticulture evaluate .* DATA", viticulture.evaluate, str(run.path))
    assert (run.path / "evaluation.json").read_text() == before


def test_metrics_after_the_checkpoint_are_dropped_by_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,epoch,name,value\n3,0,train/loss,1.0\n7,1,train/loss,0.5\n9,1,train/lo")
    cut(path, 5)
    assert path.read_text().splitlines() == ["step,epoch,name,value", "3,0,train/loss,1.0"]
    assert list(read_curves(path)) == ["train/loss"]


def test_micro_batches_keep_the_logging_interval(tmp_path: Path) -> None:
    session = small(tmp_path / "run", **{"train.accumulate": 4})
    fit(session)
    curves = read_curves(session.run.metrics)
    assert [len(curves[name]) for name in ("lr", "train/loss")] == [session.config.train.epochs] * 2


def after_step(ema: Ema, student: nn.Module, step: int) -> None:
    """Call what Lightning calls after an optimizer's step."""
    trainer: Any = SimpleNamespace(global_step=step)
    method: Any = nn.Identity()
    method.student = student
    ema.on_train_batch_end(trainer, TrainingModule(method), None, None, 0)


def test_the_ema_follows_its_formula(tmp_path: Path) -> None:
    """average <- decay average + (1 - decay) weights, beginning with the first step's weights."""
    student = nn.Linear(2, 1, bias=False)
    ema = Ema(student, 0.9)
    values = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[-1.0, 1.0]])]
    for step, value in enumerate(values, 1):
        student.weight.data.copy_(value)
        after_step(ema, student, step)
    expected = 0.9 * (0.9 * values[0] + 0.1 * values[1]) + 0.1 * values[2]
    torch.testing.assert_close(ema.student.weight.data, expected)


@pytest.mark.parametrize("decay", [0.9, 0.95, 0.996, 0.9995, 0.9999])
def test_the_ema_leaves_integers_alone(decay: float) -> None:
    """EfficientFormer looks relative positions up by an index among its weights."""
    student = nn.BatchNorm1d(2)
    student.register_buffer("places", torch.arange(100))
    ema = Ema(student, decay)
    for step in (1, 2, 3):
        student(torch.randn(4, 2))
        after_step(ema, student, step)
    assert torch.equal(ema.student.get_buffer("places"), torch.arange(100))
    assert int(ema.student.get_buffer("num_batches_tracked")) == 3


def test_overwriting_replaces_a_run_and_nothing_else(tmp_path: Path, stopped: Path) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    RunFolder.create(run, overwrite=True).unlock()
    assert [path.name for path in run.iterdir()] == ["run.lock"]
    RunFolder.check_free(run)  # killed this early, a run leaves nothing that bars the next
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    for overwrite in (False, True):
        refused("holds no run", RunFolder.create, tmp_path / "letters", overwrite=overwrite)


def test_a_run_that_lost_a_part_says_so(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    (run / "checkpoints" / "last.ckpt").unlink()
    assert viticulture.resume(str(run)).metadata["status"] == "finished"
    assert "it begins anew" in capsys.readouterr().err
    viticulture.resume(str(run))
    assert "is already finished" in capsys.readouterr().err
    shutil.rmtree(run / "weights")
    for verb in (viticulture.resume, viticulture.evaluate):
        refused(r"its folder weights is gone or empty; .*train anew: viticulture train", verb, str(run))


@pytest.mark.parametrize("budget", ["", "5m"])
def test_a_run_is_not_replaced_by_one_that_starts_from_it(budget: str, tmp_path: Path) -> None:
    out = tmp_path / "lr=0.1"
    viticulture.train("digits", "default/digits", out=str(out), overrides=FAST, progress=False)
    again: dict[str, Any] = {"overwrite": True, "budget": budget, "overrides": {"student.init": str(out)}}
    with pytest.raises(UserError, match=r"student.init is .*/lr=0.1, which --overwrite would remove first"):
        viticulture.train("digits", "default/digits", out=str(out), **again)
    assert (out / "weights" / "last" / "model.safetensors").exists()


def test_a_default_folder_belongs_to_one_command(tmp_path: Path) -> None:
    """Eight at once, with a file and a dead link of that name."""
    root, names = tmp_path / "runs", list[str]()
    ready, done = threading.Barrier(8), threading.Barrier(8)
    with pytest.raises(KeyboardInterrupt), claimed(root, "photos"):
        raise KeyboardInterrupt
    assert not root.exists()
    root.mkdir()
    (root / "photos").write_text("")
    (root / "photos-2").symlink_to("nowhere")

    def command(number: int) -> None:
        ready.wait()
        with suppress(UserError), claimed(root, "photos") as path:
            names.append(path.name)
            if number % 2:
                (path / "run.lock").touch()
            done.wait()
            raise UserError("a mistake")

    threads = [threading.Thread(target=command, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 8
    assert set(names) == {f"photos-{number}" for number in range(3, 11)}
    assert len(list(root.glob("photos-*/run.lock"))) == len(list(root.glob("photos-*"))) - 1 == 4
    with (
        pytest.raises(UserError, match=r"cannot make the folder .*photos/x: .*choose another --out"),
        claimed(root / "photos", "x"),
    ):
        pass


def test_a_command_takes_the_next_free_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def load(*given: Any) -> Any:
        (tmp_path / "runs" / "digits").mkdir(parents=True, exist_ok=True)
        return load_dataset(*given)

    monkeypatch.setattr("viticulture.training.session.load_dataset", load)
    session = begin("digits", "default/digits", 0, "", False, FAST, "test")
    session.run.unlock()
    assert session.run.path == Path("runs", "digits-2")
    with pytest.raises(UserError, match="must not exceed"):
        begin("digits", "default/digits", 0, "", False, {**FAST, "train.batch_size": 5000}, "test")

    def opened(data: str) -> None:
        assert not (tmp_path / "runs" / "digits-3").exists(), "a kill while it measures would leave it empty"
        raise UserError("a mistake in the data")

    monkeypatch.setattr("viticulture.budget.prepare.open_by_default", opened)
    refused("a mistake in the data", viticulture.train, "digits", budget="60s")
    refused("unknown recipe", viticulture.compare, "digits", ("default/digit",))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits", "digits-2"]
    assert not (tmp_path / "studies").exists()


def test_a_changed_recipe_is_refused_with_a_new_command(tmp_path: Path, stopped: Path) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    recipe, whole = run / "recipe.yaml", (run / "recipe.yaml").read_text()
    recipe.write_text(whole.replace("epochs: 2", "epochs:   0x2  # two").replace("# recipe", "# my recipe"))
    assert reopen(str(run)).config.train.epochs == 2
    recipe.write_text(whole.replace("  epochs: 2", "  epochs: 3").replace("  clip_norm: null", "  clip_norm: 1.5"))
    words = rf"train.clip_norm from None to 1.5, train.epochs from 2 to 3; .*--recipe {recipe} --seed 0"
    for use in (viticulture.resume, viticulture.evaluate):
        refused(words, use, str(run))


def test_a_run_killed_while_created_blocks_nothing(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    run.write("recipe.yaml", "train: {epochs: 1}")
    run.write("split.json", {"names": {}})
    (run.path / ".run.json.77.part").write_text("{")
    run.unlock()
    for overwrite in (False, True):
        RunFolder.check_free(run.path, overwrite)
    refused(r"before its first step.*begin it again", viticulture.resume, str(run.path))
    RunFolder.create(run.path).unlock()
    assert [path.name for path in run.path.iterdir()] == ["run.lock"]
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "recipe.yaml").write_text("train: {epochs: 1}")
    refused("exists already", RunFolder.check_free, tmp_path / "own")
    with pytest.raises(UserError, match="is no text; choose another --out"):
        RunFolder.check_free(os.fsdecode(bytes(tmp_path / "own") + b"\xff"))


def test_leftovers_of_killed_writers_are_removed_by_the_next(tmp_path: Path, stopped: Path) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    left = [run / "checkpoints" / ".last.ckpt.77.part", run / "weights" / "last" / ".config.json.77.part"]
    for part in left:
        part.write_text("half")
    RunFolder.open(run)
    assert all(part.exists() for part in left)
    RunFolder.open(run).lock()
    assert not any(part.exists() for part in left)


def test_a_folder_that_cannot_be_made_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused("is a file, and a run is a folder", small, tmp_path / "file")
    refused(r"file is no folder that may be written", small, tmp_path / "file" / "run")


def test_a_run_removed_while_it_trains_ends_in_one_line(tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    honest = session.method.losses

    def losses(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        shutil.rmtree(session.run.path, ignore_errors=True)
        terms: dict[str, Tensor] = honest(batch)
        return terms

    session.method.losses = losses
    refused(r"run was removed|cannot write .*run", fit, session)
    assert not session.run.path.exists()


def test_advice_on_disk_space_is_given_where_it_is_the_cause(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv")
    metrics.log_metrics({"train/loss": 1.0}, 0)
    with file_limit(metrics.path.stat().st_size + 3):
        refused(r"metrics.csv.*free some space", metrics.log_metrics, {"train/loss": 0.5}, 50)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="check that its folder exists"), replacing(tmp_path / "file" / "x"):
        raise AssertionError("there is nothing to write to")
    assert "free some space" not in str(unwritable(tmp_path, PermissionError(13, "Permission denied")))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc takes no folders, not even root's")
def test_an_unwritable_home_is_reported_with_a_fix() -> None:
    with pytest.raises(UserError, match="VITICULTURE_CACHE"), locked(Path("/proc/nowhere/.cache/viticulture/a.lock")):
        raise AssertionError("there is no such folder")


@pytest.mark.parametrize(
    ("pixels", "recipe"), [(28, "tiny-images"), (32, "small-images"), (64, "small-images"), (65, "photos")]
)
def test_the_default_recipe_follows_the_size_of_the_images(pixels: int, recipe: str, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures", {"a": 2, "b": 2}, pixels)
    name = default_recipe(open_source(str(folder)))
    assert name == f"default/{recipe}"
    assert load_config(name).student.name
    assert len(read_table(name).rows) >= 3


@pytest.mark.parametrize(
    ("student", "more", "patch"),
    [
        ("resnet10t", {}, None),
        ("convnext_atto", {}, None),
        ("vit_tiny", {}, 2),
        ("deit_tiny_patch16_224", {}, 2),
        ("resnet10t", {"student.patch_size": 4}, 4),
    ],
)
def test_the_default_patch_size_gives_way_to_a_named_student(
    student: str, more: dict[str, Any], patch: int | None
) -> None:
    for key in ("student", "student.name"):
        config = resolve_default("default/digits", {key: student, **more})
        assert config.student.patch_size == patch
        said = "student.patch_size 2 of default/digits is left out, as it does not fit" in " ".join(config.warnings)
        assert said == (patch is None)
    assert resolve_default("default/digits", {}) == load_config("default/digits")


def test_a_cnn_trains_by_the_default_recipe(tmp_path: Path) -> None:
    words: dict[str, Any] = {"student": "resnet10t", "data.per_class": 2, "data.test_on": "none"}
    session = begin("digits", "default", 0, str(tmp_path / "run"), False, words, "test")
    session.run.unlock()
    assert any("patch_size" in warning for warning in session.warnings)
    assert session.config.student.patch_size is None
    assert "patch_size: null" in resolved("digits", overrides=words)


def test_a_page_that_cannot_be_drawn_stops_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = small(tmp_path / "run")
    session.run.write("probe.json", {"best/digits/9": {"findings": 3}})
    session.run.unlock()
    assert viticulture.resume(str(tmp_path / "run")).metadata["status"] == "finished"
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(lines) == 2, lines  # in training; afterwards
    assert all("probe.json" in line and f"viticulture report {shell_word(tmp_path / 'run')}" in line for line in lines)
    (tmp_path / "run" / "probe.json").unlink()
    assert "Top-1 accuracy" in viticulture.report(str(tmp_path / "run")).read_text()


def test_a_run_resumes_under_its_teachers_alone(tmp_path: Path) -> None:
    data_spec = DataSpec(tuple("0123456789"), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    teacher = tmp_path / "teacher"
    for seed in (0, 1):
        torch.manual_seed(seed)
        save(create_student("vit_nano", data_spec, 2), tmp_path / f"teacher-{seed}", data_spec)
    shutil.copytree(tmp_path / "teacher-0", teacher)
    session = small(tmp_path / "run", **{"guides.logits.teacher": str(teacher)})
    session.run.unlock()
    reopen(str(tmp_path / "run")).run.unlock()
    shutil.rmtree(teacher)
    shutil.copytree(tmp_path / "teacher-1", teacher)
    refused(r"the teachers of .* are not those", reopen, str(tmp_path / "run"))


@pytest.mark.parametrize("kind", ["folder", "file", "tag"])
def test_a_run_without_a_checkpoint_resumes_from_its_start_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_spec = DataSpec(tuple("0123456789"), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    start, student = tmp_path / "start", {"student.name": "vit_nano", "student.patch_size": 2}

    def fetched(name: str) -> torch.nn.Module:
        return load(start)[0]

    def write(seed: int) -> None:
        torch.manual_seed(seed)
        save(create_student("vit_nano", data_spec, 2), start, data_spec)

    monkeypatch.setattr(sources, "fetch", fetched)
    if kind == "tag":  # one that timm does not have
        for module in (sources, config_start):
            monkeypatch.setattr(module, "describe", lambda source, *_: sources.Description(source, "vit_nano", {}))
    write(0)
    word = {"folder": str(start), "file": str(start / "model.safetensors"), "tag": "vit_nano.digits"}[kind]
    session = small(tmp_path / "run", **student, **{"student.init": word})
    session.run.unlock()
    reopen(str(tmp_path / "run")).run.unlock()
    write(1)
    with pytest.raises(UserError, match=r"the weights of .*, from which .* starts, are not those .*; bring them back"):
        reopen(str(tmp_path / "run"))
    session.run.checkpoint.parent.mkdir()
    session.run.checkpoint.touch()
    RunFolder(tmp_path / "run").unlock()
    assert reopen(str(tmp_path / "run")).method.start is not None


def test_relative_paths_of_weights_work_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_spec = DataSpec(tuple("0123456789"), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "soft").mkdir()
    monkeypatch.chdir(tmp_path)
    save(create_student("vit_nano", data_spec, 2), Path("weights/first"), data_spec)
    save(create_student("resnet10t", data_spec), Path("weights/cnn"), data_spec)
    file = "resnet10t=weights/cnn/model.safetensors"
    keys = {"student.init": "weights/first", "guides.teacher": {"class": "logits", "teacher": file, "kind": "soft"}}
    keys["guides.several"] = {"class": "co_advise", "teachers": {"cnn": "weights/cnn"}, "token": "class"}
    session = small(Path("run"), **keys)
    session.run.unlock()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert reopen(str(tmp_path / "run")).fingerprint == session.fingerprint
    guides = session.config.values["guides"]
    assert session.config.values["student"]["init"] == str(tmp_path / "weights/first")
    assert guides["teacher"]["kind"] == "soft"


def test_a_start_from_other_classes_has_a_new_head(tmp_path: Path) -> None:
    data_spec = DataSpec(tuple("abcdefghij"), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    save(create_student("vit_nano", data_spec, 2), tmp_path / "first", data_spec)
    session = small(tmp_path / "run", **{"student.init": str(tmp_path / "first")})
    session.run.unlock()
    assert any(said.startswith("the head there is of other classes: a, b, c") for said in session.method.loaded)


@pytest.mark.parametrize(
    ("before", "now", "device", "said"),
    [
        ({}, {}, "auto", []),
        ({}, {"threads": 4}, "auto", ["with 99 threads and resumes with 4.*OMP_NUM_THREADS=99 resumes exactly"]),
        ({"gpus": ["H200"]}, {"gpus": ["H200"], "threads": 4}, "auto", []),
        ({"gpus": ["H200"]}, {"gpus": ["H200"], "threads": 4}, "cpu", ["with 99 threads"]),
        ({"gpus": ["H200"]}, {"gpus": ["T4"]}, "cuda", ["began on H200 and resumes on T4"]),
        ({"gpus": ["H200"]}, {}, "auto", ["began on H200 and resumes on EPYC"]),
        ({}, {"gpus": ["H200"]}, "auto", ["began on EPYC and resumes on H200"]),
        ({}, {"gpus": ["H200"]}, "cpu", []),
        ({}, {"cpu": "Xeon", "threads": 4}, "cpu", ["began on EPYC and resumes on Xeon"]),
    ],
)
def test_resuming_on_another_machine_is_reported(
    before: dict[str, Any], now: dict[str, Any], device: str, said: list[str]
) -> None:
    machine = {"cpu": "EPYC", "gpus": [], "threads": 99}
    warnings = other_machine({**machine, **before}, {**machine, **now}, device)
    assert len(warnings) == len(said)
    assert all(re.search(words, warning) for words, warning in zip(said, warnings, strict=True))


class Enough(Callback):
    """Ends a training at the end of its first epoch, or within it."""

    def __init__(self, within: bool) -> None:
        self.within = within

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = self.within

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize("within", [False, True])
def test_a_training_ended_by_a_callback_is_not_resumed(within: bool, tmp_path: Path) -> None:
    session = small(tmp_path / "run", **{"train.ema_decay": 0.9})
    fit(session, more=[Enough(within)])
    session.run.unlock()
    kept = [path for path in session.run.path.rglob("*") if path.suffix in (".safetensors", ".csv")]
    kept += session.run.path.rglob("config.json")
    before, steps = [path.read_bytes() for path in kept], session.run.read("run.json")["steps"]
    assert steps == (1 if within else 2)
    again = reopen(str(tmp_path / "run"))
    fit(again)
    assert [path.read_bytes() for path in kept] == before
    assert again.run.read("run.json")["steps"] == steps


def test_an_epoch_ended_by_a_callback_is_validated(tmp_path: Path) -> None:
    keys = {"train.validate_every": 2, "data.val_fraction": 0.2, "train.validate": "val", "train.epochs": 4}
    session = small(tmp_path / "run", **keys)
    fit(session, more=[Enough(within=True)])
    assert [epoch for epoch, _ in read_curves(session.run.metrics)["val/accuracy"]] == [1]
    assert "best" in session.run.which()


def test_batches_of_another_version_are_not_resumed(tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    fit(session, until=1)
    session.run.update(batch_size=7)
    session.run.unlock()
    refused(r"begun in batches of 7, where this version .* chooses 20", reopen, str(tmp_path / "run"))


@pytest.mark.parametrize("written", [1, 2])
def test_a_length_interrupted_by_a_kill_is_set_by_resume(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_at_2(tmp_path / "run")
    write, writes = RunFolder.write, itertools.count()

    def killed(run: RunFolder, name: str, content: Any) -> Path:
        if next(writes) == written:
            raise KeyboardInterrupt
        return write(run, name, content)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patched.setattr(RunFolder, "write", killed)
        viticulture.resume(str(tmp_path / "run"), epochs=3)
    ended = viticulture.resume(str(tmp_path / "run"))
    assert (ended.metadata["settings"]["train"]["epochs"], ended.metadata["steps"]) == (3, 6)
    assert sum("in place of 8" in warning for warning in ended.metadata["warnings"]) == 1


def test_a_stopped_training_takes_another_length(tmp_path: Path) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    stopped_at_2(run)
    with pytest.raises(UserError, match="has come to epoch 2, so it cannot end sooner; got 1") as error:
        viticulture.resume(str(run), epochs=1)
    assert error.tb  # it is kept, and yet the run is free again
    ended = viticulture.resume(str(run), epochs=4)
    fit(small(straight, **{"train.epochs": 4}))
    rates = [[epoch["lr"] for epoch in read_history(one / "metrics.csv")] for one in (run, straight)]
    assert [mine == theirs for mine, theirs in zip(*rates, strict=True)] == [False, False, True, True]
    assert ended.metadata["steps"] == json.loads((straight / "run.json").read_text())["steps"] == 8
    assert "4 epochs in place of 8 by `resume --epochs`, once 2 had begun" in ended.metadata["warnings"][-1]
    refused("finished, after 4 epochs", viticulture.resume, str(run), epochs=9)
    assert viticulture.resume(str(run), epochs=4).accuracy == ended.accuracy


def stopped_at_2(out: Path, **keys: Any) -> None:
    """Stop a run of eight epochs after the second."""
    session = small(out, **{"train.epochs": 8, **keys})
    fit(session, until=2)
    session.run.unlock()


class Rates(Callback):
    """Records the learning rate of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


def test_every_step_after_a_change_of_length_has_the_new_rate(tmp_path: Path) -> None:
    run, rates, straight = tmp_path / "run", Rates(), Rates()
    stopped_at_2(run)
    change_length(run, 4)
    fit(reopen(str(run)), more=[rates])
    fit(small(tmp_path / "straight", **{"train.epochs": 4}), more=[straight])
    assert len(rates.seen) == 4
    assert rates.seen == straight.seen[4:]


def test_other_processes_wait_for_a_length_without_reading_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_at_2(tmp_path / "run")
    monkeypatch.setattr(length, "is_leader", lambda engine: False)
    reads, looks = list[str](), 0

    def read(path: Path) -> dict[str, Any]:
        reads.append(path.name)
        return load_checkpoint(path)

    def first_works(seconds: float) -> None:
        nonlocal looks
        looks += 1
        run = RunFolder(tmp_path / "run")
        if looks == 3:
            run.update(length=4)
        if looks == 6:
            with monkeypatch.context() as patched:
                patched.setattr(length, "load_checkpoint", load_checkpoint)
                set_length(run, 4)

    monkeypatch.setattr(length, "load_checkpoint", read)
    monkeypatch.setattr("time.sleep", first_works)
    refused("has come to epoch 2", change_length, tmp_path / "run", 1)
    change_length(tmp_path / "run", 4)
    assert (looks, reads) == (6, ["last.ckpt"] * 2)


def test_an_invalid_length_is_refused_and_forgotten(tmp_path: Path) -> None:
    stopped_at_2(tmp_path / "run", **{"schedule.warmup_epochs": 4})
    refused("warmup_epochs must be fewer", viticulture.resume, str(tmp_path / "run"), epochs=3)
    assert viticulture.resume(str(tmp_path / "run")).metadata["settings"]["train"]["epochs"] == 8


def test_an_interrupted_length_gives_way_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_at_2(tmp_path / "run")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patched.setattr("viticulture.training.length.comment", killed)  # the checkpoint is written, recipe.yaml is next
        change_length(tmp_path / "run", 4)
    change_length(tmp_path / "run", 8)
    change_length(tmp_path / "run")
    fit(reopen(str(tmp_path / "run")))
    assert RunFolder(tmp_path / "run").read("run.json")["steps"] == 16


def test_best_weights_of_a_discarded_epoch_are_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_at_2(tmp_path / "run", **{"data.val_fraction": 0.2, "train.validate": "val"})
    with monkeypatch.context() as patched:
        patched.setattr(KeepLast, "_save", lambda *_: None)
        killed = reopen(str(tmp_path / "run"))
        fit(killed, until=5)
        killed.run.unlock()
    best = tmp_path / "run/weights/best/config.json"
    assert json.loads(best.read_text())["epoch"] > 2, "few images cannot tell the first epochs apart"
    ended = viticulture.resume(str(tmp_path / "run"), epochs=2)
    assert ended.folder.which() == ["last"]
    assert json.loads((tmp_path / "run/weights/last/config.json").read_text())["epoch"] == 2


class Killed(Callback):
    """Ends a training as torch does when one of its processes was killed."""

    def __init__(self, words: str) -> None:
        self.words = words

    def on_train_batch_end(self, *_: Any) -> None:
        raise RuntimeError(self.words)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("DataLoader worker (pid 77) is killed by signal: Killed.", "a worker process"),
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset", "another process"),
        ("NCCL error: remote process exited or there was a network error", "another process"),
    ],
    ids=["reader", "gloo", "NCCL"],
)
def test_a_killed_process_is_reported_with_a_fix(words: str, cause: str, tmp_path: Path) -> None:
    session = small(tmp_path / "run")
    refused(rf"{cause}.*lack of memory.*viticulture resume", lambda: fit(session, more=[Killed(words)]))
    session.run.unlock()
    assert viticulture.resume(str(tmp_path / "run")).metadata["status"] == "finished"
