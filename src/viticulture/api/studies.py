# SPDX-License-Identifier: Apache-2.0
"""Commands that train a study: compare recipes, train a paper's table, or search recipe keys."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..study.terms import ALL_IMAGES, EQUAL_EPOCHS, HERE, OWN_LENGTHS, Subsets, Terms, Where
from ..text import log, shell_word
from .arguments import checked
from .page_guard import PageGuard
from .training import command

if TYPE_CHECKING:
    from ..study.folder import StudyFolder
    from ..study.grid import Grid
    from ..study.study import Study


@checked
def compare(
    data: str,
    recipes: tuple[str, ...] = (),
    subsets: Subsets = ALL_IMAGES,
    seeds: int | None = None,
    terms: Terms = EQUAL_EPOCHS,
    where: Where = HERE,
    overrides: dict[str, Any] | None = None,
) -> "Study":
    """Compare recipes on a data set over training subsets and seeds, with intervals.

    `viticulture compare resume STUDY` continues after a stop; `viticulture compare --table TABLE` trains a paper's
    table, `--search KEY=LOW..HIGH KEY=A,B` searches the keys of a recipe. If a training fails the others continue, and
    the exit status is 1.

    Args:
        data: as for `train`.
        recipes: to compare, such as default/photos,dhvt/digits; the first is the baseline. By default a plain ViT, a
            CNN, a hybrid and guided ViTs for this image size (for boxes or masks, detectors or segmenters of a plain
            ViT and a hybrid), with a budget of auto unless a length is given.
        subsets: numbers of training images, or of folds.
        seeds: number of trainings per cell, by default three; each has its own subset, initialization and order.
        terms: training lengths.
        where: the study's folder and workers.
        overrides: recipe keys for all recipes.

    Returns: the study: conclusion, winner, rows, table (pandas), path with report.html.
    """
    from ..study.declare import grid_of_recipes

    recipes = [recipes] if isinstance(recipes, str) else recipes
    return _compare(grid_of_recipes(data, tuple(recipes), subsets, seeds, terms, overrides or {}), where)


@checked
def compare_table(
    table: str,
    data: str = "",
    subsets: Subsets = ALL_IMAGES,
    seeds: int = 1,
    terms: Terms = OWN_LENGTHS,
    where: Where = HERE,
    overrides: dict[str, Any] | None = None,
) -> "Study":
    """Train a paper's table and compare with the published numbers.

    Args:
        table: its name (`viticulture tables`), or a YAML file of that form; rows may use other rows' runs (`row:NAME`).
        data: where the images are, if not under the table's names for them.
        subsets: as for `compare`.
        seeds: number of trainings per row.
        terms: as for `compare`; by default every recipe's own length.
        where: as for `compare`.
        overrides: recipe keys for all rows; student.init may also be a mapping, row -> weights.
    """
    from ..study.declare import grid_of_table

    return _compare(grid_of_table(table, data, subsets, seeds, terms, overrides or {}), where)


@checked
def compare_search(
    data: str,
    search: list[str],
    recipe: str = "",
    seeds: int = 3,
    terms: Terms = EQUAL_EPOCHS,
    where: Where = HERE,
    overrides: dict[str, Any] | None = None,
) -> "Study":
    """Search the keys of a recipe by Optuna (extra `search`), and compare the best values with the recipe as it is.

    Proposals are trained one after the other for half of the epochs, each following from the results before it. The
    best three on validation images are trained from every seed, as is the recipe.

    Args:
        data: as for `train`.
        search: KEY=LOW..HIGH or KEY=A,B, such as optim.lr=1e-4..1e-2 student.name=vit_tiny,dhvt_tiny; a range over a
            factor of ten or more is searched by its logarithm.
        recipe: whose keys are searched; by default that for these images.
        seeds: number of trainings of the recipe and of each of the best.
        terms: training lengths. The budget is that of the whole search, if proposals take as long as the recipe.
        where: the study's folder and workers on this machine.
        overrides: recipe keys for all trainings.
    """
    from ..study.search import grid_of_search

    return _compare(grid_of_search(data, recipe, search, seeds, terms, overrides or {}), where)


@checked
def compare_resume(study: str, data: str = "", where: Where = HERE) -> "Study":
    """Continue a study: train cells that are missing, failed or were added to its study.yaml.

    Args:
        study: the study's folder.
        data: where its images are now, if they have moved.
        where: the workers; `out` must be empty.
    """
    from ..study.folder import StudyFolder

    if where.out:
        raise UserError(f"a study continues in its own folder; leave out --out {where.out}")
    return _run(StudyFolder.open(study, data), where)


def _compare(grid: "Grid", where: Where) -> "Study":
    """Create a study's folder and run it."""
    from ..data.open import start_of
    from ..study.folder import StudyFolder
    from ..study.grid import slug
    from ..training.run_folder import claimed

    stem = slug(grid.table or start_of(grid.data).stem)
    named = nullcontext(Path(where.out)) if where.out else claimed("studies", stem)
    with named as path:
        folder = StudyFolder.create(path, grid, command())
        try:
            return _run(folder, where)
        except UserError:
            folder.discard()  # an error before the first cell leaves no folder
            raise


def _run(folder: "StudyFolder", where: Where) -> "Study":
    """Plan, train, report."""
    from ..report.study_page import write_study
    from ..report.terminal import introduce_study
    from ..study.run import run_study
    from ..study.search import search_keys
    from ..study.study import Study
    from ..training.state import own_random_state

    if folder.grid.search and (where.ray or where.slurm):
        raise UserError("a search proposes by results and trains on this machine; leave out --ray and --slurm")
    try:
        with own_random_state():
            run_study(folder, where, log, introduce_study)
            if folder.grid.search:
                folder = search_keys(folder, where, log)
                run_study(folder, where, log, introduce_study)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture compare resume {shell_word(folder.path)}") from stop
    study = Study(folder.path, folder.data)
    with PageGuard(folder.path).guard("report"):
        write_study(study)
    return study
