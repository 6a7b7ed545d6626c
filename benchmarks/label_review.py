# SPDX-License-Identifier: Apache-2.0
"""How many flipped labels `viticulture review` finds.

    python -m benchmarks.label_review NETWORK DATA [--image-size 128] [--share 0.1] [--seeds 3]

A share of the labels is flipped to any other class, or to the class that it is confused with most often. Of the images
ranked by their labels' margin, as many as were flipped come first: `precision` is the share of them that were.
`suspected` are the images that the review lists; of these, and of the flipped ones, the share that is both.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viticulture.data.dataset import FOLDS, Dataset
from viticulture.data.subsets import assign
from viticulture.evaluation.review import out_of_fold
from viticulture.models.data_spec import DataSpec
from viticulture.scores.confident_learning import margins, suspected
from viticulture.table import Cell, Column, Table, print_table
from viticulture.training.linear_head import head_features
from viticulture.training.session import begin

Labels = NDArray[np.int64]


def frozen_features(
    options: argparse.Namespace, more: Mapping[str, Any]
) -> tuple[Dataset, DataSpec, dict[str, Tensor]]:
    """Return the images `options.data`, as `options.network` reads them with further recipe keys, and their features by
    split, each [images, width]."""
    keys = {"student.init": options.network, "images.image_size": options.image_size, **more}
    with TemporaryDirectory() as folder:
        session = begin(options.data, "probe/photos", 0, str(Path(folder, "run")), False, keys, "")
        method, dataset, crop = session.method, session.dataset, session.config.images.crop
        features = head_features(method.student, method.data_spec, dataset, crop, torch.device("cpu"))
        session.run.unlock()
    return dataset, method.data_spec, {split: each.float() for split, each in features.items()}


def main() -> None:
    """Print a row for each kind of flipped labels: mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("data")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    dataset, _, features = frozen_features(options, {"data.test_fraction": 0.0})
    x = torch.cat([*features.values()])
    true = torch.cat([dataset.splits[split].records.labels for split in features]).numpy()
    N, C = len(true), len(dataset.classes)

    def predicted(labels: Labels, seed: int) -> NDArray[np.float64]:
        return out_of_fold(x, labels, C, assign(labels, None, [1 / FOLDS] * FOLDS, seed))

    confused = np.zeros((C, C))
    np.add.at(confused, (true, predicted(true, 0).argmax(1)), 1)
    np.fill_diagonal(confused, -1)
    columns = [Column("flipped"), *(Column(name) for name in ("precision", "suspected", "of these", "of the flipped"))]
    table_rows: list[list[Cell]] = []
    for kind in ("to any class", "to the most confused"):
        shares = []
        for seed in range(options.seeds):
            generator, count = np.random.default_rng(seed), round(options.share * N)
            rows, labels, flipped = generator.permutation(N)[:count], true.copy(), np.zeros(N, bool)
            any_other = (true[rows] + generator.integers(1, C, count)) % C
            labels[rows] = any_other if kind == "to any class" else confused.argmax(1)[true[rows]]
            flipped[rows] = True
            probabilities = predicted(labels, seed)
            first, doubtful = np.argsort(margins(probabilities, labels))[:count], suspected(probabilities, labels)
            both = (flipped & doubtful).sum()
            shares.append([flipped[first].mean(), doubtful.mean(), both / doubtful.sum(), both / count])
        values = 100 * np.array(shares)
        table_rows.append(
            [kind, *(f"{mean:.1f} \u00b1 {sd:.1f}" for mean, sd in zip(values.mean(0), values.std(0), strict=True))]
        )
    print_table(Table(f"{options.data}: {N:,} images, {options.share:.0%} flipped, %", columns, table_rows))


if __name__ == "__main__":
    main()
