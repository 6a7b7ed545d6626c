# SPDX-License-Identifier: Apache-2.0
"""Verbs on one training: train, go on, measure, use, export."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError, unknown
from ..text import clean, command_line
from ..waiting import waiting
from .run import Run

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..evaluation.accuracy import Evaluation
    from ..evaluation.dense.predict import DensePrediction
    from ..evaluation.dense.results import DenseEvaluations
    from ..evaluation.predict import Prediction
    from ..evaluation.results import Evaluations
    from ..export.int8 import Quantized
    from ..training.rundir import RunDir
    from ..training.session import Session
    from ..training.table import Row


def train(  # noqa: PLR0913  a verb: its keywords are the options of the command
    data: str,
    recipe: str = "default",
    seed: int = 0,
    out: str = "",
    overwrite: bool = False,
    overrides: dict[str, Any] | None = None,
    like: str = "",
    budget: str = "",
    method_search: str = "on",
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
        budget: time for all of it: 90s, 30m, 2h, 1night, or 15core-m of processors; student, image size, epochs and
            stages are chosen to fit, but for what you name.
        method_search: off: no stages before the student's own.

    Returns: the finished run.
    Raises: UserError for any mistake in data, recipe or machine, before training starts.
    """
    recipe = winner(like, recipe) if like else recipe
    if method_search not in ("on", "off"):
        raise unknown("method search", method_search, ("on", "off"))
    if budget:
        from .budgets import plan_run

        return _follow(plan_run(data, recipe, seed, out, overwrite, overrides or {}, budget, method_search == "on"))
    from ..training.session import begin

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
    from ..training.rundir import PLAN, RunDir
    from ..training.session import reopen

    if (Path(run) / PLAN).is_file():
        return _follow(Path(run), data)
    if RunDir.open(run).read("run.json")["status"] == "finished":
        print(clean(f"{run} is finished; nothing is left to train"), file=sys.stderr)
        return Run(Path(run))
    return _grow(reopen(run, data))


def evaluate(run: str, data: str = "") -> "Mapping[str, Evaluation] | DenseEvaluations":
    """Measure a run's weights: on its own test images, or on other labeled images of the same classes.

    On its own, everything that the run's report.html shows is measured again and kept, and the page drawn.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        data: other images: their test split where they declare one, else all of them.

    Returns: results by weights and split, such as `best/test`.
    """
    from ..evaluation.evaluate import check_classes, evaluate_other
    from ..hub.fetch import HUB, located
    from ..training.rundir import RunDir
    from ..training.session import dataset_of, recipe_of

    if run.startswith(HUB) and not data:
        raise UserError(f"name the images to measure on, which no repository holds: viticulture evaluate {run} DATA")
    folder = RunDir.open(located(run))
    if is_dense(folder):
        from .dense import evaluate_dense

        return evaluate_dense(folder, data)
    if data:
        return evaluate_other(folder, data)
    dataset = dataset_of(folder, recipe_of(folder))
    evaluations = _measure(folder, dataset)
    check_classes(folder, dataset.classes)  # after its page, which shows more than accuracy
    return cast("Evaluations", evaluations)


def predict(
    run: str, images: list[str], weights: str = "", out: str = ""
) -> "list[Prediction] | list[DensePrediction]":
    """Classify images, or find their objects, or tell their pixels apart: what the run has learnt.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        images: files, or folders that are searched for images; in Python also pictures, see `Run.predict`.
        weights: best, last or ema; by default those that count.
        out: a .csv or .json file to write as well; of objects a .json of COCO's results or a folder of pictures, of
            pixels a folder.

    Returns: one prediction an image, with the reason for those that could not be read.
    """
    from ..evaluation.given import as_images
    from ..evaluation.predict import ENDINGS, classify, write
    from ..hub.fetch import located
    from ..outputs import check_out
    from ..training.rundir import RunDir

    folder = RunDir.open(located(run))
    if is_dense(folder):
        from ..evaluation.dense.predict import predict_dense

        return predict_dense(folder, weights, as_images(images), out)
    if out:
        check_out(out, *ENDINGS)
    predictions = classify(folder, weights or folder.which()[0], as_images(images))
    if out:
        write(predictions, Path(out))
    return predictions


def export(run: str, out: str, weights: str = "", int8: bool = False, from_pixels: bool = False) -> "Path | Quantized":
    """Write a run's student as ONNX.

    Args:
        run: the run's folder, or hf-hub:USER/NAME. Weights there are safetensors and config.json that timm loads.
        out: the .onnx file.
        weights: best, last or ema; by default those that count.
        int8: compute its large products in eight bits, calibrated on training images, and say what that costs in
            accuracy on the test images, which must be there.
        from_pixels: the file takes one image as it is, [h, w, 3] uint8, and prepares it as `predict` does.

    Returns: the file; with int8 also what it costs and gives beside float32.
    """
    from ..evaluation.subject import of_run
    from ..export.int8 import to_int8
    from ..export.onnx_file import to_onnx
    from ..export.preparation import by_timms_transform
    from ..hub.fetch import located
    from ..training.rundir import RunDir
    from ..training.session import dataset_of, recipe_of

    folder = RunDir.open(located(run))
    if is_dense(folder):
        raise UserError(f"{run} finds objects or tells pixels apart, and only classifiers are exported so far")
    subject = of_run(folder, weights)
    written: Path | Quantized
    with waiting("writing ONNX"):
        if int8:
            dataset = dataset_of(folder, recipe_of(folder))
            written = to_int8(subject, dataset.train, dataset.test, Path(out))
        else:
            written = to_onnx(subject.network, Path(out), subject.task)
        if from_pixels:
            from ..export.pixels import put_before

            put_before(Path(out), subject.task, subject.image_settings)
        elif subject.task.classes and (moved := by_timms_transform(folder, weights)):
            tell(f"note: the file takes what `predict` shows a student; {moved}; --from-pixels puts predict's steps in")
    return written


def _measure(run: "RunDir", dataset: "Dataset") -> "Evaluations | DenseEvaluations":
    """Ask a run's student about its images, keep what it says, and draw its page."""
    if dataset.annotations:
        from .dense import measure_dense

        return measure_dense(run, dataset)
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
    from ..report.terminal import bar, introduce
    from ..training.processes import is_leader, the_first_works
    from ..training.run import fit

    if is_leader():
        introduce(session)
    try:
        fit(session, bar(session), after_epoch=partial(write_page, session.run))
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"viticulture resume {session.run.path}") from stop
    with the_first_works():
        if is_leader():
            _measure(session.run, session.dataset)
            session.run.update(status="finished")  # last: a kill before this is made good by resume
            session.run.unlock()
    return Run(session.run.path)


def is_dense(run: "RunDir") -> bool:
    """Whether a run finds objects or tells pixels apart."""
    from ..training.recipe import method_class
    from ..training.session import recipe_of

    return method_class(recipe_of(run)).batch_spec.contents != "classes"


def _follow(run: Path, data: str = "") -> Run:
    """Train what is missing of a run within a budget, and draw its page once all its stages' times are known."""
    from ..budget.follow import follow
    from ..report.pages.run_page import write_page
    from ..training.rundir import RunDir

    follow(run, _grow, tell, data)
    write_page(RunDir.open(run))
    return Run(run)


def tell(words: str) -> None:
    """Say on standard error what happens."""
    print(clean(words), file=sys.stderr, flush=True)


def command() -> str:
    """The shell command that this process runs, without folders of this machine; a Python program's name otherwise."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    return (
        command_line([name if name != "__main__.py" else "viticulture", *words]) if name else f"python ({os.getpid()})"
    )
