# SPDX-License-Identifier: Apache-2.0
"""Verbs on one training: train, go on, measure, use, export."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError, unknown
from ..text import command_line, tell
from ..waiting import silence, waiting
from .given import as_word, check_callbacks, run_word, with_short
from .kinds import is_dense, is_multilabel
from .other_images import judge_other
from .run import Run
from .shown import Shown

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from ..data.dataset import Dataset
    from ..evaluation.accuracy import Evaluation
    from ..evaluation.dense.predict import DensePrediction
    from ..evaluation.dense.results import DenseEvaluations
    from ..evaluation.multilabel.predict import LabelsPrediction
    from ..evaluation.multilabel.results import LabelEvaluations
    from ..evaluation.predict import Prediction
    from ..evaluation.results import Evaluations
    from ..export.int8 import Quantized
    from ..training.rundir import RunDir
    from ..training.session import Session
    from ..training.table import Row


def train(  # noqa: PLR0913  a verb: its keywords are the options of the command
    data: Any,
    recipe: str = "default",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
    like: str = "",
    budget: str = "",
    method_search: str = "on",
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
        recipe: a shipped recipe (`viticulture recipes`), a YAML file, or `default`, chosen by the images and labels.
        seed: initialization, order, augmentation and the choice of a subset follow from it.
        out: the run's folder; a new one under runs/ when left out.
        overwrite: replace the run that is in that folder.
        overrides: recipe keys to change, such as {"train.epochs": 10}.
        like: a study's folder (`viticulture compare`): take the recipe that is first there, at its full length.
        budget: time for all of it: 90s, 30m, 2h, 1night, or 15core-m of processors; student, image size, epochs and
            stages are chosen to fit, but for what you name.
        method_search: off: no stages before the student's own.
        epochs: passes over the training images; short for an override.
        student: the network; short for an override.
        callbacks: Lightning's, of your own; one that ends the training early leaves a finished run.
        progress: False: not a word on standard error.

    Returns: the finished run.
    Raises: UserError for any mistake in data, recipe or machine, before training starts.
    """
    recipe = winner(like, recipe) if like else recipe
    short = {"train.epochs": epochs, "student.name": student or None}
    overrides = with_short(overrides or {}, {key: value for key, value in short.items() if value is not None})
    check_callbacks(callbacks)
    data = as_word(data)
    if method_search not in ("on", "off"):
        raise unknown("method search", method_search, ("on", "off"))
    if budget:
        from .budgets import plan_run

        if callbacks or not isinstance(data, str):
            what = "callbacks watch" if callbacks else "an object of this program teaches"
            raise UserError(f"{what} one training, and a budget may have several of their own processes; leave one out")
        return _follow(plan_run(data, recipe, seed, out, overwrite, overrides, budget, method_search == "on"))
    from ..training.session import begin

    with silence(not progress):
        return _grow(begin(data, recipe, seed, out, overwrite, overrides, command()), callbacks)


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


def resume(run: Any, data: Any = "", *, callbacks: "Sequence[Callback]" = (), progress: bool = True) -> Run:
    """Go on with a stopped training, exactly as if it had not been stopped.

    Args:
        run: its folder.
        data: where its images are now, if they have moved; the same object, where it learnt from one in Python.
        callbacks: as for `train`: those that it began with, which find their state again.
        progress: as for `train`.
    """
    run, data = run_word(run), as_word(data)
    check_callbacks(callbacks)
    from ..training.rundir import PLAN, RunDir
    from ..training.session import reopen

    if (Path(run) / PLAN).is_file():
        if callbacks or not isinstance(data, str):
            raise UserError(f"{run} has a budget, and no callbacks or objects of this program; leave them out")
        return _follow(Path(run), data)
    if RunDir.open(run).read("run.json")["status"] == "finished":
        tell(f"{run} is finished; nothing is left to train")
        return Run(Path(run))
    with silence(not progress):
        return _grow(reopen(run, data), callbacks)


