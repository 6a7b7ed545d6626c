# SPDX-License-Identifier: Apache-2.0
"""Does every promise hold under misuse? Tries, counts, and says what failed.

    python -m benchmarks.fuzz [--seed 0] [--tries 1000] [--kills 50]

Commands, recipes and files with mistakes in them must end in a line or two (exit status 2, no traceback, no folder
left, a few seconds of processor time), or train. Trainings killed at random moments must resume to the same bits.
"""

import argparse
import contextlib
import importlib
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from . import child, files, judge, kills, recipes, words

SECONDS = 25
"""Processor time of one command; a training that takes longer held."""

MODULES = (
    *("viticulture.training.session", "viticulture.training.run", "viticulture.tasks.classification"),
    *("viticulture.report.run_page", "viticulture.report.study_page", "viticulture.study.run"),
)
"""Imported before the first command; what else a command imports is imported behind it, and inherited by the next."""


class Tally:
    """Counts of what was tried and held, and what failed."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def add(self, kind: str, what: str, complaint: str) -> None:
        """Count one try, and say what failed as it happens."""
        self.tried[kind] += 1
        if complaint:
            self.failed[kind] += 1
            print(f"FAILED {kind}: {what}\n    {complaint}", flush=True)

    def table(self) -> str:
        """tried / held / failed of every kind."""
        lines = [f"{'':24} {'tried':>7} {'held':>7} {'failed':>7}"]
        for kind, tried in self.tried.items():
            lines.append(f"{kind:24} {tried:7} {tried - self.failed[kind]:7} {self.failed[kind]:7}")
        tried, failed = self.tried.total(), self.failed.total()
        return "\n".join([*lines, f"{'all':24} {tried:7} {tried - failed:7} {failed:7}"])


def main() -> None:
    """Try, and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tries", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in MODULES:  # children are forked from here, with everything imported
        __import__(module)
    tally = Tally()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        os.environ["VITICULTURE_CACHE"] = str(folder / "cache")
        os.environ["HF_HUB_OFFLINE"] = "1"
        tries(given.seed, given.tries, folder, tally)
        for number, (name, kind) in enumerate(kills.KINDS.items()):
            place = folder / f"kills{number}"
            place.mkdir()
            times = given.kills // len(kills.KINDS) + (number < given.kills % len(kills.KINDS))
            for complaint in kills.kills(random.Random(f"{given.seed} {name}"), kind, place, times) if times else ():
                tally.add(f"kill: {name}", " ".join(kind.words), complaint)
            shutil.rmtree(place)
    print(tally.table())


def tries(seed: int, count: int, folder: Path, tally: Tally) -> None:
    """Half commands, a quarter recipes, a quarter files."""
    data, whole, log = folder / "photos", folder / "whole", folder / "log"
    files.photographs(data)
    for line in (
        ["train", str(data), *words.SMALL, "--out", str(whole)],
        ["predict", str(whole), str(data), "--out", "predictions.csv"],
        ["explain", str(whole), "--images", "6"],
        ["export", str(whole), "found.onnx"],
    ):
        ending = child.run(line, folder, log, 600, modules=folder / "modules")
        assert ending.code == 0, ending.output.decode(errors="replace")
        for module in (folder / "modules").read_text().split():
            with contextlib.suppress(Exception):  # some may be imported in one order only
                importlib.import_module(module)
    answers = (folder / "predictions.csv").read_bytes()
    known = words.keys()
    for number in range(count):
        if number and number % 100 == 0:
            print(f"{number} tried", file=sys.stderr, flush=True)
        draw = random.Random(f"{seed} {number}")
        work = folder / "work"
        work.mkdir()
        out = work / "out"
        if number % 4 < 2:
            place = {"data": str(data), "run": str(whole), "out": str(out)}
            line, made = words.command(draw, known, place)
            kind, what = "commands", repr(line)
        elif number % 4 == 2:
            (work / "recipe.yaml").write_bytes(recipes.damaged(draw))
            line, made = ["train", str(data), "--recipe", "recipe.yaml", "--out", str(out)], out
            kind, what = "recipes", repr((work / "recipe.yaml").read_bytes())
        elif number % 8 == 3:
            shutil.copytree(data, work / "photos", symlinks=True)
            done = [files.spoil(draw, work / "photos") for _ in range(draw.choice((1, 1, 2)))]
            skip = draw.choice(((), ("--skip-unreadable",)))
            line, made = draw.choice(
                (
                    (["train", "photos", *words.SMALL, *skip, "--out", str(out)], out),
                    (["data", "photos"], None),
                    (["predict", str(whole), "photos", "--out", "found.csv"], None),
                )
            )
            kind, what = "images", f"{done} {line}"
        else:
            shutil.copytree(whole, out)
            done = [files.damage(draw, out)]
            line = draw.choice(
                [
                    ["resume", str(out)], ["evaluate", str(out)], ["report", str(out)],
                    ["predict", str(out), str(data), "--out", "found.csv"],
                    ["explain", str(out), "--images", "6"], ["export", str(out), "found.onnx"],
                    ["train", str(data), *words.SMALL, "--init", str(out), "--out", str(work / "next")],
                ]
            )  # fmt: skip
            made = None
            kind, what = "damaged runs", f"{done} {line}"
        ending = child.run(line, work, log, SECONDS)
        complaint = judge.complaint(ending, made)
        if kind == "damaged runs" and (work / "found.csv").exists() and (work / "found.csv").read_bytes() != answers:
            complaint = "other answers than before the damage"
        tally.add(kind, f"[{number}] {what}"[:600], complaint)
        for path in work.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(0o600)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
