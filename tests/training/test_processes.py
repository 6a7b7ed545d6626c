# SPDX-License-Identifier: Apache-2.0
"""A training on several processes: all wait for the first, and one prints."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from socket import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from torch import distributed
from torch._C._distributed_c10d import TCPStore

from children import command, one_of_pair, pair, start
from refusals import refused
from resumed import check_same_bits
from trained import weights
from viticulture.cli import main
from viticulture.config.sections import Engine
from viticulture.errors import UserError
from viticulture.training.metrics import StepMetrics
from viticulture.training.processes import check_devices, environment, the_first_works
from viticulture.training.run_folder import RunFolder
from viticulture.training.state import RandomState

SMALL = ["digits", "--recipe", "default/digits", "--student", "vit_nano", "--batch-size", "8", "--data.per_class", "4"]
SMALL += ["--data.val_fraction", "0.1", "--schedule.warmup_epochs", "0", "--devices", "2", "--device", "cpu"]
TINY = ["--student.options", "{embed_dim: 16, depth: 2, num_heads: 2}"]
IDLE = ["--student.options", "{embed_dim: 16, depth: 2, num_heads: 2, tokens: 1}"]  # a head that nobody teaches
ALONE = {"OMP_NUM_THREADS": "1"}


def take_part(rank: int, ending: str, ports: Any, arrived: Any, words: Any) -> None:
    """In a child: end a training as one of two processes."""
    store = TCPStore("127.0.0.1", 0 if rank == 0 else ports.get(), None, rank == 0, wait_for_workers=False)
    if rank == 0:
        ports.put(store.port)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        with the_first_works():
            if rank == 1:
                arrived.set()
            else:
                arrived.wait()
                time.sleep(0.2)  # time for the mistake to leave early
                words.put("the first has worked")
                if ending == "killed":
                    time.sleep(0.2)  # for the queue's thread
                    os.kill(os.getpid(), signal.SIGKILL)
                if ending == "error":
                    raise ZeroDivisionError
        words.put(f"{rank} left")
    except (UserError, ZeroDivisionError) as error:
        words.put(f"{rank} {type(error).__name__}")


@pytest.mark.children
@pytest.mark.parametrize(
    ("ending", "expected"),
    [("well", {"0 left", "1 left"}), ("error", {"0 ZeroDivisionError", "1 left"}), ("killed", {"1 UserError"})],
)
def test_processes_wait_for_the_first_and_end_with_it(ending: str, expected: set[str]) -> None:
    context = multiprocessing.get_context("forkserver")
    ports, arrived, words = context.Queue(), context.Event(), context.Queue()
    pair = [start(take_part, rank, ending, ports, arrived, words) for rank in (0, 1)]
    assert words.get() == "the first has worked"
    assert {words.get() for _ in expected} == expected
    for process in pair:
        process.join()


SLOW = """
import sys, threading
import lightning.fabric.strategies.launchers.subprocess_script as launcher
from viticulture.cli import main
from viticulture.tasks.classification import Classification

observer, looks, honest = launcher._ChildProcessObserver, threading.Semaphore(0), Classification.evaluate

def look(self, honest=observer._run):
    looks.release()
    return honest(self)

def slow(task, dataset):  # longer than the launcher takes to look after its processes, many times
    while looks.acquire(blocking=False):
        pass
    for _ in range(40):
        looks.acquire()
    return honest(task, dataset)

