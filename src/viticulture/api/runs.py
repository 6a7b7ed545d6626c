# SPDX-License-Identifier: Apache-2.0
"""Verbs on one training: train, go on, measure, use, export."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..text import clean, command_line
from ..waiting import waiting

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Dataset
    from ..evaluation.accuracy import Evaluation
    from ..evaluation.predict import Prediction
    from ..evaluation.results import Evaluations
    from ..training.rundir import RunDir
    from ..training.session import Session
    from ..training.table import Row


@dataclass(frozen=True)
class Run:
    """A training on disk, finished or not.

    Args:
        path: its folder.
    """

    path: Path

    @property
    def folder(self) -> "RunDir":
        """The folder's files."""
        from ..training.rundir import RunDir

        return RunDir.open(self.path)

    @property
    def facts(self) -> dict[str, Any]:
        """What run.json says: versions, seed, data, student, status, hardware."""
        return self.folder.read("run.json")

    @property
    def evaluations(self) -> "Evaluations":
        """Results by weights and split, such as `best/test`; `counting` is the one that counts, `counts` its key."""
        from ..evaluation.results import RESULTS, read_evaluations

        evaluations = read_evaluations(self.folder)
        if evaluations is None:
            raise UserError(f"{self.path} holds no {RESULTS}; to have it: viticulture evaluate {self.path}")
        return evaluations

    @property
    def accuracy(self) -> float:
        """Top-1 in [0, 1] of the weights that count: best on validation, else the last; on test where there is one."""
        counting = self.evaluations.counting
        if counting is None:
            raise UserError(f"{self.path} learnt without labels, so it has no accuracy")
        return counting.top1

    def predict(self, images: list[str], weights: str = "") -> "list[Prediction]":
        """Classify image files or folders; see the function of that name."""
        return predict(str(self.path), images, weights)

    def evaluate(self, data: str = "") -> "Mapping[str, Evaluation]":
        """Measure on the run's own or other images; see the function of that name."""
        return evaluate(str(self.path), data)

    def export(self, out: str, weights: str = "") -> Path:
        """Write ONNX; see the function of that name."""
        return export(str(self.path), out, weights)

    def student(self, weights: str = "") -> "nn.Module":
        """The trained network in evaluation mode; weights: best, last or ema, by default those that count."""
        from ..models.weights.files import load
        from ..training.session import recipe_of

        recipe_of(self.folder)  # imports what a student of a person's own needs
        return load(self.folder.weights(weights or self.folder.which()[0]))[0]


def train(
    data: str,
    recipe: str = "default",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
    like: str = "",
) -> Run:
    """Train a student on labeled images, evaluate it and write its report.

    Args:
        data: a folder (CLASS/image, or train/CLASS/image and test/CLASS/image), a CSV (path,label[,split]), a zip,
            a torchvision name such as cifar100, a Hugging Face id, WebDataset shards, or `digits`.
        recipe: a shipped recipe (`viticulture recipes`), a YAML file, or `default`, chosen by the images' size.
        seed: initialization, order, augmentation and the choice of a subset follow from it.
        out: the run's folder; a new one under runs/ when left out.
        overwrite: replace the run that is in that folder.
        overrides: recipe keys to change, such as {"train.epochs": 10}.
        like: a study's folder (`viticulture compare`): take the recipe that is first there, at its full length.

    Returns: the finished run.
    Raises: UserError for any mistake in data, recipe or machine, before training starts.
    """
    from ..training.session import begin

    recipe = winner(like, recipe) if like else recipe
    return _grow(begin(data, recipe, seed, out, overwrite, overrides or {}, command()))


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


def row_of(table: str, row: str, overrides: dict[str, Any] | None = None, seed: int = 0) -> "Row":
    """A row of a table as it is trained by itself, from a seed and with keys of one's own."""
    from ..training.table import read_table

    chosen = read_table(table).row(row)
    shared = {"data.subset_seed": seed} if chosen.seed_offset else {}  # another training on the same images
    return replace(chosen, overrides={**shared, **chosen.overrides, **(overrides or {})})


def winner(like: str, recipe: str = "default") -> str:
    """The file of the recipe that is first in a study. Raises: UserError if another recipe is named beside it."""
    from ..study.study import Study

    if recipe != "default":
        raise UserError(f"give --recipe or --like, not both, got {recipe} and {like}")
    study = Study(Path(like))
    return str(study.folder.recipe_file(study.leader.candidate))


