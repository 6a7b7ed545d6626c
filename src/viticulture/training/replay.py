# SPDX-License-Identifier: Apache-2.0
"""Teachers' logits, computed once and replayed in runs that show the same images in the same order.

A training image is a function of (seed, epoch, step), and a frozen teacher one of its image. With `engine.replay_gb`
the logits for every step's images are written down; a run that repeats the schedule, or another student under the same
teachers, seed and augmentation, reads them instead of running the teacher. They have the type in which the teacher
answered, so what is learnt is the same, bit for bit.

    teacher_logits/KEY/about.json           type and shape of a step's logits
    teacher_logits/KEY/epoch-00012.bin      record of step s at s * (4 + bytes of the logits): checksum, logits

KEY is made of all that the logits depends on: the teacher's weights and settings, the images, their size and
augmentation, seed, batch size and its micro-batches, processes, precision, device and version of torch. A record whose
checksum fails is asked for again. What a guide asks about other images than the step's own, such as their mirror
images, depends on the guide too: it is asked every time. A full disk or budget ends the writing, not the training.
"""

import hashlib
import inspect
import json
import os
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ..cache import cache_folder, digest
from ..config.schema import transform_class
from ..data.transforms.transform import send
from ..disk import write_whole
from ..errors import UserError
from ..models.teachers.frozen import Frozen
from ..models.weights.files import weights_digest
from ..text import tell
from .module import TrainingModule
from .session import Session

_VERSION = "3"
_CHECKSUM = 4  # bytes


class Replay(Callback):
    """Gives every frozen teacher a `Memory` of its logits, for the time of a training.

    Args:
        session: what is trained.
        batch_size: images a step, over all processes and micro-batches.
        gigabytes: that the logits of all runs may take on this disk, in 10^9 bytes.
    """

    def __init__(self, session: Session, batch_size: int, gigabytes: float) -> None:
        self.session, self.batch_size = session, batch_size
        self.budget = Budget(cache_folder() / "teacher_logits", int(gigabytes * 1e9))
        self.memories: list[Memory] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        shown = self._shown(trainer)
        for teacher in pl_module.modules():
            if isinstance(teacher, Frozen):
                folder = self.budget.folder / digest([_VERSION, *shown, *identity(teacher.net)])
                teacher.memory = Memory(folder, self.budget, pl_module.place_of, pl_module.device)
                self.memories.append(teacher.memory)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for memory in self.memories:
            memory.finish_epoch()

    @property
    def counts(self) -> dict[str, int]:
        """Logits that teachers gave in this process, and logits that were read."""
        return {
            "asked": sum(memory.asked for memory in self.memories),
            "replayed": sum(memory.replayed for memory in self.memories),
        }

    def _shown(self, trainer: Trainer) -> list[str]:
        """What decides which images stand in which place of which step, and how they are computed with."""
        recipe, dataset, device = self.session.config, self.session.dataset, trainer.strategy.root_device
        views = {key: value for key, value in recipe.values.items() if key.startswith("augment")}
        train = recipe.train
        kept = {key: value for key, value in vars(dataset.image_settings).items() if not key.startswith("eval_")}
        machine = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return [
            dataset.fingerprint,
            json.dumps([views, self.session.method.batch_spec.noise], sort_keys=True, default=str),
            # The fingerprint knows images as they were decoded, or streamed ones by their names alone.
            json.dumps([dataset.mean, dataset.std, kept, self.session.seed]),
            json.dumps([self.batch_size, train.accumulate, train.repeats, trainer.world_size, trainer.global_rank]),
            *(["balanced"] if recipe.data.sampling == "balanced" else []),
            f"{trainer.precision} {machine} {torch.__version__}",
            *(  # in the order of the recipe, in which they are applied
                f"{name} {source}"
                for view in views.values()
                for name, entry in view.items()
                if (source := source_of(transform_class(name, entry)))
            ),
        ]


def source_of(cls: type) -> str:
    """Digest of the file of a person's own class, whose code may change under its name; empty for those shipped."""
    if cls.__module__.startswith(f"{__package__.partition('.')[0]}."):
        return ""
    return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()


