# SPDX-License-Identifier: Apache-2.0
"""A run on other images than its own, and the file that a person asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..data.sources.source import Source
    from ..evaluation.accuracy import Evaluation
    from ..training.rundir import RunDir


def judge_other(run: "RunDir", data: "str | Source", out: str) -> "tuple[dict[str, Evaluation], list[str]]":
    """Measure a run's weights on other images.

    Args:
        run: whose.
        data: the images.
        out: an .html page or a .json file to write; "" for none.

    Returns: results by weights and name of the images, and what a person should know before believing them.
    """
    from ..disk import write_whole
    from ..evaluation.other import evaluate_other
    from ..outputs import check_out
    from ..report.pages.other_page import other_page

    path: Path | None = check_out(out, ".html", ".json") if out else None
    other = evaluate_other(run, data)
    evaluations = {key: result.evaluation for key, result in other.results.items()}
    if path is not None:
        results = {key: evaluation.to_dict() for key, evaluation in evaluations.items()}
        content = {"run": str(run.path), "images": other.name, "warnings": other.warnings, "results": results}
        write_whole(path, other_page(run, other) if path.suffix.lower() == ".html" else content)
    return evaluations, other.warnings
