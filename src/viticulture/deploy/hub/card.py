# SPDX-License-Identifier: Apache-2.0
"""Model cards: a run's network, its training data, its accuracy and its limits.

Every sentence and number comes from run.json, recipe.yaml and evaluation.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm
from jinja2 import Environment, PackageLoader, StrictUndefined

from ...errors import comma_separated
from ...models.tta import TTA_VIEWS, TTAMode, describe
from ...scores.confusion import most_confused
from ...tasks.results import Results, named

MAX_MATRIX = 12
"""Classes with a whole confusion matrix; with more, only the most frequent confusions are listed."""
WEAKEST = 5

Measured = tuple[str, str, float]
"""The Hub's name of a metric, ours, and its value."""


@dataclass(frozen=True)
class CardNetwork:
    """The network of a card.

    Args:
        classes: names in the order of the logits; empty if it was trained without labels.
        ranges: values of black and white, if they were named: one pair for all channels, or one for each.
    """

    architecture: str
    classes: tuple[str, ...]
    multilabel: bool = False
    channels: int = 3
    ranges: tuple[tuple[float, float], ...] = ()
    views: TTAMode = "one"
    code: tuple[str, ...] = ()

    @property
    def view_names(self) -> str:
        """The views of an image in its evaluation; "" for one."""
        return describe(self.views)

    @property
    def num_views(self) -> int:
        """Forward passes per image."""
        return len(TTA_VIEWS[self.views])

    @property
    def example(self) -> str:
        """Name of an example file."""
        return "photo.jpg" if self.channels in (1, 3) and not self.ranges else "image.npy"

    @property
    def home(self) -> str:
        """The module whose import registers it with timm; "" for one of timm's."""
        module = timm.model_entrypoint(self.architecture).__module__
        ours = {"timm": "", "viticulture": "viticulture.models.students"}
        return ours.get(module.partition(".")[0], module)


def model_card(repository: str, facts: dict[str, Any], recipe: str, results: Results[Any], network: CardNetwork) -> str:
    """Return README.md of a classifier or of features, with its block of YAML for the Hub."""
    evaluation, classes = results.counting, network.classes
    result = evaluation if hasattr(evaluation, "top1") else None
    labels = evaluation if hasattr(evaluation, "map") else None
    measured: Measured | None = (*results.task.metric, evaluation.score) if evaluation is not None else None
    use = "image-classification" if classes else "image-feature-extraction"
    recalls = [(s.name, s.recall, s.support) for s in result.per_class] if result else []
    return _filled(
        "card.md.j2",
        metadata=_metadata(repository, facts, results.counts, use, measured, "viticulture" if network.home else "timm"),
        repository=repository,
        facts=facts,
        recipe=recipe.strip(),
        network=network,
        split=named(results.counts)[1],
        result=result,
        labels=labels,
        matrix=_matrix(result, classes) if result else [],
        confused=_confused(result.confusion, classes) if result else [],
        weakest=_weakest(recalls),
    )


def image_card(
    repository: str,
    facts: dict[str, Any],
    recipe: str,
    results: Results[Any],
    network: CardNetwork,
    config: dict[str, Any],
    backbone: bool,
) -> str:
    """Return README.md of a detector or a segmenter."""
    result, pixels = results.counting, config["network"]["kind"] == "segmentation"
    use, metric = results.task.pipeline, results.task.metric
    names = [*network.classes] if pixels else [*network.classes, "background"]
    scores: list[tuple[str, float | None]] = []
    if result is not None and hasattr(result, "boxes"):
        scores = [(each.name, each.ap) for each in result.boxes.per_class]
    elif result is not None:
        scores = [(each.name, each.iou) for each in result.per_class]
    return _filled(
        "image_card.md.j2",
        metadata=_metadata(repository, facts, results.counts, use, (*metric, result.score) if result else None),
        repository=repository,
        facts=facts,
        recipe=recipe.strip(),
        network=network,
        split=named(results.counts)[1],
        result=result,
        pixels=pixels,
        masks=bool(config["network"].get("heads", {}).get("masks")),
        side=config["pretrained_cfg"]["input_size"][-1],
        backbone=backbone,
        confused=_confused(result.confusion, names) if result and result.confusion else [],
        weakest=_weakest(scores),
    )


def _metadata(
    repository: str,
    facts: dict[str, Any],
    counts: str,
    use: str,
    measured: Measured | None,
    library: str = "viticulture",
) -> str:
    """Return the block of YAML for the Hub."""
    from huggingface_hub import EvalResult, ModelCardData

    results = []
    if measured:
        metric_type, name, value = measured
        results = [
            EvalResult(
                task_type=use,
                dataset_type="image",
                dataset_name=facts["data"]["name"],
                dataset_split=named(counts)[1],
                metric_type=metric_type,
                metric_name=name,
                metric_value=round(value, 4),
            )
        ]
    card = ModelCardData(
        library_name=library,
        pipeline_tag=use,
        tags=[use, "vision-transformer", "small-data", "timm", "viticulture"],
        model_name=repository.partition("/")[2],
        eval_results=results or None,
    )
    return card.to_yaml().strip()


def _filled(template: str, **values: Any) -> str:
    """Fill a template of this folder as Markdown; `cell` and `code` escape names that are not ours."""
    environment = Environment(
        loader=PackageLoader("viticulture.deploy.hub", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": _cell,
        "code": lambda text: " ".join(text.split()).replace("`", "'"),
        "percent": lambda share: "n/a" if share is None else f"{100 * share:.1f} %",
        "comma_separated": comma_separated,
        "count": "{:,}".format,
    }
    return environment.get_template(template).render(values)


def _cell(text: str) -> str:
    """Escape text so that it neither ends a table's cell nor is markup."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>()#+-!|~" else letter for letter in " ".join(text.split()))


def _matrix(result: Any, classes: Sequence[str]) -> list[list[str]]:
    """Return the rows of the confusion matrix with a heading; empty for many classes."""
    if len(classes) > MAX_MATRIX:
        return []
    heading = ["true, down; predicted, across", *map(_cell, classes)]
    return [heading, *([_cell(name), *map(str, row)] for name, row in zip(classes, result.confusion, strict=True))]


def _confused(counts: Any, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return true class, predicted class and count of the eight most frequent confusions."""
    return [(_cell(names[i]), _cell(names[j]), int(counts[i][j])) for i, j in most_confused(counts, 8)]


def _weakest(scores: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the classes with the lowest scores, of rows that begin with name and score."""
    rows = [(_cell(name), score, *rest) for name, score, *rest in scores if score is not None]
    return sorted(rows, key=lambda row: row[1])[:WEAKEST]
