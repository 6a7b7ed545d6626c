# SPDX-License-Identifier: Apache-2.0
"""Replay of teachers' logits: computed once, read in runs with the same images in the same order.

A training image is a function of (seed, epoch, step), and a frozen teacher one of its image. With `engine.replay_gb`
the logits of every step's images are stored; a run that repeats the schedule, or another student with the same
teachers, seed and augmentation, reads them instead of running the teacher. They have the teacher's output type, so the
training is the same, bit for bit.

    teacher_logits/KEY/about.json           type and shape of a step's logits
    teacher_logits/KEY/epoch-00012.bin      record of step s at s * (4 + bytes of the logits): checksum, logits

KEY is made of all that the logits depend on: the teacher's weights, settings and code, the images, their size and
augmentation, seed, batch size and its micro-batches, processes, precision, device, compiler and version of torch. A
record whose checksum fails is computed again. Outputs for images other than the step's, such as mirror images, are
always computed, as they depend on the guide too. A full disk or budget ends the writing, not the training.
"""

import json
import os
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..cache import cache_folder, digest, source_of
from ..config.schema import transform_class
from ..data.transforms.transform import send
from ..disk import write_whole
from ..errors import UserError
from ..models.teachers.frozen import Frozen
from ..models.weights.files import identity
from ..text import log
from .module import TrainingModule
from .session import Session

_VERSION = "3"
_CHECKSUM = 4  # bytes


class Replay(Callback):
    """Gives every frozen teacher a `Memory` of its logits during a training. `gigabytes`: limit of the logits of all
    runs on this disk, in 10^9 bytes.
    """

    def __init__(self, session: Session, gigabytes: float) -> None:
        self.session = session
        self.budget = Budget(cache_folder() / "teacher_logits", int(gigabytes * 1e9))
        self.memories: list[Memory] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        key, views = self._key(trainer), self.session.config.train.fixed_views

        def place_of(images: Tensor) -> tuple[int, int] | None:
            place = pl_module.place_of(images)
            return (place[0] % views, place[1]) if place and views else place

        for teacher in pl_module.modules():
            if isinstance(teacher, Frozen):
                folder = self.budget.folder / digest([_VERSION, *key, teacher.compiled, *identity(teacher.net)])
                teacher.memory = Memory(folder, self.budget, place_of, pl_module.device)
                self.memories.append(teacher.memory)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for memory in self.memories:
            memory.finish_epoch()

    @property
    def counts(self) -> dict[str, int]:
        """Logits that teachers computed in this process, and logits that were read."""
        return {name: sum(getattr(memory, name) for memory in self.memories) for name in ("computed", "replayed")}

    def _key(self, trainer: Trainer) -> list[str]:
        """Return what decides each step's images and how they are computed with."""
        config, dataset, device = self.session.config, self.session.dataset, trainer.strategy.root_device
        views = {key: value for key, value in config.values.items() if key.startswith("augment")}
        train, plan = config.train, self.session.plan
        settings = {key: value for key, value in vars(dataset.image_settings).items() if not key.startswith("eval_")}
        machine = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        sources = (  # in the order of the recipe, in which they are applied
            (name, source_of(transform_class(name, entry))) for view in views.values() for name, entry in view.items()
        )
        return [
            dataset.fingerprint,
            json.dumps([views, self.session.method.batch_spec.noise], sort_keys=True, default=str),
            # The fingerprint knows images as they were decoded, or streamed ones by their names alone.
            json.dumps([dataset.mean, dataset.std, settings, self.session.seed]),
            json.dumps([plan.batch_size, train.accumulate, train.repeats, trainer.world_size, trainer.global_rank]),
            *(["balanced"] if config.data.sampling == "balanced" else []),
            f"{trainer.precision} {machine} {torch.__version__}",
            *(f"{name} {source}" for name, source in sources if source),
        ]


