# SPDX-License-Identifier: Apache-2.0
"""Verbs that train: a run, a row of a paper's table, what a budget affords; and that go on with a stopped one."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..budget.budget import Budget
from ..errors import UserError, unknown
from ..study.terms import in_words
from ..text import command_line, log, shell_word
from ..waiting import silence
from .arguments import check_callbacks, checked, path_as_text, run_folder_of, with_short
from .page_guard import PageGuard
from .run import Run
from .runs import measure

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..budget.follow import Trial
    from ..study.grid import Candidate
    from ..training.session import Session


@checked
def train(  # noqa: PLR0913  a verb: its keywords are the options of the command
    data: Any,
    recipe: str = "default",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
    like: str = "",
    budget: str | float = "",
    method_search: Any = "on",
    *,
    epochs: int | None = None,
    student: str = "",
    callbacks: "Sequence[Callback]" = (),
    progress: bool = True,
) -> Run:
    """Train a student on labeled images, evaluate it and write its report.

    In Python, data may also be a torch Dataset of (image, label), a pandas DataFrame with path and label, a pair of
    images and labels, or a dictionary of these by split; `resume` then needs the same object.

    Args:
        data: a folder (CLASS/image, or train/CLASS/image and test/CLASS/image), a CSV (path,label[,split]), a zip,
            a torchvision name such as cifar100, a Hugging Face id, WebDataset shards, or `digits`.
        recipe: a shipped recipe (`viticulture recipes`), a YAML file, or `default`, chosen by the images' size.
        seed: initialization, order, augmentation and the choice of a subset follow from it.
        out: the run's folder; a new one under runs/ when left out.
        overwrite: replace the run that is in that folder.
        overrides: recipe keys to change, such as {"train.epochs": 10}.
        like: a study's folder (`viticulture compare`): take the recipe that is first there, at its full length.
        budget: time for it all: 90s, 30m (or 30), 2h, 1night, or 15core-m of processors; what you leave open is chosen.
        method_search: off or False: one stage, no mixing.
        epochs: passes over the training images; short for an override.
        student: the network; short for an override.
        callbacks: Lightning's, of your own; one that ends the training early leaves a finished run.
        progress: False: not a word on standard error.

    Returns: the finished run.
    Raises: UserError for any mistake in data, recipe or machine, before training starts.
    """
    short = {"train.epochs": epochs, "student.name": student or None}
    if like:
        recipe, size = winner(like, recipe)
        overrides = {**size, **(overrides or {})}
    overrides = with_short(overrides or {}, {key: value for key, value in short.items() if value is not None})
    check_callbacks(callbacks)
    data = path_as_text(data)
    searches = {True: True, False: False, "on": True, "off": False}
    if not isinstance(method_search, str | bool) or method_search not in searches:
        raise unknown("method search", method_search, ("on", "off"))
    if budget == "" and not searches[method_search]:
        raise UserError("--method-search off is of a budget; without one there is one stage, unmixed: leave it out")
    if budget != "":
        afforded = Budget(in_words(budget), searches[method_search])
        if callbacks or not isinstance(data, str):
            what = "callbacks watch" if callbacks else "an object of this program teaches"
            raise UserError(f"{what} one training, and a budget may have several of their own processes; leave one out")
        with _alone(progress):
            return _follow(_planned(data, recipe, seed, out, overwrite, overrides, afforded))
    from ..training.session import begin

    with _alone(progress):
        return _grow(begin(data, recipe, seed, out, overwrite, overrides, command()), callbacks=callbacks)


@checked
def train_row(
    table: str,
    row: str,
    data: str = "",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
) -> Run:
    """Train one row of a paper's table.

    Args:
        table: its name (`viticulture tables`).
        row: the row's name in it.
        data: where the images are, when not under the name that the table uses.
        seed: as for `train`.
        out: as for `train`.
        overwrite: as for `train`.
        overrides: recipe keys to change on top of the row's.
    """
    chosen = row_of(table, row, overrides, seed)
    return train(data or chosen.data, chosen.recipe, seed + chosen.seed_offset, out, overwrite, chosen.overrides)


def row_of(table: str, row: str, overrides: dict[str, Any] | None, seed: int) -> "Candidate":
    """A row of a table as it is trained by itself, from a seed and with keys of one's own."""
    from ..study.paper_tables import read_table

    chosen = read_table(table).row(row)
    shared = {"data.subset_seed": seed} if chosen.seed_offset else {}  # another training on the same images
    return replace(chosen, overrides={**shared, **chosen.overrides, **(overrides or {})})


def winner(like: str, recipe: str = "default") -> tuple[str, dict[str, Any]]:
    """The file of the recipe that is first in a study, and the key of the size at which the study shows images, where
    it chose one. Raises: UserError if another recipe is named beside it."""
    from ..study.study import Study

    if recipe != "default":
        raise UserError(f"give --recipe or --like, not both, got {recipe} and {like}")
    study = Study(Path(like))
    leader = study.leader.candidate
    study.folder.recipe(leader)  # which refuses code that the study's file names and the user has not
    if study.winner is None:
        log(
            f"note     {like} names no winner; {leader.name} leads by validation, perhaps by chance: "
            "more seeds may tell, and --recipe takes another"
        )
    return str(study.folder.recipe_file(leader)), study.plan.size(leader) if study.plan else {}