observer.__init__.__defaults__ = (0.1,)
observer._run, Classification.evaluate = look, slow
sys.exit(main())
"""


@pytest.mark.children
@pytest.mark.parametrize("launcher", ["torchrun", "SLURM"])
def test_a_training_on_two_processes_is_that_on_one(launcher: str, tmp_path: Path) -> None:
    """As torchrun or srun start them, by gloo, up to the order of sums; with SGD, since Adam amplifies rounding."""
    settings = ["--epochs", "1", "--train.validate", "val", "--augment.mix.mixup", "0.8", "--optim.name", "sgd"]
    settings += ["--lr", "0.1", "--student", "cit_tiny", "--student.patch_size", "2", *IDLE]
    port = free_port()
    logs = [tmp_path / f"log {rank}" for rank in (0, 1)]
    pair = [
        command(tmp_path, log, ["train", *SMALL, *settings, "--out", "two"], role_of(rank, port, launcher))
        for rank, log in enumerate(logs)
    ]
    for process in pair:
        process.join()
    said = [log.read_text() for log in logs]
    assert [process.exitcode for process in pair] == [0, 0], said
    assert RunFolder.open(tmp_path / "two").read("run.json")["status"] == "finished"
    assert [words.count("report: ") for words in said] == [1, 0]
    assert "sync_dist" not in "".join(said)

    assert main(["train", *SMALL, *settings, "--devices", "1", "--out", str(tmp_path / "one")]) == 0
    one, two = (weights(tmp_path / name) for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)


def free_port() -> int:
    """Return an unused port."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def role_of(rank: int, port: int, launcher: str = "torchrun") -> dict[str, str]:
    """Return a launcher's environment of one of two processes on a machine; srun -n 2 sets no more."""
    given: dict[str, int | str] = {
        "LOCAL_RANK": rank,
        "RANK": rank,
        "GROUP_RANK": 0,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "test",
    }
    if launcher == "SLURM":
        given = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": 2, "SLURM_NODEID": 0}
        given |= {"SLURM_JOB_ID": 7, "SLURM_JOB_NAME": "train.sh", "SLURM_NODELIST": "localhost"}
        given |= {"SLURMD_NODENAME": "localhost", "SLURM_STEP_ID": 0}
    return {name: str(value) for name, value in {**given, "MASTER_PORT": port}.items()}


ALONE_IN = {
    "a data_spec of srun": {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"},
    "a data_spec on another machine": {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "3",
        "SLURM_NTASKS": "4",
    },
    "a job without srun": {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4"},
    "a number that was left": {"LOCAL_RANK": "1"},
    "a machine that was left": {"NODE_RANK": "1", "RANK": "1"},
    "jsrun": {"LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "none", "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}
    | {"JSM_NAMESPACE_LOCAL_RANK": "1"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"},
}


@pytest.mark.children
@pytest.mark.parametrize("where", ALONE_IN)
def test_a_training_of_one_process_ignores_the_launcher(where: str, tmp_path: Path) -> None:
    log, words = tmp_path / "log", ["train", *SMALL, *TINY, "--devices", "1", "--epochs", "1", "--out", "run"]
    process = command(tmp_path, log, words, {**ALONE_IN[where], "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train.sh"})
    process.join()
    said = log.read_text()
    assert process.exitcode == 0, said
    assert said.count("report: ") == 1
    run = RunFolder.open(tmp_path / "run")
    assert run.read("run.json")["status"] == "finished"
    assert "train/loss" in run.metrics.read_text()


@pytest.mark.children
def test_a_lost_process_is_reported_with_a_fix(tmp_path: Path) -> None:
    """kill -9 for the second of two in the middle of a training."""
    port = free_port()
    logs = [tmp_path / f"log {rank}" for rank in (0, 1)]
    words = ["train", *SMALL, *TINY, "--epochs", "9999", "--out", "run"]
    pair = [command(tmp_path, log, words, role_of(rank, port)) for rank, log in enumerate(logs)]
    while pair[0].exitcode is None and not RunFolder(tmp_path / "run").checkpoint.exists():
        time.sleep(0.01)
    pair[1].kill()
    for process in pair:
        process.join()
    said = logs[0].read_text()
    assert pair[0].exitcode == 2, said
    assert "Traceback" not in said
    assert "another process of this training has ended" in said
    assert "viticulture resume run" in said


def gather(rank: int, folder: str) -> None:
    """In a child: one of two processes whose epoch is interrupted."""
    with one_of_pair(rank, folder):
        stopped, resumed = StepMetrics(1), StepMetrics(1)
        stopped.sums, stopped.batches = {"loss": 3.0 + rank}, Counter(loss=2)
        resumed.load_state_dict(stopped.state_dict())
        torch.save(resumed.means["loss"], f"{folder}/{rank}.pt")


@pytest.mark.children
def test_every_process_resumes_its_means(tmp_path: Path) -> None:
    assert pair(gather, tmp_path) == [1.5, 2.0]


def test_every_process_has_its_dropout_stream() -> None:
    def drawn(rank: int) -> tuple[float, ...]:
        torch.manual_seed(0)  # as all do, to begin with the same weights
        RandomState().on_train_start(cast(Trainer, SimpleNamespace(global_rank=rank)), LightningModule())
        return tuple(torch.rand(4).tolist())

    alone = torch.rand(4, generator=torch.Generator().manual_seed(0))
    assert drawn(0) == tuple(alone.tolist())
    assert len({drawn(rank) for rank in range(3)}) == 3


@pytest.mark.slow
def test_processes_wait_for_a_long_evaluation(tmp_path: Path) -> None:
    """Lightning kills all processes once one fails; the first evaluates until it has looked forty times."""
    (tmp_path / "slow.py").write_text(SLOW)
    run = tmp_path / "run"
    call = [sys.executable, str(tmp_path / "slow.py"), "train", *SMALL, "--epochs", "1", "--train.validate", "val"]
    call += ["--out", str(run)]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, **ALONE})
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(run).read("run.json")["status"] == "finished"
    assert done.stdout.count("report: ") == 1
    assert "error" not in done.stderr
    assert "sync_dist" not in done.stderr


def torchrun(*words: str) -> subprocess.Popen[str]:
    """Start two processes on this machine by torchrun, in a process group."""
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*call, "-m", "viticulture", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ALONE},
    )


