# SPDX-License-Identifier: Apache-2.0
"""Whether labeling the images that `viticulture next` chooses is better than labeling images at random.

    python -m benchmarks.label_next NETWORK DATA [--image-size 96] [--start 50] [--count 50] [--rounds 5] [--seeds 3]

A classifier on frozen features is trained on `start` random training images of a data set; then, in each round, on
`count` more: those that are chosen by its predictions, or random ones. It is tested on the test images. A seed draws
the first images, which both have in common, and the random ones.
"""

import argparse

import numpy as np
import torch
from torch import Tensor

from viticulture.evaluation.label_next import as_labels, select
from viticulture.table import Cell, Column, Table, print_table
from viticulture.training.linear_head import train_head

from .label_review import frozen_features


def main() -> None:
    """Print the test accuracy after each round: mean and standard deviation over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("data")
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--start", type=int, default=50)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    dataset, spec, features = frozen_features(options, {})
    x, test = features["train"], features["test"]
    y, truth = (dataset.splits[split].records.labels for split in ("train", "test"))
    C = len(dataset.classes)

    def accuracies(seed: int, chooses: bool) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        left = torch.randperm(len(x), generator=generator)
        labeled, left = left[: options.start], left[options.start :]
        shares = []
        for _ in range(options.rounds + 1):
            head = train_head(x[labeled], y[labeled], C, None, None)

            def logits(features: Tensor, weight: Tensor = head.weight, bias: Tensor = head.bias) -> Tensor:
                return features @ weight.T + bias

            shares.append(float((logits(test).argmax(1) == truth).double().mean()))
            p = spec.probabilities(logits(x[left])).double()
            places = select(p, x[left], as_labels(p, spec), options.count) if chooses else [*range(options.count)]
            taken = torch.zeros(len(left), dtype=torch.bool).index_fill(0, torch.tensor(places), True)
            labeled, left = torch.cat([labeled, left[taken]]), left[~taken]
        return shares

    of_each = {
        name: 100 * np.array([accuracies(seed, name == "chosen") for seed in range(options.seeds)])
        for name in ("random", "chosen")
    }
    of_each["difference"] = of_each["chosen"] - of_each["random"]
    labels = [options.start + k * options.count for k in range(options.rounds + 1)]
    columns = [Column("labels"), *(Column(str(number)) for number in labels), Column("mean of rounds")]
    rows: list[list[Cell]] = [
        [name, *(f"{column.mean():.1f} ± {column.std(ddof=1):.1f}" for column in (*shares.T, shares[:, 1:].mean(1)))]
        for name, shares in of_each.items()
    ]
    print_table(Table(f"{options.data}: top-1 of {len(truth):,} test images, %", columns, rows))


if __name__ == "__main__":
    main()
