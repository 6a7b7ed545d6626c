# SPDX-License-Identifier: Apache-2.0
"""Types of the metadata in run.json, and the check of a JSON file against such types."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..keywords import rebuilt

CURE = "; bring back a copy, or train anew"  # advice about a damaged file of a run

METADATA: dict[str, Any] = {  # with a question mark: optional
    "recipe": str,
    "seed": int,
    "status": str,
    "command": str,
    "commit": str | None,
    "started": str,
    "versions": dict[str, str],
    "versions.viticulture": str,
    "hardware": dict[str, Any],
    "hardware.cpu?": str | None,
    "hardware.cores?": int | None,
    "hardware.gpus?": list[str],
    "hardware.threads?": int,
    "data.source": str,
    "data.folder": str | None,
    "data.name": str,
    "data.fingerprint": str,
    "data.portable?": str,
    "data.contents?": dict[str, str],
    "data.given?": str,
    "data.classes": list[str],
    "data.images": dict[str, int],
    "data.skipped?": dict[str, str],
    "student.name": str,
    "student.parameters": int,
    "student.macs": int | None,
    "warnings": list[str],
    "batch_size?": int,
    "chosen_by?": dict[str, float],
    "changes?": dict[str, str],
    "length?": int,
    "loaded?": list[str],
    "logged?": dict[str, Any],
    "seconds?": float,
    "core_seconds?": float,
    "settings?": dict[str, dict[str, Any]],
    "start?": str | None,
    "steps?": int,
    "teachers?": list[str],
    "temperature?": list[float],
    "views?": int,
}

_ABSENT = object()


def check_metadata(path: Path, content: Mapping[str, Any], types: Mapping[str, Any], whole: bool = True) -> None:
    """Compare a JSON file's content with types. `types`: dotted key -> annotation; a key with a question mark may be
    missing. Raises: UserError naming the key and its value.
    """
    for key, kind in types.items():
        name, value = key.rstrip("?"), content
        for part in name.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is _ABSENT:
            if whole and name == key:
                raise UserError(f"{path} is damaged: {name} is missing{CURE}")
            continue
        try:
            rebuilt(kind, value, name)
        except (TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error}{CURE}") from error
