# SPDX-License-Identifier: Apache-2.0
"""Pictures with words below, kept in one file, so that a page can be drawn again where images and networks are gone.

An .npz of arrays 0, 1, 2, ... and `index`, a JSON text: what was shown (`about`), and of every part its galleries.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data.images.arrays import check_npz
from ..disk import replacing
from ..errors import UserError

FILE = "pictures.npz"
LONGEST = 192  # pixels, the longer side of a photograph that is kept

Group = tuple[Sequence[NDArray[Any]], Sequence[str]]
"""Photographs [H, W, 3] uint8 and maps [H, W] floating, and the lines of text below them."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Groups of pictures under one title, as one figure of a page.

    Args:
        title: above them.
        groups: pictures that belong together, with their words.
        note: a sentence below.
    """

    title: str
    groups: Sequence[Group] = ()
    note: str = ""


Galleries = Mapping[str, Sequence[Gallery]]
"""By the part of the page that shows them."""


def keep_galleries(path: Path, galleries: Galleries, about: Any = None, longest: int = LONGEST) -> None:
    """Write them into a file, photographs no larger than a page shows them.

    Args:
        path: of the file.
        galleries: by part.
        about: plain data that tells what was shown.
        longest: pixels, the longer side of a photograph that is kept.
    """
    arrays: list[NDArray[Any]] = []

    def numbered(pictures: Sequence[NDArray[Any]]) -> list[int]:
        arrays.extend(shrunk(picture, longest) for picture in pictures)
        return list(range(len(arrays) - len(pictures), len(arrays)))

    parts = {
        part: [
            {"title": g.title, "note": g.note, "groups": [[numbered(shown), list(lines)] for shown, lines in g.groups]}
            for g in each
        ]
        for part, each in galleries.items()
    }
    buffer = io.BytesIO()
    content: dict[str, Any] = {str(number): array for number, array in enumerate(arrays)}
    np.savez_compressed(buffer, index=np.array(json.dumps({"about": about, "parts": parts})), **content)
    with replacing(path) as part:
        part.write_bytes(buffer.getvalue())


def read_galleries(path: Path, about: Any = None) -> Galleries | None:
    """What `keep_galleries` wrote of the same things; None where it did not yet. Raises: UserError if it is damaged."""
    if not path.exists():
        return None
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as file:
            index = json.loads(file["index"].item())
            if index["about"] != about:
                return None
            return {
                part: [
                    Gallery(
                        g["title"],
                        [([file[str(number)] for number in numbers], lines) for numbers, lines in g["groups"]],
                        g["note"],
                    )
                    for g in each
                ]
                for part, each in index["parts"].items()
            }
    except Exception as error:  # of damage the library makes whatever comes of it
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); remove it and measure anew") from error


def shrunk(picture: NDArray[Any], longest: int) -> NDArray[Any]:
    """A photograph whose longer side is at most so many pixels; maps as they are."""
    if picture.ndim == 2 or max(picture.shape[:2]) <= longest:
        return picture
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((longest, longest))
    return np.asarray(image)
