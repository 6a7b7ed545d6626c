# SPDX-License-Identifier: Apache-2.0
"""Tiny-ImageNet as it is unpacked: training images in folders of their classes, validation images by a list.

    train/CLASS/images/FILE
    val/images/FILE
    val/val_annotations.txt    FILE CLASS LEFT TOP RIGHT BOTTOM, between tabs
    test/images/FILE           not read: nobody published their classes

Source: Stanford's course CS231N, tiny-imagenet-200.
"""

from pathlib import Path

from ...errors import UserError, counted
from .files import is_image
from .folders import scan
from .listed import Listed, from_list
from .source import Source
from .written import lines_of

LIST = Path("val", "val_annotations.txt")


def is_tiny_imagenet(folder: Path) -> bool:
    """Whether a folder holds the list, and the first image of it where it came; many sort them into folders."""
    if not (folder / LIST).is_file():
        return False
    first = [line.split("\t")[0] for _, line in lines_of(folder / LIST)[:1]]
    return all((folder / "val" / "images" / name).is_file() for name in first)


def open_tiny_imagenet(folder: Path) -> Source:
    """Open the folder. Raises: UserError for a line of the list without a class, or an image that is not there."""
    paths = sorted(file.path for file in scan(folder)[0] if is_image(file.path))
    images = [
        Listed(path, path.split("/")[1], "train") for path in paths if path.startswith("train/") and path.count("/") > 1
    ]
    for number, line in lines_of(folder / LIST):
        name, _, rest = line.partition("\t")
        if not (label := rest.partition("\t")[0].strip()):
            raise UserError(f"{folder / LIST}, line {number}: expected FILE and CLASS between tabs, got {line!r}")
        images.append(Listed(f"val/images/{name}", label, "val", where=f"line {number}"))
    unread = len(paths) - len({image.path for image in images} & {*paths})
    note = f"not read: {counted(unread, 'image')} without a class, such as those of test"
    return from_list(str(folder / LIST), folder, images, (note,) if unread else (), folder.resolve().name)
