# SPDX-License-Identifier: Apache-2.0
"""A run's folder: one writer, nothing lost, nothing half-written taken for whole."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import viticulture
from viticulture.errors import UserError
from viticulture.report.curves import read_curves
from viticulture.training.metrics import cut
from viticulture.training.progress import StopOnNonFinite
from viticulture.training.run import fit
from viticulture.training.rundir import RunDir
from viticulture.training.session import begin, reopen
from viticulture.training.state import Ema, WholeCheckpointIO, load_checkpoint

FAST: dict[str, Any] = {"data.per_class": 4, "train.epochs": 2, "schedule.warmup_epochs": 0}


def small(out: Path, **overrides: Any) -> Any:
    """A session of two short epochs on digits."""
    return begin("digits", "default/digits", 0, str(out), False, {**FAST, **overrides}, "test")


def test_a_loss_that_is_no_number_stops_the_run_with_step_and_terms(tmp_path: Path) -> None:
    """Catches: NaN reaching a checkpoint, the step or the terms missing from the message."""
    session = small(tmp_path / "run")
    honest = session.method.losses

    def losses(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = honest(batch)
        return {name: term * (float("nan") if session.method.global_step == 2 else 1.0) for name, term in terms.items()}

    session.method.losses = losses
    with pytest.raises(UserError, match=r"step 3 \(label nan\)"):
        fit(session)
    state = load_checkpoint(session.run.checkpoint)["state_dict"]  # of the end of the first epoch, two steps long
    assert all(value.isfinite().all() for value in state.values())


def test_a_checkpoint_between_two_looks_is_not_written_either() -> None:
    """On a GPU the loss is looked at rarely; saving looks too. Fails if a checkpoint can hold what NaN has spoilt."""
    watch = StopOnNonFinite(every_steps=50)
    trainer = SimpleNamespace(global_step=2, num_training_batches=100)
    for step, value in ((2, 1.0), (3, float("inf")), (4, 1.0)):
        trainer.global_step = step
        module = SimpleNamespace(seen_terms={"label": torch.tensor(value)})
        watch.on_train_batch_end(trainer, module, None, None, step - 1)
    with pytest.raises(UserError, match=r"step 3 \(label inf\)"):
        watch.on_save_checkpoint(trainer, module, {})


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Fails if a second process may resume, overwrite or continue a run that is being trained."""
    session = small(tmp_path / "run")
    program = (
        "import sys; from viticulture.training.rundir import RunDir; from viticulture.errors import UserError\n"
        "try: RunDir(sys.argv[1]).lock()\n"
        "except UserError as error: print(error)\n"
    )
    seen = subprocess.run([sys.executable, "-c", program, str(session.run.path)], capture_output=True, text=True)
    assert "in use by another process" in seen.stdout
    session.run.unlock()
    seen = subprocess.run([sys.executable, "-c", program, str(session.run.path)], capture_output=True, text=True)
    assert seen.stdout == ""


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk: the write fails half-way, the run says so and resumes.

    Catches: a truncated last.ckpt, leftovers, an error without a way on.
    """
    session = small(tmp_path / "run")
    fit(session)
    whole = session.run.checkpoint.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) // 2, hard))
        with pytest.raises(UserError, match="free some space"):
            WholeCheckpointIO().save_checkpoint(load_checkpoint(session.run.checkpoint), session.run.checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert session.run.checkpoint.read_bytes() == whole
    assert [path.name for path in session.run.checkpoint.parent.iterdir()] == ["last.ckpt"]


def test_a_run_that_meets_a_full_disk_resumes_once_there_is_room(tmp_path: Path) -> None:
    """The same in a real process that dies of it at its first checkpoint; then it ends as an undisturbed run does."""
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


def damage(run: Path, what: str) -> None:
    """Make one thing wrong with a stopped run."""
    facts = json.loads((run / "run.json").read_text())
    if what == "layout":
        facts["format"] = 0
    elif what == "version":
        facts["versions"]["viticulture"] = "9.9.9"
    elif what == "images":
        facts["data"]["fingerprint"] = "other"
    elif what == "facts":
        (run / "run.json").write_text("{")
        return
    elif what == "checkpoint":
        path = run / "checkpoints" / "last.ckpt"
        path.write_bytes(path.read_bytes()[:1000])
    elif what == "pickle":
        torch.save({"state_dict": Evil()}, run / "checkpoints" / "last.ckpt")
    (run / "run.json").write_text(json.dumps(facts))


class Evil:
    """Would run a command when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained but not marked as finished, in a folder to copy."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    os.environ["VITICULTURE_CACHE"] = str(path.parent / "cache")
    session = small(path)
    fit(session)
    session.run.unlock()
    return path


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("layout", "another version"),
        ("version", "9.9.9"),
        ("images", "are not those"),
        ("facts", "damaged"),
        ("checkpoint", "damaged"),
        ("pickle", "damaged or no checkpoint"),
    ],
)
def test_a_run_that_cannot_go_on_exactly_says_why(tmp_path: Path, stopped: Path, what: str, words: str) -> None:
    """Fails if a resume guesses, starts over in silence, or runs code out of a checkpoint."""
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    damage(run, what)
    with pytest.raises(UserError, match=words):
        viticulture.resume(str(run))
    assert not Path("evil").exists()


