# SPDX-License-Identifier: Apache-2.0
"""Bad files: folders of images with something wrong in them, and finished runs of which a byte has changed."""

import contextlib
import os
import random
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

PIXELS = 20


def photographs(folder: Path, classes: int = 3, each: int = 10) -> None:
    """A folder of small noise images, CLASS/NUMBER.png."""
    draw = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 256, (PIXELS, PIXELS + label, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.png")


def spoil(draw: random.Random, folder: Path) -> str:
    """Do something to a folder of images. Returns: what."""
    images = [path for path in folder.glob("*/*.png") if path.is_file()]  # and no pipe, which none would write to
    label = draw.choice(sorted({path.parent for path in images}))
    image = draw.choice(sorted(path for path in images if path.parent == label))
    raw = os.fsencode(label)
    kind = draw.randrange(16)
    with contextlib.suppress(OSError):  # some file systems take not every name
        if kind == 0:
            os.mkfifo(label / "pipe.png")
        elif kind == 1:
            (label / "loop.png").symlink_to("loop.png")
        elif kind == 2:
            (label / "rung").symlink_to(label)
        elif kind == 3:
            image.write_bytes(image.read_bytes()[: draw.randrange(1, 200)])
        elif kind == 4:
            image.write_bytes(b"")
        elif kind == 5:
            _flip(draw, image)
        elif kind == 6:
            Path(os.fsdecode(raw + b"/\xff\xfe.png")).write_bytes(image.read_bytes())
        elif kind == 7:
            (label / "a\nb\x1b[31m.png").write_bytes(image.read_bytes())
        elif kind == 8:
            label.rename(label.with_name("=cmd()\n# x: 1"))
        elif kind == 9:
            (folder / "empty").mkdir()
        elif kind == 10:
            shutil.rmtree(label)
        elif kind == 11:
            image.chmod(0)
        elif kind == 12:
            image.unlink()
            image.mkdir()
        elif kind == 13:
            (label / "big.png").write_bytes(_bomb())
        elif kind == 14:
            for path in images:
                path.write_bytes(b"GIF89a nothing")
        else:
            image.with_suffix(draw.choice((".jpg", ".avif", ".webp", ".tiff", ".bmp"))).write_bytes(
                bytes(draw.randrange(256) for _ in range(100))
            )
    return f"data {kind}"


def _bomb() -> bytes:
    """A PNG whose header promises 10^10 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def damage(draw: random.Random, run: Path) -> str:
    """Change, cut, empty or remove a file of a run. Returns: which and how."""
    path = draw.choice(sorted(path for path in run.rglob("*") if path.is_file() and "tensorboard" not in path.parts))
    kind = draw.randrange(6)
    data = path.read_bytes()
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(b"")
    elif kind == 2:
        path.write_bytes(data[: draw.randrange(len(data))] if data else b"")
    elif kind == 3:
        path.write_bytes(draw.choice((b"[]", b"{}", b"null", b"3", b"\xff\xfe", b"[" * 100_000)))
    elif kind == 4:
        path.unlink()
        path.mkdir()
    else:
        _flip(draw, path)
    return f"{path.relative_to(run)} {('gone', 'emptied', 'cut', 'replaced', 'a folder', 'two bytes')[kind]}"


def _flip(draw: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(2):
        if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(data))
