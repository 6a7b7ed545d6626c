# SPDX-License-Identifier: Apache-2.0
"""ImageNet's classes as data calls them: by WordNet's ids or by numbers, all of them or some."""

import dataclasses
import re
from collections.abc import Sequence

from ...data.sources.source import Source
from ...errors import UserError
from ...models.data_spec import DataSpec

IMAGENET_CLASSES = 1000
_WNID = re.compile(r"n\d{8}")


def are_imagenets(classes: Sequence[str]) -> bool:
    """Whether a run's classes are ImageNet's 1,000, in their order: by WordNet's ids, or by the words for them, of
    which data may tell the first alone or add the id."""
    if len(classes) != IMAGENET_CLASSES:
        return False
    from timm.data.imagenet_info import ImageNetInfo

    known = ImageNetInfo("imagenet-1k")
    wnids, words = known.label_names(), known.label_descriptions()  # type: ignore[no-untyped-call]
    return all(
        name == wnid or name.startswith(word.split(",")[0])
        for name, wnid, word in zip(classes, wnids, words, strict=True)
    )


def is_part(source: Source, data_spec: DataSpec) -> bool:
    """Whether data holds some of ImageNet's classes only, as ImageNet-A and -R do."""
    named = all(_WNID.fullmatch(name) for name in source.classes) or len(data_spec.classes) == IMAGENET_CLASSES
    return named and 0 < len(source.classes) < len(data_spec.classes)


def named_like(source: Source, data_spec: DataSpec) -> Source:
    """Folders called by WordNet ids, for a run that learnt torchvision's `imagenet` and calls classes by words."""
    ids = bool(source.classes) and all(_WNID.fullmatch(name) for name in source.classes)
    if not ids or set(source.classes) <= set(data_spec.classes) or len(data_spec.classes) != IMAGENET_CLASSES:
        return source
    from timm.data.imagenet_info import ImageNetInfo

    wnids: list[str] = ImageNetInfo("imagenet-1k").label_names()  # type: ignore[no-untyped-call]
    index_of = {wnid: i for i, wnid in enumerate(wnids)}
    unknown = [name for name in source.classes if name not in index_of]
    if unknown:
        raise UserError(f"{unknown[0]} is none of ImageNet's 1,000 classes; remove its folder from {source.name}")
    return dataclasses.replace(source, classes=tuple(data_spec.classes[index_of[name]] for name in source.classes))


def is_numbered(source: Source, data_spec: DataSpec) -> bool:
    """Whether data calls ImageNet's classes by their numbers, as ImageNet-V2 does."""
    numbers = [name.isascii() and name.isdigit() and int(name) < IMAGENET_CLASSES for name in source.classes]
    known = len(data_spec.classes) == IMAGENET_CLASSES and not set(source.classes) <= set(data_spec.classes)
    return known and bool(numbers) and all(numbers)


def by_number(source: Source, data_spec: DataSpec) -> Source:
    """Data that is numbered so, with the run's names of the classes."""
    return dataclasses.replace(source, classes=tuple(data_spec.classes[int(name)] for name in source.classes))
