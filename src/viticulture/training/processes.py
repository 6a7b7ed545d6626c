# SPDX-License-Identifier: Apache-2.0
"""Which devices and processes a run has: checked before it starts; who waits for whom at its end."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from ..errors import UserError
from .settings import Engine

POLL_SECONDS = 0.5
FAREWELL = timedelta(seconds=10)  # for processes that may be gone already
_endings = itertools.count()  # every process counts the trainings that it sees to their end


def is_leader() -> bool:
    """Whether this process writes the run: the first of those that torchrun, SLURM or Lightning started."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))


def check_devices(engine: Engine) -> None:
    """Raises: UserError if the devices asked for are not there, or not as many processes were started."""
    if engine.device == "cuda" and not torch.cuda.is_available():
        raise UserError("engine.device is cuda, but torch sees no GPU; use --device cpu, or check the driver")
    if engine.device == "mps" and not torch.backends.mps.is_available():
        raise UserError("engine.device is mps, but torch sees no Apple GPU; use --device cpu")
    on_gpu = engine.device == "cuda" or (engine.device == "auto" and torch.cuda.is_available())
    if on_gpu and engine.devices > torch.cuda.device_count():
        raise UserError(f"engine.devices is {engine.devices}, but torch sees {torch.cuda.device_count()} GPU(s)")
    started, wanted = os.environ.get("WORLD_SIZE", ""), engine.devices * engine.nodes
    if {"RANK", "LOCAL_RANK"} & os.environ.keys() and started not in ("", str(wanted)):
        raise UserError(
            f"{started} processes were started, but engine.devices times engine.nodes is {wanted}: say by --devices "
            "how many train on each machine, and by --engine.nodes on how many machines"
        )


def lost_another(error: BaseException) -> bool:
    """Whether an error is what gloo or NCCL raises in a process that waits for one which is gone."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("gloo/transport", "remote process exited")
    )


def _of_several() -> bool:
    """Whether this process trains with others that it has met."""
    return distributed.is_available() and distributed.is_initialized()


def of_every(own: Any) -> list[Any]:
    """What the processes of a training give, in their order; each must ask, and none gets on before the last."""
    if not _of_several():
        return [own]
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, own)
    return every


def rank() -> int:
    """This process's place among those of a training."""
    return distributed.get_rank() if _of_several() else 0


@contextmanager
def the_first_works() -> Iterator[None]:
    """The end of a training: no process leaves this block before the first has, who alone has work to do in it.

    They must stay, since whoever started them (Lightning, torchrun) ends all when one ends with an error, and what
    they would read of the run is not there before the first has measured it. They wait without a limit, as measuring
    may take longer than any barrier allows, by asking the store through which they met. Where the first process
    fails, it tells them, and they leave in silence, as its own words and exit status say what happened. Where it is
    killed, its store goes with it (torchrun, whose store lives on, ends them itself).

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
            with suppress(RuntimeError):  # the store stays until the others have heard
                store.wait([f"left {other}" for other in range(1, world)], FAREWELL)
        return
    yield
    try:
        while not store.check(["over"]):
            time.sleep(POLL_SECONDS)
        store.set(f"left {rank}", "")
    except RuntimeError as error:
        raise UserError(
            "the first process ended before it had measured the run; `viticulture resume RUN` makes good for it"
        ) from error
