# SPDX-License-Identifier: Apache-2.0
"""Verbs on many trainings: compare, in a field of one's own or as a paper's table."""

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
    """Find out which method grows the best ViT on these images: recipes x training subsets x seeds, with error bars.

    `viticulture compare resume STUDY` goes on after a stop; `viticulture compare --table TABLE` trains a paper's table.
    Where a training fails the others go on, and the command ends with status 1.

    Args:
        data: as for `train`.
        recipes: what is compared, such as default/photos,dhvt/digits; the first is the baseline. Left out: a plain ViT,
            a CNN, a hybrid and guided ViTs for images of this size (where boxes or masks come with them, detectors or
            segmenters of a plain ViT and a hybrid), and a budget of auto unless a length is named.
        subsets: how many training images are learnt from, or in how many folds.
        seeds: trainings of everything, three if nothing is said; each draws its own subset, initialization and order.
        terms: how long everything may train.
        where: the study's folder, and who trains.
        overrides: recipe keys that hold for all.

    Returns: the study: conclusion, winner, rows, table (pandas), path with report.html.
    """
    from ..study.declare import of_own_images

    recipes = [recipes] if isinstance(recipes, str) else recipes
    return _compare(of_own_images(data, tuple(recipes), subsets, seeds, terms, overrides or {}), where)


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
    """Train a paper's table and put the published numbers beside ours.

    Args:
        table: its name (`viticulture tables`), or a YAML file of that form: rows may learn from rows (`row:NAME`).
        data: where the images are, when not under the names that the table uses.
        subsets: as for `compare`.
        seeds: trainings of every row.
        terms: as for `compare`; every recipe has its own length unless told otherwise.
        where: as for `compare`.
        overrides: recipe keys that hold for all rows; of student.init also a mapping, row -> weights.
    """
    from ..study.declare import of_a_table

    return _compare(of_a_table(table, data, subsets, seeds, terms, overrides or {}), where)


@checked
def compare_resume(study: str, data: str = "", where: Where = HERE) -> "Study":
    """Go on with a study: train what is missing, failed or was added to its study.yaml.

    Args:
        study: its folder.
        data: where its images are now, if they have moved.
        where: who trains; `out` stays empty.
    """
    from ..study.folder import StudyFolder

    if where.out:
        raise UserError(f"a study goes on in its own folder; leave out --out {where.out}")
    return _conduct(StudyFolder.open(study, data), where)


def _compare(grid: "Grid", where: Where) -> "Study":
    """Make a new study's folder, and go on with it."""
    from ..data.open import start_of
    from ..study.folder import StudyFolder
    from ..study.grid import slug
    from ..training.run_folder import claimed

    stem = slug(grid.table or start_of(grid.data).stem)
    named = nullcontext(Path(where.out)) if where.out else claimed("studies", stem)
    with named as path:
        folder = StudyFolder.create(path, grid, command())
        try:
            return _conduct(folder, where)
        except UserError:
            folder.discard()  # a mistake that shows before the first cell leaves nothing behind
            raise


def _conduct(folder: "StudyFolder", where: Where) -> "Study":
    """Plan, train, report."""
    from ..report.study_page import write_study
    from ..report.terminal import introduce_study
    from ..study.run import conduct
    from ..study.study import Study
    from ..training.state import own_random_state

    try:
        with own_random_state():
            conduct(folder, where, log, introduce_study)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture compare resume {shell_word(folder.path)}") from stop
    study = Study(folder.path, folder.data)
    with PageGuard(folder.path).guard("report"):
        write_study(study)
    return study
