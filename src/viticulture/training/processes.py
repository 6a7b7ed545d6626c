# SPDX-License-Identifier: Apache-2.0
"""Devices and processes of a run: checks before it starts, and how processes wait for the first one at its end."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.lsf import LSFEnvironment
from lightning.fabric.plugins.environments.mpi import MPIEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import distributed
from torch.distributed import distributed_c10d

from ..config.sections import Engine
from ..errors import UserError

POLL_SECONDS = 0.5
FAREWELL = timedelta(seconds=10)  # for processes that may be gone already
RUN_FOLDER = "VITICULTURE_RUN"  # environment variable that passes a run's folder to the processes that it starts
_endings = itertools.count()  # of trainings in this process

LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS"),
    ("LSF", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
)
"""Launcher, variable of the rank, variable of the number of processes. The first with more than one process counts, as
torchrun is used within jobs of the others."""


@dataclass(frozen=True)
class Launch:
    """Several processes started by one of `LAUNCHERS`: rank of this one, and how many there are."""

    launcher: str
    rank: int
    size: int


def launched() -> Launch | None:
    """Return the launch of this process by its environment; None where it was started alone."""
    for launcher, rank, size in LAUNCHERS:
        started = _number(size)
        if started is None or started < 2 or (number := _number(rank)) is None:
            continue
        if launcher == "SLURM" and not _by_srun():
            continue
        return Launch(launcher, number, started)
    return None


def _by_srun() -> bool:
    """Return whether this is a task of SLURM's, and not the script or the shell of a job that may have several."""
    in_shell = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    in_script = "SLURMD_NODENAME" in os.environ and "SLURM_STEP_ID" not in os.environ
    return not in_shell and not in_script


def _number(name: str) -> int | None:
    """Return a number of the environment; None without one."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else None


def is_leader(engine: Engine) -> bool:
    """Return whether this process writes the run: of a training on one device always, else in the first process."""
    if engine.devices * engine.nodes == 1:
        return True
    if (launch := launched()) is not None:
        return launch.rank == 0
    return not (_number("LOCAL_RANK") or _number("NODE_RANK"))


@contextmanager
def named(run: Path, engine: Engine) -> Iterator[None]:
    """Pass the run's folder to processes that Lightning starts in the block; do nothing for a single process."""
    if engine.devices == 1 or launched() is not None or not is_leader(engine):
        yield
        return
    before = os.environ.get(RUN_FOLDER)
    os.environ[RUN_FOLDER] = str(run.absolute())
    try:
        yield
    finally:
        os.environ.pop(RUN_FOLDER)
        if before is not None:
            os.environ[RUN_FOLDER] = before


def check_devices(engine: Engine) -> None:
    """Raises: UserError if devices are missing, or another number of processes was started."""
    if engine.device == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no GPU; use --device cpu, or check the driver")
    if engine.device == "mps" and not torch.backends.mps.is_available():
        raise UserError("engine.device is mps, but torch sees no Apple GPU; use --device cpu")
    on_gpu = engine.device == "cuda" or (engine.device == "auto" and torch.cuda.is_available())
    if on_gpu and engine.devices > torch.cuda.device_count():
        raise UserError(f"engine.devices is {engine.devices}, but torch sees {torch.cuda.device_count()} GPU(s)")
    if engine.cuda_graph and not on_gpu:
        raise UserError("engine.cuda_graph is true, but the training runs on no NVIDIA GPU; set it to false")
    processes, launch = engine.devices * engine.nodes, launched()
    started = os.environ.get("WORLD_SIZE", "")
    if {"RANK", "LOCAL_RANK"} & os.environ.keys() and started not in ("", str(processes)):
        raise UserError(
            f"{started} processes were started, but engine.devices times engine.nodes is {processes}: set --devices "
            "to those of each machine, and --engine.nodes to the number of machines"
        )
    if processes > 1:
        _check_launch(engine, launch)


MEET = {
    "torchrun": ("MASTER_ADDR", "MASTER_PORT"),
    "SLURM": ("SLURM_LOCALID", "SLURM_NODEID"),
    "LSF": ("LSB_JOBID", "LSB_DJOB_RANKFILE", "JSM_NAMESPACE_LOCAL_RANK"),
    "MPI": (),
}
"""Other variables that processes need to meet."""


