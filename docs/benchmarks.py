# SPDX-License-Identifier: Apache-2.0
"""Write docs/benchmarks.md from benchmarks/contest.csv (trainings) and benchmarks/results.csv (other claims).

python docs/benchmarks.py
"""

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from viticulture.study.statistics import Estimate, estimate

HERE = Path(__file__).parent
CONTEST, RESULTS = (HERE.parent / "benchmarks" / name for name in ("contest.csv", "results.csv"))
HEAD = """# Benchmarks

Test images unless a column says otherwise; mean ± standard deviation over seeds, or one run with its 95 % interval over
images. Nothing of the five papers' own size has been reproduced: those recipes are marked *untested*. Commands and
details are in the repository's `benchmarks/log/`; the last column names the file. [What pays](what-pays.md) draws the
conclusions. Made by `python docs/benchmarks.py`.

## Equal processor time, from scratch

One thread of an AMD EPYC with bfloat16, 64 px unless stated. *ours* is what `train --budget` chooses; the
other networks train with the default recipe in the same pipeline and the same test-time augmentation (*Muon*: with the
hybrids' optimizer), or with fastai 2.8. Lead: the mean of differences by seed, with its 95 % interval. Run by
`python -m benchmarks.contest`.
"""
CONTEST_TABLE = """| Data (training images per class) | Network | Top-1, % | Seeds | Lead of ours | Core-s |
|---|---|--:|--:|---|--:|
"""
RESULTS_TABLE = """| Data | Method | Metric | Result | Seeds | Cost | Hardware | Log |
|---|---|---|--:|--:|---|---|---|
"""
CELLS = ("data", "method", "metric", "result", "seeds", "cost", "hardware", "log")
NAMES = {"resnet10t-views": "ResNet-10", "resnet10t-muon": "ResNet-10, Muon", "resnet18-views": "ResNet-18"}
NAMES |= {"fastai-resnet18": "fastai ResNet-18", "vit": "plain ViT", "dhvt": "DHVT", "ours": "**ours**"}


def render() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    lines = _read(CONTEST)
    for budget in dict.fromkeys(line["budget"] for line in lines):
        parts.append(f"\n### {budget.removesuffix('core-m')} core-minutes\n\n{CONTEST_TABLE}")
        parts += _contest([line for line in lines if line["budget"] == budget])
    for section, rows in groupby(_filled(_read(RESULTS)), key=lambda row: row["section"]):
        parts.append(f"\n## {section}\n\n{RESULTS_TABLE}")
        parts += [f"| {' | '.join(row[cell] for cell in CELLS)} |\n" for row in rows]
    return "".join(parts)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _filled(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Repeat section and data where a line leaves them out."""
    last = {"section": "", "data": ""}
    for row in rows:
        last = {key: row[key] or value for key, value in last.items()}
        yield {**row, **last}


def _contest(lines: list[dict[str, str]]) -> Iterator[str]:
    """Rows of one budget: a data set after the other, ours first."""
    for images in dict.fromkeys(line["images"] for line in lines):
        here = [line for line in lines if line["images"] == images]
        by_row = {
            row: {x["seed"]: float(x["test"]) for x in here if x["row"] == row}
            for row in dict.fromkeys(x["row"] for x in here)
        }
        name = f"{images.partition('@')[0]} ({float(here[0]['per_class']):.0f})"
        for row, tests in by_row.items():
            shared = [seed for seed in tests if seed in by_row["ours"]]
            lead = estimate([by_row["ours"][seed] - tests[seed] for seed in shared]) if row != "ours" else None
            costs = [float(x["core_s"]) for x in here if x["row"] == row]
            cells = [name, NAMES[row], _spread(estimate(list(tests.values()))), str(len(tests)), _interval(lead)]
            yield f"| {' | '.join([*cells, f'{sum(costs) / len(costs):.0f}'])} |\n"
            name = ""


def _spread(value: Estimate) -> str:
    return f"{value.mean:.1f}" + ("" if value.sd is None else f" ± {value.sd:.1f}")


def _interval(lead: Estimate | None) -> str:
    if lead is None:
        return ""
    return f"{lead.mean:.1f}" + ("" if lead.sd is None else f" ({lead.low:.1f} to {lead.high:.1f})")


if __name__ == "__main__":
    (HERE / "benchmarks.md").write_text(render(), encoding="utf-8")
