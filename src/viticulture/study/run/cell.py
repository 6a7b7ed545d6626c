# SPDX-License-Identifier: Apache-2.0
"""Train and judge one cell: an ordinary run that ends with what a comparison needs besides."""

import gc
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...data.open import is_there
from ...data.stream import StreamImages
from ...errors import UserError
from ...models.dense.detector import Detector
from ...models.dense.segmenter import Segmenter
from ...models.taps import layout
from ...tasks.task import task_of
from ...text import command_line, read_yaml, yaml_word
from ...training.half_precision import check_precision
from ...training.references import replaced
from ...training.run import fit
from ...training.run_folder import RunFolder
from ...training.session import Session, begin, reopen
from ...training.state import Damaged, load_checkpoint
from ..declare.grid import Candidate, Cell, digest
from ..folder import StudyDir
from ..plan.plan import Plan
from ..same_images import check_contents, check_splits


def train_cell(study: StudyDir, cell: Cell, plan: Plan) -> None:
    """Begin a cell, or go on with it exactly where it stopped, to its end. The caller holds its claim.

    Args:
        study: its study.
        cell: not finished.
        plan: says how long.

    Raises: whatever stops the training; what was reached stays on the disk.
    """
    session = _session(study, cell, plan)
    try:
        _check_images(study, cell, plan, session)
        check_precision(session)
        fit(session)
        _judge(session)
        session.run.update(status="finished")  # last: a kill before this is made good by the next start
    finally:
        session.run.unlock()
        del session
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _check_images(study: StudyDir, cell: Cell, plan: Plan, session: Session) -> None:
    """Raises: UserError if a cell's images are not those of the study; then nothing is left of one that has just begun,
    so that it can begin with the right ones."""
    dataset, kept = session.dataset, _kept(study, cell, plan, session)
    name, held_out = cell.candidate.data or study.grid.data, f", fold {cell.seed}" if cell.fold else ""
    try:
        check_splits(study, f"{name}{held_out}", dataset.split_names)
        check_contents(study, name, kept, dataset.split_names, dataset.contents)
    except UserError:
        if not session.begun:
            session.run.unlock()
            study.clear(cell)
        raise


def _judge(session: Session) -> None:
    """Measure what was trained on all that did not teach, and keep it in the run."""
    task_of(session.run).evaluate(session.dataset)


def _kept(study: StudyDir, cell: Cell, plan: Plan, session: Session) -> list[Any]:
    """What decides, besides the files, what a cell keeps of an image and its labels. Sizes are those of the recipe:
    what is chosen where it leaves them open changes with the images."""
    images = study.recipe(cell.candidate).with_keys(plan.shown_to(cell.candidate)).section("images")
    sizes = [images.image_size, images.store_size, images.store_margin]
    pixels = [images.pixel_format.fingerprint, images.fit, *([] if images.fit == "crop" else [images.normalize])]
    learns, masks = session.method.batch_spec, session.recipe.values["method"].get("masks", False)
    streamed = isinstance(session.dataset.train, StreamImages)
    return [sizes, pixels, learns.contents, learns.labels, masks, streamed]


def contents(study: StudyDir, cell: Cell, plan: Plan) -> str:
    """Digest of everything that decides what a cell learns, but for the images."""
    known = study.facts["recipes"][study.slugs[cell.candidate.name]]
    return digest([known, plan.overrides(study.grid, cell), cell.training_seed, cell.candidate.data])


def command(study: StudyDir, cell: Cell, plan: Plan) -> str:
    """The shell command that trains the same thing by itself."""
    candidate = cell.candidate
    words = ["viticulture", "train", candidate.data or study.grid.data, "--recipe", candidate.recipe]
    chosen = {**candidate.overrides, **teachers(study, cell), **study.grid.conditions}
    chosen |= plan.overrides(study.grid, cell)
    for key, value in chosen.items():
        words += [f"--{key}", yaml_word(value)]
    return command_line([*words, "--seed", str(cell.training_seed)])


def teachers(study: StudyDir, cell: Cell) -> dict[str, Any]:
    """Recipe keys that name the runs of other cells that this one learns from."""
    runs = {need.candidate.name: str(study.run(need).path) for need in study.grid.needs(cell)}
    return replaced(cell.candidate.overrides, runs)


def is_vit(student: nn.Module) -> bool:
    """Whether a network attends to tokens; a study shows others for comparison."""
    try:
        return bool(layout(student).attention)
    except UserError:  # not laid out as timm's networks are
        return any("attention" in type(module).__name__.lower() for module in student.modules())


def inner(network: nn.Module) -> nn.Module:
    """The student within a detector or a segmenter; any other is its own."""
    return network.backbone.student if isinstance(network, Detector | Segmenter) else network


def _session(study: StudyDir, cell: Cell, plan: Plan) -> Session:
    run, marked = study.run(cell), contents(study, cell, plan)
    where = data_of(study, cell.candidate)
    if (run.path / "run.json").exists():
        RunFolder(run.path).lock()  # raises if someone resumes the run by itself; falls at once
        if not is_damaged(run):
            if run.read("run.json").get("cell", marked) != marked:
                raise UserError(
                    f"{run.path} was begun under other settings than study.yaml asks for; begin a new study for these"
                )
            return _marked(reopen(str(run.path), where), cell, marked)
    study.clear(cell)
    recipe = study.recipe_file(cell.candidate)
    overrides = {**teachers(study, cell), **study.grid.conditions, **plan.overrides(study.grid, cell)}
    alone = command(study, cell, plan)
    session = begin(where, str(recipe), cell.training_seed, str(run.path), False, overrides, alone)
    return _marked(session, cell, marked)


def _marked(session: Session, cell: Cell, marked: str) -> Session:
    epochs = session.recipe.section("train").epochs
    session.run.update(
        recipe=cell.candidate.recipe, cell=marked, vit=is_vit(inner(session.method.student)), epochs=epochs
    )
    return session


def is_damaged(run: RunFolder) -> bool:
    """Whether a begun run's files are broken, so that it must be trained anew.

    Raises: UserError for files that cannot be read today. Whatever else keeps a run from going on, such as a module
    that is not there or an edited recipe, is told by who goes on with it, and the run stays.
    """
    files = [run.path / name for name in ("run.json", "recipe.yaml", "split.json")] + [run.checkpoint]
    for path in filter(Path.exists, files):
        try:
            path.open("rb").close()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
    try:
        run.read("run.json")["recipe"]
        read_yaml(run.text("recipe.yaml"), str(files[1]))
        run.read("split.json")
    except (UserError, LookupError, TypeError, ValueError):
        return True
    try:
        if run.checkpoint.exists():
            load_checkpoint(run.checkpoint)
    except Damaged:
        return True
    return False


def data_of(study: StudyDir, candidate: Candidate) -> str:
    """Where a candidate's images are: where a person says, else under the name that the study gives them, or else in
    the folder where they were."""
    if study.data:
        return study.data
    given = candidate.data or study.grid.data
    folder = study.facts.get("folder")
    if not candidate.data and folder and not is_there(given) and is_there(folder):
        return str(folder)
    return given
