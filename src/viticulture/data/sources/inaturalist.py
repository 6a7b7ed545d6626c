# SPDX-License-Identifier: Apache-2.0
"""iNaturalist's published lists: `viticulture train inat2018/train2018.json` reads val2018.json beside it as the test.

A list is COCO's: images with id and file_name, annotations with image_id and category_id. The labels of the published
test images are secret, so papers test on the validation images, and so do we. Paths are relative to the lists' folder.

Source: Van Horn et al., "The iNaturalist Species Classification and Detection Dataset", CVPR 2018.
"""

import re
from pathlib import Path

from ...errors import UserError
from .listed import Listed, from_list
from .source import Source
from .written import json_of


def open_inaturalist(path: Path) -> Source:
    """Open both lists by the name of either. Raises: UserError for other JSON, or where the list of training images is
    missing."""
    match = re.fullmatch(r"(train|val)(.*)", path.stem)
    if match is None:
        raise UserError(
            f"{path} is no data: of JSON files, iNaturalist's train2018.json is read (and val2018.json beside it)"
        )
    lists = {
        kind: path.with_name(f"{word}{match[2]}{path.suffix}") for kind, word in (("train", "train"), ("test", "val"))
    }
    if not lists["train"].is_file():
        raise UserError(f"{path} needs {lists['train'].name} beside it, which lists the training images")
    images = [image for kind, file in lists.items() if file.is_file() for image in _images(file, kind)]
    notes = [] if lists["test"].is_file() else [f"{lists['test'].name} is not there: a part is held out as the test"]
    return from_list(f"iNaturalist {match[2]}".strip(), path.parent, images, notes)


def _images(file: Path, kind: str) -> list[Listed]:
    content = json_of(file)
    try:
        paths = {image["id"]: str(image["file_name"]) for image in content["images"]}
        listed = [
            Listed(paths[annotation["image_id"]], str(annotation["category_id"]), kind, where=f"annotation {number}")
            for number, annotation in enumerate(content["annotations"])
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} is none of iNaturalist's lists ({type(error).__name__}: {error}): images with id and file_name, "
            "and annotations with image_id and category_id, are needed"
        ) from error
    return listed
