# SPDX-License-Identifier: Apache-2.0
"""Ask a run's student, head by head, and its teachers about the same images (metrics.py says what is made of it)."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...config.resolve import Config
from ...config.schema import of_class
from ...data.image_set import Images
from ...errors import UserError
from ...keywords import rebuilt
from ...models.teachers.frozen import Frozen
from ...models.weights.files import load
from ...training.assemble import build_guides
from ...training.run_folder import RunFolder
from ..model import EvaluatedModel, all_logits, heads_of, of_run
from ..saved import checksum_of, is_current, read_saved
from .metrics import Agreement, agree, collected

BATCH = 128  # images at once, for student and teachers together
FILE = "agreement.json"
ADVISED = ("co_advise", "logits")
"""Guides whose teachers answer with logits."""


def evaluate_agreement(run: RunFolder, config: Config, key: str, images: Images) -> Agreement | None:
    """Measure and keep in agreement.json how the student, its heads and its teachers agree; None without teachers.

    A teacher that is no longer there leaves what was measured before, else its reason: the run can be judged without.

    Args:
        run: with weights.
        config: the run's.
        key: WEIGHTS/SPLIT.
        images: of that split.
    """
    if not of_class(config.values["guides"], *ADVISED):
        return None
    weights, _, split = key.partition("/")
    subject, blank = of_run(run, weights, BATCH), Agreement(weights, split, checksum=checksum_of(run, weights))
    try:
        teachers = _teachers(config, run.weights(weights))
    except UserError as error:
        if (earlier := read_agreement(run)) is not None and not earlier.missing:
            return earlier
        agreement = replace(blank, missing=str(error))
    else:
        agreement = _ask(subject, teachers, config, images, blank)
    run.write(FILE, asdict(agreement))
    return agreement


def read_agreement(run: RunFolder) -> Agreement | None:
    """What was measured of the run's weights; None where nothing was."""
    agreement = read_saved(run, FILE, partial(rebuilt, Agreement))
    current = agreement is not None and is_current(run, agreement.weights, agreement.checksum)
    return agreement if current else None


def _teachers(config: Config, weights: Path) -> dict[str, Frozen]:
    """By the names that the recipe gives them; `teacher` where it gives none."""
    own = of_class(config.values["guides"], *ADVISED)
    student, data_spec, _ = load(weights)
    guides = build_guides(Config(config.name, {**config.values, "guides": own}), student.train(), data_spec)
    return {
        key if (label := name.rpartition(".")[2]) == "teacher" and key not in ADVISED else label: module
        for key, guide in guides.items()
        for name, module in guide.named_modules()
        if isinstance(module, Frozen)
    }


@torch.inference_mode()
def _ask(
    subject: EvaluatedModel, teachers: dict[str, Frozen], config: Config, images: Images, blank: Agreement
) -> Agreement:
    tokens: list[Tensor] = []
    answers: list[Tensor] = []
    advice: list[list[Tensor]] = []
    heads = None
    for teacher in teachers.values():
        teacher.to(subject.device)
    for batch in subject.batches(images):
        heads = heads or heads_of(subject.network, batch["image"], config)
        tokens.append(all_logits(subject.network, batch["image"]))
        once = subject.tta_network is subject.network
        answers.append(heads.combine(tokens[-1]) if once else subject.tta_network(batch["image"]))
        advice.append([teacher(batch["image"]) for teacher in teachers.values()])
    assert heads is not None, "a split holds images"
    by_head = collected([list(part) for part in tokens])
    by_teacher = collected(advice)
    measured = agree(
        torch.cat(answers).cpu(),
        dict(zip(heads.names, by_head, strict=True)),
        dict(zip(teachers, by_teacher, strict=True)),
        images.records.labels,
    )
    return replace(blank, rule=heads.rule_with(subject.eval_views), **measured)
