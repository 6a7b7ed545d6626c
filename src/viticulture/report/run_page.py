# SPDX-License-Identifier: Apache-2.0
"""The page of a run, and of a run on other images."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ..analysis.explanation import read_explanation
from ..analysis.galleries import FILE, read_galleries
from ..analysis.links import linked_guides, read_links
from ..analysis.pictures import CORRUPTED
from ..errors import UserError, counted
from ..evaluation.agreement import read_agreement
from ..evaluation.localization.evaluate import read_localizations
from ..evaluation.probe.evaluate import read_probes
from ..evaluation.robustness.evaluate import read_robustness
from ..models.weights.files import read_config
from ..tasks.figures import TaskPage
from ..tasks.task import OtherImages, Task, task_of
from ..text import shell_word
from ..training.metrics import read_curves
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from .explain_page import explanation_sections
from .html import Section
from .measurements import agreement_section, links_section, localization_section, probe_section, robustness_section
from .page import Costs, RunPage, render
from .pictures import galleries
from .stages import stages_section
from .svg import Points

LOST = "Results or pictures of this run are missing; to have them: viticulture evaluate {}"


def write_page(run: RunFolder) -> Path:
    """Draw report.html from the files of the run alone."""
    return run.write("report.html", render(page_of(run)))


def page_of(run: RunFolder) -> RunPage:
    """The page's content as plain data."""
    metadata = run.read("run.json")
    curves = read_curves(run.metrics) if run.metrics.exists() else {}
    task, pictures, explained = task_of(run), read_galleries(run.path / FILE), read_explanation(run)
    results = task.read_results()
    running = metadata["status"] == "running" and results is None
    lost = (results is None or pictures is None) and not running
    drawn = (pictures or {}) if results is not None else {}  # those of weights that are gone are left out
    config = config_of(run)
    height, width = config.images.shape
    counts = ", ".join(f"{count:,} {split}" for split, count in metadata["data"]["images"].items())
    annotation = task.annotation(metadata["data"]["classes"])
    sentence = (
        f"{metadata['student']['name']}, trained on {metadata['data']['name']} ({counts} images, {annotation}, "
        f"{height} x {width} pixels) by recipe {metadata['recipe']}, seed {metadata['seed']}."
    )
    if loaded := metadata.get("loaded"):
        sentence += f" Weights: {'; '.join(loaded)}."
    return RunPage(
        title=f"{metadata['student']['name']} on {metadata['data']['name']}",
        sentence=sentence,
        state=_state(run, curves, metadata) if running else "",
        costs=costs_of(metadata),
        best_epoch=_best_epoch(run),
        curves=curves,
        examples=drawn.get("examples", ()),
        warnings=[
            *metadata["warnings"],
            *([metadata["ended"]] if "ended" in metadata else []),
            *([LOST.format(shell_word(run.path))] if lost else []),
        ],
        task=task.page(results, drawn) if results else TaskPage(),
        sections=[
            stages_section(run),
            *agreement_section(read_agreement(run)),
            *robustness_section(
                read_robustness(run), (read_galleries(run.path / CORRUPTED) or {}).get("corruptions", ())
            ),
            Section("What it attends to", galleries((explained and explained.attention) or drawn.get("attention", ()))),
            *localization_section(read_localizations(run)),
            *probe_section(read_probes(run)),
            *_links(run),
            Section("Reconstructions", galleries(drawn.get("reconstruction", ()))),
            *explanation_sections(run, explained),
        ],
        recipe=(run.path / "recipe.yaml").read_text(encoding="utf-8"),
        reproduce={
            "command": metadata["command"],
            "seed": str(metadata["seed"]),
            "commit": metadata["commit"] or "not run from a checkout",
            "versions": ", ".join(f"{name} {version}" for name, version in metadata["versions"].items()),
            "hardware": json.dumps(metadata["hardware"]).strip("{}").replace('"', ""),
            "data fingerprint": metadata["data"]["fingerprint"],
            "started": metadata["started"],
        },
    )


def _best_epoch(run: RunFolder) -> int | None:
    """Return the epoch of the best weights; None where there are none that can be read."""
    with suppress(UserError):
        return cast("int | None", read_config(run.weights("best")).get("epoch"))
    return None


def costs_of(metadata: Mapping[str, Any]) -> Costs:
    """Return the student's size, training time and views per image from run.json."""
    seconds, steps, student = metadata.get("seconds"), metadata.get("steps"), metadata["student"]
    images = (
        steps * metadata.get("batch_size", 0) if steps else 0
    )  # a run from the Hub may not say how large batches were
    speed = images / seconds if seconds and images else None
    return Costs(student["parameters"], student["macs"], speed, seconds, metadata.get("views", 1))


def _state(run: RunFolder, curves: Mapping[str, Points], metadata: Mapping[str, Any]) -> str:
    """Return the progress of a training; the curves show its last epoch's metrics."""
    done = int(max((points[-1][0] for points in curves.values() if points), default=0))
    epochs = metadata.get("settings", {}).get("train", {}).get("epochs", "?")
    again = f"`viticulture resume {shell_word(run.whole)}` goes on with it."
    if not run.in_use:
        return f"Interrupted: {done} of {epochs} epochs are done; {again}"
    return (
        f"In training: {done} of {epochs} epochs are done. This page renews itself; should the training have been "
        f"interrupted, {again}"
    )


def _links(run: RunFolder) -> list[Section]:
    """A section for each guide that trains links, once there is a checkpoint; no other run has its checkpoint read."""
    guides = linked_guides(run) if run.checkpoint.exists() else []
    return [links_section(read_links(run, guide), guide if len(guides) > 1 else "") for guide in guides]


def other_page(task: Task, other: OtherImages) -> str:
    """The page of a run on other images as HTML text: results and mistakes on these, and where it comes from."""
    metadata, results = task.run.read("run.json"), other.evaluated.results
    galleries = {"mistakes": task.mistakes(other.evaluated)}
    page = RunPage(
        title=f"{task.run.path.name} on {other.name}",
        sentence=(
            f"{metadata['student']['name']}, trained on {metadata['data']['name']} by recipe {metadata['recipe']}, "
            f"seed {metadata['seed']}, evaluated on {counted(results.results[results.counts].images, 'image')} of "
            f"{other.name}."
        ),
        costs=costs_of(metadata),
        warnings=other.warnings,
        task=task.page(results, galleries, own=False),
        reproduce={
            "run": str(task.run.path),
            "trained by": metadata["command"],
            "data fingerprint of the run": metadata["data"]["fingerprint"],
            "evaluated": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    return render(page)
