# SPDX-License-Identifier: Apache-2.0
"""A model card: what a run's student is, what it learnt from, how well it does, and what nobody should expect of it.

Every sentence and number comes from run.json, recipe.yaml and evaluation.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm
from jinja2 import Environment, PackageLoader, StrictUndefined

from ...errors import comma_separated
from ...models.views import NAMED, Views, told
from ...scores.confusion import most_confused
from ...tasks.results import Results, named

FEW = 12
"""Classes whose whole confusion matrix is shown; of more, the most frequent confusions."""


@dataclass(frozen=True)
class Student:
    """What a card says of a network.

    Args:
        architecture: timm's name of it.
        classes: names in the order of the logits; empty for one that learnt without labels.
        several: whether an image may show any number of them.
        channels: of an image.
        spans: values that are black and white, where they were named: one pair for all channels, or one for each.
        views: of an image, by which it answers.
        code: of its author's own that its recipe names, by dotted paths.
    """

    architecture: str
    classes: tuple[str, ...]
    several: bool = False
    channels: int = 3
    spans: tuple[tuple[float, float], ...] = ()
    views: Views = "one"
    code: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """By which views of an image it was measured, in words; "" for one."""
        return told(self.views)

    @property
    def times(self) -> int:
        """How often it is asked about an image."""
        return len(NAMED[self.views])

    @property
    def example(self) -> str:
        """A file that it could be asked about."""
        return "photo.jpg" if self.channels in (1, 3) and not self.spans else "image.npy"

    @property
    def home(self) -> str:
        """The module by whose import timm knows it; "" for one of timm's own."""
        module = timm.model_entrypoint(self.architecture).__module__
        ours = {"timm": "", "viticulture": "viticulture.models.students"}
        return ours.get(module.partition(".")[0], module)


def model_card(repository: str, facts: dict[str, Any], recipe: str, results: Results[Any], student: Student) -> str:
    """README.md of a repository, with the block of YAML that the Hub reads.

    Args:
        repository: USER/NAME.
        facts: run.json, as it is shared.
        recipe: recipe.yaml.
        results: what was measured.
        student: what its config.json says of it.
    """
    evaluation, classes = results.counting, student.classes
    result = evaluation if evaluation is not None and hasattr(evaluation, "top1") else None
    return filled(
        "card.md.j2",
        metadata=_metadata(repository, facts, results, student).strip(),
        repository=repository,
        facts=facts,
        recipe=recipe.strip(),
        student=student,
        split=split_of(results.counts),
        result=result,
        labels=evaluation if evaluation is not None and hasattr(evaluation, "map") else None,
        matrix=_matrix(result, classes) if result else [],
        confused=confused(result.confusion, classes) if result else [],
        weakest=_weakest(result) if result else [],
    )


def _metadata(repository: str, facts: dict[str, Any], results: Results[Any], student: Student) -> str:
    result = results.counting
    measured = (*results.task.metric, result.score) if result is not None else None
    use = "image-classification" if student.classes else "image-feature-extraction"
    library = "viticulture" if student.home else "timm"
    return metadata_of(repository, facts, split_of(results.counts), use, measured, library)


def metadata_of(
    repository: str,
    facts: dict[str, Any],
    split: str,
    use: str,
    measured: tuple[str, str, float] | None,
    library: str = "viticulture",
) -> str:
    """The block of YAML that the Hub reads.

    Args:
        repository: USER/NAME.
        facts: run.json, as it is shared.
        split: what was measured on.
        use: the Hub's word for what the network does.
        measured: the Hub's word for a measure, its name and value; None where nothing was measured.
        library: that opens the weights.
    """
    from huggingface_hub import EvalResult, ModelCardData

    results = []
    if measured:
        kind, name, value = measured
        results = [
            EvalResult(
                task_type=use,
                dataset_type="image",
                dataset_name=facts["data"]["name"],
                dataset_split=split,
                metric_type=kind,
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
    return card.to_yaml()


def filled(template: str, **values: Any) -> str:
    """A template of this room as Markdown, in which what strangers named is escaped by `cell` and `code`."""
    environment = Environment(
        loader=PackageLoader("viticulture.deploy.hub", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": cell,
        "code": _code,
        "percent": _percent,
        "comma_separated": comma_separated,
        "count": "{:,}".format,
    }
    return environment.get_template(template).render(values)


def split_of(key: str) -> str:
    """How a person calls the split of a result WEIGHTS/SPLIT."""
    return named(key)[1]


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def cell(word: str) -> str:
    """Text that neither ends a table's cell nor is markup."""
    return "".join(f"\\{letter}" if letter in r"\`*_{}[]<>()#+-!|~" else letter for letter in " ".join(word.split()))


def _code(word: str) -> str:
    """Text between backticks."""
    return " ".join(word.split()).replace("`", "'")


def _matrix(result: Any, classes: Sequence[str]) -> list[list[str]]:
    """Rows of the confusion matrix with a heading; none for many classes."""
    if len(classes) > FEW:
        return []
    heading = ["true, down; said, across", *map(cell, classes)]
    return [heading, *([cell(name), *map(str, row)] for name, row in zip(classes, result.confusion, strict=True))]


def confused(counts: Any, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """True class, what it was taken for, how often, of the eight pairs that are most frequent.

    Args:
        counts: by true class (row) and said class (column).
        names: of the rows and columns.
    """
    return [(cell(names[i]), cell(names[j]), int(counts[i][j])) for i, j in most_confused(counts, 8)]


def _weakest(result: Any) -> list[tuple[str, float, int]]:
    """Class, recall and images of the five classes that are found least often."""
    known = [(cell(s.name), s.recall, s.support) for s in result.per_class if s.recall is not None]
    return sorted(known, key=lambda row: row[1])[:5]
