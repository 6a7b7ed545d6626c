# SPDX-License-Identifier: Apache-2.0
"""A run on other images than its own, and the file that a person asks for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..text import log
from .kinds import is_dense, is_multilabel

if TYPE_CHECKING:
    from ..data.sources.source import Source
    from ..evaluation.accuracy import Evaluation
    from ..evaluation.dense.results import DenseEvaluations
    from ..evaluation.multilabel.results import LabelEvaluations
    from ..training.run_folder import RunFolder


def judge_other(
    run: "RunFolder", data: "str | Source", out: str
) -> "Mapping[str, Evaluation] | DenseEvaluations | LabelEvaluations":
    """Measure a run's weights on other images, and tell what a person should know before believing the numbers.

    Args:
        run: whose.
        data: the images; of a run that finds objects or tells pixels apart, a word.
        out: an .html page or a .json file to write; "" for none, as of such a run.

    Returns: results by weights and name of the images.
    """
    from ..outputs import check_out, write_out

    path = check_out(out, ".html", ".json") if out else None
    page = path is not None and path.suffix.lower() == ".html"
    content: str | dict[str, Any] = {}
    evaluations: Mapping[str, Evaluation] | DenseEvaluations | LabelEvaluations
    if is_dense(run):
        from ..evaluation.dense import judge as dense

        assert isinstance(data, str)
        evaluations, warnings = dense.judge_other(run, data)
    elif is_multilabel(run):
        from ..data.open import open_source
        from ..evaluation.multilabel import judge as multilabel
        from ..report.pages.other_page import other_labels_page
        from ..training.data import for_method
        from ..training.run_inputs import recipe_of

        source = open_source(data) if isinstance(data, str) else data
        labels, warnings = multilabel.judge_other(run, for_method(recipe_of(run), source))
        evaluations = labels.evaluations
        content = {"run": str(run.path), "images": source.name, "warnings": warnings, **evaluations.to_dict()}
        if page:
            content = other_labels_page(run, source.name, labels, warnings)
    else:
        from ..evaluation.other import evaluate_other
        from ..report.pages.other_page import other_page

        other = evaluate_other(run, data)
        warnings, evaluations = other.warnings, {key: result.evaluation for key, result in other.results.items()}
        results = {key: evaluation.to_dict() for key, evaluation in evaluations.items()}
        content = {"run": str(run.path), "images": other.name, "warnings": warnings, "results": results}
        if page:
            content = other_page(run, other)
    for warning in warnings:
        log(f"note     {warning}")
    if path is not None:
        write_out(path, content)
    return evaluations
