# SPDX-License-Identifier: Apache-2.0
"""Features of a frozen network, computed once for every image and cached on disk; and its classifier, trained on them
by logistic regression (method linear_probe).

    features/KEY/SPLIT-NAME.npy     [N, D] float16, or float32 where they are large;
                                    KEY: weights, architecture, images and their preparation

The features are the inputs of the network's own linear layers that compute scores, so the result is an ordinary network
of its architecture. Several such layers, whose scores are averaged, are trained as one on all their inputs.

Images pass once, in batches of at most `PIXELS` pixels, whose features are written at once and read back as a map of
the file. Beyond that batch, memory is that of the features: 2 bytes a value, mapped from disk, and 4 while the
classifier is trained (2 from 2^28 values on), and as much again for cross-validation: 1 GB for 100,000 images of 1,280
values. `viticulture cache --clear` removes them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from ..cache import cache_folder, digest, publish
from ..config.sections import Engine
from ..data.batches.evaluation import evaluation_batches, usual_batch
from ..data.batches.loader import CPU
from ..data.dataset import FOLDS, Dataset
from ..data.image_set import Images
from ..data.subsets import assign, numbered
from ..data.transforms.crop import CenterCrop
from ..errors import UserError
from ..models.data_spec import DataSpec
from ..models.similarity import HeadInputs, vary
from ..models.students import blueprint
from ..models.weights.files import identity, save
from ..models.weights.load_matching import classifiers
from ..optim.logistic_regression import fit
from ..scores.calibration import MIN_IMAGES, fit_temperature
from ..text import log
from .machine import keep_freed_memory
from .metrics import MetricsFile
from .progress import showing

if TYPE_CHECKING:
    from .session import Session


VERSION = "3"  # of the features that the same weights make of the same images
HALF_UP_TO = 2.0**12  # largest value in the first batch for which float16, which ends at 65,504, is safe

Features = dict[str, dict[str, Tensor]]  # split -> name of the features -> [N, D]


def frozen_features(
    read: Callable[[Tensor], Mapping[str, Tensor]],
    network: Sequence[str],
    dataset: Dataset,
    data_spec: DataSpec,
    crop: CenterCrop,
    device: torch.device,
    splits: Mapping[str, Images] | None = None,
) -> Features:
    """Compute every image's features, or read them from the cache.

    Args:
        read: images [B, C, H, W], normalized, on the device -> features [B, D] by name.
        network: identifies `read`, as `identity` does.
        splits: of the dataset; null for all.

    Raises: UserError for features that are not finite.
    """
    prepared, splits = dataset.image_settings, splits or dataset.splits
    # The data's fingerprint holds neither a stretched shape, nor how streamed images are decoded.
    cached = [prepared.cache_size, prepared.shape, prepared.fitting, prepared.pixel_format]
    how = repr([data_spec.image_size, data_spec.mean, data_spec.std, crop.crop_pct, crop.interpolation, cached])
    key = digest([VERSION, *network, how, dataset.fingerprint, *splits])
    batch_size = usual_batch(data_spec.image_size)

    def make(folder: Path) -> None:
        keep_freed_memory()  # each batch's activations would else come from the system as zeroed pages
        done, total = 0, sum(map(len, splits.values()))
        with showing("computing features") as progress, torch.inference_mode():
            for split, images in splits.items():
                files: dict[str, np.memmap] = {}
                start = 0
                for batch in evaluation_batches(images, data_spec, batch_size, device, crop):
                    for name, vectors in read(batch["image"]).items():
                        values = vectors.float().cpu().numpy()
                        if not np.isfinite(values).all():
                            raise UserError("the network's features are not finite; take other weights")
                        if name not in files:
                            kind = np.float16 if np.abs(values).max() <= HALF_UP_TO else np.float32
                            shape, path = (len(images), values.shape[1]), folder / f"{split}-{name}.npy"
                            files[name] = open_memmap(path, "w+", dtype=kind, shape=shape)
                        if np.abs(values).max() > np.finfo(files[name].dtype).max:
                            raise UserError("the network's features differ too much in size; take other weights")
                        files[name][start : start + len(values)] = values
                    start += len(batch["image"])
                    progress(done + start, total)
                done += start
                for file in files.values():
                    file.flush()

    folder = publish(cache_folder() / "features" / key, make)
    return {split: _read(folder, split, images) for split, images in splits.items()}


def _read(folder: Path, split: str, images: Images) -> dict[str, Tensor]:
    try:
        files = sorted(folder.glob(f"{split}-*.npy"))
        by_name = {file.stem.removeprefix(f"{split}-"): np.load(file, "c", allow_pickle=False) for file in files}
        if not by_name or any(len(vectors) != len(images) for vectors in by_name.values()):
            raise ValueError("it does not hold one vector per image")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it: viticulture cache --clear") from error
    return {name: torch.from_numpy(vectors) for name, vectors in by_name.items()}


DECAYS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
FINAL_TOLERANCE = 1e-6  # nats, of the classifier that stays; those that are compared have the usual one
ONE_FOLD_FROM = 20_000  # training images from which a single fold is held out in cross-validation
FEW = 8  # images on which the network's scores are compared with the classifier's

Part = tuple[Tensor, Tensor]  # features [N, D] and labels [N]


@dataclass(frozen=True)
class Head:
    """A linear classifier on frozen features."""

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]
    decay: float  # its weight decay
    # Where its decay was chosen -> share of images classified correctly; empty for a decay that was set.
    accuracy: Mapping[str, float]
    temperature: tuple[float, ...] = ()  # out of fold, where validation images are too few for one


def train_head(
    features: Tensor,
    labels: Tensor,
    classes: int,
    val: tuple[Tensor, Tensor] | None,
    decay: float | None,
    groups: np.ndarray | None = None,
) -> Head:
    """Train a classifier on the features of the training images.

    Args:
        features: [N, D] of any float type.
        labels: [N] int64, in [0, classes).
        val: features and labels of validation images, which choose the decay; None: cross-validation does.
        decay: null chooses the strongest of the most accurate in `DECAYS`.
        groups: as for `parts`.
    """
    accuracy: dict[str, float] = {}
    if decay is None:
        splits = [((features, labels), val)] if val is not None else parts(features, labels, groups)
        hits = [(fit(*kept, classes, DECAYS).predict(held[0]) == held[1]).double() for kept, held in splits]
        shares = torch.cat(hits, dim=1).mean(1).tolist()
        decay = DECAYS[shares.index(max(shares))]
        accuracy = {"cross-validation" if val is None else "validation": max(shares)}
    weight, bias = fit(features, labels, classes, [decay], FINAL_TOLERANCE).on_features(0)
    return Head(weight, bias, decay, accuracy)


def parts(features: Tensor, labels: Tensor, groups: np.ndarray | None = None) -> list[tuple[Part, Part]]:
    """Divide images into `FOLDS` folds with the classes evenly in each, as far as groups, [N] as in `subsets.assign`,
    allow; return all others and the fold, for each. A class that is one group is divided by images."""
    fold = torch.empty_like(labels)
    fold[torch.sort(labels, stable=True).indices] = torch.arange(len(labels), device=labels.device) % FOLDS
    if groups is not None:
        groups, classes = groups.copy(), labels.cpu().numpy()
        for there in (classes == c for c in np.unique(classes)):
            if len(np.unique(numbered(groups[there], int(there.sum())))) < 2:
                groups[there] = -1
        fold = torch.from_numpy(assign(classes, groups, [1 / FOLDS] * FOLDS, 0)).to(labels.device)
    held = [fold == number for number in range(1 if len(labels) >= ONE_FOLD_FROM else FOLDS)]
    return [((features[~rows], labels[~rows]), (features[rows], labels[rows])) for rows in held]


def out_of_fold_temperature(
    features: Tensor, labels: Tensor, classes: int, decay: float, groups: np.ndarray | None = None
) -> tuple[float, ...]:
    """Return the temperature of a classifier by predictions for each fold of one trained on the others; () for too few
    images. `features`: [N, D]. `labels`: [N]. `groups`: as for `parts`."""
    logits, true = list[Tensor](), list[Tensor]()
    for kept, (held, held_labels) in parts(features, labels, groups):
        weight, bias = fit(*kept, classes, [decay]).on_features(0)
        logits.append(held.to(weight.dtype) @ weight.T + bias)
        true.append(held_labels)
    return fit_temperature(torch.cat(logits).softmax(-1).cpu(), torch.cat(true).cpu())


def put(student: nn.Module, head: Head) -> None:
    """Write a classifier into a student's own, whose scores are averaged where it has several."""
    names = classifiers(student)
    layers: list[Any] = [student.get_submodule(name) for name in names]
    weights = torch.split(head.weight, [layer.in_features for layer in layers], dim=1)
    with torch.no_grad():
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight.copy_(len(layers) * weight)
            layer.bias.copy_(head.bias)


