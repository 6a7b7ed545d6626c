# SPDX-License-Identifier: Apache-2.0
"""Cells in processes, on a SLURM array and on a Ray cluster: every cell is trained once, whatever is killed."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import viticulture
from children import start
from refusals import refused
from study_processes import TINY, Killer, made, statuses
from viticulture.study.clusters import write_script
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.outcomes import Outcomes
from viticulture.study.plan import StudyPlan
from viticulture.study.terms import Subsets, Terms
from viticulture.study.work import Worker
from viticulture.study.workers import LIVES, WorkerPool, cell_named, environment, main, run_workers


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_cell_resumes(tmp_path: Path) -> None:
    study, said = made(tmp_path / "s", 2, epochs=8), list[str]()
    with Killer(study) as killer:
        run_workers(study, 2, said.append)
    assert killer.killed
    assert statuses(study) == ["finished"] * 2
    assert sum("SIGKILL" in words for words in said) == 1
    assert sum(words.startswith("[") for words in said) == 2


@pytest.mark.parametrize("halving", [False, True])
@pytest.mark.slow
def test_a_cell_that_kills_its_process_fails_and_the_rest_continues(
    halving: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = (Candidate("a", "default/digits", TINY), Candidate("b", "default/digits", TINY))
    grid = Grid("digits", alike, Subsets(per_class=(2,)), (0,), epochs=4, terms=Terms(halving=halving))
    study = StudyFolder.create(tmp_path / "s", grid, "test")
    (cell, _) = grid.cells(0)
    (study.path / "locks").mkdir()
    worker = tmp_path / "worker"
    worker.write_text(
        f"""#!/bin/bash
case "$*" in *"--skip {cell.name}") echo "the rest goes on"; exit 0;; esac
echo "host $$" > {study.path}/locks/{cell.name}
kill -9 $$
"""
    )
    worker.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(worker))
    said: list[str] = []
    WorkerPool(study, 1, said.append).keep_alive(0)
    failure = study.failure(cell)
    assert failure is not None
    assert failure["error"] == f"its process died {LIVES} times (SIGKILL)"
    assert said == [f"a worker died (SIGKILL) while it trained {cell.name}"] * LIVES + ["the rest goes on"]
    assert {one.status for one in Outcomes(study).all(grid.cells(0))} == {"failed"}


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="needs real-time signals")
def test_a_worker_killed_by_an_unnamed_signal_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number, said = signal.SIGRTMIN + 3, list[str]()
    worker = tmp_path / "worker"
    worker.write_text(f"#!/bin/bash\nkill -{number} $$\n")
    worker.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(worker))
    WorkerPool(made(tmp_path / "s", 2), 1, said.append).keep_alive(0)
    assert said == [f"a worker died (signal {number}) before it trained anything"] * LIVES


def test_workers_end_with_their_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker"
    worker.write_text("#!/bin/bash\necho $$\nexec sleep 600\n")
    worker.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(worker))
    said, together = list[str](), threading.Lock()

    def tell(words: str) -> None:
        with together:
            said.append(words)
            if len(said) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_workers(made(tmp_path / "s", 2), 2, tell)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(said) == 2
    for pid in map(int, said):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _work_until_input_ends(study: str) -> None:
    """In a child: a worker whose training never ends, and whose input does."""
    end, begin = os.pipe()
    os.dup2(end, 0)
    sys.stdin = open(0)  # noqa: SIM115
    Worker.run = lambda _: (os.close(begin), signal.pause())  # type: ignore[method-assign,assignment,return-value]
    sys.argv = ["worker", study, "--attached"]
    main()


@pytest.mark.children
def test_an_attached_worker_ends_with_its_input(tmp_path: Path) -> None:
    worker = start(_work_until_input_ends, str(made(tmp_path / "s", 1).path))
    worker.join()
    assert worker.exitcode == -signal.SIGTERM


def _run_two(study: str, alive: Path) -> None:
    """In a child: two workers, which hold a pipe open as their standard error."""
    with alive.open("w") as pipe:
        os.dup2(pipe.fileno(), 2)
    run_workers(StudyFolder.open(study), 2, lambda words: None)


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    study, alive = made(tmp_path / "s", 2, epochs=50), tmp_path / "alive"
    os.mkfifo(alive)
    parent = start(_run_two, str(study.path), alive)
    with alive.open() as pipe:
        while not any((study.run(cell).path / "run.json").exists() for cell in study.grid.cells()):
            parent.join(0.01)
            assert parent.exitcode is None
        parent.kill()
        pipe.read()  # until the last of them has ended
    assert "finished" not in statuses(study)
    run_workers(study, 1, lambda words: None)
    assert statuses(study) == ["finished"] * 2


def test_workers_share_gpus_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert environment(1, 4)["OMP_NUM_THREADS"] == "2"
    with monkeypatch.context() as told:
        told.setenv("OMP_NUM_THREADS", "8")  # which torch has obeyed
        assert environment(1, 4)["OMP_NUM_THREADS"] == "8"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [environment(i, 3)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [environment(i, 2)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["5", "7"]


@pytest.mark.slow
def test_a_slurm_array_has_a_task_per_cell(tmp_path: Path) -> None:
    study = made(tmp_path / "s", 2)
    script = write_script(study, StudyPlan.from_dict(study.metadata["plan"]))
    assert "--array=0-1\n" in script.read_text()
    declared = (study.path / "study.yaml").read_text()
    added = declared.replace("candidates:\n", "candidates:\n- name: A first one\n  recipe: dhvt/digits\n")
    (study.path / "study.yaml").write_text(added)
    subprocess.run(["bash", "-n", str(script)], check=True)
    source = str(Path(viticulture.__file__).parent.parent)
    environ = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert statuses(study) == ["missing", "finished"]
    again = write_script(study, StudyPlan.from_dict(study.metadata["plan"])).read_text()
    assert "--array=0-0\n" in again
    assert "seed-0" in again
    assert "seed-1" not in again
    refused("cell of", cell_named, study, "taken-out.2-a-class.seed-0")
    refused("halving", lambda: write_script(made(tmp_path / "h", 1, 4, Terms(halving=True)), StudyPlan({}, {}, {}, {})))


def test_ray_must_be_installed(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        from viticulture.study.clusters import run_on_ray

        refused("pip install", lambda: run_on_ray(made(tmp_path / "s", 1), "local", str))
