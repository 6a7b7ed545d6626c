# SPDX-License-Identifier: Apache-2.0
"""How much of the classes a network's features tell while it stays as it is: linear classifiers and nearest neighbors.

Settings are chosen on validation images. The chosen classifier then learns from training and validation images
together, as is usual, and is tested once.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...data.dataset import Dataset, prepare
from ...data.sources.several import is_joined
from ...data.sources.source import Source
from ...data.splits import Selection
from ...data.subsets import holdout
from ...errors import UserError, unknown
from ...keywords import rebuilt
from ...outputs import write_out
from ...scores.intervals import wilson
from ...training.data import open_labeled
from ...training.progress import showing
from ...training.run_folder import RunFolder
from ...training.run_inputs import config_of, given_again, own_data, stands_for_own
from ..model import EvaluatedModel, of_run, of_source
from ..saved import checksum_of, read_each
from .features import Features, frozen_features
from .linear import fit
from .neighbors import vote

DECAYS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
NEIGHBORS = (5, 10, 20, 50, 100, 200)

Part = tuple[Tensor, Tensor]
"""Features [N, D] and labels [N]."""

Classify = Callable[[Part, Tensor, int, Sequence[float]], Tensor]
"""From images of known class, others [N, D], C and S settings to classes [S, N]."""

VALIDATION = 0.1  # share of the training images held out where the data has no validation split


@dataclass(frozen=True)
class Finding:
    """One kind of features, judged in one way; shares lie in [0, 1].

    Args:
        features: class or mean (`models.features`).
        classifier: linear probe or k-NN.
        sweep: accuracy on validation by setting: weight decay, or k.
        setting: the one with the highest; of equals the first.
        top1: accuracy on test.
        top1_interval: its 95 % interval over images (Wilson).
    """

    features: str
    classifier: str
    sweep: dict[float, float]
    setting: float
    top1: float
    top1_interval: tuple[float, float]

    @property
    def val(self) -> float:
        """Accuracy on validation of the chosen setting."""
        return self.sweep[self.setting]


@dataclass(frozen=True)
class Probe:
    """Results of all classifiers on all features of one network.

    Args:
        subject: the network, as it was asked for.
        weights: best, last or ema of a run; else empty.
        data: what the images are called.
        classes: how many.
        images: by split.
        findings: features by features, first the linear probe.
        checksum: of a run's weights, see `kept.checksum_of`.
    """

    subject: str
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
    """Judge a frozen network by its features.

    Args:
        source: a run's folder; or what `subject.of_source` takes.
        data: labeled images; left out, or the very object that the run learnt from: those of the run.
        features: class or mean; left out, all that the network has.
        weights: best, last or ema of a run; left out, those that count.

    Raises: UserError for data without labels or without images to test on, and for features that are not there.
    """
    run = RunFolder.open(source) if (Path(source) / "run.json").is_file() else None
    if run is None and weights:
        raise UserError(f"{source} is no run, so it has no weights {weights!r} to choose; leave --weights out")
    weights = weights or run.which()[0] if run else ""
    known = checksum_of(run, weights) if run else ""
    subject = of_run(run, weights) if run else of_source(source)
    dataset = _images(run, data, subject)
    vectors_by_split = frozen_features(subject, dataset)
    for split, vectors in vectors_by_split.items() if features else ():
        if features not in vectors:
            raise unknown(f"features of {source}", features, vectors)
        vectors_by_split[split] = {features: vectors[features]}
    parts = {name: _parts(dataset, vectors_by_split, name, subject.device) for name in vectors_by_split["train"]}
    pairs, findings = [(name, classifier) for name in parts for classifier in CLASSIFIERS], []
    with showing("judging") as progress:
        for number, (name, classifier) in enumerate(pairs):
            progress(number, len(pairs))
            findings.append(_find(name, classifier, parts[name], len(dataset.classes)))
    sizes = {split: len(labels) for split, (_, labels) in next(iter(parts.values())).items()}
    return Probe(source, weights, dataset.name, len(dataset.classes), sizes, tuple(findings), known)


def keep(result: Probe, out: str = "") -> Path | None:
    """Write the numbers: into a file, or else into the run's probe.json, beside those of other weights and images."""
    if out:
        return write_out(out, asdict(result))
    if not result.weights:
        return None
    run = RunFolder.open(result.subject)
    known = run.read("probe.json") if (run.path / "probe.json").exists() else {}
    learnt = result.images["train"] + result.images["val"]
    return run.write("probe.json", {**known, f"{result.weights}/{result.data}/{learnt}": asdict(result)})


