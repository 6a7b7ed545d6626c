# SPDX-License-Identifier: Apache-2.0
"""A run's folder as a page."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from ...analysis.explanation import read_explanation
from ...analysis.galleries import FILE, read_galleries
from ...analysis.links import linked_guides, read_links
from ...analysis.pictures import CORRUPTED
from ...errors import UserError
from ...evaluation.agreement.evaluate import read_agreement
from ...evaluation.dense.pixels import PixelsEvaluation
from ...evaluation.dense.results import DenseEvaluations, read_dense
from ...evaluation.headline import named
from ...evaluation.localization.results import read_localizations
from ...evaluation.multilabel.labels import LabelsEvaluation
from ...evaluation.multilabel.results import LabelEvaluations, read_labels
from ...evaluation.probe.evaluate import read_probes
from ...evaluation.reference import read_references
from ...evaluation.results import Evaluations, read_evaluations
from ...evaluation.robustness.evaluate import read_robustness
from ...models.weights.files import read_config
from ...text import shell_word
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ..curves import read_curves
from ..explain_page import explanation_sections
from ..html import Section
from ..measurements import agreement_section, links_section, localization_section, probe_section, robustness_section
from ..page import Costs, RunPage, render
from ..pictures import galleries
from ..sections.dense import dense_answer, dense_sections
from ..sections.multilabel import labels_answer, labels_sections
from ..stages import stages_section
from ..svg import Points
from ..tables.results import Evaluated, percent

LOST = "Results or pictures of this run are not kept beside it; to have them: viticulture evaluate {}"


def write_page(run: RunFolder) -> Path:
    """Draw report.html from what the run left on disk; no network and no image is asked again."""
    return run.write("report.html", render(page_of(run)))


def page_of(run: RunFolder) -> RunPage:
    """The page's content as plain data."""
    facts = run.read("run.json")
    curves = read_curves(run.metrics) if run.metrics.exists() else {}
    evaluations, pictures = read_evaluations(run), read_galleries(run.path / FILE)
    dense, labels, explained = read_dense(run), read_labels(run), read_explanation(run)
    unmeasured, references = evaluations is None and dense is None and labels is None, read_references(run)
    running = facts["status"] == "running" and unmeasured
    lost = (unmeasured or pictures is None) and not running
    kept = (pictures or {}) if not unmeasured else {}  # those of weights that are gone are not shown
    classes = len(facts["data"]["classes"])
    config = config_of(run)
    height, width = config.images.shape
    counts = ", ".join(f"{count:,} {split}" for split, count in facts["data"]["images"].items())
    what = "labels" if config.method_class.batch_spec.contents == "labels" else "classes"
    of_classes = f" of {classes:,} {what}" if classes else ", labels unused"
    sentence = (
        f"{facts['student']['name']}, trained on {facts['data']['name']} ({counts} images{of_classes}, {height} x "
        f"{width} pixels) by recipe {facts['recipe']}, seed {facts['seed']}."
    )
    return RunPage(
        title=f"{facts['student']['name']} on {facts['data']['name']}",
        sentence=sentence,
        state=_state(run, curves, facts) if running else "",
        evaluations=_evaluated(evaluations),
        costs=costs_of(facts),
        references=references.accuracy if references is not None else {},
        learnt_from=references.images.get("train", ()) if references is not None else (),
        best_epoch=_best_epoch(run),
        curves=curves,
        mistakes=kept.get("mistakes", ()),
        examples=kept.get("examples", ()),
        warnings=[
            *facts["warnings"],
            *([facts["ended"]] if "ended" in facts else []),
            *([LOST.format(shell_word(run.path))] if lost else []),
        ],
        headline=judged_headline(dense) or judged_headline(labels),
        answer=labels_answer(labels) or dense_answer(dense),
        leading=[*labels_sections(labels), *dense_sections(dense, kept.get("dense", ()))],
        sections=[
            stages_section(run),
            *agreement_section(read_agreement(run)),
            *robustness_section(
                read_robustness(run), (read_galleries(run.path / CORRUPTED) or {}).get("corruptions", ())
            ),
            Section("What it attends to", galleries((explained and explained.attention) or kept.get("attention", ()))),
            *localization_section(read_localizations(run)),
            *probe_section(read_probes(run)),
            *_links(run),
            Section("What it paints", galleries(kept.get("reconstruction", ()))),
            *explanation_sections(run, explained),
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


def _best_epoch(run: RunFolder) -> int | None:
    """As the best weights tell it; None where there are none that can be read."""
    with suppress(UserError):
        return cast("int | None", read_config(run.weights("best")).get("epoch"))
    return None


def judged_headline(evaluations: DenseEvaluations | LabelEvaluations | None) -> tuple[str, str, str] | None:
    """Label, value and note of the number that counts; None for a run that was not judged so."""
    result = evaluations.counting if evaluations else None
    if evaluations is None or result is None:
        return None
    weights, split = named(evaluations.counts)
    name = {LabelsEvaluation: "mAP", PixelsEvaluation: "mIoU"}.get(type(result), "AP of boxes")
    low, high = result.interval
    note = f"95 % interval {100 * low:.1f} to {100 * high:.1f} % (bootstrap, {result.images:,} images)"
    return f"{name}, {split}, {weights} weights", percent(result.score), note


def costs_of(facts: Mapping[str, Any]) -> Costs:
    """What run.json says of the student's size, of its training's time, and of how often it is asked about an image."""
    seconds, steps, student = facts.get("seconds"), facts.get("steps"), facts["student"]
    images = steps * facts.get("batch_size", 0) if steps else 0  # a run from the Hub may not say how large batches were
    speed = images / seconds if seconds and images else None
    return Costs(student["parameters"], student["macs"], speed, seconds, facts.get("views", 1))


def _state(run: RunFolder, curves: Mapping[str, Points], facts: Mapping[str, Any]) -> str:
    """How far a training is; what its last epoch measured stands in the curves."""
    done = int(max((points[-1][0] for points in curves.values() if points), default=0))
    epochs = facts.get("settings", {}).get("train", {}).get("epochs", "?")
    again = f"`viticulture resume {shell_word(run.whole)}` goes on with it."
    if not run.in_use:
        return f"Interrupted: {done} of {epochs} epochs are done; {again}"
    return (
        f"In training: {done} of {epochs} epochs are done. This page renews itself; should the training have been "
        f"interrupted, {again}"
    )


def _evaluated(evaluations: Evaluations | None) -> list[Evaluated]:
    """The one that counts first."""
    if evaluations is None:
        return []
    return [
        Evaluated(*named(key), evaluations[key])
        for key in sorted(evaluations, key=lambda key: key != evaluations.counts)
    ]


def _links(run: RunFolder) -> list[Section]:
    """A section for each guide that trains links, once there is a checkpoint; no other run has its checkpoint read."""
    guides = linked_guides(run) if run.checkpoint.exists() else []
    return [links_section(read_links(run, guide), guide if len(guides) > 1 else "") for guide in guides]
