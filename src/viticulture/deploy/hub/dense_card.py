# SPDX-License-Identifier: Apache-2.0
"""A model card of a detector or a segmenter: what it finds, how well, and what nobody should expect of it.

Every sentence and number comes from run.json, recipe.yaml and dense.json.
"""

from typing import Any

from ...tasks.results import Results
from .card import Student, cell, confused, filled, metadata_of, split_of


def dense_card(
    repository: str,
    facts: dict[str, Any],
    recipe: str,
    results: Results[Any],
    student: Student,
    config: dict[str, Any],
    backbone: bool,
) -> str:
    """README.md of a repository, with the block of YAML that the Hub reads.

    Args:
        repository: USER/NAME.
        facts: run.json, as it is shared.
        recipe: recipe.yaml.
        results: what was measured.
        student: its architecture and classes.
        config: config.json of its weights.
        backbone: whether the student alone is sent along, for timm.
    """
    result, pixels = results.counting, config["dense"]["kind"] == "segmentation"
    names = [*student.classes] if pixels else [*student.classes, "background"]
    return filled(
        "dense_card.md.j2",
        metadata=_metadata(repository, facts, results).strip(),
        repository=repository,
        facts=facts,
        recipe=recipe.strip(),
        student=student,
        split=split_of(results.counts),
        result=result,
        pixels=pixels,
        masks=bool(config["dense"].get("heads", {}).get("masks")),
        side=config["pretrained_cfg"]["input_size"][-1],
        backbone=backbone,
        confused=confused(result.confusion, names) if result and result.confusion else [],
        weakest=_weakest(result) if result else [],
    )


def _metadata(repository: str, facts: dict[str, Any], results: Results[Any]) -> str:
    result = results.counting
    measured = (*results.task.metric, result.score) if result else None
    return metadata_of(repository, facts, split_of(results.counts), results.task.pipeline, measured)


def _weakest(result: Any) -> list[tuple[str, float]]:
    """Class, and its AP or IoU, of the five classes that are told worst."""
    if hasattr(result, "boxes"):
        known = [(cell(each.name), each.ap) for each in result.boxes.per_class if each.ap is not None]
    else:
        known = [(cell(each.name), each.iou) for each in result.per_class if each.iou is not None]
    return sorted(known, key=lambda row: row[1])[:5]
