# SPDX-License-Identifier: Apache-2.0
"""Batches as a pure function of (seed, epoch, step): which images, in which order, how augmented.

An epoch is an order drawn from (seed, epoch): a permutation, unless classes are balanced (sampling.py). A step takes
the next G images of it (G images a step over all processes) and draws from (seed, epoch, step) one table of uniform
numbers, a row an image; process r of W works on rows r, r + W, ... of both. Hence two processes together see what one
would, and two integers are enough to resume.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from ...errors import UserError
from ..image_set import CachedImages, Images, StreamedImages
from ..targets.objects import Annotations
from ..transforms.mix import Mix
from ..transforms.placement import placement
from ..transforms.resample import ImageBatch
from ..transforms.transform import send
from ..transforms.view import Augment
from ..workers import ahead, worker_count
from .sampling import NATURAL, Sampling, repeated, seeded
from .targets import TEACHER_IMAGE, Batch, target_batch

CPU = torch.device("cpu")
GROUP = 2**24
"""Pixels that a GPU transforms at once, of several steps where one has fewer: small images take longer to launch than
to compute. In float32 they take 200 MB."""
Key = tuple[int, int]  # epoch and step


@dataclass(frozen=True)
class Shard:
    """This process's part of every batch."""

    rank: int = 0
    world: int = 1
    # Processes that prepare batches ahead, on the CPU; null takes none for cached images and one a core, up to eight,
    # for streamed ones. They start with the first batch and stay.
    workers: int | None = None


@dataclass(frozen=True)
class Draw:
    """Everything random in this process's part of a step."""

    numbers: Tensor
    u: list[Tensor]  # for each view [B, columns] uniform numbers
    batch_u: list[Tensor]  # for each view the numbers of the whole batch


