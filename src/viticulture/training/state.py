# SPDX-License-Identifier: Apache-2.0
"""Exact resume: atomic checkpoints, the random state in them, and averaged weights.

A resumed run ends bit for bit where an uninterrupted one does: the loader is a pure function of (seed, epoch, step),
and checkpoints hold the one stream outside it, torch's global one (dropout).
"""

import errno
import io
import pickle
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from ..disk import replacing
from ..errors import UserError
from .module import TrainingModule
from .processes import of_every
from .run_folder import RunFolder

SHARE = 0.05  # of the time, for checkpoints at epochs' ends

_training = threading.RLock()


@contextmanager
def own_random_state() -> Iterator[None]:
    """Use torch's global random stream for a training in the block, and restore the program's afterwards.

    Raises: UserError if another thread trains: from one stream both would draw other numbers than alone.
    """
    if not _training.acquire(blocking=False):
        raise UserError(
            "another thread of this program trains, and both would draw from torch's one stream of random numbers; "
            "train one after the other, or in separate processes"
        )
    try:
        seed, on_gpu = torch.initial_seed(), torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(range(torch.cuda.device_count()) if on_gpu else ()):
            yield
    finally:
        if torch.cuda.is_initialized() and not on_gpu:  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)  # as the program's first use of a GPU would have
        _training.release()


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints atomically and loads them without running code; refuses those of another fingerprint."""

    def __init__(self, fingerprint: str = "") -> None:
        super().__init__()
        self.fingerprint = fingerprint

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        buffer = io.BytesIO()  # torch's file writer reports a full disk as a RuntimeError about positions
        torch.save({**checkpoint, "mark": self.fingerprint}, buffer)
        with replacing(Path(path)) as part:
            part.write_bytes(buffer.getbuffer())

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        content = load_checkpoint(path)
        if content.get("mark") != self.fingerprint:
            raise UserError(
                f"checkpoint {path} is not of this run: its recipe, seed or images differ; bring back the run's"
            )
        return content


class Damaged(UserError):
    """A file whose content is broken, so that reading it again will not help."""


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Load a checkpoint on the CPU.

    Raises: UserError if it is missing or cannot be read at present, Damaged if it is broken.
    """
    try:
        with zipfile.ZipFile(path) as file:  # torch writes checksums, but does not read them
            if (part := file.testzip()) is not None:
                raise zipfile.BadZipFile(part)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(
            f"there is no checkpoint {path}: the run was stopped before its first one; train anew"
        ) from error
    except (
        *(zipfile.BadZipFile, zlib.error, NotImplementedError),
        *(RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, MemoryError),
    ) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):  # messages of Python and torch
            raise UserError(f"there is not enough memory for checkpoint {path}; go on when there is more") from error
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a position before the file's start is damage
            raise UserError(f"checkpoint {path} cannot be read: {error.strerror}") from error
        raise Damaged(
            f"checkpoint {path} is damaged or no checkpoint ({type(error).__name__}); bring back a copy of it, or "
            "train anew"
        ) from error
    if not isinstance(content, dict) or "state_dict" not in content:
        raise Damaged(f"checkpoint {path} is no checkpoint of a run")
    return content


def beneath(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of a state dict whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class KeepLast(Checkpoint):
    """Writes last.ckpt at epochs' ends, and inside an epoch when the last one is too old.

    Where epochs are short, some ends are left out: writing takes a twentieth of the time at most. The last one stays.
    Nothing is written between an epoch's last step and its validation, so a resumed run never skips a validation.
    """

    def __init__(self, run: RunFolder, minutes: float) -> None:
        self.run, self.interval = run, 60 * minutes
        self.saved_at = self.began_at = time.monotonic()
        self.cores_began_at = time.process_time()
        self.seconds_before = self.core_seconds_before = self.cost = 0.0

    def seconds_spent(self) -> float:
        """Return the training time so far, that of earlier processes included."""
        return self.seconds_before + time.monotonic() - self.began_at

    def core_seconds_spent(self) -> float:
        """Return the same of the processors, of this process alone where several train."""
        return self.core_seconds_before + time.process_time() - self.cores_began_at

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds_spent(), "core_seconds": self.core_seconds_spent()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds_before = state_dict["seconds"]
        self.core_seconds_before = state_dict.get("core_seconds", 0.0)  # runs before 2026-11-29 did not count them

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 >= trainer.num_training_batches or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.world_size > 1 and (batch_idx + 1) % 50:
            return  # agreeing is rare
        if self._agreed(trainer, time.monotonic() - self.saved_at > self.interval):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        passed = time.monotonic() - self.saved_at
        if last or self._agreed(trainer, passed * SHARE >= self.cost or passed > self.interval):
            self._save(trainer)

    def _agreed(self, trainer: Trainer, due: bool) -> bool:
        """Clocks differ, so processes agree; that waits for the device."""
        return due if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(due, all=False)

    def _save(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self.run.check_there()
        began = time.monotonic()
        trainer.save_checkpoint(self.run.checkpoint)
        self.saved_at = time.monotonic()
        self.cost = self.saved_at - began


class Ended(Callback):
    """Stores in the checkpoint that a callback has ended the training early: a resumed run does not train on."""

    def __init__(self) -> None:
        self.epochs: int | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.should_stop:
            self.epochs = trainer.current_epoch + 1

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.epochs is not None:
            trainer.fit_loop.max_epochs = self.epochs

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class RandomState(Callback):
    """Gives each process a separate random stream; the checkpoint holds all, restored just before the next step."""

    def __init__(self) -> None:
        self.restored: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_rank:  # all have the same seed, to begin with the same weights
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)

    def state_dict(self) -> dict[str, Any]:
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return {"processes": of_every(state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.restored = state_dict["processes"]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if len(self.restored) == trainer.world_size:
            state = self.restored[trainer.global_rank]
            torch.set_rng_state(state["cpu"])
            if "cuda" in state and torch.cuda.is_available():
                torch.cuda.set_rng_state(state["cuda"])
        self.restored = []


class Ema(Callback):
    """Exponential moving average of the student after every optimizer step; buffers are averaged too, but for whole
    numbers, such as indices of relative positions, which are copied.

        average <- decay * average + (1 - decay) * weights,    from the first step's weights on

    Args:
        decay: between 0 and 1, per step.
    """

    def __init__(self, student: nn.Module, decay: float) -> None:
        self.average, self.steps = ModelEmaV3(student, decay, foreach=True), 0

    @property
    def student(self) -> nn.Module:
        """The averaged network."""
        return self.average.module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.student.to(pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > self.steps:
            assert isinstance(pl_module, TrainingModule)
            self.average.update(pl_module.method.student, None if self.steps else 0)
            self.steps = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "average": self.student.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.steps = state_dict["steps"]
        self.student.load_state_dict(state_dict["average"])
