# SPDX-License-Identifier: Apache-2.0
"""Model cards: a run's network, its training data, its accuracy and its limits.

Every sentence and number comes from run.json, recipe.yaml and evaluation.json, by the run's task.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import timm
from jinja2 import Environment, PackageLoader, StrictUndefined

from ...errors import comma_separated
from ...models.tta import TTA_VIEWS, TTAMode, describe
from ...table import Cell, Column, Table
from ...tasks.figures import HeatMap, TaskPage
from ...tasks.results import Results, named
from ...tasks.task import Task

MAX_MATRIX = 12
"""Classes with a whole confusion matrix."""
MAX_ROWS = 50


@dataclass(frozen=True)
class CardNetwork:
    """The network of a card.

    Args:
        classes: names in the order of the logits; empty if it was trained without labels.
        ranges: values of black and white, if they were named: one pair for all channels, or one for each.
        in_timm: whether timm loads the repository.
        student_alone: whether timm loads the student without heads that the run has.
    """

    architecture: str
    classes: tuple[str, ...]
    channels: int = 3
    ranges: tuple[tuple[float, float], ...] = ()
    views: TTAMode = "one"
    code: tuple[str, ...] = ()
    in_timm: bool = True
    student_alone: bool = False

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


def model_card(
    repository: str, facts: dict[str, Any], recipe: str, task: Task, results: Results[Any], network: CardNetwork
) -> str:
    """Return README.md with its block of YAML for the Hub."""
    environment = Environment(
        loader=PackageLoader("viticulture.deploy.hub", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": _cell,
        "code": lambda text: " ".join(text.split()).replace("`", "'"),
        "comma_separated": comma_separated,
        "count": "{:,}".format,
    }
    page = task.page(results, {}) if results else TaskPage()
    return environment.get_template("card.md.j2").render(
        metadata=_metadata(repository, facts, results, network),
        repository=repository,
        facts=facts,
        recipe=recipe.strip(),
        network=network,
        task=task,
        page=page,
        split=named(results.counts)[1],
        tables=[_drawn(table) for table in _tables(page)],
        limits=task.limits(results),
    )


def _metadata(repository: str, facts: dict[str, Any], results: Results[Any], network: CardNetwork) -> str:
    """Return the block of YAML for the Hub."""
    from huggingface_hub import EvalResult, ModelCardData

    task, evaluated = results.task, []
    if results.counting is not None and task.metric[0]:
        evaluated.append(
            EvalResult(
                task_type=task.pipeline or task.name,
                dataset_type="image",
                dataset_name=facts["data"]["name"],
                dataset_split=named(results.counts)[1],
                metric_type=task.metric[0],
                metric_name=task.metric[1],
                metric_value=round(results.counting.score, 4),
            )
        )
    card = ModelCardData(
        library_name="viticulture" if network.home or not network.in_timm or network.student_alone else "timm",
        pipeline_tag=task.pipeline or None,
        tags=[task.pipeline or task.name, "vision-transformer", "small-data", "timm", "viticulture"],
        model_name=repository.partition("/")[2],
        eval_results=evaluated or None,
    )
    return card.to_yaml().strip()


def _tables(page: TaskPage) -> Iterator[Table]:
    """Yield the tables of a page, and the confusion matrix of few classes."""
    for section in (*page.before, *page.after):
        for part in section.parts:
            for each in part if isinstance(part, list) else [part]:
                if isinstance(each, Table) and each.rows:
                    yield each
                elif isinstance(each, HeatMap) and len(each.names) <= MAX_MATRIX:
                    columns = [Column("true, down; predicted, across"), *(Column(name, "count") for name in each.names)]
                    rows: list[list[Cell]] = [
                        [name, *map(int, row)] for name, row in zip(each.names, each.counts, strict=True)
                    ]
                    yield Table(each.title, columns, rows)


def _drawn(table: Table) -> dict[str, Any]:
    """Return a table as cells of Markdown."""
    rows = [[column.name for column in table.columns], *table.texts()[:MAX_ROWS]]
    cells = [[_cell(text) for text in row] for row in rows]
    more = f"The first {MAX_ROWS} of {len(table.rows):,} rows." if len(table.rows) > MAX_ROWS else ""
    return {"title": table.title, "rows": [cells[0], ["---"] * len(rows[0]), *cells[1:]], "note": table.note or more}


def _cell(text: str) -> str:
    """Escape text so that it neither ends a table's cell nor is markup."""
    return "".join(f"\\{letter}" if letter in r"\`*_[]<>|~" else letter for letter in " ".join(text.split()))
