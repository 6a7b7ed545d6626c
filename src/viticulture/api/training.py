# SPDX-License-Identifier: Apache-2.0
"""Commands that train a run, a row of a paper's table or within a budget, and that resume."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..budget.budget import TimeBudget
from ..config.keys import TEACHER
from ..errors import UserError, unknown
from ..study.terms import budget_text
from ..text import command_line, log, shell_word
from ..waiting import silence
from .arguments import check_callbacks, checked, path_as_text, run_folder_of, with_short
from .page_guard import PageGuard
from .run import Run
from .runs import measure

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..budget.follow import Calibration
    from ..budget.plan import BudgetPlan
    from ..budget.prepare import BudgetRequest
    from ..study.grid import Candidate
    from ..training.session import Session


@checked
def train(  # noqa: PLR0913  (its parameters are the options of the command)
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
    teacher: str = "",
    callbacks: "Sequence[Callback]" = (),
    progress: bool = True,
) -> Run:
    """Train a student on labeled images, evaluate it and write its report.

    In Python, data may also be a torch Dataset of (image, label), a pandas DataFrame with path and label, a pair of
    images and labels, or a dictionary of these by split; `resume` then needs the same object.

    Args:
        data: a folder (CLASS/image, or train/CLASS/image and test/CLASS/image), zip, CSV (path,label[,split]),
            WebDataset shards, or a name: `digits`, torchvision's such as cifar100, hf:OWNER/NAME.
        recipe: a shipped recipe (`viticulture recipes`), a YAML file, or `default`: chosen by data and image size.
        seed: determines initialization, order, augmentation and the choice of a subset.
        out: the run's folder; by default a new one in runs/.
        overwrite: replace the run in that folder.
        overrides: recipe keys to change, such as {"train.epochs": 10}.
        like: a study's folder (`viticulture compare`): use its best recipe, at full length.
        budget: total time, such as 90s, 30m (or 30), 2h, 1night, or 15core-m of processor time; the rest is chosen.
        method_search: off or False: one stage, no mixing.
        epochs: short for {"train.epochs": ...}.
        student: short for {"student.name": ...}.
        teacher: a trained network that teaches the student: a run, a timm model, hf-hub:OWNER/NAME,
            ARCHITECTURE=FILE. It teaches by its predictions, for which one of other classes first gets a classifier,
            in a run of its own next to the student's; other tasks than classification by its features. Several,
            separated by commas, teach by the mean of their predictions.
        callbacks: Lightning callbacks; one that stops the training early leaves a finished run.
        progress: False: print nothing on standard error.

    Returns: the finished run.
    Raises: UserError for a mistake in data, recipe or environment, before training starts.
    """
    short = {"train.epochs": epochs, "student.name": student or None, TEACHER: teacher or None}
    if like:
        recipe, size = winner(like, recipe)
        overrides = {**size, **(overrides or {})}
    overrides = with_short(overrides or {}, {key: value for key, value in short.items() if value is not None})
    check_callbacks(callbacks)
    data = path_as_text(data)
    if (limit := time_limit(budget, method_search)) is not None:
        if callbacks or not isinstance(data, str):
            what = "callbacks" if callbacks else "an object as data"
            raise UserError(f"{what} cannot be used with a budget, which trains in several processes; leave one out")
        with _alone(progress):
            return _follow(_planned(data, recipe, seed, out, overwrite, overrides, limit))
    from ..training.session import begin

    with _alone(progress):
        if TEACHER in overrides:
            overrides = _with_classifiers(data, recipe, seed, out, overwrite, overrides)
        return _train(begin(data, recipe, seed, out, overwrite, overrides, command()), callbacks=callbacks)


def _with_classifiers(
    data: Any, recipe: str, seed: int, out: str, overwrite: bool, overrides: dict[str, Any]
) -> dict[str, Any]:
    """Give teachers of other classes a classifier of the student's, where that learns classes: a run of their own, next
    to the student's, that teaches in their place. Arguments as for `train`."""
    from ..budget import recipes
    from ..budget.prepare import opened
    from ..config.start import teachers_of
    from ..models.weights.sources import anchored, predicts
    from ..training.run_folder import RunFolder
    from ..training.session import begin, run_path

    sources = teachers_of(str(overrides[TEACHER]))
    keys = {key: value for key, value in overrides.items() if key != TEACHER}
    size = keys.get("images.teacher_size")  # which a student without a teacher would refuse
    source, student, _ = opened(data, recipe, {k: value for k, value in keys.items() if k != "images.teacher_size"})
    if not recipes.may_be_taught(student):
        return overrides
    path = run_path(out, data)
    taught_by = [
        named if predicts(anchored(named), source.classes) else f"{path}-{TEACHER}{number if sources[1:] else ''}"
        for number, named in enumerate(sources, 1)
    ]
    option = f"--{TEACHER} {shell_word(','.join(taught_by))}"
    missing = {place: anchored(named) for named, place in zip(sources, taught_by, strict=True) if place != named}
    if missing:
        RunFolder.check_free(path, overwrite)
    for place, teacher in missing.items():
        if student.engine.processes > 1:
            raise UserError(
                f"{teacher} predicts other classes, and in several processes gets no classifier of these; make one "
                f"first: viticulture probe {teacher} DATA --out {TEACHER}, then --teacher {TEACHER}"
            )
        if Path(place, "run.json").exists() and not overwrite:
            raise UserError(
                f"{place} exists already, of an earlier command; add {option}, or --overwrite to replace it"
            )
    for place, teacher in missing.items():
        log(f"note     {teacher} gets a classifier of these classes first, in {place}")
        try:
            _train(begin(data, recipes.probe_stage(student, teacher, size), seed, place, overwrite, {}, command()))
        except KeyboardInterrupt as stop:  # resuming only the teacher would leave no student
            raise KeyboardInterrupt(f"{stop}` and then the same command with `{option}") from stop
    return {**keys, TEACHER: ",".join(taught_by)}


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
        data: where the images are, if not under the table's name for them.
        seed: as for `train`.
        out: as for `train`.
        overwrite: as for `train`.
        overrides: recipe keys to change on top of the row's.
    """
    chosen = row_of(table, row, overrides, seed)
    return train(data or chosen.data, chosen.recipe, seed + chosen.seed_offset, out, overwrite, chosen.overrides)


def row_of(table: str, row: str, overrides: dict[str, Any] | None, seed: int) -> "Candidate":
    """Return a row of a table as a single training, with a seed and overrides."""
    from ..study.paper_tables import read_table

    chosen = read_table(table).row(row)
    shared = {"data.subset_seed": seed} if chosen.seed_offset else {}  # another training on the same images
    return replace(chosen, overrides={**shared, **chosen.overrides, **(overrides or {})})


def winner(like: str, recipe: str = "default") -> tuple[str, dict[str, Any]]:
    """Return the file of a study's best recipe, and the override of the image size if the study chose one.

    Raises: UserError if another recipe is named, too.
    """
    from ..study.study import Study

    if recipe != "default":
        raise UserError(f"give --recipe or --like, not both, got {recipe} and {like}")
    study = Study(Path(like))
    leader = study.leader.candidate
    study.folder.recipe(leader)  # refuses the study's code unless the user trusts it
    if study.winner is None:
        log(
            f"note     {like} has no clear winner; {leader.name} leads on validation images, perhaps by chance: "
            "more seeds may decide, and --recipe takes another"
        )
    return str(study.folder.recipe_file(leader)), study.plan.image_size(leader) if study.plan else {}


@checked
def resume(
    run: Any, data: Any = "", epochs: int | None = None, *, callbacks: "Sequence[Callback]" = (), progress: bool = True
) -> Run:
    """Continue a stopped training, exactly as if it had not been stopped.

    Args:
        run: the run's folder.
        data: where its images are now, if they have moved (the run's record is updated, also of a finished run); the
            same object, if it was trained on one in Python.
        epochs: a new length, such as a few epochs more than are done; the learning rate decays accordingly. Not less
            than have begun.
        callbacks: those it began with; their state is restored.
        progress: as for `train`.
    """
    run, data = run_folder_of(run), path_as_text(data)
    check_callbacks(callbacks)
    from ..disk import sweep

    if is_complete(run, data, epochs):
        sweep(Path(run))
        return _finished(Run(Path(run)), data)
    from ..budget import follow
    from ..budget.plan import read_plan
    from ..training import length
    from ..training.run_folder import PLAN, RunFolder
    from ..training.session import reopen

    if (Path(run) / PLAN).is_file():
        if callbacks or not isinstance(data, str):
            raise UserError(f"{run} has a budget, which takes no callbacks and no object as data; leave them out")
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
        return _train(reopen(run, data), callbacks=callbacks)


@contextmanager
def _alone(progress: bool) -> Iterator[None]:
    """Train in the block with or without progress output, and restore the random state afterwards.

    Raises: UserError if another thread trains.
    """
    from ..training.state import own_random_state

    with silence(not progress), own_random_state():
        yield


def is_complete(run: str, data: Any = "", epochs: int | None = None) -> bool:
    """Return whether nothing is left to `resume` of a run, without importing PyTorch."""
    from ..disk import read_json
    from ..training.run_folder import PLAN, RunFolder

    path, nothing_new = Path(run), isinstance(data, str) and not data and epochs is None
    if not (nothing_new and (path / "run.json").is_file() and (path / "report.html").is_file()):
        return False
    stages = read_json(path / PLAN).get("stages") if (path / PLAN).is_file() else []
    spent = isinstance(stages, list) and all(isinstance(each, dict) and each.get("spent") for each in stages)
    return spent and RunFolder.open(path).read("run.json")["status"] == "finished"


def _finished(run: Run, data: Any) -> Run:
    """Log that a run is finished, and record where its images are now.

    Raises: UserError if its weights are missing, or the images are others.
    """
    from ..tasks.results import read_headline

    run.folder.which()
    if isinstance(data, str) and data:
        from ..training.run_inputs import config_of, dataset_of, keep_place

        dataset_of(run.folder, config_of(run.folder), data)
        keep_place(run.folder, data)
    headline = read_headline(run.folder)
    log(f"{run.path} is already finished" + (f": {headline} ({headline.written_interval})" if headline else ""))
    return run


def _train(session: "Session", calibration: "Calibration | None" = None, callbacks: "Sequence[Callback]" = ()) -> Run:
    """Train, evaluate and report; a stage of a budget is calibrated first.

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
        if calibration is not None:
            fit(session, bar(session), more=[calibration.stopwatch], until=calibration.epochs)
            session = calibration.fix(session)
        fit(session, bar(session), after_epoch=PageGuard(session.run.path).write, more=callbacks)
        with the_first_works():
            if session.leads:
                measure(session.run, session.dataset)
                session.run.update(status="finished")  # last: after a kill before this, resume repeats it
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture resume {shell_word(session.run.path)}") from stop
    finally:
        session.run.unlock()  # a program may resume after an error
    return Run(session.run.path)


def time_limit(budget: str | float, method_search: Any) -> TimeBudget | None:
    """Return the budget that two arguments of `train` set; None without one."""
    searches = {True: True, False: False, "on": True, "off": False}
    if not isinstance(method_search, str | bool) or method_search not in searches:
        raise unknown("method search", method_search, ("on", "off"))
    if budget == "":
        if not searches[method_search]:
            raise UserError("--method-search belongs to --budget; leave it out, or add a budget")
        return None
    return TimeBudget(budget_text(budget), searches[method_search])


def plan_within(
    data: str, recipe: str, seed: int, out: str, overwrite: bool, overrides: dict[str, Any], budget: TimeBudget
) -> tuple["BudgetRequest", "BudgetPlan"]:
    """Choose what fits into a budget; arguments as for `train`. Raises: UserError for any mistake."""
    now = budget.clock
    began = now()
    from ..budget.prepare import BudgetRequest, make_plan
    from ..training.session import run_path

    keys = {key: value for key, value in overrides.items() if key != TEACHER}
    teacher = str(overrides.get(TEACHER, ""))
    request = BudgetRequest(data, recipe, seed, run_path(out, data), keys, budget, overwrite, teacher)
    return request, make_plan(request, command(), now, began)


def _planned(
    data: str, recipe: str, seed: int, out: str, overwrite: bool, overrides: dict[str, Any], budget: TimeBudget
) -> Path:
    """Choose what fits into a budget, write it down and show it; arguments as for `train`. Returns: the run's folder.

    Raises: UserError for any mistake, before there is a folder.
    """
    request, plan = plan_within(data, recipe, seed, out, overwrite, overrides, budget)
    from ..budget.prepare import make_folder
    from ..report.terminal import introduce_budget
    from ..training.session import new_path

    with new_path(out, data) as path:  # only now: a kill during the minutes of measuring would leave an empty folder
        make_folder(replace(request, out=path), plan)
    introduce_budget(path, plan)
    return path


def _follow(run: Path, data: str = "") -> Run:
    """Train what is missing of a run within a budget, and draw its page once all its stages' times are known."""
    from ..budget.follow import follow

    try:
        follow(run, _train, log, data)
    except KeyboardInterrupt as stop:  # resuming only the stage would leave the run without its student
        raise KeyboardInterrupt(f"viticulture resume {shell_word(run)}") from stop
    PageGuard(run).write()
    return Run(run)


def command() -> str:
    """Return the shell command of this process without its folder, or a Python program's name."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    return (
        command_line([name if name != "__main__.py" else "viticulture", *words]) if name else f"python ({os.getpid()})"
    )
