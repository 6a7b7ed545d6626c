# SPDX-License-Identifier: Apache-2.0
"""Train and judge one cell: an ordinary run that ends with what a comparison needs besides."""

# Whether the cells of a study learn from, choose by and are tested on the same images.
#
# splits.json     data set, or one of its folds -> digest of the names of its held-out images
# contents.json   data set -> digest of a split's names -> digest of what these images hold
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config.references import replaced
from ..data.open import is_there
from ..data.stream import StreamImages
from ..disk import read_json
from ..errors import UserError
from ..models.detection.detector import Detector
from ..models.detection.segmenter import Segmenter
from ..models.taps import layout
from ..tasks.task import task_of
from ..text import command_line, read_yaml, yaml_word
from ..training.half_precision import check_precision
from ..training.run import fit
from ..training.run_folder import RunFolder
from ..training.session import Session, begin, reopen
from ..training.state import Damaged, load_checkpoint
from .folder import StudyFolder
from .grid import Candidate, Cell, digest
from .plan import StudyPlan

SPLITS = {"train": "training", "val": "validation", "test": "test"}
"""Splits, and what their images are called."""


def check_splits(study: StudyFolder, data: str, splits: dict[str, list[str]]) -> None:
    """All cells of one data set, or of one of its folds, are chosen and tested by the same images, in the same
    order.

    Raises: UserError for a cell whose validation or test images are others.
    """
    held_out = held_out_digest(splits)
    with study.locked("splits"):
        path = study.path / "splits.json"
        known = read_json(path) if path.exists() else {}
        if data not in known:
            study.write("splits.json", {**known, data: held_out})
        elif known[data] != held_out:
            raise UserError(
                f"the validation or test images of {data} are not those of the study's other cells: either the "
                "data has changed since, or a recipe holds out other images; bring them back, or begin a new study"
            )


def check_contents(
    study: StudyFolder, data: str, kept: Any, splits: dict[str, list[str]], contents: Mapping[str, str]
) -> None:
    """Images that cells share, by their names, are the same images: those of one subset and seed that are learnt
    from, those of all that are held out. What a study of an earlier version has trained is not known here.

    Args:
        study: whose cells they are.
        data: the data set.
        kept: what decides, besides the files, what is kept of an image; only cells that agree in it are compared.
        splits: names of each split's images, in their order.
        contents: split -> digest of what they hold.

    Raises: UserError for a cell whose images hold other pixels or labels than when the first such cell began.
    """
    marks = {digest([kept, names]): (split, contents.get(split, "")) for split, names in splits.items()}
    with study.locked("splits"):
        path = study.path / "contents.json"
        every = read_json(path) if path.exists() else {}
        known = every.get(data, {})
        for key, (split, mark) in marks.items():
            if known.get(key, mark) != mark:
                raise UserError(
                    f"the {SPLITS[split]} images of {data} are not what the study's other cells had under the same "
                    "names: the data has changed since; bring them back (streamed ones with the times of their "
                    "files, cp -a), or begin a new study"
                )
        if new := {key: mark for key, (_, mark) in marks.items() if key not in known}:
            study.write("contents.json", {**every, data: {**known, **new}})


def held_out_digest(splits: dict[str, list[str]]) -> str:
    """Digest of the names of validation and test images, in their order; `splits` names those of each split."""
    return digest([splits.get("val", []), splits.get("test", [])])


def train_cell(study: StudyFolder, cell: Cell, plan: StudyPlan) -> None:
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


def _check_images(study: StudyFolder, cell: Cell, plan: StudyPlan, session: Session) -> None:
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


def _kept(study: StudyFolder, cell: Cell, plan: StudyPlan, session: Session) -> list[Any]:
    """What decides, besides the files, what a cell keeps of an image and its labels. Sizes are those of the recipe:
    what is chosen where it leaves them open changes with the images."""
    images = study.recipe(cell.candidate).changed(plan.shown_to(cell.candidate), by="study").images
    sizes = [images.image_size, images.cache_size, images.cache_margin]
    pixels = [images.pixel_format.fingerprint, images.fit, *([] if images.fit == "crop" else [images.normalize])]
    learns, masks = session.method.batch_spec, session.config.values["method"].get("masks", False)
    streamed = isinstance(session.dataset.train, StreamImages)
    return [sizes, pixels, learns.contents, learns.labels, masks, streamed]


def contents(study: StudyFolder, cell: Cell, plan: StudyPlan) -> str:
    """Digest of everything that decides what a cell learns, but for the images."""
    known = study.facts["recipes"][study.slugs[cell.candidate.name]]
    return digest([known, plan.overrides(study.grid, cell), cell.training_seed, cell.candidate.data])


def command(study: StudyFolder, cell: Cell, plan: StudyPlan) -> str:
    """The shell command that trains the same thing by itself."""
    candidate = cell.candidate
    words = ["viticulture", "train", candidate.data or study.grid.data, "--recipe", candidate.recipe]
    chosen = {**candidate.overrides, **teachers(study, cell), **study.grid.conditions}
    chosen |= plan.overrides(study.grid, cell)
    for key, value in chosen.items():
        words += [f"--{key}", yaml_word(value)]
    return command_line([*words, "--seed", str(cell.training_seed)])


def teachers(study: StudyFolder, cell: Cell) -> dict[str, Any]:
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


def _session(study: StudyFolder, cell: Cell, plan: StudyPlan) -> Session:
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
    epochs = session.config.train.epochs
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


def data_of(study: StudyFolder, candidate: Candidate) -> str:
    """Where a candidate's images are: where a person says, else under the name that the study gives them, or else in
    the folder where they were."""
    if study.data:
        return study.data
    given = candidate.data or study.grid.data
    folder = study.facts.get("folder")
    if not candidate.data and folder and not is_there(given) and is_there(folder):
        return str(folder)
    return given