def evaluate(
    run: Any, data: Any = "", out: str = ""
) -> "Mapping[str, Evaluation] | DenseEvaluations | LabelEvaluations":
    """Measure a run's weights: on its own test images, or on other labeled images of the same classes. Of runs that
    find objects or tell pixels apart, on others with boxes or masks.

    On its own, everything that the run's report.html shows is measured again and kept, and the page drawn. In Python,
    other images may also be an object as for `train`; that which the run learnt from stands for its own images.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        data: other images: their test split where they declare one, else all of them.
        out: of other images, an .html page or a .json file to write.

    Returns: results by weights and split, such as `best/test`.
    """
    from ..data.open import open_source
    from ..data.sources.source import Source
    from ..evaluation.evaluate import check_classes
    from ..hub.fetch import HUB, located
    from ..training.rundir import RunDir
    from ..training.session import dataset_of, is_own, recipe_of

    word, data = run_word(run), as_word(data)
    if word.startswith(HUB) and isinstance(data, str) and not data:
        raise UserError(f"name the images to measure on, which no repository holds: viticulture evaluate {word} DATA")
    folder = RunDir.open(located(word))
    if is_dense(folder):
        from .dense import evaluate_dense

        if out:
            raise UserError(
                f"--out writes what was told of classes of images, and {folder.path} tells others; leave it out"
            )
        return evaluate_dense(folder, data if isinstance(data, str) else type(data).__name__)
    if is_multilabel(folder):
        from .multilabel import evaluate_labels

        return evaluate_labels(folder, data, out)
    if not isinstance(data, str):
        data = open_source(data)
    if not is_own(folder, data) if isinstance(data, Source) else data:
        found, warnings = judge_other(folder, data, out)
        for warning in warnings:
            tell(f"note     {warning}")
        return found
    if out:
        raise UserError(f"--out is for other images; of its own, {run_word(run)} keeps evaluation.json and report.html")
    dataset = dataset_of(folder, recipe_of(folder), data)
    evaluations = _measure(folder, dataset)
    check_classes(folder, dataset.classes)  # after its page, which shows more than accuracy
    return cast("Evaluations", evaluations)


def predict(
    run: str, images: list[str], weights: str = "", out: str = "", top: int = 1
) -> "list[Prediction] | list[LabelsPrediction] | list[DensePrediction]":
    """Classify images, or find their objects, or tell their pixels apart: what the run has learnt.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        images: files, or folders that are searched for images; in Python also pictures, see `Run.predict`.
        weights: best, last or ema; by default those that count.
        out: a .csv or .json file to write as well; of objects a .json of COCO's results or a folder of pictures, of
            pixels a folder.
        top: classes to name of each image, the likeliest first; of several labels an image from 2 on, as 1 names those
            from their thresholds on.

    Returns: one prediction an image, with the reason for those that could not be read.
    """
    from ..evaluation.given import as_images
    from ..evaluation.predict import ENDINGS, as_csv, classify, write
    from ..hub.fetch import located
    from ..outputs import check_out
    from ..training.rundir import RunDir

    folder = RunDir.open(located(run_word(run)))
    if is_dense(folder):
        from ..evaluation.dense.predict import predict_dense

        if top != 1:
            raise UserError(
                f"{run} finds objects or tells pixels apart, which have no list of likeliest classes; leave top out"
            )
        return predict_dense(folder, weights, as_images(images), out)
    if is_multilabel(folder):
        from .multilabel import predict_labels

        return predict_labels(folder, weights, images, out, top)
    if out:
        check_out(out, *ENDINGS)
    predictions = classify(folder, weights or folder.which()[0], as_images(images), top)
    if out:
        write(predictions, Path(out), as_csv)
    return predictions


