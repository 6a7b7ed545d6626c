# SPDX-License-Identifier: Apache-2.0
"""Accuracy of linear classifiers and nearest neighbors on a frozen network's features.

Settings are chosen on validation images. The chosen classifier is then trained on training and validation images
together, as is usual, and tested once. Nearest neighbors vote [1, Sec. 3.4, with its T of 0.07]:

    score of class c = sum over the k nearest training images of class c of exp(cos(x, neighbor) / T)

[1] Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", CVPR 2018, arXiv:1805.01978.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ...data.data_settings import DataSettings
from ...data.dataset import Dataset, prepare
from ...data.open import open_source
from ...data.sources.several import is_joined
from ...data.sources.source import Source
from ...data.subsets import holdout
from ...errors import UserError, unknown
from ...keywords import rebuilt
from ...models.taps import features as features_by_name
from ...models.weights.files import identity
from ...optim.logistic_regression import fit
from ...outputs import write_out
from ...scores.intervals import wilson
from ...training.linear_head import DECAYS, Features, Part, frozen_features
from ...training.progress import showing
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of, given_again, own_data, stands_for_own
from ..model import EvaluatedModel, of_run, of_source
from ..saved import checksum_of, read_each

FILE = "probe.json"
NEIGHBORS = (5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
SIMILARITIES = 2**24  # in memory at once
VALIDATION = 0.1  # share of the training images held out if the data has no validation split

Classify = Callable[[Part, Tensor, int, Sequence[float]], Tensor]
"""From labeled images, others [N, D], C and S settings to classes [S, N]."""


@dataclass(frozen=True)
class Finding:
    """Result of one classifier on one kind of features; shares lie in [0, 1]."""

    features: str  # class or mean (`models.features`)
    classifier: str
    sweep: dict[float, float]  # accuracy on validation by setting: weight decay, or k
    setting: float  # the one with the highest; the first of equals
    top1: float
    top1_interval: tuple[float, float]

    @property
    def val(self) -> float:
        """Accuracy on validation of the chosen setting."""
        return self.sweep[self.setting]


@dataclass(frozen=True)
class Probe:
    """Results of all classifiers on all features of one network."""

    network: str
    weights: str
    data: str
    classes: int
    images: dict[str, int]
    findings: tuple[Finding, ...]
    checksum: str = ""

    @property
    def best(self) -> Finding:
        """The finding with the highest accuracy on validation."""
        return max(self.findings, key=lambda finding: finding.val)


def probe(source: str, data: str | Source = "", features: str = "", weights: str = "") -> Probe:
    """Evaluate a frozen network by its features.

    Args:
        data: labeled images; empty, or the object that the run was trained on, for those of the run.
        features: class or mean; "" for all that the network has.
        weights: best, last or ema of a run; "" for those that count.

    Raises: UserError for data without labels or test images, and for features that do not exist.
    """
    run = RunFolder.open(source) if (Path(source) / "run.json").is_file() else None
    if run is None and weights:
        raise UserError(f"{source} is no run, so it has no weights {weights!r} to choose; leave --weights out")
    weights = weights or run.which()[0] if run else ""
    checksum = checksum_of(run, weights) if run else ""
    model = of_run(run, weights) if run else of_source(source)
    dataset = _images(run, data, model)
    vectors_by_split = model_features(model, dataset)
    for split, vectors in vectors_by_split.items() if features else ():
        if features not in vectors:
            raise unknown(f"features of {source}", features, vectors)
        vectors_by_split[split] = {features: vectors[features]}
    parts = {name: _parts(dataset, vectors_by_split, name, model.device) for name in vectors_by_split["train"]}
    pairs, findings = [(name, classifier) for name in parts for classifier in CLASSIFIERS], []
    with showing("probing") as progress:
        for number, (name, classifier) in enumerate(pairs):
            progress(number, len(pairs))
            findings.append(_find(name, classifier, parts[name], len(dataset.classes)))
    sizes = {split: len(labels) for split, (_, labels) in next(iter(parts.values())).items()}
    return Probe(source, weights, dataset.name, len(dataset.classes), sizes, tuple(findings), checksum)


def model_features(model: EvaluatedModel, dataset: Dataset) -> Features:
    """Compute the features of every image, by the names of `models.taps.features`, or read them from the cache."""
    return frozen_features(
        lambda images: features_by_name(model.network, images),
        identity(model.network), dataset, model.data_spec, model.image_settings.crop, model.device,
    )  # fmt: skip


def save(result: Probe, out: str = "") -> Path | None:
    """Write the numbers into a file, or else into the run's probe.json, next to those of other weights and images."""
    if out:
        return write_out(out, asdict(result))
    if not result.weights:
        return None
    run = RunFolder.open(result.network)
    earlier = run.read(FILE) if (run.path / FILE).exists() else {}
    training_images = result.images["train"] + result.images["val"]
    return run.write(FILE, {**earlier, f"{result.weights}/{result.data}/{training_images}": asdict(result)})


