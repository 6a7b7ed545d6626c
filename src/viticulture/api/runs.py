# SPDX-License-Identifier: Apache-2.0
"""Verbs on one run: measure, use, export."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, counted
from ..text import log, shell_word
from ..waiting import waiting
from .arguments import as_source, checked, path_as_text, run_folder_of, trained_run
from .page_guard import PageGuard

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..data.sources.source import Source
    from ..deploy.onnx.int8 import Quantized
    from ..tasks.results import Results
    from ..tasks.task import Task
    from ..training.run_folder import RunFolder


@checked
def evaluate(run: Any, data: Any = "", out: str = "") -> "Results[Any]":
    """Measure a run on its test images, or on other labeled images of its classes.

    Of runs that find objects or tell pixels apart, on others with boxes or masks.

    On its own, everything that the run's report.html shows is measured again and kept, and the page drawn. In Python,
    other images may also be an object as for `train`; that of its training stands for its images.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        data: other images: their test split where they declare one, else all of them.
        out: of other images, an .html page or a .json file to write.

    Returns: results by weights and split, such as `best/test`.
    """
    from ..deploy.hub.fetch import HUB
    from ..evaluation.model import check_classes
    from ..tasks.task import task_of
    from ..training.run_inputs import config_of, dataset_of, stands_for_own

    word, data = run_folder_of(run), path_as_text(data)
    if word.startswith(HUB) and isinstance(data, str) and not data:
        raise UserError(
            f"name the images to measure on, which no repository holds: viticulture evaluate {shell_word(word)} DATA"
        )
    folder = trained_run(word)
    task = task_of(folder)
    data = as_source(data)
    if not stands_for_own(folder, data):
        return evaluate_other(task, data, out)
    if out:
        raise UserError(f"--out is for other images; results of a run's images are in {folder.path}")
    dataset = dataset_of(folder, config_of(folder), data)
    evaluations = measure(folder, dataset)
    check_classes(folder, dataset.classes)  # after its page, which shows more than accuracy
    if not evaluations:
        raise UserError(
            f"{folder.path} held out none of its images; name others to evaluate on: "
            f"viticulture evaluate {shell_word(folder.path)} DATA"
        )
    return evaluations


@checked
def predict(
    run: Any,
    images: list[str],
    weights: str = "",
    out: str = "",
    top: int = 1,
    every: str = "1s",
    watch: bool = False,
) -> list[Any]:
    """Classify images, detect their objects or segment them, as the run was trained to.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        images: files, or folders that are searched for images and video clips (extra `video`); of objects also a list
            of COCO's (.json), alone, which then numbers the results; in Python also pictures, see `Run.predict`.
        weights: best, last or ema; by default those that count.
        out: a .csv or .json file to write as well; of objects .json is COCO's results. Of objects and of pixels also
            a folder of pictures, or of one clip an .mp4 with the predictions drawn in; of pixels no .json.
        top: classes to name of each image, the likeliest first; of several labels an image from 2 on, as 1 names those
            from their thresholds on.
        every: time between two frames of a clip, seconds; 0s for every frame.
        watch: keep predicting for images, not clips, as they appear in one folder, each once, until Ctrl-C; --out is
            a .csv, predictions.csv by default, and a later watch continues it.

    Returns: one prediction an image, with the reason for those that could not be read.
    """
    from ..data.images.video import time_step
    from ..deploy.watch import watch as watch_folder
    from ..evaluation.inputs import as_images
    from ..tasks.task import task_of

    step = time_step(every)
    folder = trained_run(run_folder_of(run))
    folder_of_data = folder.read("run.json")["data"]["folder"]
    if out and folder_of_data and Path(out).resolve() == Path(folder_of_data).resolve():
        raise UserError(f"{out} has the training images of {run}; choose another --out")
    task, items = task_of(folder), as_images(images)
    if not watch:
        return task.predict(items, weights, top, out, step)
    if step != 1:
        raise UserError(f"--watch predicts for images, and --every {every} is for clips; leave one of them out")
    if len(items) != 1 or not isinstance(items[0], Path) or top != 1:
        raise UserError(f"--watch takes one folder and no --top, got {counted(len(items), 'image')} and top {top}")
    watch_folder(task, items[0], Path(out or "predictions.csv"), weights)
    return []


@checked
def export(run: Any, out: Any, weights: str = "", int8: bool = False, from_pixels: bool = False) -> "Path | Quantized":
    """Write a run's student as ONNX.

    Files of detectors and segmenters hold every step from the image to the predictions. Of several labels an image the
    file gives probabilities, and its metadata hold their thresholds; of a run without labels it gives features.

    Args:
        run: the run's folder, or hf-hub:USER/NAME. Weights there are safetensors and config.json that timm loads.
        out: the .onnx file.
        weights: best, last or ema; by default those that count.
        int8: compute its large products in eight bits, calibrated on training images, and say what that costs in
            accuracy on the test images, which must be there. Classifiers alone.
        from_pixels: the file takes one image as it is, [h, w, 3] uint8, and prepares it as `predict` does; that of a
            detector or a segmenter always does. Of a run with `images.channels`, as many; values of an `images.range`
            must be levels by then, and the range stands in the file's metadata.

    Returns: the file; with int8 also its accuracy and size compared with float32.
    """
    from ..deploy.onnx.graph import to_onnx
    from ..deploy.onnx.int8 import to_int8
    from ..deploy.onnx.preparation import compare_preparations
    from ..evaluation.model import of_run
    from ..tasks.task import at_path, task_of
    from ..training.run_inputs import config_of, dataset_of

    folder = trained_run(run := run_folder_of(run))
    task, which = task_of(folder), weights or folder.which()[0]
    if int8 and not task.predicts_one_class:
        raise UserError(f"--int8 measures its cost in top-1 accuracy, and {run} {task.does}; leave it out")
    if int8 and not (folder.path / "split.json").exists():  # of a run that was fetched
        raise UserError(f"what --int8 costs is measured on images of {run}, which no repository holds; leave it out")
    if int8 and folder.read("run.json")["data"].get("given") is not None:
        raise UserError(
            f"what --int8 costs is measured on images, and {run} was trained on a Python object, which its "
            "folder does not hold; leave it out, or train on the images as files"
        )
    exported, images, graph = task.exported(which), config_of(folder).images, at_path(task.graph)
    from_pixels = from_pixels and not graph.prepares
    assert images.cache_size is not None, "a run's recipe says it"
    written: Path | Quantized

    def finish(path: Path) -> None:
        if from_pixels:
            from ..deploy.onnx.pixels import add_preparation

            add_preparation(path, exported.data_spec, images)

    log(f"weights  {which}")
    with waiting("writing ONNX"):
        if int8:
            dataset = dataset_of(folder, config_of(folder))
            model = of_run(folder, which)
            written = to_int8(model, dataset.train, dataset.test, Path(out), exported.metadata, finish)
        else:
            network, data_spec = exported.network, exported.data_spec
            written = to_onnx(network, Path(out), data_spec, exported.metadata, finish, graph, images.cache_size)
        compared = task.predicts_one_class and not from_pixels
        if compared and (moved := compare_preparations(folder, weights)) and moved.visible:
            log(f"note: the file takes what `predict` shows a student; {moved}; --from-pixels puts predict's steps in")
    return written


def measure(run: "RunFolder", dataset: "Dataset") -> "Results[Any]":
    """Evaluate a run on its held-out images, save what comes of it, and draw its page."""
    from ..tasks.task import task_of

    guard, task = PageGuard(run.path), task_of(run)
    evaluated = task.evaluate(dataset)
    with guard.guard("evaluate"):
        task.save_pictures(dataset, evaluated)
    guard.write()
    return evaluated.results


def evaluate_other(task: "Task", data: "str | Source", out: str) -> "Results[Any]":
    """Evaluate a run on other images, and log what the user should know before believing the numbers.

    Args:
        task: the run's.
        data: the images.
        out: an .html page or a .json file to write; "" for none.

    Returns: results by weights and name of the images.
    """
    from ..outputs import check_out, write_out
    from ..report.run_page import other_page

    path = check_out(out, ".html", ".json") if out else None
    other = task.evaluate_other(data)
    for warning in other.warnings:
        log(f"note     {warning}")
    if path is not None and path.suffix.lower() == ".html":
        write_out(path, other_page(task, other))
    elif path is not None:
        content = {"run": str(task.run.path), "images": other.name, "warnings": other.warnings}
        write_out(path, {**content, **other.evaluated.results.to_dict()})
    return other.evaluated.results
