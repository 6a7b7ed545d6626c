# SPDX-License-Identifier: Apache-2.0
"""The labeled images of one split, as the loader reads them: cached, or streamed.

Streamed batches equal those of cached images, bit for bit on a CPU; where cached images are cropped on a GPU, up to 1
of 255. Only `normalize: dataset` differs, whose statistics come from a sample of the stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError
from .images.decode import Unreadable
from .images.format import as_picture
from .sources.source import Source
from .transforms.resample import resize_to_square
from .transforms.view import Augment


@dataclass(frozen=True)
class Records:
    """Metadata of a split's images; all share length N."""

    labels: Tensor  # [N] int64, position of the class in the source's `classes`, -1 without a label; or [N, C] float32
    # [N, 2] int32, height and width of the upright original, pixels; -1 where the image was not opened yet.
    sizes: Tensor
    names: list[str]

    def part(self, numbers: Tensor) -> "Records":
        """Select some of them."""
        return Records(self.labels[numbers], self.sizes[numbers], [self.names[i] for i in numbers.tolist()])

    def followed_by(self, more: "Records") -> "Records":
        """Put others behind them."""
        labels, sizes = torch.cat([self.labels, more.labels]), torch.cat([self.sizes, more.sizes])
        return Records(labels, sizes, [*self.names, *more.names])


class Images(ABC):
    """Images of one split."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records.names)

    @property
    @abstractmethod
    def side(self) -> int:
        """S, side of the square to which images are resized, pixels."""

    @abstractmethod
    def part(self, numbers: Tensor) -> "Images":
        """Select the images with these numbers, [n]."""

    @abstractmethod
    def followed_by(self, more: "Images") -> "Images":
        """Put the images of another split of the same data behind these."""

    @abstractmethod
    def extent(self, number: int) -> tuple[int, int]:
        """Height and width of one upright original, pixels."""

    @abstractmethod
    def original(self, number: int) -> np.ndarray:
        """One image for display (`format.as_picture`), [H, W, 3] uint8."""

    def sizes(self, numbers: Tensor) -> Tensor:
        """Height and width of upright originals, [B, 2], pixels; images of unknown size are opened."""
        sizes = self.records.sizes[numbers]
        return sizes if (sizes > 0).all() else torch.tensor([self.extent(number) for number in numbers.tolist()])


class CachedImages(Images):
    """Images of a decoded-image cache: all of one size, uint8, memory-mapped.

    Args:
        pixels: [M, C, S, S] uint8 of any memory layout, every image of the source resized to a square (aspect ratio in
            `records.sizes`).
        rows: [N] int64, positions among the M, in the split's order.
    """

    def __init__(self, pixels: Tensor, rows: Tensor, records: Records) -> None:
        super().__init__(records)
        self.pixels, self.rows = pixels, rows

    @property
    def side(self) -> int:
        return self.pixels.shape[-1]

    def take(self, numbers: Tensor) -> Tensor:
        """Pixels of the images with these numbers, [B] -> [B, C, S, S] uint8."""
        return self.pixels[self.rows[numbers]].contiguous()

    def part(self, numbers: Tensor) -> "CachedImages":
        return CachedImages(self.pixels, self.rows[numbers], self.records.part(numbers))

    def followed_by(self, more: Images) -> "CachedImages":
        assert isinstance(more, CachedImages)
        return CachedImages(self.pixels, torch.cat([self.rows, more.rows]), self.records.followed_by(more.records))

    def to(self, device: torch.device) -> "CachedImages":
        """Copy the split's pixels to a device, so that no step copies images."""
        numbers = torch.arange(len(self))
        return CachedImages(self.take(numbers).to(device), numbers.to(device), self.records)

    def extent(self, number: int) -> tuple[int, int]:
        height, width = self.records.sizes[number].tolist()
        return height, width

    def original(self, number: int) -> np.ndarray:
        """Restore the original's aspect ratio; the longer side has S pixels."""
        pixels = as_picture(self.take(torch.tensor([number]))[0].permute(1, 2, 0).cpu().numpy())
        height, width = self.extent(number)
        side, longer = len(pixels), max(height, width)
        shape = (max(1, round(side * width / longer)), max(1, round(side * height / longer)))
        return pixels if shape == (side, side) else np.asarray(Image.fromarray(pixels).resize(shape))


class StreamedImages(Images):
    """Images that are decoded in every epoch, to the same pixels as in the cache. `source`: reads image i, upright;
    must survive pickling. `records`: labels and names of those N; sizes may be unknown (-1).
    """

    def __init__(self, source: Source, rows: Tensor, records: Records, side: int) -> None:
        super().__init__(records)
        self.source, self.rows, self._side = source, rows, side

    @property
    def side(self) -> int:
        return self._side

    def part(self, numbers: Tensor) -> "StreamedImages":
        return StreamedImages(self.source, self.rows[numbers], self.records.part(numbers), self.side)

    def followed_by(self, more: Images) -> "StreamedImages":
        assert isinstance(more, StreamedImages)
        rows = torch.cat([self.rows, more.rows])
        return StreamedImages(self.source, rows, self.records.followed_by(more.records), self.side)

    def original(self, number: int) -> np.ndarray:
        return as_picture(self.source.picture(int(self.rows[number])).pixels)

    def extent(self, number: int) -> tuple[int, int]:
        return self.source.size_of(int(self.rows[number]))

    def cut(self, numbers: Tensor, augments: Sequence[Augment], u: Sequence[Tensor]) -> list[Tensor]:
        """Decode each image once and crop every view out of it. Returns: for each view [B, C, H, W] uint8. Raises:
        UserError for an image that cannot be read.
        """
        try:
            pictures = [self.source.picture(row, shrink=self.side) for row in self.rows[numbers].tolist()]
        except Unreadable as error:
            raise UserError(
                f"{error}; restore the file and resume; or repair or remove it, or leave out all images that cannot be "
                "read, which reads every image once beforehand (--skip-unreadable), and start a new run"
            ) from error
        squares = [resize_to_square(picture.pixels, self.side) for picture in pictures]
        pixels = [torch.from_numpy(square).permute(2, 0, 1) for square in squares]
        sizes = torch.tensor([[picture.height, picture.width] for picture in pictures])
        return [augment.cut(pixels, sizes, table) for augment, table in zip(augments, u, strict=True)]
