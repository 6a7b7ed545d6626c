# SPDX-License-Identifier: Apache-2.0
"""What a ViT learns from 50 images a class and no other image, in as much time as it is given.

    python -m benchmarks.few_images --out FEW --budget 1core-h cifar10=./cifar10-500/split.csv
    python -m benchmarks.few_images --out FEW --budget 2core-h cifar100=./cifar100@50
    python -m benchmarks.few_images --out FEW --budget 5core-h cifar100=./cifar100@50 --taught --jobs 2
    python -m benchmarks.few_images --out FEW                               only prints what is there

To beat: 58.22 % and 53.42 % of a WRN-16-8 (Brigato, Barz, Iocchi, Denzler, "Tune It or Don't Use It", 2021,
arXiv:2108.13122; ten runs, and three draws, of which ours are others). Each row is `viticulture train` with `--budget`,
on one thread, and words of one's own behind `--more`. With `--taught` it is four of them, which share the budget: three
networks that see the images otherwise, `--jobs` at a time, then a student of their answers besides the labels. All
images teach: whatever is to be chosen is chosen on others beforehand, and answers are the mean over four views. A seed
is one of start and order, and of the images where @PER_CLASS asks for a part. What is interrupted goes on when the
command is given again; what is finished stays.
"""

import argparse
import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean

from viticulture.budget.budget import TimeBudget
from viticulture.budget.plan import read_plan
from viticulture.study.statistics import estimate

from .clock import processor
from .contest import RESULT, Images, check_budget, check_images, going_on, on_one_thread, spread, tested

LEARN = ["--data.val_fraction", "0", "--images.eval_views", "four"]
HYBRID = ["--student", "botnet14t", "--batch-size", "64", "--optim.weight_decay", "0.5"]
TEACHERS: dict[str, tuple[float, list[str]]] = {
    "larger": (0.27, ["--image-size", "96"]),
    "wider": (0.3, ["--image-size", "64", "--student.options", "{embed_dim: 768, num_heads: 6}"]),
    "varied": (0.18, ["--image-size", "64", "--augment.rand_augment.magnitude", "9"]),
}
"""Networks that teach: share of the budget, and words of `viticulture train`."""
TAUGHT = ["--image-size", "96", "--guides.co_advise.token", "class", "--guides.co_advise.temperature", "2"]
TAUGHT += ["--guides.co_advise.weight", "0.17", "--method.label_weight", "0.5"]
"""Words of the student, which has what they leave of the budget."""


def main() -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="NAME=FOLDER[:PIXELS][@PER_CLASS]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="1core-h")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--taught", action="store_true", help="three networks first, which teach the student")
    parser.add_argument("--jobs", type=int, default=1, help="teachers that train at a time, each on one thread")
    parser.add_argument("--more", default="", help="further words of `viticulture train`, in one pair of quotes")
    options = parser.parse_args()
    check_budget(parser, options.budget)
    check_images(parser, options.images)
    kind = f"{options.budget}-taught" if options.taught else options.budget
    for seed, images in product(options.seeds, map(Images, options.images)):
        folder = options.out / kind / images.name / str(seed)
        if not (folder / RESULT).exists():
            same = [*images.options(seed), *LEARN, *shlex.split(options.more), "--seed", str(seed)]
            runs = stages(folder, options.budget, options.taught)
            train = partial(learn, same=same)
            *teachers, student = runs.items()
            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(train, teachers))
            train(student)
            cost = sum(read_plan(run).spent for run in runs)
            (folder / RESULT).write_text(json.dumps({"test": tested(folder, images.data), "core_s": cost}))
    print(processor())
    print(table(options.out))


def learn(named: tuple[Path, list[str]], same: list[str]) -> None:
    """Train one run, or go on with it: its folder, with words of its own besides those that all share."""
    run, words = named
    on_one_thread(going_on(run) or ["train", *same, *words, "--out", str(run)], run)


def stages(folder: Path, budget: str, taught: bool) -> dict[Path, list[str]]:
    """Run -> words of its training besides those that all share, in their order; the last one is the student's."""
    if not taught:
        return {folder: ["--budget", budget]}
    minutes = TimeBudget(budget).seconds / 60
    runs = {
        folder.with_name(f"{folder.name}-{name}"): [*HYBRID, *words, "--budget", f"{minutes * share:.2f}core-m"]
        for name, (share, words) in TEACHERS.items()
    }
    teachers = ", ".join(f"{name}: {run.absolute()}" for name, run in zip(TEACHERS, runs, strict=True))
    left = minutes * (1 - sum(share for share, _ in TEACHERS.values()))
    student = [*HYBRID, *TAUGHT, "--guides.co_advise.teachers", f"{{{teachers}}}", "--budget", f"{left:.2f}core-m"]
    return {**runs, folder: student}


def table(out: Path) -> str:
    """Markdown: mean and standard deviation over seeds."""
    lines = ["| budget | images | seeds | test, % | core-s |", "|---|---|---|---|---|"]
    for folder in sorted(out.glob("*/*")):
        results = [json.loads(path.read_text()) for path in sorted(folder.glob(f"*/{RESULT}"))]
        if results:
            shares, cost = (
                estimate([result["test"] for result in results]),
                mean(result["core_s"] for result in results),
            )
            lines.append(f"| {folder.parent.name} | {folder.name} | {len(results)} | {spread(shares)} | {cost:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
