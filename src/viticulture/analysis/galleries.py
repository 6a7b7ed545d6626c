# SPDX-License-Identifier: Apache-2.0
"""Pictures with captions, saved in one file, so that a page can be drawn again without the images and networks.

An .npz of arrays 0, 1, 2, ... and `index`, a JSON text: what the pictures show (`about`), and the galleries by part.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data.images.arrays import check_npz
from ..disk import replacing
from ..errors import UserError

FILE = "pictures.npz"
MAP = 64  # pixels, the smaller side of a drawn map
HEAT = np.array([[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float64)
"""Five colors of matplotlib's inferno, dark to light: readable without color vision and in print."""
MAX_SIDE = 192  # pixels, the longer side of a saved photograph

Group = tuple[Sequence[NDArray[Any]], Sequence[str]]
"""Photographs [H, W, 3] uint8 and maps [H, W] floating, and the lines of text below them."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Groups of pictures under one title, as one figure of a page."""

    title: str
    groups: Sequence[Group] = ()
    note: str = ""


Galleries = Mapping[str, Sequence[Gallery]]  # by the part of the page that shows them


def save_galleries(path: Path, galleries: Galleries, about: Any = None, max_side: int = MAX_SIDE) -> None:
    """Write galleries into a file."""
    arrays: dict[str, Any] = {}

    def add(picture: NDArray[Any]) -> int:
        arrays[str(number := len(arrays))] = shrunk(picture, max_side)
        return number

    def entry(each: Gallery) -> dict[str, Any]:
        groups = [[[*map(add, pictures)], [*lines]] for pictures, lines in each.groups]
        return {"title": each.title, "note": each.note, "groups": groups}

    parts = {part: [entry(gallery) for gallery in of_part] for part, of_part in galleries.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, index=np.array(json.dumps({"about": about, "parts": parts})), **arrays)
    with replacing(path) as part:
        part.write_bytes(buffer.getvalue())


def read_galleries(path: Path, about: Any = None) -> Galleries | None:
    """Read saved galleries; None if there is no file, or it is about something else. Raises: UserError for damage."""
    if not path.exists():
        return None
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as file:
            index = json.loads(file["index"].item())
            if index["about"] != about:
                return None

            def gallery(entry: dict[str, Any]) -> Gallery:
                groups = [([file[str(number)] for number in numbers], lines) for numbers, lines in entry["groups"]]
                return Gallery(entry["title"], groups, entry["note"])

            return {part: [gallery(entry) for entry in entries] for part, entries in index["parts"].items()}
    except Exception as error:  # a damaged file may raise anything
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); remove it and measure again") from error


def shrunk(picture: NDArray[Any], max_side: int) -> NDArray[Any]:
    """Resize a photograph so that its longer side is at most `max_side` pixels; maps stay as they are."""
    if picture.ndim == 2 or max(picture.shape[:2]) <= max_side:
        return picture
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((max_side, max_side))
    return np.asarray(image)


def file_name(path: str) -> str:
    """Return the last part of an image's name, for a caption."""
    return path.rsplit("/", 1)[-1]


def overlay(photograph: NDArray[np.uint8], values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Blend a map [rows, columns] with its photograph [H, W, 3], whose gray shows where the map is low.

    Small photographs are enlarged.
    """
    block = max(1, ceil(MAP / min(photograph.shape[:2])))
    height, width = (block * side for side in photograph.shape[:2])
    gray = Image.fromarray(photograph).convert("L").resize((width, height), Image.Resampling.NEAREST)
    colors = Image.fromarray(heat(values)).resize((width, height), Image.Resampling.NEAREST)
    span = max(float(values.max() - values.min()), 1e-12)
    share = ((values - values.min()) / span * 255).astype(np.uint8)
    above = Image.fromarray(share).resize((width, height), Image.Resampling.NEAREST)
    opacity = 0.35 + 0.4 * np.asarray(above, dtype=np.float64)[..., None] / 255
    mixed: NDArray[np.uint8] = ((1 - opacity) * np.asarray(gray)[..., None] + opacity * np.asarray(colors)).astype(
        np.uint8
    )
    return mixed


def heat(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """A map [rows, columns] as a picture on its own scale, dark to light, each cell a block of pixels."""
    low, high = values.min(), values.max()
    share = ((values - low) / max(high - low, values.dtype.type(1e-12))).astype(np.float64)
    places = np.linspace(0, 1, len(HEAT))
    picture = np.stack([np.interp(share, places, HEAT[:, channel]) for channel in range(3)], -1).astype(np.uint8)
    block = max(1, MAP // min(picture.shape[:2]))
    return picture.repeat(block, 0).repeat(block, 1)
