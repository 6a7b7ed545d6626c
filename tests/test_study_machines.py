# SPDX-License-Identifier: Apache-2.0
"""Cells in processes of their own, on a SLURM array, on a Ray cluster: whoever dies, every cell is trained once."""

import importlib.util
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

import viticulture
from viticulture.errors import UserError
from viticulture.study.folder import StudyDir
from viticulture.study.grid import Contender, Grid
from viticulture.study.outcomes import Outcomes
from viticulture.study.plan import Plan
from viticulture.study.rounds import standing
from viticulture.study.slurm import write_script
from viticulture.study.terms import Amounts, Terms
from viticulture.study.workers import claimed_by, environment, run_workers

TINY = {"train.batch_size": 8}


def made(path: Path, seeds: int, epochs: int = 1, terms: Terms = Terms()) -> StudyDir:  # noqa: B008
    """One contender on a few digits, planned without measuring."""
    grid = Grid(
        "digits",
        (Contender("a", "default/digits", TINY),),
        Amounts(per_class=(2,)),
        tuple(range(seeds)),
        epochs=epochs,
        terms=terms,
    )
    study = StudyDir.create(path, grid, "test")
    study.update(plan=Plan({("a", "2 a class"): epochs}, {}, {"a": 100}, {"a": 5.0}).to_dict())
    return study


def statuses(study: StudyDir) -> list[str]:
    return [one.status for one in standing(study.grid, Outcomes(study))]


def kill_whoever_trains(study: StudyDir, killed: list[int], patience: float = 60) -> None:
    """kill -9 the first process that holds a cell and has begun to train it."""
    end = time.monotonic() + patience
    while time.monotonic() < end and not killed:
        for lock in (study.path / "locks").glob("a.*"):
            words = lock.read_text().split()
            if len(words) == 2 and (study.path / "cells" / lock.name / "run.json").exists():
                pid = int(words[1])
                if claimed_by(study, pid):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                    return
        time.sleep(0.01)


def test_a_killed_worker_is_replaced_and_its_cell_goes_on(tmp_path: Path) -> None:
    """Two processes, two cells, one process killed while it trains: told, and all cells are finished, each once.

    Fails if the dead worker's cell stays locked, is left out, or the study waits for the dead.
    """
    study, said, killed = made(tmp_path / "s", 2, epochs=8), list[str](), list[int]()
    killer = threading.Thread(target=kill_whoever_trains, args=(study, killed))
    killer.start()
    run_workers(study, 2, said.append)
    killer.join()
    assert killed
    assert statuses(study) == ["finished"] * 2
    assert sum("SIGKILL" in words for words in said) == 1
    assert sum(words.startswith("[") for words in said) == 2


def test_workers_share_gpus_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker sees one GPU of those that its parent sees; without GPUs they divide the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert environment(1, 4)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [environment(i, 3)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [environment(i, 2)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["5", "7"]


def test_a_slurm_array_has_a_task_a_cell(tmp_path: Path) -> None:
    """The script is valid, its task trains its cell, and written again it asks for what is missing alone.

    Fails if numbers and cells do not match, or a finished cell is submitted again.
    """
    study = made(tmp_path / "s", 2)
    script = write_script(study, Plan.from_dict(study.facts["plan"]))
    assert "--array=0,1" in script.read_text()
    subprocess.run(["bash", "-n", str(script)], check=True)
    source = str(Path(viticulture.__file__).parent.parent)
    environ = {**os.environ, "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert statuses(study) == ["missing", "finished"]
    assert "--array=0\n" in write_script(study, Plan.from_dict(study.facts["plan"])).read_text()
    with pytest.raises(UserError, match="halving"):
        write_script(made(tmp_path / "h", 1, 4, Terms(halving=True)), Plan({}, {}, {}, {}))


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_a_lost_ray_workers_cell_is_tried_again(tmp_path: Path) -> None:
    """A cluster of this machine, a worker killed while it trains. Fails if the cell is lost or trained anew."""
    from viticulture.study.ray_tasks import run_on_ray

    study, said, killed = made(tmp_path / "s", 2, epochs=8), list[str](), list[int]()
    killer = threading.Thread(target=kill_whoever_trains, args=(study, killed))
    killer.start()
    run_on_ray(study, "local", said.append)
    killer.join()
    assert killed
    assert statuses(study) == ["finished"] * 2
    assert sum(words.startswith("[") for words in said) == 2


def test_ray_is_asked_for_by_name(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        from viticulture.study.ray_tasks import run_on_ray

        with pytest.raises(UserError, match="pip install"):
            run_on_ray(made(tmp_path / "s", 1), "local", str)
