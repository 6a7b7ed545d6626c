# SPDX-License-Identifier: Apache-2.0
"""Recipes with a trained network: to start from (`--init`), whose architecture, colors and image size they take; or to
teach the student (`--teacher`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..data.image_settings import NORMALIZE
from ..errors import UserError
from ..guides.guide import Capability
from ..models.students import takes_patch_size
from ..models.weights.sources import Description, describe
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


def teachers_of(named: str) -> list[str]:
    """Return the sources in a comma-separated list. Raises: UserError if one is empty."""
    sources = [source.strip() for source in named.split(",")]
    if not all(sources):
        raise UserError(f"--teacher takes trained networks, separated by commas, got {named!r}")
    return sources


def taught_by(sources: Sequence[str]) -> dict[str, Any]:
    """Return `TAUGHT` under networks that predict the student's classes.

    Several teach by the mean of their probabilities, in which the gradient of soft distillation is linear: by a guide
    each, with its share of the weight.
    """
    one = TAUGHT["guides.logits"]
    guides = {f"guides.logits_{number}": {"class": "logits", **one} for number in range(2, len(sources) + 1)}
    keys = {**TAUGHT, **guides}
    for key, source in zip(("guides.logits", *guides), sources, strict=True):
        keys[key] = {**keys[key], "weight": one["weight"] / len(sources), "teacher": source}
    return keys


def with_teacher(name: str, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return overrides of a recipe with `TEACHER` replaced by keys of guides.

    A recipe that leaves teachers to the user gets this one. Any other gets `taught_by` where the teachers are runs that
    predict classes, which then must be the data's; else guide `feature_distillation`, of one teacher.

    Raises: UserError for a source that does not exist, or that can teach this recipe nothing.
    """
    keys = dict(overrides or {})
    named = keys.pop(TEACHER, None)
    if named is None:
        return keys
    sources, recipe = teachers_of(str(named)), read(name)
    abouts, source = [describe(each) for each in sources], sources[0]
    chosen = {f"guides.{key}": source for key in references(recipe.get("guides") or {}, GIVEN) if key.endswith(TEACHER)}
    if not chosen:
        method = load_config(name, {key: keys[key] for key in keys if not key.startswith("guides.")}).method_class
        predicting = all(about.config.get("student") and about.config.get("num_classes") for about in abouts)
        if predicting and Capability.CLASSES in method.provides:
            return {**taught_by(sources), **_larger_images(abouts, recipe), **keys}
        if Capability.FEATURES not in method.provides:
            raise UserError(
                f"--teacher {source} teaches by predictions or features of whole images, which recipe {name} lacks; "
                f"leave it out, or start from that network: --init {source}"
            )
        chosen = {"guides.feature_distillation.teacher": source}
    if len(sources) > 1:
        raise UserError(
            f"several teachers teach by their predictions of the student's classes, and {named} teach recipe {name} by "
            "features; name one"
        )
    return {**chosen, **_larger_images(abouts, recipe), **keys}


def _larger_images(abouts: Sequence[Description], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of the images for teachers, unless a recipe has one."""
    sides = [max(about.image_size) for about in abouts if about.image_size]
    if not sides or (recipe.get("images") or {}).get("teacher_size"):
        return {}
    return {"images.teacher_size": min(max(sides), LARGEST_SIDE)}


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