def _check_launch(engine: Engine, launch: Launch | None) -> None:
    """Raises: UserError where the processes of a training on several devices cannot meet."""
    processes = engine.devices * engine.nodes
    rule = f"engine.devices is {engine.devices} and engine.nodes {engine.nodes}"
    if launch is None:
        if engine.nodes > 1 and _number("NODE_RANK") is None:
            raise UserError(f"{rule}, but this process was started alone: start one a device by torchrun or srun")
        if "LOCAL_RANK" in os.environ and not {"WORLD_SIZE", "MASTER_PORT"} & os.environ.keys():
            raise UserError(
                f"{rule}, and LOCAL_RANK is {os.environ['LOCAL_RANK']}, as if something had started all of them, but "
                "MASTER_PORT, where they meet, is not set; start them by torchrun, or unset LOCAL_RANK"
            )
        return
    if launch.size != processes:
        raise UserError(f"{rule}, but {launch.launcher} started {launch.size} processes; start {processes}")
    if launch.launcher == "MPI" and find_spec("mpi4py") is None:
        raise UserError(
            f"{rule}, and processes that MPI starts meet by mpi4py, not installed; run: pip install mpi4py, or start "
            "them by torchrun"
        )
    local = ("LOCAL_RANK",) if launch.launcher == "torchrun" and engine.devices > 1 else ()
    if missing := [name for name in (*MEET[launch.launcher], *local) if name not in os.environ]:
        raise UserError(
            f"{rule}, and {launch.launcher} started {launch.size} processes without {' and '.join(missing)}, by which "
            "they meet; start them by torchrun or srun"
        )
    for name, number in (("SLURM_NTASKS_PER_NODE", engine.devices), ("SLURM_NNODES", engine.nodes)):
        if launch.launcher == "SLURM" and _number(name) not in (None, number):
            raise UserError(f"{rule}, but {name} is {os.environ[name]}; make them the same")


class _Alone(LightningEnvironment):
    """A single process, whatever its environment says."""

    def __init__(self) -> None:
        super().__init__()
        self.set_global_rank(0)  # Lightning has read another number when it was imported, and would log nothing

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return 0

    def teardown(self) -> None:
        """Leave the environment as it is."""


class _Slurm(SLURMEnvironment):
    """Tasks that srun started, by --ntasks-per-node or --ntasks alike; they are not requeued automatically."""

    def __init__(self) -> None:
        super().__init__(auto_requeue=False)

    @staticmethod
    def _validate_srun_variables() -> None:
        """`check_devices` has."""


def environment(engine: Engine) -> ClusterEnvironment:
    """Return Lightning's source of ranks and of the address at which processes meet."""
    if engine.devices * engine.nodes == 1:
        return _Alone()
    launch = launched()
    if launch is None:
        return LightningEnvironment()
    if launch.launcher == "SLURM":
        return _Slurm()
    if launch.launcher == "LSF":
        return LSFEnvironment()
    if launch.launcher == "MPI":
        return MPIEnvironment()
    return TorchElasticEnvironment() if "LOCAL_RANK" in os.environ else KubeflowEnvironment()


def lost_another(error: BaseException) -> bool:
    """Return whether gloo or NCCL raised an error because another process is gone."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("gloo/transport", "remote process exited")
    )


def _of_several() -> bool:
    """Return whether this process trains with others that it has met."""
    return distributed.is_available() and distributed.is_initialized()


def of_every(value: Any) -> list[Any]:
    """Gather an object of every process, by rank; every process must call it and waits for the last."""
    if not _of_several():
        return [value]
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, value)
    return every


def rank() -> int:
    """Return this process's rank in a training."""
    return distributed.get_rank() if _of_several() else 0


@contextmanager
def the_first_works() -> Iterator[None]:
    """Run the block in the first process only; the others wait at its end.

    Their launcher (Lightning, torchrun) ends all processes when one ends with an error. They poll their common store
    without a limit, as evaluation may take longer than any barrier allows. If the first process fails, they exit
    silently. If it is killed, its store goes with it (torchrun, whose store lives on, ends them itself).

    Raises: UserError in the others if the first process was killed.
    """
    if not _of_several():
        yield
        return
    store = distributed_c10d.PrefixStore(f"viticulture/{next(_endings)}", distributed_c10d._get_default_store())
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if rank == 0:
        try:
            yield
        finally:
            store.set("over", "")
            with suppress(RuntimeError):  # the store stays until the others have left
                store.wait([f"left {other}" for other in range(1, world)], FAREWELL)
        return
    yield
    try:
        while not store.check(["over"]):
            time.sleep(POLL_SECONDS)
        store.set(f"left {rank}", "")
    except RuntimeError as error:
        raise UserError(
            "the first process ended before it had evaluated the run; complete it by `viticulture resume RUN`"
        ) from error