def resume(run: str, data: str = "") -> Run:
    """Go on with a stopped training, exactly as if it had not been stopped.

    Args:
        run: its folder.
        data: where its images are now, if they have moved.
    """
    from ..training.rundir import RunDir
    from ..training.session import reopen

    if RunDir.open(run).read("run.json")["status"] == "finished":
        print(clean(f"{run} is finished; nothing is left to train"), file=sys.stderr)
        return Run(Path(run))
    return _grow(reopen(run, data))


def evaluate(run: str, data: str = "") -> "Mapping[str, Evaluation]":
    """Measure a run's weights: on its own test images, or on other labeled images of the same classes.

    On its own, everything that the run's report.html shows is measured again and kept, and the page drawn.

    Args:
        run: the run's folder.
        data: other images: their test split where they declare one, else all of them.

    Returns: results by weights and split, such as `best/test`.
    """
    from ..evaluation.evaluate import check_classes, evaluate_other
    from ..training.rundir import RunDir
    from ..training.session import dataset_of, recipe_of

    folder = RunDir.open(run)
    if data:
        return evaluate_other(folder, data)
    dataset = dataset_of(folder, recipe_of(folder))
    evaluations = _measure(folder, dataset)
    check_classes(folder, dataset.classes)  # after its page, which shows more than accuracy
    return evaluations


def predict(run: str, images: list[str], weights: str = "", out: str = "") -> "list[Prediction]":
    """Classify images.

    Args:
        run: the run's folder.
        images: files, or folders that are searched for images.
        weights: best, last or ema; by default those that count.
        out: a .csv or .json file to write as well.

    Returns: one prediction an image, with the reason for those that could not be read.
    """
    from ..evaluation.predict import ENDINGS, predict_files, write
    from ..outputs import check_out
    from ..training.rundir import RunDir

    folder = RunDir.open(run)
    if out:
        check_out(out, *ENDINGS)
    predictions = predict_files(folder, weights or folder.which()[0], images)
    if out:
        write(predictions, Path(out))
    return predictions


def export(run: str, out: str, weights: str = "") -> Path:
    """Write a run's student as ONNX.

    Args:
        run: the run's folder. Its weights/ folders already hold safetensors and config.json that timm loads.
        out: the .onnx file.
        weights: best, last or ema; by default those that count.
    """
    from ..export import to_onnx
    from ..models.weights.files import load
    from ..training.rundir import RunDir
    from ..training.session import recipe_of

    folder = RunDir.open(run)
    recipe_of(folder)  # imports what a student of a person's own needs
    student, task, _ = load(folder.weights(weights or folder.which()[0]))
    with waiting("writing ONNX"):
        return to_onnx(student, Path(out), task)


def _measure(run: "RunDir", dataset: "Dataset") -> "Evaluations":
    """Ask a run's student about its images, keep what it says, and draw its page."""
    from ..analysis.pictures import gather_pictures
    from ..evaluation.evaluate import evaluate_run
    from ..evaluation.reference import judge_references
    from ..report.pages.run_page import write_page

    judged = evaluate_run(run, dataset)
    judge_references(run, dataset)
    gather_pictures(run, dataset, judged)
    write_page(run)
    return judged.evaluations


def _grow(session: "Session") -> Run:
    """Train, measure, report.

    Of several processes, all train; the first then measures, draws the page and prints, while the others wait until it
    has ended, and return the same run without a word.
    """
    from ..report.pages.run_page import write_page
    from ..report.terminal import introduce
    from ..training.processes import is_leader, the_first_works
    from ..training.run import fit

    if is_leader():
        introduce(session)
    try:
        fit(session, after_epoch=partial(write_page, session.run))
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture resume {session.run.path}") from stop
    with the_first_works():
        if is_leader():
            _measure(session.run, session.dataset)
            session.run.update(status="finished")  # last: a kill before this is made good by resume
            session.run.unlock()
    return Run(session.run.path)


def command() -> str:
    """The shell command that this process runs, without folders of this machine; a Python program's name otherwise."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    return (
        command_line([name if name != "__main__.py" else "viticulture", *words]) if name else f"python ({os.getpid()})"
    )