@checked
def resume(
    run: Any,
    data: Any = "",
    epochs: int | None = None,
    *,
    callbacks: "Sequence[Callback]" = (),
    progress: bool = True,
) -> Run:
    """Go on with a stopped training, exactly as if it had not been stopped.

    Args:
        run: its folder.
        data: where its images are now, if they have moved, which the run keeps, a finished one too; the same object,
            where it learnt from one in Python.
        epochs: another length, such as a few more than have been trained, to have a student soon: the rate falls by it
            from here on. It must be no less than have begun.
        callbacks: as for `train`: those that it began with, which find their state again.
        progress: as for `train`.
    """
    run, data = run_folder_of(run), path_as_text(data)
    check_callbacks(callbacks)
    from ..budget import follow
    from ..budget.plan import read_plan
    from ..disk import sweep
    from ..training import length
    from ..training.run_folder import PLAN, RunFolder
    from ..training.session import reopen

    if (Path(run) / PLAN).is_file():
        if callbacks or not isinstance(data, str):
            raise UserError(f"{run} has a budget, and no callbacks or objects of this program; leave them out")
        if epochs is not None:
            follow.change_length(Path(run), epochs)
        unfinished = any(stage.spent is None for stage in read_plan(Path(run)).stages)
        with _alone(progress):
            return _follow(Path(run), data) if unfinished else _finished(_follow(Path(run)), data)
    length.change_length(Path(run), epochs)
    if RunFolder.open(run).read("run.json")["status"] == "finished":
        sweep(Path(run))
        return _finished(Run(Path(run)), data)
    with _alone(progress):
        return _grow(reopen(run, data), callbacks=callbacks)


@contextmanager
def _alone(progress: bool) -> Iterator[None]:
    """Train in the block, with or without progress output, on separate random numbers. Raises: UserError if another
    thread trains."""
    from ..training.state import own_random_state

    with silence(not progress), own_random_state():
        yield


def _finished(run: Run, data: Any) -> Run:
    """Say that a run is, and keep where its images are now. Raises: UserError if it has lost its weights, or these are
    others."""
    from ..training.run_inputs import config_of, dataset_of, keep_place

    run.folder.which()
    if isinstance(data, str) and data:
        dataset_of(run.folder, config_of(run.folder), data)
        keep_place(run.folder, data)
    log(f"{run.path} is finished; nothing is left to train")
    return run


def _grow(session: "Session", trial: "Trial | None" = None, callbacks: "Sequence[Callback]" = ()) -> Run:
    """Train, the trial of a stage within a budget first, measure, report.

    Of several processes, all train; the first then measures, draws the page and prints, while the others wait until it
    has ended, and return the same run without a word.
    """
    from ..report.terminal import bar, introduce
    from ..training.half_precision import check_precision
    from ..training.processes import the_first_works
    from ..training.run import fit

    if session.leads:
        introduce(session)
    try:
        check_precision(session)
        if trial is not None:
            fit(session, bar(session), more=[trial.stopwatch], until=trial.epochs)
            session = trial.settle(session)
        fit(session, bar(session), after_epoch=PageGuard(session.run.path).write, more=callbacks)
        with the_first_works():
            if session.leads:
                measure(session.run, session.dataset)
                session.run.update(status="finished")  # last: a kill before this is made good by resume
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture resume {shell_word(session.run.path)}") from stop
    finally:
        session.run.unlock()  # a program goes on after an error, and may resume
    return Run(session.run.path)


def _planned(
    data: str, recipe: str, seed: int, out: str, overwrite: bool, overrides: dict[str, Any], budget: Budget
) -> Path:
    """Choose what fits into a budget, write it down and show it; arguments as for `train`. Returns: the run's folder.

    Raises: UserError for any mistake, before there is a folder.
    """
    now = budget.clock
    began = now()
    from ..budget.prepare import Wish, make_folder, make_plan
    from ..report.terminal import introduce_budget
    from ..training.session import new_path, run_path

    wish = Wish(data, recipe, seed, run_path(out, data), overrides, budget, overwrite)
    plan = make_plan(wish, command(), now, began)
    with new_path(out, data) as path:  # not before: measuring takes minutes, and a kill in them would leave it empty
        make_folder(replace(wish, out=path), plan)
    introduce_budget(path, plan)
    return path


def _follow(run: Path, data: str = "") -> Run:
    """Train what is missing of a run within a budget, and draw its page once all its stages' times are known."""
    from ..budget.follow import follow

    try:
        follow(run, _grow, log, data)
    except KeyboardInterrupt as stop:  # a stage's own command would leave the run without its student
        raise KeyboardInterrupt(f"viticulture resume {shell_word(run)}") from stop
    PageGuard(run).write()
    return Run(run)


def command() -> str:
    """The shell command that this process runs, without folders of this machine; a Python program's name otherwise."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    return (
        command_line([name if name != "__main__.py" else "viticulture", *words]) if name else f"python ({os.getpid()})"
    )