def test_a_run_and_its_images_may_move(tmp_path: Path, stopped: Path) -> None:
    """Fails if a run remembers absolute places that it cannot do without."""
    run = Path(shutil.copytree(stopped, tmp_path / "elsewhere"))
    assert viticulture.resume(str(run)).facts["status"] == "finished"
    assert (run / "report.html").exists()
    assert viticulture.resume(str(run)).accuracy == viticulture.Run(run).accuracy  # nothing left to do


def test_a_folder_of_images_that_has_moved_is_named_to_resume(tmp_path: Path) -> None:
    """The images themselves are compared, not where they lie. Fails if a copy elsewhere counts as other images."""
    from test_cli import pictures

    photos = pictures(tmp_path / "photos", {"a": 12, "b": 12})
    overrides = {**FAST, "data.per_class": None, "train.watch": "none"}
    session = begin(
        str(photos), "default/photos", 0, str(tmp_path / "run"), False, {**overrides, "student.name": "vit_nano"}, "t"
    )
    session.run.unlock()
    photos.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="photos"):
        reopen(str(tmp_path / "run"))
    again = reopen(str(tmp_path / "run"), str(tmp_path / "moved"))
    assert again.dataset.split_names == session.dataset.split_names


def test_measurements_after_the_checkpoint_are_dropped_when_a_run_goes_on(tmp_path: Path) -> None:
    """Fails if a resumed run's curve doubles back, or a torn last line stays."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,epoch,name,value\n3,0,train/loss,1.0\n7,1,train/loss,0.5\n9,1,train/lo")
    cut(path, 5)
    assert path.read_text().splitlines() == ["step,epoch,name,value", "3,0,train/loss,1.0"]
    assert list(read_curves(path)) == ["train/loss"]


def test_the_average_of_weights_follows_its_formula(tmp_path: Path) -> None:
    """average <- decay average + (1 - decay) weights, beginning with the first step's weights."""
    student = nn.Linear(2, 1, bias=False)
    ema = Ema(student, 0.9)
    values = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([[-1.0, 1.0]])]
    for value in values:
        student.weight.data.copy_(value)
        ema.average.update_parameters(student)
    expected = 0.9 * (0.9 * values[0] + 0.1 * values[1]) + 0.1 * values[2]
    torch.testing.assert_close(ema.student.weight.data, expected)


def test_overwriting_replaces_a_run_and_nothing_else(tmp_path: Path, stopped: Path) -> None:
    """Fails if --overwrite empties a folder that holds no run, or leaves an old run's checkpoint to resume from."""
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    RunDir.create(run, overwrite=True).unlock()
    assert [path.name for path in run.iterdir()] == ["run.lock"]
    RunDir.check_free(run)  # killed this early, a run leaves nothing that bars the next
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(UserError, match="replaces runs only"):
        RunDir.create(tmp_path / "letters", overwrite=True)