class Budget:
    """Bytes that the logits of all runs may take.

    Args:
        folder: that holds them.
        limit: bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        files = folder.rglob("*.bin") if folder.is_dir() else iter(())
        self.spent = sum(file.stat().st_blocks * 512 for file in files)
        self.closed = False

    def take(self, size: int) -> bool:
        """Whether there is room for more; tells once when there is none."""
        if not self.closed and self.spent + size > self.limit:
            self.close(
                f"they fill the {self.limit / 1e9:g} GB of engine.replay_gb in {self.folder}; raise it, or make room "
                "by `viticulture cache --clear`"
            )
        self.spent += 0 if self.closed else size
        return not self.closed

    def close(self, why: str) -> None:
        """Write no more."""
        if not self.closed:
            tell(f"note: teachers' logits are no longer kept: {why}")
        self.closed = True


class Memory:
    """One teacher's logits, by epoch and step.

    Args:
        folder: where they are kept.
        budget: shared with the other teachers.
        epoch_step_of: of images: epoch and step (of micro-batches) of which they are all; None for any others.
        device: where logits are needed.
    """

    def __init__(
        self,
        folder: Path,
        budget: Budget,
        epoch_step_of: Callable[[Tensor], tuple[int, int] | None],
        device: torch.device,
    ) -> None:
        self.folder, self.budget, self.epoch_step_of, self.device = folder, budget, epoch_step_of, device
        self.kind: tuple[torch.dtype, tuple[int, ...]] | None = self._read_kind()
        self.files: dict[int, int] = {}  # epoch -> file handle; one at a time
        self.waiting: deque[tuple[tuple[int, int], Tensor, torch.cuda.Event | None]] = deque()
        self.replayed = self.asked = 0

    def __call__(self, images: Tensor, ask: Callable[[], Any]) -> Any:
        """The logits about these images: read, or asked for and written down."""
        epoch_step = self.epoch_step_of(images)
        if epoch_step is not None and (known := self._read(epoch_step)) is not None:
            self.replayed += 1
            return send(known, self.device)
        self.asked += 1
        logits = ask()
        if epoch_step is not None and isinstance(logits, Tensor) and logits.ndim == 2 and not self.budget.closed:
            self._later(epoch_step, logits)
        return logits

    def finish_epoch(self) -> None:
        """Write what is still on its way, and close the epoch's file."""
        self._flush(wait=True)
        for handle in self.files.values():
            os.close(handle)
        self.files = {}

    def _later(self, epoch_step: tuple[int, int], logits: Tensor) -> None:
        """Hand the logits over without waiting for the device."""
        if logits.device.type == "cuda":
            host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
            host.copy_(logits, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self.waiting.append((epoch_step, host, event))
        else:
            self.waiting.append((epoch_step, logits.cpu(), None))
        self._flush(wait=False)

    def _flush(self, wait: bool) -> None:
        while self.waiting:
            epoch_step, logits, event = self.waiting[0]
            if event is not None and not event.query():  # type: ignore[no-untyped-call]
                if not wait:
                    return
                event.synchronize()
            self.waiting.popleft()
            self._write(epoch_step, logits)

    def _read(self, epoch_step: tuple[int, int]) -> Tensor | None:
        if self.kind is None:
            return None
        dtype, shape = self.kind
        size = dtype.itemsize * shape[0] * shape[1]
        epoch, step = epoch_step
        try:
            record = os.pread(self._file(epoch), _CHECKSUM + size, step * (_CHECKSUM + size))
        except OSError:
            return None
        if len(record) < _CHECKSUM + size or record[:_CHECKSUM] != _checksum(record[_CHECKSUM:], step):
            return None
        return torch.frombuffer(bytearray(record[_CHECKSUM:]), dtype=dtype).view(shape)

    def _write(self, epoch_step: tuple[int, int], logits: Tensor) -> None:
        kind = logits.dtype, tuple(logits.shape)
        payload = logits.contiguous().view(torch.uint8).numpy().tobytes()
        if (self.kind is not None and kind != self.kind) or not self.budget.take(_CHECKSUM + len(payload)):
            return
        epoch, step = epoch_step
        try:
            if self.kind is None:
                self._write_kind(kind)
            record = _checksum(payload, step) + payload
            if os.pwrite(self._file(epoch), record, step * len(record)) < len(record):
                raise OSError("the disk is full")
        except (OSError, UserError) as error:
            self.budget.close(str(error))

    def _file(self, epoch: int) -> int:
        if epoch not in self.files:
            for handle in self.files.values():
                os.close(handle)
            path = self.folder / f"epoch-{epoch:05}.bin"
            self.files = {epoch: os.open(path, os.O_RDWR | os.O_CREAT, 0o666)}
        return self.files[epoch]

    def _read_kind(self) -> tuple[torch.dtype, tuple[int, ...]] | None:
        try:
            about = json.loads((self.folder / "about.json").read_text("utf-8"))
            return getattr(torch, about["dtype"]), tuple(about["shape"])
        except (OSError, ValueError, KeyError, AttributeError):
            return None

    def _write_kind(self, kind: tuple[torch.dtype, tuple[int, ...]]) -> None:
        about = {"dtype": str(kind[0]).removeprefix("torch."), "shape": kind[1]}
        write_whole(self.folder / "about.json", about)
        self.kind = kind


def identity(net: nn.Module) -> list[str]:
    """Texts that change with a network's weights, its layers or their settings."""
    settings = [
        f"{name} {type(module).__name__} {key} {value!r}"
        for name, module in net.named_modules()
        for key, value in sorted(vars(module).items())
        if key != "training" and all(isinstance(part, int | float | str) for part in _parts(value))
    ]
    return [weights_digest(net), *settings]


def _parts(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _checksum(payload: bytes, step: int) -> bytes:
    return zlib.crc32(payload, step + 1).to_bytes(_CHECKSUM, "little")