def head_features(
    student: nn.Module,
    data_spec: DataSpec,
    dataset: Dataset,
    crop: CenterCrop,
    device: torch.device,
    splits: Mapping[str, Images] | None = None,
) -> dict[str, Tensor]:
    """Compute the inputs of a student's classifiers for every image, split -> [N, D], or read them from the cache.

    Args:
        student: is moved to the device and set to evaluation mode.
        crop: of images, as in evaluation.
        splits: of the dataset; null for all.

    Raises: UserError for features that are not finite or the same for all images.
    """
    student.eval().to(device)
    network = ["head", *identity(student, without=tuple(classifiers(student)))]
    with HeadInputs(student) as inputs:
        features = frozen_features(
            lambda images: {"head": inputs(images)}, network, dataset, data_spec, crop, device, splits
        )
    vectors = {split: each["head"] for split, each in features.items()}
    if not vary(next(iter(vectors.values()))):
        raise UserError(
            f"the features of {blueprint(student).name} are the same for all images, so that no classifier can be "
            "trained on them; take other weights, or other images"
        )
    return vectors


def probe_head(
    student: nn.Module,
    data_spec: DataSpec,
    dataset: Dataset,
    crop: CenterCrop,
    device: torch.device,
    decay: float | None = None,
    calibrate: bool = False,
) -> Head:
    """Train a student's classifier on its features of the training images, and put it into the student.

    Args:
        student: is moved to the device and set to evaluation mode.
        crop: of images, as in evaluation.
        decay: as for `train_head`.
        calibrate: fit a temperature out of fold where there are few validation images.

    Raises: UserError for a network whose scores are no linear function of vectors, or whose features are not finite.
    """
    splits = {split: images for split, images in dataset.splits.items() if split in ("train", "val")}
    features = head_features(student, data_spec, dataset, crop, device, splits)
    labeled = {
        split: (features[split].to(device), images.records.labels.to(device)) for split, images in splits.items()
    }
    groups = dataset.train_groups
    head = train_head(*labeled["train"], len(dataset.classes), labeled.get("val"), decay, groups)
    put(student, head)
    if calibrate and len(labeled.get("val", ((),))[0]) < MIN_IMAGES:
        fitted = out_of_fold_temperature(*labeled["train"], len(dataset.classes), head.decay, groups)
        head = replace(head, temperature=fitted)
    few = dataset.train.part(torch.arange(min(FEW, len(dataset.train))))
    with HeadInputs(student) as inputs, torch.inference_mode():
        for batch in evaluation_batches(few, data_spec, FEW, device, crop):
            vectors = inputs(batch["image"])
            scores = vectors @ head.weight.T + head.bias
            if not torch.allclose(student(batch["image"]), scores, rtol=1e-2, atol=1e-2):
                raise UserError(
                    f"the scores of {blueprint(student).name} are no linear function of its features; take another "
                    "network"
                )
    return head


