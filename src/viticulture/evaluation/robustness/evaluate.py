# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a run on images unlike its training images. The layout of a folder selects the protocol:

    CORRUPTION/SEVERITY/CLASS/file, or GROUP/CORRUPTION/...    ImageNet-C: all images, without further corruption
    nNNNNNNNN/file, fewer than the run's classes               ImageNet-A, -R and similar: the run chooses from the
                                                               classes of the data
    0/file to 999/file                                         ImageNet-V2, by the numbers of ImageNet's classes
    a .json                                                    ReaL: the run's test images, any of several classes
    anything else                                              a test set: the 19 corruptions are computed

Corrupted images are cached as far as the recipe's budget allows. Results are written to the run's robustness.json after
every corruption, so that a stopped evaluation continues there. Deviation: ImageNet-A and -R are cropped like the run's
test images; the authors of Co-advise resize them to 256 x 256 and take the middle.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...cache import digest
from ...config.resolve import Config
from ...data.dataset import prepare_test
from ...data.image_set import Images
from ...data.open import open_source
from ...data.sources.source import Source
from ...data.transforms.transform import send
from ...disk import matching
from ...errors import UserError
from ...models.tta import describe
from ...outputs import csv_text
from ...training.progress import showing
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of, dataset_of, stands_for_own
from ..inputs import read_unseen
from ..model import EvaluatedModel, OutputHeads, check_one_class, heads_of, of_run
from ..saved import checksum_of, name_of, read_each
from .corrupt import BATCH, Batches, CleanImages, corrupted_batches
from .imagenet import (
    IMAGENET_CLASSES,
    are_imagenets,
    by_number,
    is_numbered,
    is_part,
    read_truth,
    relabeled,
    with_run_names,
)
from .metrics import Robustness, wrong_predictions
from .strengths import CORRUPTIONS, SETS, SEVERITIES, nearest

FILE = "robustness.json"

Cell = Callable[[str, int], Batches]  # a corruption and a severity -> images and labels


@dataclass(frozen=True, eq=False)
class _Context:
    """A run with its loaded student."""

    run: RunFolder
    model: EvaluatedModel
    recipe: Config
    own_data: str | Source

    def errors(self, batches: Batches, heads: OutputHeads, allowed: Tensor | None = None) -> tuple[float, ...]:
        """Return the share of wrong predictions by head."""
        model, images = self.model, 0
        wrong: Tensor | int = 0
        for pixels, labels in batches:
            truth, inputs = send(labels, model.device), model.normalized(pixels)
            wrong = wrong + wrong_predictions(model.network, heads, inputs, truth, allowed, model.tta_network)
            images += len(labels)
        assert isinstance(wrong, Tensor), "there are images"
        return tuple((wrong.double() / images).tolist())

    def begin(self, images: Images, blank: Robustness) -> tuple[OutputHeads, Robustness]:
        """Return the student's heads, and the result with them and the number of images."""
        pixels = next(_views(images.part(torch.arange(min(8, len(images)))), self.model))[0]
        heads = heads_of(self.model.network, self.model.normalized(pixels), self.recipe)
        names = ("student",) if len(heads.names) == 1 else ("student", *heads.names)
        rule = heads.rule_with(self.model.eval_views)
        return heads, replace(blank, rule=rule, heads=names, images=len(images))