def read_probes(run: RunFolder) -> list[Probe]:
    """What was found so far of the run's weights."""
    return [*read_each(run, "probe.json", partial(rebuilt, Probe)).values()]


def _images(run: RunFolder | None, data: str | Source, subject: EvaluatedModel) -> Dataset:
    """Labeled images: other ones in all their number, or the run's own with its very splits."""
    if not data and run is None:
        raise UserError("labeled images are needed to judge by: viticulture probe NETWORK DATA")
    selection, remembered = Selection(), None
    if run is not None:
        kept: Selection = config_of(run).data
        selection = replace(kept, fraction=None, per_class=None, rule="balanced", folds=None, fold=0)
        if stands_for_own(run, data):
            known, remembered = run.read("run.json")["data"], run.image_names
            data = given_again(run, data) if known.get("given") else own_data(run)
    source = open_labeled(data)
    if is_joined(source):
        raise UserError(f"a probe tells one class an image, and {source.name} has several labels; name other images")
    if not source.classes:
        raise UserError(f"{source.name} has no labels to judge by; name labeled images: viticulture probe RUN DATA")
    image_settings = subject.image_settings.without_statistics
    with showing("reading images") as progress:
        dataset = prepare(source, selection, image_settings, 0, progress, remembered)
    if dataset.test is None:
        raise UserError(f"{dataset.name} has no test images; name other data: viticulture probe RUN DATA")
    return dataset


def _parts(dataset: Dataset, features: Features, name: str, device: torch.device) -> dict[str, Part]:
    """Labeled images of each split; validation is held out of training where there is none."""
    parts = {}
    for split, vectors in features.items():
        labels = getattr(dataset, split).records.labels
        parts[split] = vectors[name][labels >= 0].to(device), labels[labels >= 0].to(device)
    if "val" not in parts:
        x, labels = parts["train"]
        stay, held = (torch.from_numpy(rows) for rows in holdout(labels.cpu().numpy(), VALIDATION, 0))
        if not len(held):
            raise UserError(f"{len(labels)} images of {dataset.name} are too few to hold some out for validation")
        parts |= {"train": (x[stay], labels[stay]), "val": (x[held], labels[held])}
    return parts


def _find(name: str, classifier: str, parts: dict[str, Part], classes: int) -> Finding:
    """Choose on validation, learn from both, test once."""
    method, settings = CLASSIFIERS[classifier]
    train, val, test = (parts[split] for split in ("train", "val", "test"))
    if classifier == "k-NN":
        settings = [k for k in settings if k <= len(train[1])] or [len(train[1])]
    right = (method(train, val[0], classes, settings) == val[1]).double().mean(1).tolist()
    setting = settings[right.index(max(right))]
    both = torch.cat([train[0], val[0]]), torch.cat([train[1], val[1]])
    hits = int((method(both, test[0], classes, [setting])[0] == test[1]).sum())
    images = len(test[1])
    return Finding(
        features=name,
        classifier=classifier,
        sweep=dict(zip(settings, right, strict=True)),
        setting=setting,
        top1=hits / images,
        top1_interval=wilson(hits, images),
    )


def _linear(known: Part, queries: Tensor, classes: int, decays: Sequence[float]) -> Tensor:
    return fit(*known, classes, decays).predict(queries)


def _neighbors(known: Part, queries: Tensor, classes: int, counts: Sequence[float]) -> Tensor:
    return vote(queries, *known, classes, [int(k) for k in counts])


CLASSIFIERS: dict[str, tuple[Classify, Sequence[float]]] = {
    "linear probe": (_linear, DECAYS),
    "k-NN": (_neighbors, NEIGHBORS),
}