def read_probes(run: RunFolder) -> list[Probe]:
    """Read all results of the run's current weights."""
    return [*read_each(run, FILE, partial(rebuilt, Probe)).values()]


def _images(run: RunFolder | None, data: str | Source, model: EvaluatedModel) -> Dataset:
    """Open labeled images: other ones in full, or the run's with its splits."""
    if not data and run is None:
        raise UserError("labeled images are needed: viticulture probe NETWORK DATA")
    selection, image_names = DataSettings(), None
    if run is not None:
        recipe: DataSettings = config_of(run).data
        selection = DataSettings(skip_unreadable=recipe.skip_unreadable)
        if stands_for_own(run, data):
            selection = replace(
                recipe, fraction=None, per_class=None, rule="balanced", folds=None, fold=0, leave_out=None
            )
            if model.data_spec.scale is not None:
                raise UserError(f"a probe predicts classes, and images of {run.path} have numbers; name other images")
            metadata, image_names = run.read("run.json")["data"], run.image_names
            data = given_again(run, data) if metadata.get("given") else own_data(run)
    source = open_source(data, "classes")
    if is_joined(source):
        raise UserError(
            f"a probe predicts one class per image, and {source.name} has several labels; name other images"
        )
    if not source.classes:
        raise UserError(f"{source.name} has no labels; name labeled images: viticulture probe RUN DATA")
    with showing("reading images") as progress:
        dataset = prepare(source, selection, model.image_settings.without_statistics, 0, progress, image_names)
    if dataset.test is None:
        raise UserError(f"{dataset.name} has no test images; name other data: viticulture probe RUN DATA")
    return dataset


def _parts(dataset: Dataset, features: Features, name: str, device: torch.device) -> dict[str, Part]:
    """Return the labeled images of each split; without a validation split, some training images become one."""
    parts = {}
    for split, vectors in features.items():
        labels = getattr(dataset, split).records.labels
        parts[split] = vectors[name][labels >= 0].float().to(device), labels[labels >= 0].to(device)
    if "val" not in parts:
        x, labels = parts["train"]
        stay, held = (
            torch.from_numpy(rows) for rows in holdout(labels.cpu().numpy(), VALIDATION, 0, dataset.train_groups)
        )
        if not len(held):
            raise UserError(f"{len(labels)} images of {dataset.name} are too few to hold some out for validation")
        parts |= {"train": (x[stay], labels[stay]), "val": (x[held], labels[held])}
    return parts


def _find(name: str, classifier: str, parts: dict[str, Part], classes: int) -> Finding:
    """Choose a setting on validation, train on both, test once."""
    method, settings = CLASSIFIERS[classifier]
    train, val, test = (parts[split] for split in ("train", "val", "test"))
    if classifier == "k-NN":
        settings = [k for k in settings if k <= len(train[1])] or [len(train[1])]
    accuracies = (method(train, val[0], classes, settings) == val[1]).double().mean(1).tolist()
    setting = settings[accuracies.index(max(accuracies))]
    both = torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]])
    hits, images = int((method(both, test[0], classes, [setting])[0] == test[1]).sum()), len(test[1])
    sweep = dict(zip(settings, accuracies, strict=True))
    return Finding(name, classifier, sweep, setting, hits / images, wilson(hits, images))


def _linear(train: Part, queries: Tensor, classes: int, decays: Sequence[float]) -> Tensor:
    return fit(*train, classes, decays).predict(queries)


def _neighbors(train: Part, queries: Tensor, classes: int, counts: Sequence[float]) -> Tensor:
    return vote(queries, *train, classes, [int(k) for k in counts])


def vote(features: Tensor, bank: Tensor, labels: Tensor, classes: int, counts: Sequence[int]) -> Tensor:
    """Predict classes by the k nearest neighbors, for several k in one pass, [N, D] -> [len(counts), N].

    Args:
        features: [N, D].
        bank: training vectors, [M, D].
        labels: of the bank, [M] int64, in [0, classes).
        counts: values of k, each at most M.
    """
    bank, chosen = F.normalize(bank, dim=1), []
    for some in torch.split(F.normalize(features, dim=1), max(1, SIMILARITIES // len(bank))):
        similar, nearest = (some @ bank.T).topk(max(counts))  # the most similar first
        weights, of = (similar.double() / TEMPERATURE).exp(), labels[nearest]
        scores = [weights.new_zeros(len(some), classes).scatter_add_(1, of[:, :k], weights[:, :k]) for k in counts]
        chosen.append(torch.stack(scores).argmax(-1))
    return torch.cat(chosen, dim=1)


CLASSIFIERS: dict[str, tuple[Classify, Sequence[float]]] = {
    "linear probe": (_linear, DECAYS),
    "k-NN": (_neighbors, NEIGHBORS),
}