class Loader:
    """Augmented training batches, without end to the epochs; each pass starts where the last one stopped.

    Args:
        images: of the training split. Cached ones move to the device if they take less than half of its free memory.
        augments: one a view; methods that compare views have several.
        batch_size: images a step over all processes; an epoch's remainder is left out.
    """

    def __init__(
        self,
        images: Images,
        augments: Sequence[Augment],
        batch_size: int,
        seed: int,
        sampling: Sampling = NATURAL,
        shard: Shard = Shard(),
        device: torch.device = CPU,
    ) -> None:
        if not augments:
            raise UserError("a loader makes one view at least, got none")
        if len(augments) > 1 and any(augment.mix is not None for augment in augments):
            raise UserError("views are made of the same image, so mix does not apply; take it out of the recipe")
        if batch_size % shard.world:
            raise UserError(f"batch_size must be a multiple of the {shard.world} processes, got {batch_size}")
        if seed < 0:
            raise UserError(f"seed must be at least 0, got {seed}")
        self.augments, self.batch_size, self.seed, self.sampling = tuple(augments), batch_size, seed, sampling
        self.has_teacher_view = False
        self.shard, self.device = shard, device
        self.images = resident(images, device)
        self.steps = len(repeated(torch.arange(len(images)), sampling.repeats, shard.world)) // batch_size
        if not self.steps:
            raise UserError(f"batch_size must not exceed the {len(images)} images of an epoch, got {batch_size}")
        self.epoch = self.next = 0
        self.targets: Annotations | None = None
        self.masks = False
        self._order: tuple[int, Tensor] | None = None
        self._running: tuple[Key, Iterator[Batch]] | None = None  # and the key of its next step
        self.at_once = self._at_once()
        on_cpu, streamed = device.type == "cpu", isinstance(self.images, StreamedImages)
        self.workers = worker_count(shard.workers, streamed) if streamed or on_cpu else 0
        # Workers, where there are any, do all that a CPU can: with a GPU, views are transformed there.
        self.worker_stages = 0 if not self.workers else 2 if on_cpu else 1

    def with_targets(self, targets: Annotations, masks: bool = False) -> Self:
        """Give batches objects or masks of the same images, in place of labels (targets.py)."""
        self.targets, self.masks = targets, masks
        return self

    def with_teacher_view(self, size: int) -> Self:
        """Give batches the first view also as teachers read it, in squares of this side, pixels."""
        self.augments, self.has_teacher_view = (*self.augments, self.augments[0].resized((size, size))), True
        self.at_once = self._at_once()
        return self

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield the rest of the epoch. The state counts a batch once it is yielded."""
        while True:
            key = self.epoch, self.next
            if self._running is None or self._running[0] != key:  # the first step, or a jump
                self._running = None  # ends its workers
                skipped = self.next % self.at_once  # groups are those of the whole epoch, see `_batches_from`
                self._running = key, islice(self._batches_from(self.epoch, self.next - skipped), skipped, None)
            running = self._running[1]
            batch = next(running)
            self.next += 1
            if last := self.next == len(self):
                self.epoch, self.next = self.epoch + 1, 0
            self._running = (self.epoch, self.next), running
            yield batch
            if last:
                return

    def state_dict(self) -> dict[str, int]:
        """Epoch and step of the next batch."""
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the batch that a state names; takes effect at the next pass."""
        if not 0 <= state["next"] < len(self):
            raise UserError(f"this run has {len(self)} steps an epoch, so it cannot continue at step {state['next']}")
        self.epoch, self.next = state["epoch"], state["next"]

    def batch(self, epoch: int, step: int) -> Batch:
        """This process's part of one step."""
        draw = self.draw(epoch, step)
        return next(self._finished([draw], self._staged(draw, [], slice(None))))

    def draw(self, epoch: int, step: int) -> Draw:
        """The random part of one step, on the CPU."""
        mine = slice(self.shard.rank, None, self.shard.world)
        start = step * self.batch_size
        numbers = self.order(epoch)[start : start + self.batch_size][mine]
        generator = seeded(self.seed, self.sampling.drawn_in(epoch), step + 1)
        u, batch_u = [], []
        for augment in self.augments[: len(self.augments) - self.has_teacher_view]:
            table = torch.rand(self.batch_size, augment.columns, generator=generator, dtype=torch.float64)
            u.append(table[mine])
            batch_u.append(torch.rand(Mix.columns, generator=generator, dtype=torch.float64))
        if self.has_teacher_view:  # of the same numbers as the first view
            u, batch_u = [*u, u[0]], [*batch_u, batch_u[0]]
        return Draw(numbers, u, batch_u)

    def order(self, epoch: int) -> Tensor:
        """Numbers of an epoch's images in the order in which all processes take them."""
        epoch = self.sampling.drawn_in(epoch)
        if self._order is None or self._order[0] != epoch:
            labels, generator = self.images.records.labels, seeded(self.seed, epoch)
            self._order = epoch, self.sampling.order(labels, generator, self.shard.world)
        return self._order[1]

    def _at_once(self) -> int:
        """Return the steps whose views a GPU makes together, at least 1; streamed images come step by step."""
        if self.device.type == "cpu" or not isinstance(self.images, CachedImages):
            return 1
        pixels = self.batch_size // self.shard.world * max(math.prod(augment.image_size) for augment in self.augments)
        return max(1, GROUP // pixels)

    def _batches_from(self, epoch: int, step: int) -> Iterator[Batch]:
        """Yield the batches of every step from the first one of a group on, without end.

        Steps go through the stages in groups (`at_once`), as the views of an image depend on its own numbers alone.
        The groups are those of the whole epoch: a GPU may round otherwise in a batch of another size.
        """
        prepared: Iterator[list[Tensor]] | None = None
        if self.workers:
            twin = copy.copy(self)  # to be pickled, where processes are not forked
            twin._running = None
            prepared = ahead(twin._prepare, self._groups(epoch, step), self.workers)
        for keys in self._groups(epoch, step):
            draws = [self.draw(*key) for key in keys]
            views = next(prepared) if prepared else []
            yield from self._finished(draws, self._staged(_joined(draws), views, slice(self.worker_stages, None)))

    def _groups(self, epoch: int, step: int) -> Iterator[list[Key]]:
        """Keys of all steps from the first of a group on, without end, in groups of at most `at_once` of one epoch."""
        while True:
            for start in range(step, len(self), self.at_once):
                yield [(epoch, later) for later in range(start, min(start + self.at_once, len(self)))]
            epoch, step = epoch + 1, 0

    def _prepare(self, keys: Sequence[Key]) -> list[Tensor]:
        """Run a worker's stages."""
        return self._staged(_joined([self.draw(*key) for key in keys]), [], slice(self.worker_stages))

    def _staged(self, draw: Draw, views: list[Tensor], part: slice) -> list[Tensor]:
        """Run stages: cut uint8 views out of images; transform, then normalize them on the device."""
        stages: tuple[Callable[[Draw, list[Tensor]], list[Tensor]], ...] = (self._cut, self._change, self._normalized)
        for stage in stages[part]:
            views = stage(draw, views)
        return views

    def _cut(self, draw: Draw, _: list[Tensor]) -> list[Tensor]:
        if isinstance(self.images, StreamedImages):
            return self.images.cut(draw.numbers, self.augments, draw.u)
        pixels, sizes = fetch(self.images, draw.numbers, self.device), self.images.records.sizes[draw.numbers]
        return [augment.cut(pixels, sizes, u) for augment, u in zip(self.augments, draw.u, strict=True)]

    def _change(self, draw: Draw, views: list[Tensor]) -> list[Tensor]:
        pairs = zip(self.augments, views, draw.u, strict=True)
        return [augment.change(send(view, self.device), u) for augment, view, u in pairs]

    def _normalized(self, draw: Draw, views: list[Tensor]) -> list[Tensor]:
        return [augment.finish(view, u) for augment, view, u in zip(self.augments, views, draw.u, strict=True)]

    def _finished(self, draws: Sequence[Draw], views: list[Tensor]) -> Iterator[Batch]:
        """Yield the batches of several steps, of their normalized views, on the device."""
        numbers, size = _joined(draws).numbers, len(draws[0].numbers)
        sent = send(numbers, self.device), send(self.images.records.labels[numbers], self.device)
        names = ["image", *(f"image{k}" for k in range(2, 1 + len(self.augments)))]
        if self.has_teacher_view:
            names[-1] = TEACHER_IMAGE
        parts = zip(*(torch.split(whole, size) for whole in (*sent, *views)), strict=True)
        for draw, (index, labels, *images) in zip(draws, parts, strict=True):
            batch = {"index": index}
            for k, (name, augment) in enumerate(zip(names, self.augments, strict=True)):
                batch[name], label = augment.mixed(images[k], draw.batch_u[k], labels)
                batch.setdefault("label", label)  # of mixed images those of the first view
                if augment.noise and name != TEACHER_IMAGE:
                    batch["noise"] = send(draw.u[k][:, -augment.noise :].float(), self.device)
            yield batch if self.targets is None else self._with_targets(batch, draw, self.targets)

    def _with_targets(self, batch: Batch, draw: Draw, targets: Annotations) -> Batch:
        """Put boxes or masks in the place of labels."""
        place = placement(self.augments[0], self.images.sizes(draw.numbers), self.images.side, draw.u[0])
        truth = target_batch(place, draw.numbers, targets, self.masks)
        images = {name: batch[name] for name in ("image", TEACHER_IMAGE, "index") if name in batch}
        return {**images, **{k: send(v, self.device) for k, v in truth.items()}}


def _joined(draws: Sequence[Draw]) -> Draw:
    """The draws of several steps as one, without the numbers of whole batches."""
    if len(draws) == 1:
        return draws[0]
    columns = [torch.cat(tables) for tables in zip(*(draw.u for draw in draws), strict=True)]
    return Draw(torch.cat([draw.numbers for draw in draws]), columns, [])


def resident(images: Images, device: torch.device) -> Images:
    """Move cached images to a CUDA device if they take less than half of its free memory."""
    if not isinstance(images, CachedImages) or device.type != "cuda":
        return images
    needed = len(images) * images.pixels[0].numel()
    return images.to(device) if 2 * needed < torch.cuda.mem_get_info(device)[0] else images


def fetch(images: Images, numbers: Tensor, device: torch.device) -> ImageBatch:
    """Pixels of cached images on the device; on a CPU as views, elsewhere copied unless they are there already."""
    assert isinstance(images, CachedImages)
    if device.type == "cpu":
        return [images.pixels[row] for row in images.rows[numbers].tolist()]
    if images.pixels.device.type == "cpu":
        return send(images.take(numbers), device)
    return images.take(send(numbers, device))
