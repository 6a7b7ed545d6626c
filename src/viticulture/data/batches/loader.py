# SPDX-License-Identifier: Apache-2.0
"""Batches as a pure function of (seed, epoch, step): which images, in which order, augmented how.

An epoch is an order drawn from (seed, epoch): a permutation, unless classes are balanced (sampling.py). A step takes
the next G images of it (G images a step over all processes) and draws from (seed, epoch, step) one table of uniform
numbers, a row an image; process r of W works on rows r, r + W, ... of both. Hence two processes see together what one
would, and to resume is to know two integers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ...errors import UserError
from ..image_set import CachedImages, Images
from ..stream import StreamImages, ahead, helpers
from ..transforms.mix import Mix
from ..transforms.resample import ImageBatch
from ..transforms.transform import send
from ..transforms.view import Augment
from .batch import Batch
from .sampling import NATURAL, Sampling, repeated, seeded

CPU = torch.device("cpu")
GROUP = 2**21
"""Pixels that a GPU changes at once, of several steps where one has fewer: of small images it is the kernels' launches
that take the time, not their work."""


@dataclass(frozen=True)
class Shard:
    """This process's part of every batch.

    Args:
        rank: number of this process, from 0.
        world: number of processes.
        workers: processes that help this one by preparing batches ahead, on the CPU; null takes none for stored images
            and one a core, up to eight, for streamed ones. They start with the first batch and stay.
    """

    rank: int = 0
    world: int = 1
    workers: int | None = None


@dataclass(frozen=True)
class Draw:
    """Everything that is random in this process's part of a step.

    Args:
        numbers: [B] which images.
        u: for each view [B, columns] uniform numbers.
        batch_u: for each view the numbers of the whole batch.
    """

    numbers: Tensor
    u: list[Tensor]
    batch_u: list[Tensor]


class Loader:
    """Augmented training batches, without end to the epochs; each pass starts where the last one stopped.

    Args:
        images: of the training split. Stored ones move to the device if they take less than half of its free memory.
        augments: one a view; methods that compare views have several.
        batch_size: images a step over all processes; an epoch's remainder is left out.
        seed: of order and augmentation, not negative.
        sampling: which images an epoch shows, and how often.
        shard: this process's part.
        device: where batches are made.
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
        self.shard, self.device = shard, device
        self.images = resident(images, device)
        self.steps = len(repeated(torch.arange(len(images)), sampling.repeats, shard.world)) // batch_size
        if not self.steps:
            raise UserError(f"batch_size must not exceed the {len(images)} images of an epoch, got {batch_size}")
        self.epoch = self.next = 0
        self._order: tuple[int, Tensor] | None = None
        self._ahead: tuple[tuple[int, int], Iterator[list[Tensor]]] | None = None
        self.at_once = 1 if device.type == "cpu" else steps_at_once(self.images, augments, batch_size // shard.world)
        self._made: dict[tuple[int, int], tuple[Draw, list[Tensor]]] = {}

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch. The state counts a batch once it is handed out."""
        while True:
            key = self.epoch, self.next
            batch = self._finish(*self._next(key))
            self.next += 1
            if last := self.next == len(self):
                self.epoch, self.next = self.epoch + 1, 0
            yield batch
            if last:
                return

    def state_dict(self) -> dict[str, int]:
        """Where the next batch stands."""
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the batch that a state names; takes effect at the next pass."""
        if not 0 <= state["next"] < len(self):
            raise UserError(f"this run has {len(self)} steps an epoch, so it cannot go on at step {state['next']}")
        self.epoch, self.next = state["epoch"], state["next"]

    def batch(self, epoch: int, step: int) -> Batch:
        """This process's part of one step."""
        draw = self.draw(epoch, step)
        return self._finish(draw, self._arrived(draw, self._prepare(draw)))

    def draw(self, epoch: int, step: int) -> Draw:
        """The random part of one step, on the CPU."""
        mine = slice(self.shard.rank, None, self.shard.world)
        start = step * self.batch_size
        numbers = self.order(epoch)[start : start + self.batch_size][mine]
        generator = seeded(self.seed, epoch, step + 1)
        u, batch_u = [], []
        for augment in self.augments:
            table = torch.rand(self.batch_size, augment.columns, generator=generator, dtype=torch.float64)
            u.append(table[mine])
            batch_u.append(torch.rand(Mix.columns, generator=generator, dtype=torch.float64))
        return Draw(numbers, u, batch_u)

    def order(self, epoch: int) -> Tensor:
        """Numbers of an epoch's images in the order in which all processes take them."""
        if self._order is None or self._order[0] != epoch:
            labels, generator = self.images.records.labels, seeded(self.seed, epoch)
            self._order = epoch, self.sampling.order(labels, generator, self.shard.world)
        return self._order[1]

    def _next(self, key: tuple[int, int]) -> tuple[Draw, list[Tensor]]:
        """Draw and changed views of a step, prepared ahead by workers where there are any."""
        if self.at_once > 1:
            if key not in self._made:
                self._make(*key)
            return self._made.pop(key)
        streamed = isinstance(self.images, StreamImages)
        draw, workers = self.draw(*key), helpers(self.shard.workers, streamed)
        if not workers or not (streamed or self.device.type == "cpu"):
            return draw, self._arrived(draw, self._prepare(draw))
        if self._ahead is None or self._ahead[0] != key:  # the first step, or a jump
            self._ahead = None
            self._ahead = key, ahead(self._prepare_step, self._keys(*key), workers)
        views = next(self._ahead[1])
        self._ahead = next(islice(self._keys(*key), 1, None)), self._ahead[1]
        return draw, self._arrived(draw, views)

    def _make(self, epoch: int, step: int) -> None:
        """Views of some steps of an epoch, in one go: what happens to an image depends on its own numbers alone."""
        steps = range(step, min(step + self.at_once, len(self)))
        draws = [self.draw(epoch, later) for later in steps]
        every = [torch.cat(columns) for columns in zip(*(draw.u for draw in draws), strict=True)]
        joined = Draw(torch.cat([draw.numbers for draw in draws]), every, [])
        views = self._arrived(joined, self._prepare(joined))
        parts = zip(*(torch.split(view, len(draws[0].numbers)) for view in views), strict=True)
        self._made = {(epoch, later): (draw, list(part)) for later, draw, part in zip(steps, draws, parts, strict=True)}

    def _keys(self, epoch: int, step: int) -> Iterator[tuple[int, int]]:
        """Epoch and step of all batches from one on, without end."""
        while True:
            yield from ((epoch, later) for later in range(step, len(self)))
            epoch, step = epoch + 1, 0

    def _prepare_step(self, key: tuple[int, int]) -> list[Tensor]:
        return self._prepare(self.draw(*key))

    def _prepare(self, draw: Draw) -> list[Tensor]:
        """The part that workers can do: uint8 views, cropped, on a CPU also changed."""
        if isinstance(self.images, StreamImages):
            views = self.images.cut(draw.numbers, self.augments, draw.u)
        else:
            pixels, sizes = fetch(self.images, draw.numbers, self.device), self.images.records.sizes[draw.numbers]
            views = [augment.cut(pixels, sizes, u) for augment, u in zip(self.augments, draw.u, strict=True)]
        return views if self.device.type != "cpu" else self._change(draw, views)

    def _change(self, draw: Draw, views: list[Tensor]) -> list[Tensor]:
        return [augment.change(*pair) for augment, *pair in zip(self.augments, views, draw.u, strict=True)]

    def _arrived(self, draw: Draw, views: list[Tensor]) -> list[Tensor]:
        """Prepared views on the device, changed there if it is no CPU."""
        views = [send(view, self.device) for view in views]
        return views if self.device.type == "cpu" else self._change(draw, views)

    def _finish(self, draw: Draw, views: list[Tensor]) -> Batch:
        """The rest, on the device: changed views as a batch."""
        labels = send(self.images.records.labels[draw.numbers], self.device)
        batch = {"index": send(draw.numbers, self.device)}
        for k, augment in enumerate(self.augments):
            image, batch["label"] = augment.finish(views[k], draw.u[k], draw.batch_u[k], labels)
            batch[f"image{k + 1}" if k else "image"] = image
            if augment.noise:
                batch["noise"] = send(draw.u[k][:, -augment.noise :].float(), self.device)
        return batch


def steps_at_once(images: Images, augments: Sequence[Augment], batch_size: int) -> int:
    """Of how many steps a GPU makes the views together, at least 1; streamed images come step by step.

    Args:
        images: of the training split.
        augments: one a view.
        batch_size: images a step of this process.
    """
    pixels = batch_size * max(math.prod(augment.image_size) for augment in augments)
    return max(1, GROUP // pixels) if isinstance(images, CachedImages) else 1


def resident(images: Images, device: torch.device) -> Images:
    """Stored images on a CUDA device if they take less than half of its free memory, else as they are."""
    if not isinstance(images, CachedImages) or device.type != "cuda":
        return images
    needed = len(images) * images.pixels[0].numel()
    return images.to(device) if 2 * needed < torch.cuda.mem_get_info(device)[0] else images


def fetch(images: Images, numbers: Tensor, device: torch.device) -> ImageBatch:
    """Pixels of stored images on the device; on a CPU as views, elsewhere copied unless they are there already."""
    assert isinstance(images, CachedImages)
    if device.type == "cpu":
        return [images.pixels[row] for row in images.rows[numbers].tolist()]
    if images.pixels.device.type == "cpu":
        return send(images.take(numbers), device)
    return images.take(send(numbers, device))
