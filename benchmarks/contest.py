# SPDX-License-Identifier: Apache-2.0
"""Students and the CNNs that a person would take instead, on the same images for the same processor time.

    python -m benchmarks.contest --budget 15core-m --out CONTEST clothing10=./clothing10 flowers=./flowers:64
    python -m benchmarks.contest --out CONTEST                              only prints what is there

Each row is the command `viticulture train` with `--budget`, on one thread, once for each seed (start, order and
validation images). What is interrupted goes on when the command is given again; what is finished stays. Cost is the
processor time of the command by its own count, from when its libraries are loaded: decoding, measuring, training and
validation. The only look at the test images comes afterwards, and is not counted. A stage that was interrupted counts
for the time that was planned for it, and the cost of its row has a *. A set must have test images of its own.

Rows: `ROWS` below. Rules: a CNN's row is the default recipe, asked once about an image, in float32 as it stands there,
again ("-fast") in whichever precision is faster, and again ("-views") asked by the views that validation images find
best, and so by the hybrids' optimizer ("-muon"); a plain ViT's and a DHVT's are as a CNN's with views. Ours
is what `--budget` chooses by itself, several views among it, and again in float32, for processors that have nothing
faster. Results are written to CONTEST/contest.csv too, from which `python -m benchmarks.contest_page` draws; those of
README.md are in benchmarks/contest.csv.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from statistics import mean

from viticulture.budget.budget import TimeBudget
from viticulture.budget.plan import read_plan
from viticulture.config import resolve
from viticulture.data.open import open_source
from viticulture.study.statistics import Estimate, estimate
from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder

from .clock import processor

OFF = ["--method-search", "off"]
ONCE = [*OFF, "--images.eval_views", "one"]
VIEWS = [*OFF, "--images.eval_views", "best"]
KERNELS = {"kernel_lr": resolve.KERNELS * resolve.MUON["lr"]}
MUON = [f"--optim.{key}={value}" for key, value in {**resolve.MUON, **KERNELS}.items()]
OURS = "ours"
ROWS: dict[str, list[str]] = {
    OURS: [],
    f"{OURS}-float32": ["--engine.precision", "32"],
    "resnet10t": ["--student", "resnet10t", *ONCE, "--engine.precision", "32"],
    "resnet18": ["--student", "resnet18", *ONCE, "--engine.precision", "32"],
    "resnet10t-fast": ["--student", "resnet10t", *ONCE],
    "resnet18-fast": ["--student", "resnet18", *ONCE],
    "resnet10t-views": ["--student", "resnet10t", *VIEWS],
    "resnet18-views": ["--student", "resnet18", *VIEWS],
    "resnet10t-muon": ["--student", "resnet10t", *VIEWS, *MUON],
    "vit": ["--student", "vit_nano", *VIEWS],
    "dhvt": ["--student", "dhvt_nano", *VIEWS],
}
"""What is compared -> words of `viticulture train` besides data, seed, size and budget."""
RESULT = "contest.json"
TABLE = "contest.csv"


@dataclass(frozen=True)
class Images:
    """A set of a contest, as the command line says it: NAME=FOLDER[:PIXELS][@PER_CLASS].

    Args:
        words: what stands there.
    """

    words: str

    @property
    def name(self) -> str:
        """NAME, or NAME@PER_CLASS."""
        name, _, data = self.words.partition("=")
        per_class = _number_after("@", data)[1]
        return f"{name}@{per_class}" if per_class else name

    @property
    def data(self) -> str:
        """FOLDER."""
        return self.options()[0]

    def options(self, draw: int = 0) -> list[str]:
        """Words of `viticulture train`; `draw` is the seed by which PER_CLASS images are drawn."""
        data, per_class = _number_after("@", self.words.partition("=")[2])
        data, pixels = _number_after(":", data)
        words = [data, "--data.test_on", "none", *(["--image-size", pixels] if pixels else [])]
        return words + (["--per-class", per_class, "--data.subset_seed", str(draw)] if per_class else [])


def _number_after(sign: str, words: str) -> tuple[str, str]:
    """What stands before the last sign, and the number behind it; all of it and nothing where no number is there."""
    data, _, number = words.rpartition(sign)
    return (data, number) if number.isdigit() else (words, "")


@dataclass(frozen=True)
class Cell:
    """One training of a contest."""

    images: Images
    row: str
    budget: str
    seed: int

    def folder(self, out: Path) -> Path:
        return out / self.budget / self.images.name / self.row / str(self.seed)

    def words(self, out: Path) -> list[str]:
        """The command, or the one that goes on with it."""
        folder = self.folder(out)
        return going_on(folder) or [
            "train", *self.images.options(), *ROWS[self.row], "--budget", self.budget, "--seed", str(self.seed),
            "--data.val_fraction", "0.1", "--out", str(folder),
        ]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A finished training.

    Args:
        budget: as `viticulture train` takes it.
        images: name of the set.
        row: of `ROWS`.
        seed: of start, order and validation images.
        per_class: images a class to learn from.
        val: accuracy on validation images, %.
        test: on test images, %.
        core_s: processor time, s.
        resumed: 1 where the training was interrupted.
    """

    budget: str
    images: str
    row: str
    seed: int
    per_class: float
    val: float
    test: float
    core_s: float
    resumed: float