def second(parent: int) -> int:
    """Return the process id of the second process of torchrun."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"LOCAL_RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError("torchrun has no second process")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds a process by Linux's /proc")
def test_a_training_by_torchrun_resumes_after_a_kill(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    long = [*SMALL, "--epochs", "20", "--train.validate", "val", "--augment.mix.mixup", "0.8"]
    undisturbed = torchrun("train", *long, "--out", str(whole))
    out, err = undisturbed.communicate()
    assert undisturbed.returncode == 0, err
    assert out.count("report: ") == 1

    stopped = torchrun("train", *long, "--out", str(broken))
    while stopped.poll() is None and not RunFolder(broken).checkpoint.exists():
        time.sleep(0.01)
    os.kill(second(stopped.pid), signal.SIGKILL)
    stopped.communicate()  # returns once all that write to its pipes are gone
    assert stopped.returncode != 0
    assert RunFolder.open(broken).read("run.json")["status"] == "running"

    resumed = torchrun("resume", str(broken))
    _, err = resumed.communicate()
    assert resumed.returncode == 0, err
    assert RunFolder.open(broken).read("run.json")["status"] == "finished"
    for which in ("last", "best"):
        check_same_bits(weights(whole, which), weights(broken, which))


def test_as_many_processes_train_as_the_recipe_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(r"2 processes were started.*is 1.*--devices", lambda: check_devices(Engine()))
    check_devices(Engine(devices=2))


SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}


@pytest.mark.parametrize(
    ("environment", "engine", "words"),
    [
        (SRUN, Engine(devices=2), "SLURM started 4 processes; start 2"),
        ({**SRUN, "SLURM_NTASKS_PER_NODE": "2"}, Engine(devices=4), "SLURM_NTASKS_PER_NODE is 2"),
        ({**SRUN, "SLURM_NNODES": "1"}, Engine(devices=2, nodes=2), "SLURM_NNODES is 1"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, Engine(devices=2), "without SLURM_LOCALID and SLURM_NODEID"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Engine(devices=2), "without MASTER_ADDR and MASTER_PORT and LOCAL_RANK"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Engine(), "2 processes were started"),
        ({"LOCAL_RANK": "1"}, Engine(devices=2), "unset LOCAL_RANK"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Engine(devices=2), "pip install mpi4py"),
        ({}, Engine(nodes=2), "started alone"),
    ],
)
def test_processes_that_cannot_meet_are_refused(
    environment: dict[str, str], engine: Engine, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("viticulture.training.processes.find_spec", lambda name: None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    refused(words, check_devices, replace(engine, device="cpu"))


def test_the_script_of_a_job_starts_its_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "a"}.items():
        monkeypatch.setenv(name, value)
    check_devices(Engine(devices=2, device="cpu"))
    assert isinstance(environment(Engine(devices=2)), LightningEnvironment)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert isinstance(environment(Engine(devices=4)), SLURMEnvironment)
