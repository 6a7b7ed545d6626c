# SPDX-License-Identifier: Apache-2.0
"""Objects that were drawn on an image as it lies in its file, turned with it as its EXIF tag says."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import UserError
from .objects import Objects, Shape

# Orientation -> where a point (x, y) of a lying image of h x w comes to lie in the upright one, for those that swap
# height and width. Where they stay the same (2, 3, 4), a list's declared size cannot tell that it was drawn lying.
_TURNS: dict[int, Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]] = {
    5: lambda x, y, h, w: (y, x),
    6: lambda x, y, h, w: (h - y, x),
    7: lambda x, y, h, w: (h - y, w - x),
    8: lambda x, y, h, w: (y, w - x),
}


def turned(objects: Objects, size: tuple[int, int], turn: int, name: str) -> Objects:
    """Objects whose list declares another size than their upright image has.

    Args:
        objects: as they are listed.
        size: height and width of the upright image, pixels.
        turn: its EXIF orientation.
        name: of the image.

    Raises: UserError unless the sizes differ by the turn alone.
    """
    assert objects.size is not None
    height, width = objects.size
    if (width, height) != size or turn not in _TURNS:
        raise UserError(
            f"{name} is {size[1]}x{size[0]} pixels, and the list of its objects says {width}x{height}; bring the image "
            "that was annotated"
        )
    move = _TURNS[turn]
    x, y = move(objects.boxes[:, 0::2], objects.boxes[:, 1::2], height, width)
    boxes = torch.stack([x.amin(1), y.amin(1), x.amax(1), y.amax(1)], 1)
    shapes = (
        None
        if objects.shapes is None
        else tuple(_outline(shape, move, height, width, name) for shape in objects.shapes)
    )
    return dataclasses.replace(objects, boxes=boxes, shapes=shapes, size=size)


def _outline(shape: Shape, move: Callable[..., tuple[Tensor, Tensor]], height: int, width: int, name: str) -> Shape:
    if not isinstance(shape, list):
        raise UserError(f"{name} is turned by its EXIF tag, and run lengths of masks cannot follow; save it upright")
    turned_parts = []
    for part in shape:
        points = torch.tensor(part, dtype=torch.float64)
        x, y = move(points[0::2], points[1::2], height, width)
        turned_parts.append(torch.stack([x, y], 1).flatten().tolist())
    return turned_parts
