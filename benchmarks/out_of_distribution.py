# SPDX-License-Identifier: Apache-2.0
"""Scores that separate images of other classes from those that a classifier was trained on.

    python -m benchmarks.out_of_distribution NETWORK DATA [DATA ...] --image-size 128
    python -m benchmarks.out_of_distribution RUN NEAR [DATA ...]

A frozen network gets a classifier (logistic regression) of half of the classes of each DATA, a random half for each
seed; the other half is `near`. A RUN was trained on half of some classes, and NEAR holds images of the others. Other
DATA, and noise, are far. `AUROC` compares test images of the classes trained on with others; `accepted` is the share
of others at or above the threshold that 95 % of validation images reach, `kept` that of test images.

Scores: maximum softmax probability (Hendrycks and Gimpel 2017), energy (Liu et al. 2020), cosine to the k-th nearest
training image (Sun et al. 2022).
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from viticulture.data.dataset import ImageSettings, read_rows
from viticulture.data.image_set import CachedImages, Images
from viticulture.data.open import open_source
from viticulture.evaluation.model import of_run
from viticulture.models.similarity import BELOW
from viticulture.models.weights.load_matching import classifiers
from viticulture.table import Cell, Column, Table, print_table
from viticulture.training.linear_head import Part, head_features, train_head
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of, dataset_of
from viticulture.training.session import begin

NOISE = 500
MEASURES = ("AUROC", "accepted")
Measured = Mapping[tuple[str, str], tuple[float, float]]
"""AUROC and share accepted, by score and images."""


def scores(train: Tensor, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """Return scores [N] of features [N, D] and logits [N, C], high for images like the training images [M, D]."""
    few = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:1000]]
    banks = {f"{k}-NN": (k, train) for k in (1, 5, 10, 50)} | {"5-NN of 1,000": (5, few)}
    normed = F.normalize(features, dim=1)
    cosines = {
        name: torch.cat([(some @ F.normalize(bank, dim=1).T).topk(k).values[:, -1] for some in normed.split(1024)])
        for name, (k, bank) in banks.items()
    }
    return {"maximum softmax": logits.softmax(1).amax(1), "energy": logits.logsumexp(1), **cosines}


def measured(train: Tensor, weight: Tensor, bias: Tensor, sets: Mapping[str, Tensor]) -> Measured:
    """Return AUROC and share accepted; `sets` are val, test (whose AUROC is 50 %), and others."""
    every = {name: scores(train, x, x @ weight.T + bias) for name, x in sets.items()}
    rows = {}
    for score, val in every.pop("val").items():
        threshold, own = val.quantile(BELOW), every["test"][score]
        for name, of in every.items():
            other = of[score]
            above = (own[:, None] > other).double().mean() + (own[:, None] == other).double().mean() / 2
            rows[score, name] = float(above), float((other >= threshold).double().mean())
    return rows


def images_of(data: str, settings: ImageSettings) -> Images:
    """Return the test images of a data set, or all of it where it has none."""
    source = open_source(data)
    return read_rows(source, source.splits.get("test", np.arange(len(source))), settings)[0]


def noise_like(images: Images) -> Images:
    """Return uniform noise of the size of other images."""
    assert isinstance(images, CachedImages)
    shape, generator = (NOISE, *images.pixels.shape[1:]), torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    sizes, names = images.records.sizes[:1].expand(NOISE, 2), [str(k) for k in range(NOISE)]
    records = replace(images.records, labels=torch.full((NOISE,), -1), sizes=sizes, names=names)
    return CachedImages(pixels, torch.arange(NOISE), records)


def of_a_run(path: str, data: Sequence[str]) -> Measured:
    """Measure a run; the first of `data` is near."""
    run = RunFolder.open(path)
    model, config, dataset = of_run(run), config_of(run), dataset_of(run, config_of(run))
    others = {name: images_of(name, config.images) for name in data}
    splits = {**dataset.splits, **others, "noise": noise_like(dataset.train)}
    features = head_features(model.network, model.data_spec, dataset, config.images.crop, model.device, splits)
    x = {name: vectors.float() for name, vectors in features.items()}
    head: Any = model.network.get_submodule(classifiers(model.network)[0])
    sets = {"near" if name == data[0] else name: each for name, each in x.items() if name != "train"}
    return measured(x["train"], head.weight.detach(), head.bias.detach(), sets)


def of_halves(network: str, data: Sequence[str], image_size: int, seeds: int) -> dict[str, list[Measured]]:
    """Measure a frozen network on each data set, a random half of its classes per seed."""
    sets: dict[str, dict[str, Part]] = {}
    for name in data:
        with TemporaryDirectory() as folder:
            keys = {"student.init": network, "images.image_size": image_size}
            session = begin(name, "probe/photos", 0, f"{folder}/run", False, keys, "")
            method, dataset, crop = session.method, session.dataset, session.config.images.crop
            splits = {**dataset.splits, "noise": noise_like(dataset.train)}
            x = head_features(method.student, method.data_spec, dataset, crop, torch.device("cpu"), splits)
            sets[name] = {split: (each.float(), splits[split].records.labels) for split, each in x.items()}
            session.run.unlock()
    found: dict[str, list[Measured]] = {name: [] for name in data}
    for name, seed in ((name, seed) for name in data for seed in range(seeds)):
        parts, generator = sets[name], torch.Generator().manual_seed(seed)
        classes = int(parts["train"][1].max()) + 1
        chosen = torch.randperm(classes, generator=generator)[: classes // 2].sort().values
        place = torch.full((classes + 1,), -1).index_put((chosen,), torch.arange(len(chosen)))  # the last: no label
        half = {split: (x[place[y] >= 0], place[y][place[y] >= 0]) for split, (x, y) in parts.items()}
        if "val" not in half:  # every tenth training image
            (vectors, y), tenth = half["train"], torch.arange(len(half["train"][1])) % 10 == 0
            half |= {"val": (vectors[tenth], y[tenth]), "train": (vectors[~tenth], y[~tenth])}
        head = train_head(*half["train"], len(chosen), half["val"], None)
        test, labels = parts["test"]
        others = {"near": test[place[labels] < 0], "noise": parts["noise"][0]}
        others |= {Path(other).name: sets[other]["test"][0] for other in data if other != name}
        known = {split: half[split][0] for split in ("val", "test")}
        found[name].append(measured(half["train"][0], head.weight, head.bias, {**known, **others}))
    return found


def main() -> None:
    """Print a table for each data set: mean and standard deviation over seeds, percent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if (Path(options.network) / "run.json").is_file():
        results = {options.network: [of_a_run(options.network, options.data)]}
    else:
        results = of_halves(options.network, options.data, options.image_size, options.seeds)
    for title, each in results.items():
        names, kinds = (list(dict.fromkeys(key[place] for key in each[0])) for place in (0, 1))
        wanted = [(kind, i) for kind in kinds for i in (0, 1) if (kind, i) != ("test", 0)]
        columns = [Column("score"), *(Column("kept" if k == "test" else f"{k} {MEASURES[i]}") for k, i in wanted)]
        rows: list[list[Cell]] = []
        for name in names:
            values = [100 * np.array([of_seed[name, kind][i] for of_seed in each]) for kind, i in wanted]
            rows.append([name, *(f"{value.mean():.1f} ± {value.std():.1f}" for value in values)])
        print_table(Table(title, columns, rows))


if __name__ == "__main__":
    main()
