# SPDX-License-Identifier: Apache-2.0
"""Agreement of a student's heads with each other and with their teachers, on the same images.

Co-advise, arXiv:2106.12378, Table 5: KL(softmax(teacher) || softmax(head)), nats, mean over test images, at temperature
1 (the paper does not say which; its loss has 1). In addition, the shares of images on which both of a pair are wrong,
and on which both predict the same class.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.resolve import Config
from ..config.schema import of_class
from ..data.batches.targets import Batch
from ..data.image_set import Images
from ..errors import UserError
from ..keywords import rebuilt
from ..losses import soft_distillation
from ..models.teachers.outputs import TeacherOutput
from ..models.weights.files import load
from ..training.assemble import build_guides
from ..training.run_folder import RunFolder
from .model import EvaluatedModel, all_logits, heads_of, of_run
from .saved import checksum_of, is_current, read_saved

BATCH = 128  # images, for student and teachers together
FILE = "agreement.json"
GUIDES = ("co_advise", "logits")  # guides whose teachers have logits


@dataclass(frozen=True)
class Agreement:
    """Heads and teachers side by side; shares lie in [0, 1]."""

    weights: str
    split: str
    images: int = 0
    rule: str = ""
    heads: tuple[str, ...] = ()
    teachers: tuple[str, ...] = ()
    accuracy: Mapping[str, float] | None = None  # of the student, of each head and of each teacher, by name
    divergence: tuple[tuple[float, ...], ...] = ()  # for each head, nats from each teacher
    # Share of images on which both are wrong, for all pairs in the order of `accuracy`.
    both_wrong: tuple[tuple[float, ...], ...] = ()
    # Share of images on which both predict the same class, correct or not.
    same_prediction: tuple[tuple[float, ...], ...] = ()
    missing: str = ""  # why only `weights` and `split` are set; empty otherwise
    checksum: str = ""


def evaluate_agreement(run: RunFolder, config: Config, key: str, images: Images) -> Agreement | None:
    """Measure the agreement of the student, its heads and its teachers, and save it; None without such teachers.

    If a teacher no longer exists, an earlier measurement is left in place, or else the reason is saved.
    """
    if not of_class(config.values["guides"], *GUIDES):
        return None
    weights, _, split = key.partition("/")
    blank = Agreement(weights, split, checksum=checksum_of(run, weights))
    model = replace(of_run(run, weights, BATCH), temperature=())  # as it was trained
    try:
        teachers = _teachers(config, run.weights(weights))
    except UserError as error:
        if (earlier := read_agreement(run)) is not None and not earlier.missing:
            return earlier
        agreement = replace(blank, missing=str(error))
    else:
        agreement = replace(blank, **_measure(model, teachers, config, images))
    run.write(FILE, asdict(agreement))
    return agreement


def read_agreement(run: RunFolder) -> Agreement | None:
    """Read the measurement of the run's current weights; None if there is none."""
    agreement = read_saved(run, FILE, partial(rebuilt, Agreement))
    current = agreement is not None and is_current(run, agreement.weights, agreement.checksum)
    return agreement if current else None


def _teachers(config: Config, weights: Path) -> dict[str, TeacherOutput]:
    """Load the teachers, by their names in the recipe; `teacher` without one."""
    entries = of_class(config.values["guides"], *GUIDES)
    student, data_spec, _ = load(weights)
    side = config.images.teacher_size
    data_spec = replace(data_spec, teacher_size=None if side is None else (side, side))
    guides = build_guides(Config(config.name, {**config.values, "guides": entries}), student.train(), data_spec)
    return {
        key if (label := name.rpartition(".")[2]) == "teacher" and key not in GUIDES else label: module
        for key, guide in guides.items()
        for name, module in guide.named_modules()
        if isinstance(module, TeacherOutput) and module.name == "logits"
    }


@torch.inference_mode()
def _measure(
    model: EvaluatedModel, teachers: dict[str, TeacherOutput], config: Config, images: Images
) -> dict[str, Any]:
    by_head: list[Tensor] = []
    by_teacher: list[Tensor] = []
    outputs: list[Tensor] = []
    heads = None
    for teacher in teachers.values():
        teacher.to(model.device)
    for batch, of_teachers in _batches(model, config.images.teacher_size, images):
        heads = heads or heads_of(model.network, batch["image"], config)
        by_head.append(all_logits(model.network, batch["image"]))
        single_view = model.tta_network is model.network
        outputs.append(heads.combine(by_head[-1]) if single_view else model.tta_network(batch["image"]))
        by_teacher.append(torch.stack([teacher(of_teachers["image"]) for teacher in teachers.values()]))
    assert heads is not None, "a split holds images"
    head_logits, teacher_logits = (
        torch.cat([part.float().cpu() for part in parts], 1) for parts in (by_head, by_teacher)
    )
    measured = agree(
        torch.cat(outputs).cpu(),
        dict(zip(heads.names, head_logits, strict=True)),
        dict(zip(teachers, teacher_logits, strict=True)),
        images.records.labels,
    )
    return {"rule": heads.rule_with(model.eval_views), **measured}


def _batches(model: EvaluatedModel, side: int | None, images: Images) -> Iterator[tuple[Batch, Batch]]:
    """Yield batches for the student and for teachers, whose images have that side; None: the student's."""
    if side is None:
        return ((batch, batch) for batch in model.batches(images))
    larger = replace(model, data_spec=replace(model.data_spec, image_size=(side, side)))
    return zip(model.batches(images), larger.batches(images), strict=True)


def agree(
    student: Tensor, heads: Mapping[str, Tensor], teachers: Mapping[str, Tensor], labels: Tensor
) -> dict[str, Any]:
    """Compute the numbers of an Agreement from logits on N images.

    Args:
        student: [N, C].
        heads: [N, C] each.
        teachers: [N, C] each, at least one.
        labels: [N].
    """
    shared_names = len(set(heads) & set(teachers)) > 0
    tokens = {f"{name} token" if shared_names else name: logits for name, logits in heads.items()}
    every = {"student": student, **(tokens if len(heads) > 1 else {}), **teachers}
    predictions = torch.stack([logits.argmax(-1) for logits in every.values()])
    accuracy = (predictions == labels).double().mean(-1).tolist()
    return {
        "images": len(labels),
        "heads": tuple(tokens),
        "teachers": tuple(teachers),
        "accuracy": dict(zip(every, accuracy, strict=True)),
        "divergence": _rows(divergences(torch.stack([*heads.values()]), torch.stack([*teachers.values()]))),
        "both_wrong": _rows(both_wrong(predictions, labels)),
        "same_prediction": _rows(same_prediction(predictions)),
    }


def divergences(heads: Tensor, teachers: Tensor) -> Tensor:
    """Compute KL(teacher || head), nats, mean over images: logits [M, N, C] and [K, N, C] -> [M, K]."""
    each = [soft_distillation(head.double(), teacher.double()) for head in heads for teacher in teachers]
    return torch.stack(each).view(len(heads), len(teachers))


def both_wrong(predictions: Tensor, labels: Tensor) -> Tensor:
    """Compute the share of images on which both of a pair are wrong: [M, N] classes, [N] -> [M, M].

    The diagonal holds the errors.
    """
    wrong = (predictions != labels).double()
    return wrong @ wrong.mT / len(labels)


def same_prediction(predictions: Tensor) -> Tensor:
    """Compute the share of images on which both of a pair agree: [M, N] classes -> [M, M], 1 on the diagonal."""
    return (predictions[:, None] == predictions[None]).double().mean(-1)


def _rows(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))