class Budget:
    """Limit in bytes of the logits of all runs in a folder."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        files = folder.rglob("*.bin") if folder.is_dir() else iter(())
        self.spent = sum(file.stat().st_blocks * 512 for file in files)
        self.closed = False

    def take(self, size: int) -> bool:
        """Return whether there is room for more; prints once when there is none."""
        if not self.closed and self.spent + size > self.limit:
            self.close(
                f"they fill the {self.limit / 1e9:g} GB of engine.replay_gb in {self.folder}; raise it, or make room "
                "by `viticulture cache --clear`"
            )
        self.spent += 0 if self.closed else size
        return not self.closed

    def close(self, reason: str) -> None:
        """Write no more."""
        if not self.closed:
            log(f"note: teachers' logits are no longer stored: {reason}")
        self.closed = True


class Memory:
    """One teacher's logits, by epoch and step. `place_of`: epoch and micro-batch of a step's images; None for any
    others.
    """

    def __init__(
        self, folder: Path, budget: Budget, place_of: Callable[[Tensor], tuple[int, int] | None], device: torch.device
    ) -> None:
        self.folder, self.budget, self.place_of, self.device = folder, budget, place_of, device
        self.kind: tuple[torch.dtype, tuple[int, ...]] | None = self._read_kind()
        self.files: dict[int, int] = {}  # epoch -> file handle; one at a time
        self.waiting: deque[tuple[tuple[int, int], Tensor, torch.cuda.Event | None]] = deque()
        self.replayed = self.computed = 0

    def __call__(self, images: Tensor, compute: Callable[[], Any]) -> Any:
        """Return the logits of these images: read, or computed and stored."""
        place = self.place_of(images)
        if place is not None and (recorded := self._read(place)) is not None:
            self.replayed += 1
            return send(recorded, self.device)
        self.computed += 1
        logits = compute()
        if place is not None and isinstance(logits, Tensor) and logits.ndim == 2 and not self.budget.closed:
            self._store(place, logits)
        return logits

    def finish_epoch(self) -> None:
        """Write what is pending and close the epoch's file."""
        self._flush(wait=True)
        self._close()

    def _store(self, place: tuple[int, int], logits: Tensor) -> None:
        """Queue the logits for writing without waiting for the device."""
        if logits.device.type == "cuda":
            host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
            host.copy_(logits, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self.waiting.append((place, host, event))
        else:
            self.waiting.append((place, logits.cpu(), None))
        self._flush(wait=False)

    def _flush(self, wait: bool) -> None:
        while self.waiting:
            place, logits, event = self.waiting[0]
            if event is not None and not event.query():  # type: ignore[no-untyped-call]
                if not wait:
                    return
                event.synchronize()
            self.waiting.popleft()
            self._write(place, logits)

    def _read(self, place: tuple[int, int]) -> Tensor | None:
        if self.kind is None:
            return None
        dtype, shape = self.kind
        size = _CHECKSUM + dtype.itemsize * shape[0] * shape[1]
        epoch, step = place
        try:
            record = os.pread(self._file(epoch), size, step * size)
        except OSError:
            return None
        if len(record) < size or record[:_CHECKSUM] != _checksum(record[_CHECKSUM:], step):
            return None
        return torch.frombuffer(bytearray(record[_CHECKSUM:]), dtype=dtype).view(shape)

    def _write(self, place: tuple[int, int], logits: Tensor) -> None:
        kind = logits.dtype, tuple(logits.shape)
        payload = logits.contiguous().view(torch.uint8).numpy().tobytes()
        if (self.kind is not None and kind != self.kind) or not self.budget.take(_CHECKSUM + len(payload)):
            return
        epoch, step = place
        try:
            if self.kind is None:
                about = {"dtype": str(kind[0]).removeprefix("torch."), "shape": kind[1]}
                write_whole(self.folder / "about.json", about)
                self.kind = kind
            record = _checksum(payload, step) + payload
            if os.pwrite(self._file(epoch), record, step * len(record)) < len(record):
                raise OSError("the disk is full")
        except (OSError, UserError) as error:
            self.budget.close(str(error))

    def _file(self, epoch: int) -> int:
        if epoch not in self.files:
            self._close()
            path = self.folder / f"epoch-{epoch:05}.bin"
            self.files = {epoch: os.open(path, os.O_RDWR | os.O_CREAT, 0o666)}
        return self.files[epoch]

    def _close(self) -> None:
        for handle in self.files.values():
            os.close(handle)
        self.files = {}

    def _read_kind(self) -> tuple[torch.dtype, tuple[int, ...]] | None:
        try:
            about = json.loads((self.folder / "about.json").read_text("utf-8"))
            return getattr(torch, about["dtype"]), tuple(about["shape"])
        except (OSError, ValueError, KeyError, AttributeError):
            return None


def _checksum(payload: bytes, step: int) -> bytes:
    return zlib.crc32(payload, step + 1).to_bytes(_CHECKSUM, "little")
