# SPDX-License-Identifier: Apache-2.0
"""Commands that list what is available, and the demo."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text import clean
from .arguments import checked
from .run import Run
from .training import plan_within, row_of, time_limit, train, winner

if TYPE_CHECKING:
    from ..deploy.onnx.int8 import Quantized
    from ..table import Table


UNTESTED = "untested"  # beginning of a recipe's result
MOST_COUNTED = 20  # timm students whose costs are computed for one list


@checked
def recipes(all: bool = False) -> "Table":
    """List the shipped recipes: what they train, and the result here.

    Args:
        all: also the untested ones, after the others: most have the size of a paper's own training.
    """
    from ..config.load import about, shipped
    from ..table import Column, Table

    headers = {name: about(name) for name in shipped()}
    tested = {name: not head["Result"].startswith(UNTESTED) for name, head in headers.items()}
    names = sorted(headers, key=lambda name: (not tested[name], not name.startswith("default/"), name))
    results = {name: _first(headers[name]["Result"], "[;.]") if tested[name] else UNTESTED for name in names}
    rows = [(name, _first(headers[name]["What"], "[;:.]"), results[name]) for name in names if all or tested[name]]
    more = len(headers) - len(rows)
    note = f"{more} untested recipes, most of a paper's own size: viticulture recipes --all" if more else ""
    columns = [Column("recipe", "name"), Column("what it trains", "sentence"), Column("result here", "sentence")]
    return Table("", columns, rows, note)


def _first(text: str, ends: str) -> str:
    """Return text without parentheses up to the first of some signs, or a comparison."""
    return re.split(rf"{ends}(?: |$)|, where ", re.sub(r" \([^()]*\)", "", text))[0]


def tables() -> "Table":
    """List the papers' tables, row by row, with published numbers."""
    from ..report.terminal import table_list
    from ..study.paper_tables import read_table
    from ..study.paper_tables import tables as files

    return table_list({name: read_table(name) for name in files()})


@checked
def models(pattern: str = "") -> "Table":
    """List students with their costs: our own, or timm classifiers by name.

    Args:
        pattern: such as `*tiny*`.
    """
    from ..models.catalog import entries
    from ..models.students import matching
    from ..report.terminal import student_list

    return student_list(entries(matching(pattern), MOST_COUNTED))


@checked
def runs(folder: str = "runs", out: str = "") -> "Table":
    """List all runs in a folder: data, student, recipe, state, accuracy.

    Args:
        folder: to search, with its subfolders.
        out: an .html file to write, with links to the runs' pages.

    Returns: one row per run, newest first; `pandas.DataFrame(viticulture.runs())` is a data frame.
    """
    from ..outputs import check_out, write_out
    from ..report.runs import find_runs, render_index

    if out:
        check_out(out, ".html")
    index = find_runs(Path(folder))
    if out:
        write_out(out, render_index(index, Path(out)))
    return index.table


@checked
def cache(clear: bool = False) -> str:
    """Show the disk space of cached decoded images and features.

    Args:
        clear: remove them; the next training decodes its images again. Downloaded data sets stay. The folders are
            ~/.cache/viticulture and its folder data, or VITICULTURE_CACHE and VITICULTURE_DATA in the environment.
    """
    from ..cache import cache_folder, cached, clear_cache

    freed = f"freed {clear_cache() / 1e9:.2f} GB; " if clear else ""
    sizes = cached()
    size = sum(sizes.values()) / 1e9
    return f"{freed}{len(sizes)} stores, indexes and sets of features take {size:.2f} GB in {cache_folder()}"


def reference() -> str:
    """Return the help text of every recipe key: type, default and meaning."""
    from ..config.schema import reference as text

    return text().partition("\noptions:\n")[2]  # without the usage


def resolved(  # noqa: PLR0913  (its parameters are options of the command)
    data: str = "",
    recipe: str = "default",
    overrides: dict[str, Any] | None = None,
    like: str = "",
    table: str = "",
    row: str = "",
    seed: int = 0,
    budget: str | float = "",
    method_search: Any = "on",
) -> str:
    """Return the complete recipe, as YAML, that `train` (or `train_row` if a table is named) would use; with a budget
    that of the last stage of the plan, which is printed on standard error.

    The arguments are those of `train` and `train_row`; `data` chooses the default recipe.
    """
    from ..config.start import load_started

    if table:
        entry = row_of(table, row, overrides, seed)
        recipe, overrides = entry.recipe, entry.overrides
    if like:
        recipe, size = winner(like, recipe)
        overrides = {**size, **(overrides or {})}
    if (limit := time_limit(budget, method_search)) is not None:
        from ..report.terminal import introduce_budget

        plan = plan_within(data, recipe, seed, "", False, overrides or {}, limit)[1]
        introduce_budget(None, plan)
        return plan.stages[-1].config.to_yaml()
    if recipe == "default":
        from ..training.data import open_by_default, resolve_default

        return resolve_default(open_by_default(data)[1], overrides).to_yaml()
    return load_started(recipe, overrides).to_yaml()


def say(result: Any) -> None:
    """Print a command's result; of several training processes, only the first does."""
    from ..table import Table, print_table

    if isinstance(result, Table | str | Path):  # of quick commands, for which PyTorch is not imported
        lines = map(clean, str(result).rstrip().split("\n"))
        print_table(result) if isinstance(result, Table) else print(*lines, sep="\n")
        return
    from ..deploy.onnx.int8 import Quantized
    from ..report.terminal import say as words
    from ..training.processes import rank

    if not isinstance(result, Run) or not rank():
        words(_compared_with_float32(result) if isinstance(result, Quantized) else result)


def _compared_with_float32(result: "Quantized") -> "Table":
    from ..table import Column, Table

    rows = [
        (name, cost.top1, cost.size / 1e6, cost.milliseconds)
        for name, cost in (("float32", result.before), (f"int8: {result.path}", result.after))
    ]
    columns = [Column(""), Column("top-1", "percent"), Column("MB", "decimal"), Column("ms per image", "decimal")]
    note = f"{result.images} test images, same class for {result.same:.1%} of them; one image at a time, one thread"
    return Table("", columns, rows, note)


def demo() -> "Table":
    """Train two ViTs on 200 handwritten digits, in a minute or two.

    Returns: a table of test accuracies; each run's report.html has the details.
    """
    from ..evaluation.reference import pixel_accuracies
    from ..table import Column, Table
    from ..training.run_folder import claimed
    from ..training.run_inputs import config_of, dataset_of
    from ..training.session import RUNS

    labels = {"data.per_class": 20}
    with claimed(RUNS, "demo-vit") as path:
        plain = train("digits", "default/digits", out=str(path), overrides=labels)
    with claimed(RUNS, "demo-dhvt") as path:
        hybrid = train("digits", "dhvt/digits", out=str(path), overrides=labels)
    dataset = dataset_of(plain.folder, config_of(plain.folder))
    assert dataset.test is not None
    rows = [("DHVT, the hybrid ViT", hybrid.accuracy), ("plain ViT", plain.accuracy)]
    rows += pixel_accuracies(dataset.train, dataset.test).items()
    note = f"200 training images, {len(dataset.test)} test images, one seed. See {hybrid.path / 'report.html'}"
    return Table("Digits: test accuracy", [Column(""), Column("top-1", "percent")], rows, note)