def main() -> None:
    """Train what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="NAME=FOLDER[:PIXELS][@PER_CLASS]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", default="15core-m")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    check_budget(parser, options.budget)
    check_images(parser, options.images)
    for seed, words, row in product(options.seeds, options.images, options.rows):
        cell = Cell(Images(words), row, options.budget, seed)
        if not (cell.folder(options.out) / RESULT).exists():
            train(cell, options.out)
    results = read(options.out)
    write_table(options.out / TABLE, results)
    print(processor())
    print(table(results))


def check_images(parser: argparse.ArgumentParser, images: Sequence[str]) -> None:
    """Exits unless each has test images."""
    for words in images:
        if "test" not in open_source(data := Images(words).data).splits:
            parser.error(f"{data} has no test images of its own")


def check_budget(parser: argparse.ArgumentParser, budget: str) -> None:
    """Exits unless it is a time of processors."""
    if not TimeBudget(budget).counts_processors:
        parser.error(f"a contest counts the time of processors, such as 15core-m, got {budget}")


def going_on(folder: Path) -> list[str]:
    """Words of the command that goes on with a run; none where nothing has begun."""
    begun = (folder / "run.json").exists() or (folder / "budget.json").exists()
    return ["resume", str(folder)] if begun else []


def on_one_thread(words: Sequence[str], folder: Path) -> None:
    """A command of viticulture's in a process of its own, its words and whatever it tells in a file beside a folder."""
    print(" ".join(["viticulture", *words]), flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        subprocess.run(
            [sys.executable, "-m", "viticulture", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log, check=True,
        )  # fmt: skip


def tested(folder: Path, data: str) -> float:
    """Share of a set's test images that a run's weights are right about, %."""
    run = RunFolder(folder)
    return 100 * task_of(run).evaluate_other(data).evaluated.results[f"{run.which()[0]}/{data}"].top1


def train(cell: Cell, out: Path) -> None:
    """One cell."""
    words, folder = cell.words(out), cell.folder(out)
    on_one_thread(words, folder)
    evaluations = task_of(RunFolder(folder)).read_results()
    assert evaluations is not None
    assert evaluations.counting is not None
    cost = {"core_s": read_plan(folder).spent, "resumed": float(words[0] == "resume")}
    accuracy = {"val": 100 * evaluations.counting.top1, "test": tested(folder, cell.images.data)}
    data = json.loads((folder / "run.json").read_text())["data"]
    per_class = data["images"]["train"] / len(data["classes"])
    (folder / RESULT).write_text(json.dumps({"per_class": per_class, **accuracy, **cost}))


def read(out: Path) -> list[Result]:
    """Whatever is finished."""
    results = []
    for path in sorted(out.glob(f"*/*/*/*/{RESULT}")):
        budget, images, row, seed = path.relative_to(out).parts[:4]
        results.append(Result(budget, images, row, int(seed), **json.loads(path.read_text())))
    return results


def write_table(path: Path, results: Sequence[Result]) -> None:
    """A row a training, a column a field of `Result`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


def read_table(path: Path) -> list[Result]:
    """What `write_table` wrote."""
    numbers = ("per_class", "val", "test", "core_s", "resumed")
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Result(
                row["budget"], row["images"], row["row"], int(row["seed"]), **{key: float(row[key]) for key in numbers}
            )
            for row in csv.DictReader(file)
        ]


def table(results: Sequence[Result]) -> str:
    """Markdown: mean and standard deviation over seeds, and what `OURS` is ahead by, with Student's interval."""
    rows: dict[tuple[str, str, str], dict[int, Result]] = {}
    for result in results:
        rows.setdefault((result.budget, result.images, result.row), {})[result.seed] = result
    lines = [
        "| budget | images | row | seeds | validation, % | test, % | ours is ahead by | core-s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (budget, images, row), seeds in rows.items():
        ours = rows.get((budget, images, OURS), {}) if row != OURS else {}
        validation, test = (
            estimate([getattr(result, split) for result in seeds.values()]) for split in ("val", "test")
        )
        shared = sorted(ours.keys() & seeds.keys())
        ahead = estimate([ours[seed].test - seeds[seed].test for seed in shared]) if shared else None
        cost = f"{mean(result.core_s for result in seeds.values()):.0f}"
        cost += "*" if any(result.resumed for result in seeds.values()) else ""
        lines.append(
            f"| {budget} | {images} | {row} | {len(seeds)} | {spread(validation)} | {spread(test)} "
            f"| {interval(ahead)} | {cost} |"
        )
    return "\n".join(lines)


def spread(values: Estimate) -> str:
    """Mean and standard deviation."""
    return f"{values.mean:.1f}" + ("" if values.sd is None else f" +- {values.sd:.1f}")


def interval(values: Estimate | None) -> str:
    """Mean and interval of differences."""
    if values is None:
        return ""
    return f"{values.mean:+.1f}" + ("" if values.low is None else f" ({values.low:+.1f} to {values.high:+.1f})")


if __name__ == "__main__":
    main()
