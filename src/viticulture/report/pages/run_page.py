# SPDX-License-Identifier: Apache-2.0
"""A run's folder as a page."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...analysis.explanation import read_explanation
from ...analysis.link_extraction import read_links
from ...data.dataset import Dataset
from ...data.images import Images
from ...evaluation.accuracy import most_confident_mistakes
from ...evaluation.agreement.judge import read_agreement
from ...evaluation.judge import Result
from ...evaluation.localization.judge import read_localisations
from ...evaluation.robustness.judge import read_robustness
from ...evaluation.subject import of_run
from ...training.rundir import RunDir
from ..charts.curves import read_curves
from ..document import Section
from ..sections.agreement import agreement_section
from ..sections.attention import attention_section
from ..sections.links import links_section
from ..sections.localization import localisation_section
from ..sections.reconstruction import reconstruction_section
from ..sections.robustness import robustness_section
from ..tables.results import Evaluated
from .explain_page import explanation_sections
from .page import Costs, PicturedMistake, RunPage, render

MISTAKES = 24
EXAMPLES = 4  # a class
CLASSES_WITH_EXAMPLES = 12


def write_page(run: RunDir, dataset: Dataset, results: Mapping[str, Result]) -> Path:
    """Draw report.html from what the run left on disk, its images and its results (the one that counts first)."""
    return run.write("report.html", render(page_of(run, dataset, results)))


def page_of(run: RunDir, dataset: Dataset, results: Mapping[str, Result]) -> RunPage:
    """The page's content as plain data."""
    facts = run.read("run.json")
    curves = read_curves(run.metrics) if run.metrics.exists() else {}
    counts = ", ".join(f"{count:,} {split}" for split, count in facts["data"]["images"].items())
    side = dataset.image_size
    classes = f" of {len(dataset.classes):,} classes" if dataset.classes else ", labels unused"
    sentence = (
        f"{facts['student']['name']}, trained on {facts['data']['name']} ({counts} images{classes}, {side} x {side} "
        f"pixels) by recipe {facts['recipe']}, seed {facts['seed']}."
    )
    seconds, steps = facts.get("seconds"), facts.get("steps")
    speed = steps * facts["batch_size"] / seconds if seconds and steps else None
    return RunPage(
        title=f"{facts['student']['name']} on {facts['data']['name']}",
        sentence=sentence,
        evaluations=[Evaluated(*named(key), result.evaluation) for key, result in results.items()],
        costs=Costs(facts["student"]["parameters"], facts["student"]["macs"], speed, seconds),
        curves=curves,
        mistakes=_mistakes(next(iter(results.values())), dataset.classes) if results else (),
        examples=_examples(dataset.train, dataset.classes),
        warnings=facts["remarks"],
        sections=[
            *agreement_section(read_agreement(run)),
            *robustness_section(read_robustness(run)),
            *([_attention(run, results)] if results else []),
            *localisation_section(read_localisations(run)),
            *_links(run, curves),
            *reconstruction_section(run, dataset),
            *explanation_sections(run, read_explanation(run)),
        ],
        recipe=(run.path / "recipe.yaml").read_text(encoding="utf-8"),
        reproduce={
            "command": facts["command"],
            "seed": str(facts["seed"]),
            "commit": facts["commit"] or "not run from a checkout",
            "versions": ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
            "hardware": json.dumps(facts["hardware"]).strip("{}").replace('"', ""),
            "data fingerprint": facts["data"]["fingerprint"],
            "started": facts["started"],
        },
    )


def named(key: str) -> tuple[str, str]:
    """`best/val` -> weights and split as a person calls them."""
    weights, _, split = key.partition("/")
    return weights, {"val": "validation"}.get(split, split)


def _mistakes(result: Result, classes: tuple[str, ...]) -> list[PicturedMistake]:
    return [
        PicturedMistake(
            result.images.original(mistake.number),
            mistake.name,
            classes[mistake.label],
            classes[mistake.predicted],
            mistake.probability,
        )
        for mistake in most_confident_mistakes(result.predictions, MISTAKES)
    ]


def _attention(run: RunDir, results: Mapping[str, Result]) -> Section:
    key, result = next(iter(results.items()))
    return attention_section(of_run(run, key.partition("/")[0]), result.images)


def _links(run: RunDir, curves: Mapping[str, object]) -> list[Section]:
    """A section for a run whose guide trained links; others do not have their checkpoint read."""
    return [links_section(read_links(run))] if "train/attention_link" in curves else []


def _examples(images: Images, classes: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    """A few training images of each of the first classes, so that a person sees what was learnt from."""
    labels = images.records.labels.numpy()
    shown = enumerate(classes[:CLASSES_WITH_EXAMPLES])
    return {name: [images.original(int(i)) for i in np.flatnonzero(labels == c)[:EXAMPLES]] for c, name in shown}
