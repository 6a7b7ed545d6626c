# SPDX-License-Identifier: Apache-2.0
"""JSON files that list images with their classes: COCO's form without boxes, and Label Studio's exports.

    {"images": [{id, file_name}], "annotations": [{image_id, category_id}], "categories": [{id, name}]}      COCO
    [{"data": {"image": PATH}, "annotations": [{"result": [{"value": {"choices": [CLASS]}}]}]}]      Label Studio, JSON
    [{"image": PATH, "choice": CLASS}]                                                           Label Studio, JSON-MIN

Paths are relative to the list's folder, or are looked for below it (places.py). Lists called train... or val... are
iNaturalist's (published.py).
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from ...errors import UserError, counted, shortened, some
from .files import is_image
from .listed import Listed, from_list
from .published import open_inaturalist
from .several import JOINT, cell_word
from .source import Source
from .written import json_of, name_of

_OF_TASKS = "id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time"
"""Keys of every task in Label Studio's JSON-MIN."""
_CLASS_KEYS = "label", "labels", "class", "category"


class Entry(NamedTuple):
    """One image of a list: its path and classes; whether it is labeled (an annotated one may have no class), and
    whether all annotators agree."""

    path: str
    labels: tuple[str, ...]
    labeled: bool = True
    agreed: bool = True


def open_json(path: Path) -> Source:
    """Open a list. Several classes of an image are joined (several.py). Raises: UserError for other JSON, images with
    boxes, or files that are missing.
    """
    if re.fullmatch(r"(train|val).*", path.stem):
        return open_inaturalist(path)
    content = json_of(path)
    try:
        entries = _label_studio(content) if isinstance(content, list) else _coco(content)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{path} is no list of images that is known here ({type(error).__name__}: {error}): COCO's images, "
            "annotations and categories are read, Label Studio's JSON and JSON-MIN, and iNaturalist's train2018.json"
        ) from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return _source(path, entries)


def _source(path: Path, entries: Sequence[Entry]) -> Source:
    images = [
        Listed(entry.path, JOINT.join(dict.fromkeys(entry.labels)) if entry.labeled else None, "train")
        for entry in entries
    ]
    unlike = [entry.path for entry in entries if not entry.agreed]
    warning = f"annotators disagree about {counted(len(unlike), 'image')}, taken to show all that any of them chose"
    return from_list(path.name, path.parent, images, (f"{warning}: {some(unlike, 3)}",) if unlike else ())


def _coco(content: dict[str, Any]) -> list[Entry]:
    names: dict[Any, str] = {}
    for category in content["categories"]:
        if names.setdefault(category["id"], name := name_of(category["name"])) != name:
            raise UserError(f"it calls category {category['id']} {names[category['id']]!r} and {name!r}; number both")
    labels: dict[Any, list[str]] = {image["id"]: [] for image in content["images"]}
    if len(labels) < len(content["images"]):
        raise UserError("it gives two images one id, so that the class of one would be unknown")
    for annotation in content["annotations"]:
        if annotation.get("bbox") or annotation.get("segmentation"):
            raise UserError("it lists boxes of objects; train on it with --recipe detection/photos")
        image, category = annotation["image_id"], annotation["category_id"]
        if image not in labels:
            raise UserError(f"an annotation's image_id {unlisted(image, labels)}")
        if category not in names:
            raise UserError(f"an annotation's category_id {unlisted(category, names)}")
        labels[image].append(names[category])
    return [Entry(str(image["file_name"]), tuple(labels[image["id"]])) for image in content["images"]]


def unlisted(number: Any, ids: Iterable[Any]) -> str:
    """Say why a number is none of a list's ids."""
    if (same := next((each for each in ids if str(each) == str(number)), None)) is None:
        return f"is {number!r}, which is no id in the list"
    text, other = ("text", "a number") if isinstance(number, str) else ("a number", "text")
    return f"is {text}, {number!r}, and the id that it means is {other}, {same!r}; write both as numbers"


def _label_studio(tasks: list[dict[str, Any]]) -> list[Entry]:
    entries = []
    _check_min([task for task in tasks if "data" not in task])
    for task in tasks:
        data = task.get("data", task)
        files = [value for value in data.values() if isinstance(value, str) and is_image(value)]
        path = data["image"] if "image" in data else files[0]
        if "data" in task:
            every = task.get("annotations", task.get("completions", []))
            chosen = [_choices(annotation) for annotation in every if not annotation.get("was_cancelled")]
            agreed = len(set(map(frozenset, chosen))) <= 1
            entries.append(Entry(str(path), tuple(word for words in chosen for word in words), bool(chosen), agreed))
        else:
            entries.append(Entry(str(path), tuple(_min(task)), bool({"choice", "annotation_id"} & task.keys())))
    return entries


def _check_min(tasks: Sequence[dict[str, Any]]) -> None:
    """Raises: UserError for tasks of JSON-MIN whose classes have another key than `choice`: none would be read."""
    keys = {key for task in tasks for key in task}
    others = sorted(keys - {*_OF_TASKS, "image"} if keys & {"annotation_id", *_CLASS_KEYS} else ())
    if others and "choice" not in keys:
        raise UserError(
            f"no image has the key choice, by which classes are read, but {some(others, 5)}; give the class by the key "
            "choice, or export it as JSON"
        )


def _min(task: dict[str, Any]) -> list[str]:
    """Return the classes of a task of JSON-MIN, whose key is the name of the control in the labeling interface."""
    chosen = task.get("choice")
    return _words(chosen["choices"] if isinstance(chosen, dict) else chosen)


def _choices(annotation: dict[str, Any]) -> list[str]:
    """Return every class that an annotator chose."""
    labels: list[str] = []
    for result in annotation["result"]:
        if "choices" not in result["value"]:
            raise UserError("it holds regions and not only classes of images; export it as COCO for detection")
        labels += _words(result["value"]["choices"])
    return labels


def _words(chosen: Any) -> list[str]:
    """Return the names of one class or a list of them; null is none. Raises: TypeError for other values."""
    each = chosen if isinstance(chosen, list) else [chosen]
    if wrong := [value for value in each if not isinstance(value, (str, int, float, NoneType))]:
        raise TypeError(f"the choice {shortened(repr(wrong[0]))} is no class")
    return [word for value in each if (word := cell_word(value))]
