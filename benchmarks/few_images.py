# SPDX-License-Identifier: Apache-2.0
"""What a ViT learns from 50 images a class and no other image, in as much time as it is given.

    python -m benchmarks.few_images --out FEW --budget 1core-h cifar10=./cifar10-500/split.csv
    python -m benchmarks.few_images --out FEW --budget 2core-h cifar100=./cifar100@50
    python -m benchmarks.few_images --out FEW                               only prints what is there

To beat: 58.22 % and 53.42 % of a WRN-16-8 (Brigato, Barz, Iocchi, Denzler, "Tune It or Don't Use It", 2021,
arXiv:2108.13122; ten runs, and three draws, of which ours are others). Each row is `viticulture train` with `--budget`,
on one thread, and words of one's own behind `--more`. All images teach: whatever is to be chosen is chosen on others
beforehand, and answers are the mean over four views. A seed is one of start and order, and of the images where
@PER_CLASS asks for a part. What is interrupted goes on when the command is given again; what is finished stays.
"""

import argparse
import json
import shlex
from itertools import product
from pathlib import Path
from statistics import mean

from viticulture.budget.plan import read_plan
from viticulture.study.conclude.statistics import estimate

from .clock import processor
from .contest import RESULT, Images, check_budget, check_images, going_on, on_one_thread, spread, tested

LEARN = ["--data.val_fraction", "0", "--images.eval_views", "four"]


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="NAME=FOLDER[:PIXELS][@PER_CLASS]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="1core-h")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--more", default="", help="further words of `viticulture train`, in one pair of quotes")
    options = parser.parse_args()
    check_budget(parser, options.budget)
    check_images(parser, options.images)
    for seed, images in product(options.seeds, map(Images, options.images)):
        folder = options.out / options.budget / images.name / str(seed)
        if not (folder / RESULT).exists():
            more = [*LEARN, *shlex.split(options.more), "--budget", options.budget, "--seed", str(seed)]
            on_one_thread(going_on(folder) or ["train", *images.options(seed), *more, "--out", str(folder)], folder)
            found = {"test": tested(folder, images.data), "core_s": read_plan(folder).spent}
            (folder / RESULT).write_text(json.dumps(found))
    print(processor())
    print(table(options.out))


def table(out: Path) -> str:
    """Markdown: mean and standard deviation over seeds."""
    lines = ["| budget | images | seeds | test, % | core-s |", "|---|---|---|---|---|"]
    for folder in sorted(out.glob("*/*")):
        found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{RESULT}"))]
        if found:
            shares, cost = estimate([one["test"] for one in found]), mean(one["core_s"] for one in found)
            lines.append(f"| {folder.parent.name} | {folder.name} | {len(found)} | {spread(shares)} | {cost:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