def evaluate_robustness(run: RunFolder, data: str | Source = "", limit: int = 0, weights: str = "") -> Robustness:
    """Evaluate a run's weights out of distribution, and add the result to the run's robustness.json.

    Args:
        data: a folder as above, or any test set; empty, or the object that the run was trained on, for its test images,
            or validation images if it has no test images.
        limit: images to corrupt, evenly spread over the split; 0 for all.

    Raises: UserError for data without labels, or of other classes than the run's.
    """
    if limit < 0:
        raise UserError(f"limit must not be negative, got {limit}; 0 takes all images")
    weights = weights or run.which()[0]
    of_this_run = stands_for_own(run, data)
    model = replace(of_run(run, weights, BATCH), temperature=())  # which changes no class
    context = _Context(run, model, config_of(run), data if of_this_run else "")
    data_spec = context.model.data_spec
    check_one_class(run, data_spec)
    content = (run.weights(weights) / "model.safetensors").read_bytes() + describe(context.model.eval_views).encode()
    key = hashlib.blake2b(content, digest_size=16).hexdigest()
    held_out = "test" if "test" in run.read("run.json")["data"]["images"] else "validation"
    name, classes = held_out if of_this_run else name_of(data), len(data_spec.classes)
    blank = Robustness(name, weights, 0, classes, classes, "", "", (), key=key)
    blank = replace(blank, imagenet=are_imagenets(data_spec.classes), checksum=checksum_of(run, weights))
    if isinstance(data, str) and data.endswith(".json"):
        return _evaluate_relabeled(context, blank, Path(data).expanduser())
    folders = corrupted_folders(Path(data).expanduser()) if isinstance(data, str) and data else {}
    if folders:
        return _evaluate_folders(context, blank, folders)
    source = None if of_this_run else open_source(data)
    numbered = source is not None and is_numbered(source, data_spec)
    if source is not None:
        source = by_number(source, data_spec) if numbered else with_run_names(source, data_spec)
    if source is not None and (numbered or is_part(source, data_spec)):
        return _evaluate_part(context, blank, source)
    return _evaluate_corrupted(context, blank, source, limit)


def corrupted_folders(path: Path) -> dict[str, Path]:
    """Return corruption -> its folder of severities, if a folder has the layout of ImageNet-C; else nothing.

    Raises: UserError if a severity is missing.
    """
    tops = [path, *matching(path, "*")] if path.is_dir() else []
    by_corruption = {name: top / name for top in tops for name in CORRUPTIONS if (top / name / "1").is_dir()}
    for folder in by_corruption.values():
        for severity in SEVERITIES:
            if not (folder / str(severity)).is_dir():
                raise UserError(f"{folder} must hold the severities 1 to 5 as folders, but {severity} is missing")
    return {name: by_corruption[name] for name in CORRUPTIONS if name in by_corruption}


def _evaluate_relabeled(context: _Context, blank: Robustness, file: Path) -> Robustness:
    """Evaluate on ReaL: the run's test images, uncorrupted, with any number of correct classes."""
    run = context.run
    if blank.trained_classes != IMAGENET_CLASSES:
        raise UserError(
            f"{file} relabels ImageNet's 1,000 classes, and {run.path} was trained on {blank.trained_classes}"
        )
    images = dataset_of(run, context.recipe).test
    if images is None:
        raise UserError(f"{run.path} was not tested on ImageNet's validation images, which {file} relabels")
    places, classes = relabeled(images.records.names, read_truth(file))
    part = images.part(places)
    heads, blank = context.begin(part, blank)
    batches = ((pixels, classes[numbers]) for numbers, pixels in context.model.views(part))
    return _save(run, replace(blank, clean=context.errors(batches, heads)))


def _evaluate_part(context: _Context, blank: Robustness, source: Source) -> Robustness:
    """Evaluate on ImageNet-A, -R: uncorrupted, with predictions from their classes."""
    classes = context.model.data_spec.classes
    images, _ = read_unseen(context.recipe, source, classes)
    allowed = torch.tensor([name in source.classes for name in classes], device=context.model.device)
    heads, blank = context.begin(images, blank)
    clean = context.errors(_views(images, context.model), heads, allowed)
    return _save(context.run, replace(blank, classes=len(source.classes), clean=clean))


