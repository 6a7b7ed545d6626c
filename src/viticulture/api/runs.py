# SPDX-License-Identifier: Apache-2.0
"""Verbs on one run: measure, use, export."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, received
from ..text import log, shell_word
from ..waiting import waiting
from .arguments import as_source, checked, path_as_text, run_folder_of, trained_run
from .kinds import is_dense, is_multilabel
from .other_images import judge_other
from .page_guard import PageGuard

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..evaluation.accuracy import Evaluation
    from ..evaluation.dense.prediction import DensePrediction
    from ..evaluation.dense.results import DenseEvaluations
    from ..evaluation.multilabel.predict import LabelsPrediction
    from ..evaluation.multilabel.results import LabelEvaluations
    from ..evaluation.predict import Prediction
    from ..evaluation.results import Evaluations
    from ..export.int8 import Quantized
    from ..training.run_folder import RunFolder


@checked
def evaluate(
    run: Any, data: Any = "", out: str = ""
) -> "Mapping[str, Evaluation] | DenseEvaluations | LabelEvaluations":
    """Measure a run's weights: on its own test images, or on other labeled images of the same classes.

    Of runs that find objects or tell pixels apart, on others with boxes or masks.

    On its own, everything that the run's report.html shows is measured again and kept, and the page drawn. In Python,
    other images may also be an object as for `train`; that which the run learnt from stands for its own images.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        data: other images: their test split where they declare one, else all of them.
        out: of other images, an .html page or a .json file to write.

    Returns: results by weights and split, such as `best/test`.
    """
    from ..evaluation.evaluate import check_classes, check_held_out
    from ..hub.fetch import HUB
    from ..training.run_inputs import dataset_of, recipe_of, stands_for_own

    word, data = run_folder_of(run), path_as_text(data)
    if word.startswith(HUB) and isinstance(data, str) and not data:
        raise UserError(
            f"name the images to measure on, which no repository holds: viticulture evaluate {shell_word(word)} DATA"
        )
    folder = trained_run(word)
    if is_dense(folder) and out:
        raise UserError(
            f"--out writes what was told of classes of images, and {folder.path} tells others; leave it out"
        )
    if is_dense(folder) and not isinstance(data, str):
        raise UserError(f"{folder.path} is measured on objects or masks in files: name them, got {received(data)}")
    data = as_source(data)
    if not stands_for_own(folder, data):
        return judge_other(folder, data, out)
    if out:
        results = "multilabel.json" if is_multilabel(folder) else "evaluation.json"
        raise UserError(f"--out is for other images; of its own, {folder.path} keeps {results} and report.html")
    dataset = dataset_of(folder, recipe_of(folder), data)
    evaluations = measure(folder, dataset)
    check_classes(folder, dataset.classes)  # after its page, which shows more than accuracy
    check_held_out(folder, evaluations)
    return evaluations


@checked
def predict(
    run: Any, images: list[str], weights: str = "", out: str = "", top: int = 1
) -> "list[Prediction] | list[LabelsPrediction] | list[DensePrediction]":
    """Classify images, or find their objects, or tell their pixels apart: what the run has learnt.

    Args:
        run: the run's folder, or hf-hub:USER/NAME.
        images: files, or folders that are searched for images; of objects also a list of COCO's (.json), alone, which
            then numbers the results; in Python also pictures, see `Run.predict`.
        weights: best, last or ema; by default those that count.
        out: a .csv or .json file to write as well; of objects .json is COCO's results. Of objects and of pixels also
            a folder of pictures, of pixels no .json.
        top: classes to name of each image, the likeliest first; of several labels an image from 2 on, as 1 names those
            from their thresholds on.

    Returns: one prediction an image, with the reason for those that could not be read.
    """
    from ..evaluation.given import as_images
    from ..evaluation.predict import ENDINGS, as_csv, classify, write
    from ..outputs import check_out

    folder = trained_run(run_folder_of(run))
    learnt = folder.read("run.json")["data"]["folder"]
    if out and learnt and Path(out).resolve() == Path(learnt).resolve():
        raise UserError(f"{out} is what {run} learnt from; choose another --out")
    if is_dense(folder):
        from ..evaluation.dense.predict import predict_dense

        if top != 1:
            raise UserError(
                f"{run} finds objects or tells pixels apart, which have no list of likeliest classes; leave top out"
            )
        return predict_dense(folder, weights, as_images(images), out)
    if out:
        check_out(out, *ENDINGS)
    which, items = weights or folder.which()[0], as_images(images)
    if is_multilabel(folder):
        from ..evaluation.multilabel.predict import labels_csv, tell_labels

        labels = tell_labels(folder, which, items, top)
        if out:
            write(labels, Path(out), labels_csv)
        return labels
    predictions = classify(folder, which, items, top)
    if out:
        write(predictions, Path(out), as_csv)
    return predictions


@checked
def export(run: Any, out: Any, weights: str = "", int8: bool = False, from_pixels: bool = False) -> "Path | Quantized":
    """Write a run's student as ONNX; a detector's or a segmenter's with all that lies between an image and its answers.

    Of several labels an image the file gives probabilities, and its metadata hold their thresholds; of a run that
    learnt without labels it gives features.

    Args:
        run: the run's folder, or hf-hub:USER/NAME. Weights there are safetensors and config.json that timm loads.
        out: the .onnx file.
        weights: best, last or ema; by default those that count.
        int8: compute its large products in eight bits, calibrated on training images, and say what that costs in
            accuracy on the test images, which must be there. Classifiers alone.
        from_pixels: the file takes one image as it is, [h, w, 3] uint8, and prepares it as `predict` does; that of a
            detector or a segmenter always does. Of a run with `images.channels`, as many; values of an `images.range`
            must be levels by then, and the range stands in the file's metadata.

    Returns: the file; with int8 also what it costs and gives beside float32.
    """
    from ..evaluation.multilabel.results import thresholds_of
    from ..evaluation.subject import of_run
    from ..export.int8 import to_int8
    from ..export.onnx_file import to_onnx
    from ..export.preparation import by_timms_transform
    from ..models.views import VIEWS
    from ..training.run_inputs import dataset_of, recipe_of

    folder = trained_run(run := run_folder_of(run))
    if is_dense(folder):
        if int8:
            raise UserError(f"--int8 computes classifiers, and {folder.path} holds none; leave it out")
        return _export_dense(folder, Path(out), weights)
    if int8 and not (folder.path / "split.json").exists():  # of a run that was fetched
        raise UserError(f"what --int8 costs is measured on images of {run}, which no repository holds; leave it out")
    if int8 and folder.read("run.json")["data"].get("given") is not None:
        raise UserError(
            f"what --int8 costs is measured on images, and {run} learnt from an object of a Python program, which its "
            "folder does not hold; leave it out, or train on the images as files"
        )
    which = weights or folder.which()[0]
    subject = of_run(folder, which)
    several = subject.data_spec.several
    if int8 and (several or not subject.data_spec.classes):
        what = "tells several labels" if several else "learnt without labels"
        raise UserError(f"--int8 measures its cost in top-1 accuracy, and {run} {what}; leave it out")
    more: dict[str, Any] = {}
    if several:
        more["thresholds"] = thresholds_of(folder, which, len(subject.data_spec.classes))
    if (kept := subject.image_settings.range) is not None:
        more["range"] = kept
    if subject.eval_views != "one":
        more[VIEWS] = subject.eval_views
    written: Path | Quantized

    def finish(path: Path) -> None:
        if from_pixels:
            from ..export.pixels import put_before

            put_before(path, subject.data_spec, subject.image_settings)

    log(f"weights  {which}")
    with waiting("writing ONNX"):
        if int8:
            dataset = dataset_of(folder, recipe_of(folder))
            written = to_int8(subject, dataset.train, dataset.test, Path(out), more, finish)
        else:
            written = to_onnx(subject.answers, Path(out), subject.data_spec, more, finish)
        compared = not from_pixels and subject.data_spec.classes and not several
        if compared and (moved := by_timms_transform(folder, weights)) and moved.matters:
            log(f"note: the file takes what `predict` shows a student; {moved}; --from-pixels puts predict's steps in")
    return written


def _export_dense(run: "RunFolder", out: Path, weights: str) -> Path:
    """Write a run's network as ONNX, from an image as it is to boxes, or to classes of its pixels."""
    from ..evaluation.dense.subject import of_run
    from ..export.dense_file import dense_to_onnx
    from ..training.run_inputs import recipe_of

    subject = of_run(run, weights)
    images = recipe_of(run).section("images")
    more = {} if images.range is None else {"range": images.range}
    log(f"weights  {weights or run.which()[0]}")
    with waiting("writing ONNX"):
        return dense_to_onnx(subject.network, out, subject.data_spec, images.store_size, more)


