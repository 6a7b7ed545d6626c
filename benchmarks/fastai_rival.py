# SPDX-License-Identifier: Apache-2.0
"""A contest's row of fastai, from scratch or from public weights, on the images of a row that stands there already.

    python -m venv rival && rival/bin/pip install fastai
    export OMP_NUM_THREADS=1
    rival/bin/python benchmarks/fastai_rival.py CONTEST/5core-m/clothing10/ours/0 ./clothing10 --pixels 64 --core-s 300

The result lies beside that row, in `fastai-resnet18/0`, where `benchmarks.contest` prints it. fastai is run as its own
tutorial runs it: `vision_learner` without pre-trained weights, unfrozen, `aug_transforms`, batches of 32, one cycle up
to 3e-3, as many epochs as the budget has time for by the pace of a few steps. With `--init ARCHITECTURE=FILE` it is
`fine_tune` at fastai's rates on the weights of a timm network, in `fastai-ARCHITECTURE/0`: an epoch of a new head on
frozen features, then all layers. Images for training, validation and test are the named row's; so is the seed. Cost is
the processor time of this process but for the look at the test images. It needs fastai and nothing of viticulture.
"""

import argparse
import csv
import json
import time
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pandas
from fastai.vision.all import (  # type: ignore[import-not-found]
    ImageDataLoaders,
    Resize,
    accuracy,
    aug_transforms,
    resnet18,
    set_seed,
    vision_learner,
)

BATCH, RATE = 32, 3e-3
TRIED = 40
"""Steps whose median is the pace, after two that pay for what happens once."""
MARGIN = 0.03
"""Share of the budget that is not planned."""


def main() -> None:
    """Train once and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", type=Path, help="a finished run of the contest, CONTEST/BUDGET/SET/ROW/SEED")
    parser.add_argument("images", type=Path, help="the folder or CSV file that it was trained on")
    parser.add_argument("--pixels", type=int, required=True)
    parser.add_argument("--core-s", type=float, required=True)
    parser.add_argument("--init", metavar="ARCHITECTURE=FILE", default="", help="start from these weights of timm's")
    options = parser.parse_args()
    seed = int(options.row.name)
    name = options.init.partition("=")[0] or "resnet18"
    out = options.row.parent.parent / f"fastai-{name}" / options.row.name
    splits: dict[str, list[str]] = json.loads((options.row / "split.json").read_text())["names"]
    splits["test"] = test_names(options.images)  # a row of the contest does not know them
    root = options.images if options.images.is_dir() else options.images.parent
    labels = read_labels(options.images, [name for names in splits.values() for name in names])

    learn = learner(root, splits, labels, options.pixels, seed, options.init)
    frozen = epoch_time(learn) if options.init else 0.0
    learn.unfreeze()
    epoch = epoch_time(learn)
    epochs = max(1, int((options.core_s * (1 - MARGIN) - time.process_time() - frozen) / epoch))
    learn = learner(root, splits, labels, options.pixels, seed, options.init)
    with learn.no_bar():
        if options.init:
            learn.fine_tune(epochs)
        else:
            learn.unfreeze()
            learn.fit_one_cycle(epochs, RATE)
        spent = time.process_time()  # every epoch has been validated
        held_out = float(learn.validate()[1])

    shown = learn.dls.test_dl([root / name for name in splits["test"]])
    with learn.no_bar():
        decisions, numbers = learn.get_preds(dl=shown)[0].argmax(1).tolist(), learn.dls.vocab
    right = [numbers[k] == labels[name] for k, name in zip(decisions, splits["test"], strict=True)]
    result = {
        "per_class": len(splits["train"]) / len(numbers),
        "val": 100 * held_out,
        "test": 100 * sum(right) / len(right),
        "core_s": spent,
        "resumed": 0.0,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "contest.json").write_text(json.dumps(result))
    print(json.dumps({**result, "epochs": epochs}))


def test_names(images: Path) -> list[str]:
    """The images of the split `test`: of a CSV file, or in the folder of that name."""
    if images.is_dir():
        return sorted(str(file.relative_to(images)) for file in (images / "test").rglob("*") if file.is_file())
    with images.open(newline="") as file:
        return [row["path"] for row in csv.DictReader(file) if row["split"] == "test"]


def read_labels(images: Path, names: Sequence[str]) -> dict[str, str]:
    """Image -> class: the column of a CSV file, or the folder that the image is in."""
    if images.is_dir():
        return {name: Path(name).parent.name for name in names}
    with images.open(newline="") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def learner(root: Path, splits: dict[str, list[str]], labels: dict[str, str], pixels: int, seed: int, init: str) -> Any:
    """fastai's, untrained; with public weights frozen up to the head."""
    set_seed(seed)
    rows = [(name, labels[name], split == "val") for split in ("train", "val") for name in splits[split]]
    loaders = ImageDataLoaders.from_df(
        pandas.DataFrame(rows, columns=["name", "label", "held_out"]),
        root,
        valid_col="held_out",
        item_tfms=Resize(int(1.25 * pixels)),
        batch_tfms=aug_transforms(size=pixels),
        bs=BATCH,
        num_workers=0,
    )
    if not init:
        return vision_learner(loaders, resnet18, pretrained=False, metrics=accuracy)
    name, _, file = init.partition("=")
    return vision_learner(loaders, name, pretrained_cfg_overlay={"file": file}, metrics=accuracy)


def epoch_time(learn: Any) -> float:
    """Processor seconds of an epoch with its validation, by a few steps."""
    learn.create_opt()
    learn.model.train()
    marks = [time.process_time()]
    for images, truth in islice(learn.dls.train, TRIED + 2):
        learn.loss_func(learn.model(images), truth).backward()
        learn.opt.step()
        learn.opt.zero_grad()
        marks.append(time.process_time())
    began = time.process_time()
    with learn.no_bar():
        learn.validate()
    validation = time.process_time() - began
    return median(later - earlier for earlier, later in pairwise(marks[2:])) * len(learn.dls.train) + validation


if __name__ == "__main__":
    main()
