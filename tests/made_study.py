# SPDX-License-Identifier: Apache-2.0
"""A study's folder without training."""

from pathlib import Path

import torch

from made_results import classified, save_classes
from viticulture.evaluation.outputs import Predictions
from viticulture.study.cell import contents
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.study.plan import StudyPlan
from viticulture.study.study import Study
from viticulture.study.terms import Subsets
from viticulture.tasks.classification_metrics import evaluate_predictions

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> 'q' </style>"
CLASSES = [EVIL, "a, b; c", "50 % & $x_1$ #\\{}", "Rebe ü 日本 👩‍🔬"]


def study(path: Path, names: list[str], subsets: tuple[int, ...], seeds: int, step: float = 0.04) -> Study:
    """Create a study's folder with synthetic predictions: each candidate is a `step` better."""
    classes = CLASSES
    candidates = tuple(Candidate(name, "default/digits", {"optim.lr": 1e-3 + 1e-6 * i}) for i, name in enumerate(names))
    grid = Grid("digits", candidates, Subsets(per_class=subsets), tuple(range(seeds)), epochs=4)
    folder = StudyFolder.create(path, grid, "viticulture compare digits")
    epochs = {(one.name, subset.name): 4 for one in candidates for subset in grid.subsets.each()}
    plan = StudyPlan(epochs, {}, dict.fromkeys(names, 100), dict.fromkeys(names, 5.0))
    folder.update(plan=plan.to_dict())
    for cell in grid.cells():
        which = names.index(cell.candidate.name)
        run = folder.run(cell)
        run.path.mkdir(parents=True)
        draw = torch.Generator().manual_seed(1000 * which + cell.seed)
        labels = torch.arange(400) % len(classes)
        right = torch.rand(400, generator=draw) < 0.3 + step * which + 0.1 * subsets.index(int(cell.subset.value))
        said = torch.where(right, labels, (labels + 1) % len(classes))
        predictions = Predictions(
            0.8 * torch.nn.functional.one_hot(said, len(classes)) + 0.2 / len(classes), labels, [""] * 400
        )
        result = evaluate_predictions(predictions, classes)
        run.write(
            "evaluation.json", classified("best/test", {f"best/{split}": result for split in ("test", "val")}).to_dict()
        )
        save_classes(run, "best/test", {"best/test": predictions})
        lines = [
            "step,epoch,name,value",
            *(f"{9 * e + 8},{e},val/accuracy,{result.top1 * (e + 1) / 4}" for e in range(4)),
        ]
        run.write("metrics.csv", "\n".join(lines) + "\n")
        run.write(
            "run.json",
            {
                "format": 2,
                "status": "finished",
                "cell": contents(folder, cell, plan),
                "vit": which != 1,
                "epochs": 4,
                "seconds": 60.0 + 10 * which,
                "steps": 36,
                "batch_size": 20,
                "seed": cell.seed,
                "recipe": "default/digits",
                "warnings": [],
                "student": {
                    "name": "vit_nano",
                    "parameters": 200_000 * (1 + which),
                    "macs": 3_000_000 * (9 - which % 8),
                },
                "data": {
                    "source": "digits",
                    "folder": None,
                    "classes": classes,
                    "images": {"train": len(classes) * int(cell.subset.value), "val": 90, "test": 400},
                },
                "hardware": {"cpu": "a CPU", "cores": 2, "gpus": []},
                "versions": {"viticulture": "0"},
            },
        )
    return Study(path)