def first_device(engine: Engine) -> torch.device:
    """Return the device on which a single process of a training computes."""
    return CPU if engine.on_cpu else torch.device(torch.accelerator.current_accelerator() or CPU)


def fit_head(session: "Session", metadata: dict[str, Any]) -> None:
    """Train the classifier of a session's frozen student, and write its weights and metrics into the run. `metadata`:
    for the weights' config.json.
    """
    began, cores_began = time.perf_counter(), time.process_time()
    method, config, run = session.method, session.config, session.run
    device = first_device(config.engine)
    decay: float | None = config.values["method"]["decay"]
    head = probe_head(method.student, method.data_spec, session.dataset, config.images.crop, device, decay, True)
    run.check_there()
    save(method.student.cpu(), run.weights("last"), method.data_spec, {**metadata, "decay": head.decay})
    run.metrics.unlink(missing_ok=True)  # after a kill
    MetricsFile(run.metrics).log_metrics({"epoch": 0, "decay": head.decay, **head.accuracy}, step=0)
    seconds, core_seconds = round(time.perf_counter() - began, 1), round(time.process_time() - cores_began, 1)
    run.update(seconds=seconds, core_seconds=core_seconds, chosen_by=head.accuracy, temperature=[*head.temperature])
    for name, share in head.accuracy.items():
        log(f"head     weight decay {head.decay:g}, {100 * share:.1f} % correct in {name}")
