# SPDX-License-Identifier: Apache-2.0
"""Push a run to the Hub: weights that timm loads, the run's files, and a card.

    README.md                          the card
    config.json, model.safetensors     the weights that count, as timm reads them
                                       (of a detector or a segmenter those of the student within it)
    run.json, recipe.yaml, evaluation.json, weights/WHICH/...
                                       the run, for `viticulture predict hf-hub:USER/NAME`; features of up to 1,000
                                       training images among it

The weights have two names and are stored once: the Hub stores equal files once. Every sentence and number of the card
comes from run.json, recipe.yaml and evaluation.json, by the run's task.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import timm
from jinja2 import Environment, PackageLoader, StrictUndefined

from ...errors import UserError, comma_separated, received
from ...models.data_spec import DataSpec
from ...models.similarity import FILE, KEY
from ...models.tta import TTA_VIEWS, TTAMode, describe, temperature_of, tta_mode
from ...models.weights.checksum import FILES
from ...models.weights.files import read_config
from ...table import Cell, Column, Table
from ...tasks.figures import HeatMap, TaskPage
from ...tasks.results import RESULTS, Results, named
from ...tasks.task import Task, task_of
from ...text import shell_word
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of
from ...waiting import quiet_hub
from .fetch import USED, check_repository, named_code, refused, shareable_facts, shareable_recipe, without_folders

MAX_MATRIX = 12  # classes with a whole confusion matrix
MAX_ROWS = 50


@dataclass(frozen=True)
class CardNetwork:
    """The network of a card."""

    architecture: str
    classes: tuple[str, ...]  # names in the order of the logits; empty if it was trained without labels
    channels: int = 3
    # Values of black and white, if they were named: one pair for all channels, or one for each.
    ranges: tuple[tuple[float, float], ...] = ()
    views: TTAMode = "one"
    calibrated: bool = False
    code: tuple[str, ...] = ()
    in_timm: bool = True  # whether timm loads the repository
    student_alone: bool = False  # whether timm loads the student without heads that the run has

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


README = "README.md"


def contents(run: RunFolder, repository: str, weights: str = "") -> dict[str, bytes | Path]:
    """Return the files of the repository: path -> content.

    Raises: UserError for weights that are damaged, or a run that is not finished.
    """
    check_repository(repository)
    facts = run.read("run.json")
    if facts["status"] != "finished":
        raise UserError(f"{run.path} is not finished; let it finish: viticulture resume {shell_word(run.path)}")
    weights = weights or run.which()[0]
    folder = run.weights(weights)
    config = read_config(folder)
    shared, recipe, task = shareable_facts(facts), shareable_recipe(config_of(run)).to_yaml(), task_of(run)
    results = (task.read_results() or Results("", {}, type(task))).of_weights(weights)
    for_timm, data_spec = task.for_timm(weights), task.exported(weights).data_spec  # finds damage, too
    network = _network(run, config, data_spec, for_timm)
    texts = {
        README: model_card(repository, shared, recipe, task, results, network),
        "run.json": _json(shared),
        "recipe.yaml": recipe,
        **({RESULTS: _json(results.to_dict())} if results else {}),
    }
    about = _json({**config, **({"recipe": without_folders(config["recipe"])} if "recipe" in config else {})})
    of_run: dict[str, bytes | Path] = dict(zip(FILES, (folder / FILES[0], _bytes(about)), strict=True))
    features = {FILE: folder / FILE} if KEY in config else {}
    files: dict[str, bytes | Path] = {name: _bytes(text) for name, text in texts.items()}
    files |= {f"weights/{weights}/{name}": content for name, content in {**of_run, **features}.items()}
    return {**files, **(of_run if for_timm is None else for_timm)}


def _network(
    run: RunFolder, config: dict[str, Any], data_spec: DataSpec, for_timm: dict[str, bytes] | None
) -> CardNetwork:
    recipe, architecture = config_of(run), config.get("architecture")
    if not (isinstance(architecture, str) and timm.is_model(architecture)):
        raise UserError(
            f"{run.path} is damaged: no network of timm is the architecture {received(architecture)} of {FILES[1]}"
        )
    return CardNetwork(
        architecture,
        data_spec.classes,
        data_spec.channels,
        recipe.images.pixel_format.range,
        tta_mode(config),
        bool(temperature_of(config, len(data_spec.classes))),
        tuple(sorted(set(named_code(recipe.values)))),
        for_timm is None or bool(for_timm),
        for_timm is not None,
    )


def push(run: RunFolder, repository: str, weights: str = "", private: bool = False) -> str:
    """Create the repository if needed, upload everything in one commit, and return its address.

    Files of an earlier run are deleted in the same commit, so that the name has only these weights.

    Raises: UserError if the Hub refuses or cannot be reached, or an existing repository is public and private is set.
    """
    files = contents(run, repository, weights)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    quiet_hub()
    api = HfApi(library_name="viticulture")
    try:
        address = api.create_repo(repository, private=private or None, exist_ok=True)
        if private and not api.model_info(repository).private:  # it was there, and the Hub leaves it as it is
            raise UserError(
                f"{repository} exists already and is public, so nothing was sent; make it private on its "
                "page, choose another name, or leave --private out"
            )
        left = [name for name in api.list_repo_files(repository) if name not in files and _is_ours(name)]
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        deleted = [CommitOperationDelete(name) for name in left]
        message = f"{run.path.name}, trained by viticulture"
        api.create_commit(repository, [*added, *deleted], commit_message=message)
    except UserError:
        raise
    except Exception as error:  # whatever a network or a hub may raise
        raise refused(f"{run.path} could not be sent to {repository}", error) from error
    return str(address)


def _is_ours(name: str) -> bool:
    """Return whether a file of a repository is one of `contents`."""
    return name in FILES or any(fnmatch(name, pattern) for pattern in USED)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _json(content: object) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
