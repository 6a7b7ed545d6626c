# SPDX-License-Identifier: Apache-2.0
"""From a run and a name to images that it has not seen the like of, and to what it makes of them.

What a folder is, is told by its layout:

    CORRUPTION/SEVERITY/CLASS/file, or GROUP/CORRUPTION/...    ImageNet-C: all that is there is judged, as it is
    nNNNNNNNN/file, fewer than the run's classes               ImageNet-A, -R and the like: the run chooses between the
                                                               classes that are there
    0/file to 999/file                                         ImageNet-V2, by the numbers of ImageNet's classes
    a .json                                                    ReaL: the run's own test images, any of several classes
    anything else                                              a test set: the 19 corruptions are made on the fly

Corrupted images are kept in the cache as far as the recipe's budget goes, results in the run's robustness.json after
every corruption, so that a stopped evaluation goes on where it was. Deviation: ImageNet-A and -R are cropped as the
run's own test images; the authors of Co-advise squeeze them to 256 x 256 and take the middle.
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
from ...models.views import told
from ...outputs import csv_text
from ...training.progress import showing
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of, dataset_of, stands_for_own
from ..inputs import read_unseen
from ..model import EvaluatedModel, OutputHeads, check_one_class, heads_of, of_run
from ..saved import checksum_of, name_of, read_each
from .corrupted import BATCH, Batches, Views, corrupted
from .imagenet import IMAGENET_CLASSES, are_imagenets, by_number, is_numbered, is_part, named_like
from .metrics import Robustness, wrong_predictions
from .relabeled import read_truth, relabeled
from .strengths import CORRUPTIONS, SETS, SEVERITIES, nearest

FILE = "robustness.json"

Cell = Callable[[str, int], Batches]
"""A corruption and a severity -> images and labels."""


@dataclass(frozen=True, eq=False)
class _Context:
    """A run's student, ready to be asked.

    Args:
        subject: it.
        recipe: of the run.
        own: the object of a Python program that holds the run's own images; empty where a file does.
    """

    subject: EvaluatedModel
    recipe: Config
    own: str | Source

    def errors(self, batches: Batches, heads: OutputHeads, among: Tensor | None = None) -> list[float]:
        """The share of wrong answers by head."""
        wrong: Tensor | int = 0
        images = 0
        for pixels, labels in batches:
            truth = send(labels, self.subject.device)
            shown = self.subject.normalized(pixels)
            wrong = wrong + wrong_predictions(
                self.subject.network, heads, shown, truth, among, self.subject.tta_network
            )
            images += len(labels)
        assert isinstance(wrong, Tensor), "there are images"
        return (wrong.double() / images).tolist()

    def heads(self, pixels: Tensor) -> OutputHeads:
        return heads_of(self.subject.network, self.subject.normalized(pixels), self.recipe)


def evaluate_robustness(run: RunFolder, data: str | Source = "", limit: int = 0, weights: str = "") -> Robustness:
    """Measure a run's weights out of distribution; the result joins the run's robustness.json.

    Args:
        run: a run with weights.
        data: a folder as above, or any test set; empty, or the very object that it learnt from, for the run's own test
            images, or validation images where it has no test.
        limit: images to corrupt, evenly spread over the split; 0 for all.
        weights: best, last or ema; by default those that count.

    Raises: UserError for data without labels, or of other classes than the run's.
    """
    if limit < 0:
        raise UserError(f"limit must not be negative, got {limit}; 0 takes all images")
    weights = weights or run.which()[0]
    own = stands_for_own(run, data)
    context = _Context(of_run(run, weights, BATCH), config_of(run), data if own else "")
    data_spec = context.subject.data_spec
    check_one_class(run, data_spec)
    content = (run.weights(weights) / "model.safetensors").read_bytes() + told(context.subject.eval_views).encode()
    mark = hashlib.blake2b(content, digest_size=16).hexdigest()
    held_out = "test" if "test" in run.read("run.json")["data"]["images"] else "validation"
    name = held_out if own else name_of(data)
    blank = Robustness(name, weights, 0, len(data_spec.classes), len(data_spec.classes), "", "", (), key=mark)
    blank = replace(blank, imagenet=are_imagenets(data_spec.classes), checksum=checksum_of(run, weights))
    if isinstance(data, str) and data.endswith(".json"):
        return _judge_relabeled(run, context, blank, Path(data).expanduser())
    folders = corrupted_folders(Path(data).expanduser()) if isinstance(data, str) and data else {}
    if folders:
        return _evaluate_folders(run, context, blank, folders)
    source = None if own else open_source(data)
    numbered = source is not None and is_numbered(source, data_spec)
    if source is not None:
        source = by_number(source, data_spec) if numbered else named_like(source, data_spec)
    if source is not None and (numbered or is_part(source, data_spec)):
        return _evaluate_part(run, context, blank, source)
    return _evaluate_corrupted(run, context, blank, source, limit)


def corrupted_folders(path: Path) -> dict[str, Path]:
    """Corruption -> its folder of severities, where a folder is laid out like ImageNet-C; else nothing.

    Raises: UserError if a severity is missing.
    """
    tops = [path, *matching(path, "*")] if path.is_dir() else []
    by_corruption = {name: top / name for top in tops for name in CORRUPTIONS if (top / name / "1").is_dir()}
    for folder in by_corruption.values():
        for severity in SEVERITIES:
            if not (folder / str(severity)).is_dir():
                raise UserError(f"{folder} must hold the severities 1 to 5 as folders, but {severity} is missing")
    return {name: by_corruption[name] for name in CORRUPTIONS if name in by_corruption}


def _judge_relabeled(run: RunFolder, context: _Context, blank: Robustness, file: Path) -> Robustness:
    """ReaL: the images on which the run is tested, as they are; each may have several right answers."""
    if blank.known != IMAGENET_CLASSES:
        raise UserError(f"{file} relabels ImageNet's 1,000 classes, and {run.path} knows {blank.known}")
    images = dataset_of(run, context.recipe).test
    if images is None:
        raise UserError(f"{run.path} was not tested on ImageNet's validation images, which {file} relabels")
    kept, classes = relabeled(images.records.names, read_truth(file))
    heads, part = context.heads(_first(images, context)), images.part(kept)
    batches = ((pixels, classes[numbers]) for numbers, pixels in context.subject.views(part))
    errors = context.errors(batches, heads)
    return _keep(run, replace(_about(blank, heads, context.subject), images=len(part), clean=tuple(errors)))


def _evaluate_part(run: RunFolder, context: _Context, blank: Robustness, source: Source) -> Robustness:
    """ImageNet-A, -R: as they are, with the answers that they allow."""
    classes = context.subject.data_spec.classes
    images, _ = read_unseen(context.recipe, source, classes)
    among = torch.tensor([name in source.classes for name in classes], device=context.subject.device)
    heads = context.heads(_first(images, context))
    clean = context.errors(_views(images, context.subject), heads, among)
    result = replace(
        _about(blank, heads, context.subject), images=len(images), classes=len(source.classes), clean=tuple(clean)
    )
    return _keep(run, result)


def _evaluate_folders(run: RunFolder, context: _Context, blank: Robustness, folders: dict[str, Path]) -> Robustness:
    """ImageNet-C: decoded once and not stored; shown whole, since the published images are crops already."""
    whole = replace(
        context.subject.image_settings,
        stream=True,
        cache_size=max(context.subject.data_spec.image_size),
        eval_crop=1.0,
        eval_interpolation="bicubic",
    )
    skip = context.recipe.data.skip_unreadable

    def images_of(corruption: str, severity: int) -> Images:
        source = named_like(open_source(folders[corruption] / str(severity)), context.subject.data_spec)
        return prepare_test(source, context.subject.data_spec.classes, whole, skip)[0]

    first = images_of(next(iter(folders)), 1)
    heads = context.heads(_first(first, context))
    key = digest([blank.key, *(str(folder.resolve()) for folder in folders.values()), *first.records.names])
    blank = replace(_about(blank, heads, context.subject), images=len(first), key=key)

    def cell(corruption: str, severity: int) -> Batches:
        return _views(images_of(corruption, severity), replace(context.subject, image_settings=whole))

    return _over_cells(run, context, blank, list(folders), cell)


def _evaluate_corrupted(
    run: RunFolder, context: _Context, blank: Robustness, source: Source | None, limit: int
) -> Robustness:
    """A test set: clean, then corrupted in 19 ways and 5 strengths."""
    if (channels := context.subject.data_spec.channels) != 3:
        raise UserError(
            f"the 19 corruptions are of pictures in color, and {run.path} has images.channels {channels}; other images "
            "can be named, such as a folder of your own corrupted ones: CORRUPTION/SEVERITY/CLASS/image"
        )
    if source is None:
        dataset = dataset_of(run, context.recipe, context.own)
        images = dataset.test or dataset.val
        if images is None:
            raise UserError(f"{dataset.name} has neither test nor validation images; name other data to judge by")
    else:
        images, _ = read_unseen(context.recipe, source, context.subject.data_spec.classes)
    numbers = torch.linspace(0, len(images) - 1, min(limit or len(images), len(images))).round().long()
    some = images.part(numbers)
    clean = Views(
        lambda: _views(some, context.subject), some.records.labels, numbers, context.subject.data_spec.image_size
    )
    heads = context.heads(_first(some, context))
    blank = replace(
        _about(blank, heads, context.subject),
        images=len(some),
        corrupted_by=SETS[nearest(min(context.subject.data_spec.image_size))],
    )
    blank = replace(blank, key=digest([blank.key, clean.content]), clean=tuple(context.errors(clean.open(), heads)))
    budget = int(context.recipe.images.max_cache_gb * 1e9)
    return _over_cells(
        run, context, blank, list(CORRUPTIONS), lambda name, severity: corrupted(clean, name, severity, budget)
    )


def _over_cells(run: RunFolder, context: _Context, blank: Robustness, names: list[str], cell: Cell) -> Robustness:
    """Every corruption at every severity; those that an earlier, stopped evaluation finished are taken from it."""
    earlier = read_robustness(run).get(blank.data)
    by_corruption = dict(earlier.errors) if earlier is not None and earlier.key == blank.key else {}
    heads = OutputHeads(blank.heads[1:] or blank.heads, blank.rule)
    with showing("corruptions") as progress:
        for done, name in enumerate(names):
            if name not in by_corruption:
                errors = []
                for severity in SEVERITIES:
                    errors.append(tuple(context.errors(cell(name, severity), heads)))
                    progress(len(SEVERITIES) * done + severity, len(SEVERITIES) * len(names))
                by_corruption[name] = tuple(errors)
                _keep(run, replace(blank, errors=by_corruption))
    return _keep(run, replace(blank, errors={name: by_corruption[name] for name in names}))


def read_robustness(run: RunFolder) -> dict[str, Robustness]:
    """What was measured so far of the run's weights, by data."""
    return read_each(run, FILE, Robustness.from_dict)


def _keep(run: RunFolder, result: Robustness) -> Robustness:
    """Write robustness.json, and beside it the same as a long table."""
    every = {**read_robustness(run), result.data: result}
    run.write(FILE, {data: entry.to_dict() for data, entry in every.items()})
    rows: list[tuple[object, ...]] = [("data", "weights", "corruption", "severity", "head", "error")]
    for data, entry in every.items():
        rows += [(data, entry.weights, name, s, head, round(error, 6)) for name, s, head, error in entry.rows()]
    run.write("robustness.csv", csv_text(rows))
    return result


def _about(blank: Robustness, heads: OutputHeads, subject: EvaluatedModel) -> Robustness:
    names = ("student",) if len(heads.names) == 1 else ("student", *heads.names)
    return replace(blank, rule=heads.rule_with(subject.eval_views), heads=names)


def _views(images: Images, subject: EvaluatedModel) -> Batches:
    """Pixels as the student is shown them, before normalization, and labels; on the CPU."""
    for numbers, pixels in subject.views(images):
        yield pixels, images.records.labels[numbers]


def _first(images: Images, context: _Context) -> Tensor:
    """A few images, to ask the student with."""
    return next(_views(images.part(torch.arange(min(8, len(images)))), context.subject))[0]
