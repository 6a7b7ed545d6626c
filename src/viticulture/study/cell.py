# SPDX-License-Identifier: Apache-2.0
"""Train and evaluate one cell: an ordinary run on the images of the study.

splits.json     data set, or one of its folds -> digest of the names of its held-out images
contents.json   data set -> digest of a split's names -> digest of the contents of these images
"""

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config.references import replaced
from ..data.image_set import StreamedImages
from ..data.open import is_there
from ..disk import read_json
from ..errors import UserError
from ..models.layout import layout
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

SPLITS = {"train": "training", "val": "validation", "test": "test"}  # splits, and the names of their images in messages


def check_splits(study: StudyFolder, data: str, splits: dict[str, list[str]]) -> None:
    """Check that all cells of one data set, or of one of its folds, have the same validation and test images, in the
    same order. Raises: UserError for a cell with others."""
    held_out = held_out_digest(splits)
    with study.locked("splits"):
        path = study.path / "splits.json"
        saved = read_json(path) if path.exists() else {}
        if data not in saved:
            study.write("splits.json", {**saved, data: held_out})
        elif saved[data] != held_out:
            raise UserError(
                f"the validation or test images of {data} are not those of the study's other cells: either the "
                "data has changed since, or a recipe holds out other images; restore them, or begin a new study"
            )


def check_contents(
    study: StudyFolder, data: str, settings: Any, splits: dict[str, list[str]], contents: Mapping[str, str]
) -> None:
    """Check that images which cells share, by their names, are the same images: the training images of one subset and
    seed, the held-out images of all.

    Raises: UserError for a cell whose images hold other pixels or labels than when the first such cell began.
    """
    digests = {digest([settings, names]): (split, contents.get(split, "")) for split, names in splits.items()}
    with study.locked("splits"):
        path = study.path / "contents.json"
        every = read_json(path) if path.exists() else {}
        saved = every.get(data, {})
        for key, (split, content) in digests.items():
            if saved.get(key, content) != content:
                raise UserError(
                    f"the {SPLITS[split]} images of {data} differ from those of the study's other cells under the same "
                    "names: the data has changed since; restore them (streamed ones with the times of their files, "
                    "cp -a), or begin a new study"
                )
        if new := {key: content for key, (_, content) in digests.items() if key not in saved}:
            study.write("contents.json", {**every, data: {**saved, **new}})


def held_out_digest(splits: dict[str, list[str]]) -> str:
    """Return a digest of the names of validation and test images, in their order."""
    return digest([splits.get("val", []), splits.get("test", [])])


def train_cell(study: StudyFolder, cell: Cell, plan: StudyPlan) -> None:
    """Begin a cell that this process has claimed, or resume it exactly where it stopped, and finish it."""
    session = _session(study, cell, plan)
    try:
        _check_images(study, cell, plan, session)
        check_precision(session)
        fit(session)
        task_of(session.run).evaluate(session.dataset)
        session.run.update(status="finished")  # last: after a kill before this, the next start repeats the evaluation
    finally:
        session.run.unlock()
        del session
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _check_images(study: StudyFolder, cell: Cell, plan: StudyPlan, session: Session) -> None:
    """Check that a cell's images are those of the study; a cell that has just begun is removed if they are not.

    Image sizes are those of the recipe: sizes that are chosen for the data change with the images.
    """
    images = study.recipe(cell.candidate).changed(plan.budget_keys(cell.candidate), by="study").images
    sizes = [images.image_size, images.cache_size, images.cache_margin]
    pixels = [images.pixel_format.fingerprint, images.fit, *([] if images.fit == "crop" else [images.normalize])]
    spec, masks = session.method.batch_spec, session.config.values["method"].get("masks", False)
    streamed = isinstance(session.dataset.train, StreamedImages)
    settings = [sizes, pixels, spec.contents, spec.labels, masks, streamed]
    name, fold = cell.candidate.data or study.grid.data, f", fold {cell.seed}" if cell.fold else ""
    try:
        check_splits(study, f"{name}{fold}", session.dataset.split_names)
        check_contents(study, name, settings, session.dataset.split_names, session.dataset.contents)
    except UserError:
        if not session.begun:
            session.run.unlock()
            study.clear(cell)
        raise


def contents(study: StudyFolder, cell: Cell, plan: StudyPlan) -> str:
    """Return a digest of everything that decides a cell's training, except the images."""
    saved = study.metadata["recipes"][study.slugs[cell.candidate.name]]
    return digest([saved, plan.overrides(study.grid, cell), cell.training_seed, cell.candidate.data])


def command(study: StudyFolder, cell: Cell, plan: StudyPlan) -> str:
    """Return the shell command that trains the same thing outside the study."""
    candidate = cell.candidate
    words = ["viticulture", "train", candidate.data or study.grid.data, "--recipe", candidate.recipe]
    keys = {**candidate.overrides, **_rows(study, cell), **study.grid.conditions, **plan.overrides(study.grid, cell)}
    for key, value in keys.items():
        words += [f"--{key}", yaml_word(value)]
    return command_line([*words, "--seed", str(cell.training_seed)])


def _rows(study: StudyFolder, cell: Cell) -> dict[str, Any]:
    """Return recipe keys that name the runs of other cells that a cell uses."""
    runs = {need.candidate.name: str(study.run(need).path) for need in study.grid.needs(cell)}
    return replaced(cell.candidate.overrides, runs)


def is_vit(network: nn.Module) -> bool:
    """Return whether a student, alone or as a backbone, attends to tokens; others are in a study for reference."""
    student = getattr(getattr(network, "backbone", None), "student", network)
    try:
        return bool(layout(student).attention)
    except UserError:  # not laid out as timm's networks are
        return any("attention" in type(module).__name__.lower() for module in student.modules())


def _session(study: StudyFolder, cell: Cell, plan: StudyPlan) -> Session:
    run, training = study.run(cell), contents(study, cell, plan)
    data = data_of(study, cell.candidate)
    begun = (run.path / "run.json").exists()
    if begun:
        RunFolder(run.path).lock()  # raises if the run is being resumed outside the study; released at once
    if begun and not is_damaged(run):
        if run.read("run.json").get("cell", training) != training:
            raise UserError(f"{run.path} was begun under other settings than study.yaml has now; begin a new study")
        session = reopen(str(run.path), data)
    else:
        study.clear(cell)
        recipe = study.recipe_file(cell.candidate)
        overrides = {**_rows(study, cell), **study.grid.conditions, **plan.overrides(study.grid, cell)}
        alone = command(study, cell, plan)
        session = begin(data, str(recipe), cell.training_seed, str(run.path), False, overrides, alone)
    vit, epochs = is_vit(session.method.student), session.config.train.epochs
    session.run.update(recipe=cell.candidate.recipe, cell=training, vit=vit, epochs=epochs)
    return session


def is_damaged(run: RunFolder) -> bool:
    """Return whether files of a begun run are broken, so that it must be trained again.

    Raises: UserError for files that cannot be read at present. Other obstacles, such as a missing module or an edited
    recipe, are reported when the run is resumed, and the run stays.
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
    """Return where a candidate's images are: as the user says, else under the study's name for them, or else in the
    folder where they were."""
    data = study.data or candidate.data or study.grid.data
    folder = study.metadata.get("folder")
    if not study.data and not candidate.data and folder and not is_there(data) and is_there(folder):
        return str(folder)
    return data