def _evaluate_folders(context: _Context, blank: Robustness, folders: dict[str, Path]) -> Robustness:
    """Evaluate on ImageNet-C: decoded once and not cached; without a crop, since the published images are crops."""
    data_spec = context.model.data_spec
    settings = context.model.image_settings
    size = max(data_spec.image_size)
    whole = replace(settings, stream=True, cache_size=size, eval_crop=1.0, eval_interpolation="bicubic")
    model = replace(context.model, image_settings=whole)
    skip = context.recipe.data.skip_unreadable

    def images_of(corruption: str, severity: int) -> Images:
        source = with_run_names(open_source(folders[corruption] / str(severity)), data_spec)
        return prepare_test(source, data_spec.classes, whole, skip)[0]

    first = images_of(next(iter(folders)), 1)
    _, blank = context.begin(first, blank)
    key = digest([blank.key, *(str(folder.resolve()) for folder in folders.values()), *first.records.names])
    return _over_cells(
        context,
        replace(blank, key=key),
        list(folders),
        lambda corruption, severity: _views(images_of(corruption, severity), model),
    )


def _evaluate_corrupted(context: _Context, blank: Robustness, source: Source | None, limit: int) -> Robustness:
    """Evaluate on a test set: clean, then with 19 corruptions of 5 strengths."""
    run, model = context.run, context.model
    if (channels := model.data_spec.channels) != 3:
        raise UserError(
            f"the 19 corruptions need color images, and {run.path} has images.channels {channels}; name other images, "
            "such as a folder of corrupted ones: CORRUPTION/SEVERITY/CLASS/image"
        )
    if source is None:
        dataset = dataset_of(run, context.recipe, context.own_data)
        images = dataset.test or dataset.val
        if images is None:
            raise UserError(f"{dataset.name} has neither test nor validation images; name other data to evaluate on")
    else:
        images, _ = read_unseen(context.recipe, source, model.data_spec.classes)
    numbers = torch.linspace(0, len(images) - 1, min(limit or len(images), len(images))).round().long()
    some, size = images.part(numbers), model.data_spec.image_size
    clean = CleanImages(lambda: _views(some, model), some.records.labels, numbers, size)
    heads, blank = context.begin(some, blank)
    blank = replace(
        blank,
        corrupted_by=SETS[nearest(min(size))],
        key=digest([blank.key, clean.content]),
        clean=context.errors(clean.open(), heads),
    )
    budget = int(context.recipe.images.max_cache_gb * 1e9)
    cell: Cell = lambda name, severity: corrupted_batches(clean, name, severity, budget)  # noqa: E731
    return _over_cells(context, blank, list(CORRUPTIONS), cell)


def _over_cells(context: _Context, blank: Robustness, names: list[str], cell: Cell) -> Robustness:
    """Evaluate every corruption at every severity; results of an earlier, stopped evaluation are reused."""
    run = context.run
    earlier = read_robustness(run).get(blank.data)
    by_corruption = dict(earlier.errors) if earlier is not None and earlier.key == blank.key else {}
    heads = OutputHeads(blank.heads[1:] or blank.heads, blank.rule)
    with showing("corruptions") as progress:
        for done, name in enumerate(names):
            if name not in by_corruption:
                errors = []
                for severity in SEVERITIES:
                    errors.append(context.errors(cell(name, severity), heads))
                    progress(len(SEVERITIES) * done + severity, len(SEVERITIES) * len(names))
                by_corruption[name] = tuple(errors)
                _save(run, replace(blank, errors=by_corruption))
    return _save(run, replace(blank, errors={name: by_corruption[name] for name in names}))


def read_robustness(run: RunFolder) -> dict[str, Robustness]:
    """Read all results of the run's current weights, by data."""
    return read_each(run, FILE, Robustness.from_dict)


def _save(run: RunFolder, result: Robustness) -> Robustness:
    """Write robustness.json, and the same as a long table in robustness.csv."""
    every = {**read_robustness(run), result.data: result}
    run.write(FILE, {data: entry.to_dict() for data, entry in every.items()})
    rows: list[tuple[object, ...]] = [("data", "weights", "corruption", "severity", "head", "error")]
    for data, entry in every.items():
        rows += [(data, entry.weights, name, s, head, round(error, 6)) for name, s, head, error in entry.rows()]
    run.write("robustness.csv", csv_text(rows))
    return result


def _views(images: Images, model: EvaluatedModel) -> Batches:
    """Yield pixels of the network's input, before normalization, and labels; on the CPU."""
    for numbers, pixels in model.views(images):
        yield pixels, images.records.labels[numbers]
