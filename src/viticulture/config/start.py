# SPDX-License-Identifier: Apache-2.0
"""Recipes with a trained network: to start from (`--init`), whose architecture, colors and image size they take; or to
teach the student (`--teacher`)."""

from collections.abc import Mapping
from typing import Any

from ..data.image_settings import NORMALIZE
from ..errors import UserError
from ..guides.guide import Capability
from ..models.students import takes_patch_size
from ..models.weights.sources import describe
from .keys import TEACHER
from .load import load_config, read
from .references import GIVEN, ROW, references
from .resolve import Config

LARGEST_SIDE = 128
"""Largest images that are chosen for a trained network, to teach or to be fine-tuned, pixels: four times as many take a
CPU four times as long."""


TAUGHT: dict[str, Any] = {
    "method.label_weight": 0.5,
    "guides.logits": {"kind": "soft", "temperature": 2.0, "weight": 1.0},
    "train.fixed_views": 8,
    "engine.replay_gb": 4.0,
}
"""Keys of a student under a network that predicts its classes: predictions for so many views of each image, which are
computed once."""


def with_teacher(name: str, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return overrides of a recipe with `TEACHER` replaced by keys of guides.

    A recipe that leaves teachers to the user gets this one. Any other gets `TAUGHT` where the teacher is a run that
    predicts classes, which then must be the data's; else guide `feature_distillation`.

    Raises: UserError for a source that does not exist, or that can teach this recipe nothing.
    """
    keys = dict(overrides or {})
    source = keys.pop(TEACHER, None)
    if source is None:
        return keys
    about, recipe = describe(source), read(name)
    chosen = {f"guides.{key}": source for key in references(recipe.get("guides") or {}, GIVEN) if key.endswith(TEACHER)}
    if not chosen:
        method = load_config(name, {key: keys[key] for key in keys if not key.startswith("guides.")}).method_class
        if about.config.get("student") and about.config.get("num_classes") and Capability.CLASSES in method.provides:
            chosen = {**TAUGHT, "guides.logits": {**TAUGHT["guides.logits"], "teacher": source}}
        elif Capability.FEATURES not in method.provides:
            raise UserError(
                f"--teacher {source} teaches by predictions or features of whole images, which recipe {name} lacks; "
                f"leave it out, or start from that network: --init {source}"
            )
        else:
            chosen = {"guides.feature_distillation.teacher": source}
    if about.image_size and not (recipe.get("images") or {}).get("teacher_size"):
        chosen["images.teacher_size"] = min(max(about.image_size), LARGEST_SIDE)
    return {**chosen, **keys}


def load_started(name: str, overrides: Mapping[str, Any] | None) -> Config:
    """Return `load_config` with the teacher that overrides name, and with the network, colors and image size of the
    source that they set `student.init` to.

    Keys that overrides set stay. A recipe that has the key `student.init` was made for its weights and stays as it is.
    A detector or a segmenter keeps its image size, and images of other channels their colors.

    Raises: UserError for a source that does not exist.
    """
    chosen = with_teacher(name, overrides)
    config = load_config(name, chosen)
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
    return config.changed({key: value for key, value in keys.items() if key not in chosen}, by="init")
