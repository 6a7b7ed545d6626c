# SPDX-License-Identifier: Apache-2.0
"""A model card of a detector or a segmenter: what it finds, how well, and what nobody should expect of it.

Every sentence and number comes from run.json, recipe.yaml and dense.json.
"""

from typing import Any

from ...evaluation.dense.objects import BACKGROUND, ObjectsEvaluation
from ...evaluation.dense.results import DenseEvaluations
from ...evaluation.dense.results import Evaluation as DenseEvaluation
from .card import Student, cell, confused, filled, metadata_of, split_of


def dense_card(
    repository: str,
    facts: dict[str, Any],
    recipe: str,
    results: DenseEvaluations,
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
    result, pixels = results.counting, config["network"]["kind"] == "segmentation"
    names = [*student.classes] if pixels else [*student.classes, BACKGROUND]
    return filled(
        "dense_card.md.j2",
        metadata=_metadata(repository, facts, results, pixels).strip(),
        repository=repository,
        facts=facts,
        recipe=recipe.strip(),
        student=student,
        split=split_of(results.counts),
        result=result,
        pixels=pixels,
        masks=bool(config["network"].get("heads", {}).get("masks")),
        side=config["pretrained_cfg"]["input_size"][-1],
        backbone=backbone,
        confused=confused(result.confusion, names) if result and result.confusion else [],
        weakest=_weakest(result) if result else [],
    )


def _metadata(repository: str, facts: dict[str, Any], results: DenseEvaluations, pixels: bool) -> str:
    use, result = "image-segmentation" if pixels else "object-detection", results.counting
    kind, name = ("mean_iou", "mIoU") if pixels else ("mAP", "AP of boxes, overlaps of 50 to 95 %")
    measured = (kind, name, result.score) if result else None
    return metadata_of(repository, facts, split_of(results.counts), use, measured)


def _weakest(result: DenseEvaluation) -> list[tuple[str, float]]:
    """Class, and its AP or IoU, of the five classes that are told worst."""
    if isinstance(result, ObjectsEvaluation):
        known = [(cell(each.name), each.ap) for each in result.boxes.per_class if each.ap is not None]
    else:
        known = [(cell(each.name), each.iou) for each in result.per_class if each.iou is not None]
    return sorted(known, key=lambda row: row[1])[:5]