def measure(run: "RunFolder", dataset: "Dataset") -> "Evaluations | DenseEvaluations | LabelEvaluations":
    """Ask a run's student about its images, keep what it says, and draw its page."""
    shown = PageGuard(run.path)
    evaluations: Evaluations | DenseEvaluations | LabelEvaluations
    if dataset.annotations:
        from ..analysis.dense_pictures import gather_dense_pictures
        from ..evaluation.dense.judge import judge_dense

        evaluations = judge_dense(run, dataset)
        with shown.guard("evaluate"):
            gather_dense_pictures(run, dataset, evaluations)
    elif is_multilabel(run):
        from ..analysis.label_pictures import gather_label_pictures
        from ..evaluation.multilabel.judge import judge_labels

        labels = judge_labels(run, dataset)
        evaluations = labels.evaluations
        with shown.guard("evaluate"):
            gather_label_pictures(run, dataset, labels)
    else:
        from ..analysis.pictures import gather_pictures
        from ..evaluation.evaluate import evaluate_run
        from ..evaluation.reference import judge_references

        classes = evaluate_run(run, dataset)
        evaluations = classes.evaluations
        with shown.guard("evaluate"):
            judge_references(run, dataset)
            gather_pictures(run, dataset, classes)
    shown.write()
    return evaluations
