# SPDX-License-Identifier: Apache-2.0
"""A recipe that starts from a trained network (`--init`) takes its architecture, its colors and its image size."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..data.image_settings import NORMALIZE
from ..models.students import takes_patch_size
from ..models.weights.sources import describe
from .load import load_config, read
from .references import GIVEN, ROW
from .resolve import Config


def load_started(name: str, overrides: Mapping[str, Any] | None) -> Config:
    """Return `load_config` with the network, colors and image size of the source that overrides set `student.init` to.

    Keys that overrides set stay. A recipe that has the key `student.init` was made for its weights and stays as it is.
    A detector or a segmenter keeps its image size, and images of other channels their colors.

    Raises: UserError for a source that does not exist.
    """
    config, chosen = load_config(name, overrides), overrides or {}
    source, student = chosen.get("student.init"), read(name).get("student")
    made_for_weights = isinstance(student, Mapping) and "init" in student
    if not isinstance(source, str) or made_for_weights or source.startswith((ROW, GIVEN)):
        return config
    about = describe(source, config.student.name)
    size, colors, keys = about.image_size, about.normalize, dict[str, Any]()
    if not chosen.keys() & {"student", "student.name"}:
        patch_size = about.arguments.get("patch_size") if takes_patch_size(about.architecture) else None
        options = about.options() | {
            key: value
            for key, value in config.student.options.items()
            if about.architecture == config.student.name or f"student.options.{key}" in chosen
        }
        keys = {"student.name": about.architecture, "student.patch_size": patch_size, "student.options": options}
    if colors and len(colors[0]) == config.images.channels:
        names = (name for name, values in NORMALIZE.items() if values == colors)
        keys["images.normalize"] = next(names, [list(values) for values in colors])
    if size and not config.method_class.batch_spec.dense and not about.config.get("network"):
        keys["images.image_size"] = size[0] if size[0] == size[1] else list(size)
    keys = {key: value for key, value in keys.items() if key not in chosen}
    said = ", ".join(f"{key} {value}" for key, value in keys.items() if value not in (None, {}))
    config = config.changed(keys, by="init")
    return replace(config, warnings=(*config.warnings, f"{source} brings {said}")) if said else config