def export(run: str, out: str, weights: str = "", int8: bool = False, from_pixels: bool = False) -> "Path | Quantized":
    """Write a run's student as ONNX; a detector's or a segmenter's with all that lies between an image and its answers.

    Of several labels an image the file gives probabilities, and its metadata hold their thresholds.

    Args:
        run: the run's folder, or hf-hub:USER/NAME. Weights there are safetensors and config.json that timm loads.
        out: the .onnx file.
        weights: best, last or ema; by default those that count.
        int8: compute its large products in eight bits, calibrated on training images, and say what that costs in
            accuracy on the test images, which must be there. Classifiers alone.
        from_pixels: the file takes one image as it is, [h, w, 3] uint8, and prepares it as `predict` does; that of a
            detector or a segmenter always does.

    Returns: the file; with int8 also what it costs and gives beside float32.
    """
    from ..evaluation.multilabel.results import thresholds_of
    from ..evaluation.subject import of_run
    from ..export.int8 import to_int8
    from ..export.onnx_file import to_onnx
    from ..export.preparation import by_timms_transform
    from ..hub.fetch import located
    from ..training.rundir import RunDir
    from ..training.session import dataset_of, recipe_of

    folder = RunDir.open(located(run))
    if is_dense(folder):
        from .dense import export_dense

        return export_dense(folder, Path(out), weights, int8)
    subject = of_run(folder, weights)
    several = subject.task.several
    if int8 and several:
        raise UserError(f"--int8 measures its cost in top-1 accuracy, and {run} tells several labels; leave it out")
    more = {"thresholds": thresholds_of(folder, weights or folder.which()[0], len(subject.task.classes))}
    written: Path | Quantized
    with waiting("writing ONNX"):
        if int8:
            dataset = dataset_of(folder, recipe_of(folder))
            written = to_int8(subject, dataset.train, dataset.test, Path(out))
        else:
            written = to_onnx(subject.network, Path(out), subject.task, more if several else {})
        if from_pixels:
            from ..export.pixels import put_before

            put_before(Path(out), subject.task, subject.image_settings)
        elif subject.task.classes and not several and (moved := by_timms_transform(folder, weights)):
            tell(f"note: the file takes what `predict` shows a student; {moved}; --from-pixels puts predict's steps in")
    return written


def _measure(run: "RunDir", dataset: "Dataset") -> "Evaluations | DenseEvaluations | LabelEvaluations":
    """Ask a run's student about its images, keep what it says, and draw its page."""
    if dataset.annotations:
        from .dense import measure_dense

        return measure_dense(run, dataset)
    if is_multilabel(run):
        from .multilabel import measure_labels

        return measure_labels(run, dataset)
    from ..analysis.pictures import gather_pictures
    from ..evaluation.evaluate import evaluate_run
    from ..evaluation.reference import judge_references

    judged, shown = evaluate_run(run, dataset), Shown(run.path)
    with shown.spared("evaluate"):
        judge_references(run, dataset)
        gather_pictures(run, dataset, judged)
    shown.draw()
    return judged.evaluations


def _grow(session: "Session", callbacks: "Sequence[Callback]" = ()) -> Run:
    """Train, measure, report.

    Of several processes, all train; the first then measures, draws the page and prints, while the others wait until it
    has ended, and return the same run without a word.
    """
    from ..report.terminal import bar, introduce
    from ..training.processes import is_leader, the_first_works
    from ..training.run import fit

    if is_leader():
        introduce(session)
    try:
        fit(session, bar(session), after_epoch=Shown(session.run.path).draw, more=callbacks)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture resume {session.run.path}") from stop
    with the_first_works():
        if is_leader():
            _measure(session.run, session.dataset)
            session.run.update(status="finished")  # last: a kill before this is made good by resume
            session.run.unlock()
    return Run(session.run.path)


def _follow(run: Path, data: str = "") -> Run:
    """Train what is missing of a run within a budget, and draw its page once all its stages' times are known."""
    from ..budget.follow import follow

    follow(run, _grow, tell, data)
    Shown(run).draw()
    return Run(run)


def command() -> str:
    """The shell command that this process runs, without folders of this machine; a Python program's name otherwise."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    return (
        command_line([name if name != "__main__.py" else "viticulture", *words]) if name else f"python ({os.getpid()})"
    )
