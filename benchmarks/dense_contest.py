# SPDX-License-Identifier: Apache-2.0
"""Small detectors and segmenters from scratch, after MAE on the same images, and small CNNs, at equal processor time.

    python -m benchmarks.dense_contest BCCD --out contests/bccd               boxes: AP and AP50
    python -m benchmarks.dense_contest CAMVID --out contests/camvid           classes of pixels: mIoU

Every contender gets `--core-minutes` of processor time a seed for all of its training, MAE's half included; how many
epochs that is, a few steps of it tell. All learn from the training images by the augmentation, batches, optimizer and
schedule of the shipped recipe and are judged by their last weights on the test images; validation decides nothing.
The CNNs are torchvision's, from random weights.

The same command goes on after a stop: what is finished is read from --out, a run of ours resumes, a CNN begins its seed
anew. It writes table.md and results.json beside the runs.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FasterRCNN
from torchvision.models.segmentation import lraspp_mobilenet_v3_large
from torchvision.models.segmentation.fcn import FCN, FCNHead

import viticulture
from viticulture.config.load import load_config
from viticulture.config.resolve import Config, plan_of
from viticulture.data.batches.loader import Loader
from viticulture.data.dataset import Dataset
from viticulture.data.open import annotation_format
from viticulture.data.targets.objects import UNLABELED
from viticulture.disk import replacing
from viticulture.errors import UserError
from viticulture.methods.detection import targets_of
from viticulture.study.step_times import measure_step_times
from viticulture.tasks.annotated_task import AnnotatedModel, image_sizes
from viticulture.tasks.detection import find
from viticulture.tasks.detection_metrics import evaluate_detections
from viticulture.tasks.results import Result
from viticulture.tasks.segmentation import classify_pixels
from viticulture.tasks.segmentation_metrics import evaluate_pixels
from viticulture.tasks.task import task_of
from viticulture.training.assemble import augmentations, data_spec_of
from viticulture.training.data import load_dataset, open_for

from .clock import begin, count

MAE_SHARE = 0.5  # of the time, where a contender starts from MAE
PATIENCE = 4.0  # on the steps that tell a pace: a detector's take a second or so, of which the usual time holds two
WATCHED = {"train.validate": "none", "data.test_fraction": 0.2}
RECIPES = {"objects": "detection/photos", "pixels": "segmentation/photos"}
MEASURES = {"objects": ("ap", "ap50"), "pixels": ("miou", "pixels")}
BODY = {"embed_dim": 64, "depth": 4, "num_heads": 8}
PLAIN = {"student.name": "mae_tiny", "student.options": {**BODY, "class_token": False, "global_pool": "avg"}}
START = {"objects": {"student.patch_size": 16, "images.image_size": 128}, "pixels": {"student.patch_size": 8}}


@dataclass(frozen=True)
class Score:
    """What one training came to.

    Args:
        contender: its name.
        seed: of initialization and order.
        epochs: trained, MAE's before a plus.
        core_minutes: of processor time that training and judging took in the process that ended them.
        parameters: of the network.
        measures: by name, in [0, 1].
    """

    contender: str
    seed: int
    epochs: str
    core_minutes: float
    parameters: int
    measures: dict[str, float | None]


@dataclass(frozen=True)
class Contest:
    """What all contenders share.

    Args:
        kind: "objects" or "pixels".
        data: the folder.
        out: for runs and results.
        seconds: of processor time for each training.
        more: recipe keys that hold for all.
    """

    kind: str
    data: str
    out: Path
    seconds: float
    more: dict[str, Any]

    def recipe(self, name: str, overrides: dict[str, Any]) -> Config:
        """A shipped recipe under the contest's terms."""
        return load_config(name, {**overrides, **WATCHED, **self.more})

    def epochs(self, name: str, overrides: dict[str, Any], seconds: float) -> int:
        """How many epochs of ours fit into that processor time."""
        recipe = self.recipe(name, overrides)
        dataset = load_dataset(open_for(recipe, self.data), recipe, 0)
        with TemporaryDirectory() as folder:
            pace = measure_step_times(recipe, dataset, Path(folder) / "pace", now=time.process_time, patience=PATIENCE)
        return max(1, int(seconds / pace.epoch))


class Boxes(nn.Module):
    """torchvision's Faster R-CNN on ResNet-18 with a feature pyramid, asked as our detectors are."""

    def __init__(self, classes: int, side: int) -> None:
        super().__init__()
        body = resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
        )
        sizes: dict[str, Any] = {"min_size": side, "max_size": side, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
        self.net = FasterRCNN(body, classes + 1, box_batch_size_per_image=64, rpn_post_nms_top_n_train=256, **sizes)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        targets = [{**target, "labels": target["labels"] + 1} for target in targets_of(batch)]
        return torch.stack(list(self.net(list(batch["image"]), targets).values())).sum()

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        detections: list[dict[str, Tensor]] = self.net(list(images))
        return [{**each, "labels": each["labels"] - 1} for each in detections]


class Pixels(nn.Module):
    """A segmenter of torchvision's, asked as ours are."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        total = F.cross_entropy(self(batch["image"]), batch["classes"], ignore_index=UNLABELED, reduction="sum")
        return total / (batch["classes"] != UNLABELED).sum().clamp(min=1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)["out"]
        return logits


def fcn(classes: int) -> nn.Module:
    """A fully convolutional network on ResNet-18's map of stride 16."""
    body = IntermediateLayerGetter(resnet18(weights=None), {"layer3": "out"})
    return Pixels(FCN(body, FCNHead(256, classes)))


def lraspp(classes: int) -> nn.Module:
    """LR-ASPP on MobileNetV3-Large."""
    return Pixels(lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=classes))


def ours(contest: Contest, name: str, seed: int, overrides: dict[str, Any], after_mae: bool = False) -> Score:
    """Train by the shipped recipe, from scratch or after MAE on the same images, within the time."""
    folder, recipe = contest.out / f"{_slug(name)}-{seed}", RECIPES[contest.kind]
    began, start, before = time.process_time(), "", ""
    seconds = contest.seconds * (1 - MAE_SHARE * after_mae)
    if after_mae:
        first = {"student.options": BODY, "schedule.warmup_epochs": None, **START[contest.kind]}
        epochs = _planned(folder, "mae", lambda: contest.epochs("mae/photos", first, contest.seconds * MAE_SHARE))
        start, before = str(folder / "mae"), f"{epochs} + "
        _run(contest, start, "mae/photos", seed, {**first, "train.epochs": epochs})
    epochs = _planned(folder, "run", lambda: contest.epochs(recipe, overrides, seconds))
    overrides = {**overrides, "train.epochs": epochs, **({"student.init": start} if start else {})}
    run = _run(contest, str(folder / "run"), recipe, seed, overrides)
    evaluations = task_of(run.folder).read_results()
    assert evaluations is not None
    spent = (time.process_time() - began) / 60
    return _score(
        name, seed, f"{before}{epochs}", spent, run.metadata["student"]["parameters"], evaluations.results["last/test"]
    )


def cnn(contest: Contest, name: str, seed: int, made: Callable[[int], nn.Module]) -> Score:
    """Train one of torchvision's networks with the recipe's batches, optimizer and schedule, within the time."""
    recipe = contest.recipe(RECIPES[contest.kind], {})
    dataset = load_dataset(open_for(recipe, contest.data), recipe, seed)
    torch.manual_seed(seed)
    net: Any = made(len(dataset.classes)).train()
    size = plan_of(recipe, len(dataset.train)).batch_size
    augments = augmentations(recipe, dataset, recipe.method_class.batch_spec)
    loader = Loader(dataset.train, augments, size, seed).with_targets(dataset.annotations["train"])
    optim: Any = recipe.optim
    optimizer = optim.build(optim.groups(net))
    schedule: Any = None

    def step(batch: dict[str, Tensor]) -> None:
        optimizer.zero_grad()
        net.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.train.clip_norm or math.inf)
        optimizer.step()
        if schedule is not None:
            schedule.step()

    state = {key: value.clone() for key, value in net.state_dict().items()}
    epochs = _measured(loader, step, contest.seconds)  # at a rate that the schedule has not set, then forgotten
    net.load_state_dict(state)
    optimizer = optim.build(optim.groups(net))
    schedule = recipe.schedule.attach(optimizer, len(loader), epochs, optim.lr)
    loader.load_state_dict({"epoch": 0, "next": 0})
    began = time.process_time()
    for _ in range(epochs):
        for batch in loader:
            step(batch)
    evaluation = judged(net.eval(), dataset)
    spent = (time.process_time() - began) / 60
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return _score(name, seed, str(epochs), spent, parameters, evaluation)


def judged(net: Any, dataset: Dataset) -> Result:
    """A network on the test images, as our own are judged."""
    assert dataset.test is not None
    subject, true = AnnotatedModel(net, data_spec_of(dataset)), dataset.annotations["test"]
    if isinstance(net, Boxes):
        detections = list(find(subject, dataset.test))
        return evaluate_detections(detections, true, dataset.classes, image_sizes(dataset.test))  # type: ignore[arg-type]
    return evaluate_pixels(classify_pixels(subject, dataset.test), true, dataset.classes, None)[0]  # type: ignore[arg-type]


def contenders(contest: Contest) -> dict[str, Callable[[str, int], Score]]:
    """Name -> what trains it from a seed."""
    own: dict[str, Callable[[str, int], Score]] = {
        "plain ViT": lambda name, seed: ours(contest, name, seed, PLAIN),
        "DHVT": lambda name, seed: ours(contest, name, seed, {"student.name": "dhvt_nano"}),
        "plain ViT after MAE": lambda name, seed: ours(contest, name, seed, PLAIN, after_mae=True),
    }
    if contest.kind == "objects":
        side = contest.recipe(RECIPES["objects"], {}).images.shape[0]
        return own | {
            "Faster R-CNN, ResNet-18": lambda name, seed: cnn(contest, name, seed, lambda classes: Boxes(classes, side))
        }
    return own | {
        "FCN, ResNet-18": lambda name, seed: cnn(contest, name, seed, fcn),
        "LR-ASPP, MobileNetV3": lambda name, seed: cnn(contest, name, seed, lraspp),
    }


def compete(contest: Contest, seeds: int, names: list[str]) -> list[Score]:
    """Train what is missing, seed by seed, and write the table after each."""
    known = contenders(contest)
    if wrong := [name for name in names if name not in known]:
        raise UserError(f"no contender is called {wrong[0]!r}; there are {', '.join(known)}")
    contest.out.mkdir(parents=True, exist_ok=True)
    kept = contest.out / "results.json"
    scores = [Score(**each) for each in json.loads(kept.read_text("utf-8"))] if kept.exists() else []
    for seed in range(seeds):
        for name in names or known:
            if any((score.contender, score.seed) == (name, seed) for score in scores):
                continue
            scores.append(known[name](name, seed))
            for path, text in (
                (kept, json.dumps([asdict(score) for score in scores], indent=1) + "\n"),
                (contest.out / "table.md", table(scores, contest)),
            ):
                with replacing(path) as part:
                    part.write_text(text, encoding="utf-8")
            measures = ", ".join(f"{key} {100 * (value or 0):.1f} %" for key, value in scores[-1].measures.items())
            print(f"{name}, seed {seed}: {measures}, {scores[-1].core_minutes:.1f} core-min", flush=True)
    return scores


def table(scores: list[Score], contest: Contest) -> str:
    """Mean and deviation over seeds, Markdown."""
    heads = [*MEASURES[contest.kind], "seeds", "epochs", "core-min", "parameters, M"]
    lines = [f"| contender | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in dict.fromkeys(score.contender for score in scores):
        group = [score for score in scores if score.contender == name]
        cells = [_spread([100 * (score.measures[key] or 0) for score in group]) for key in MEASURES[contest.kind]]
        minutes = f"{fmean(score.core_minutes for score in group):.1f}"
        cells += [str(len(group)), group[0].epochs, minutes, f"{group[0].parameters / 1e6:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    terms = f"{contest.data}, test images, %; {contest.seconds / 60:g} core-minutes a training were asked for."
    return "\n".join([terms, "", *lines]) + "\n"


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def _measured(loader: Loader, step: Callable[[dict[str, Tensor]], None], seconds: float) -> int:
    """Epochs that fit into that processor time, by a few steps after the first."""
    step(loader.batch(0, 0))
    began, steps = time.process_time(), min(4, len(loader))
    for number in range(steps):
        step(loader.batch(0, number))
    return max(1, int(seconds / ((time.process_time() - began) / steps * len(loader))))


def _planned(folder: Path, what: str, measured: Callable[[], int]) -> int:
    """Epochs, measured once and kept, so that a resumed run has the length that it began with."""
    path = folder / f"{what}-epochs.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        epochs = measured()
        with replacing(path) as part:
            part.write_text(json.dumps(epochs), encoding="utf-8")
    return int(json.loads(path.read_text("utf-8")))


def _run(contest: Contest, out: str, recipe: str, seed: int, overrides: dict[str, Any]) -> viticulture.Run:
    """Train, or go on where it stopped."""
    if (Path(out) / "run.json").exists():
        return viticulture.resume(out)
    chosen = {**overrides, **WATCHED, **contest.more}
    return viticulture.train(contest.data, recipe, seed=seed, out=out, overrides=chosen)


def _score(name: str, seed: int, epochs: str, minutes: float, parameters: int, evaluation: Result) -> Score:
    return Score(name, seed, epochs, round(minutes, 3), parameters, dict(evaluation.measures))


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder with boxes, or with masks of classes")
    parser.add_argument("--out", default="contests/dense", help="folder of runs, results.json and table.md")
    parser.add_argument("--core-minutes", type=float, default=30.0, help="processor time of each training")
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--only", default="", help="contenders, separated by semicolons; all where it is left out")
    options = begin(parser)
    kind = annotation_format(options.data)[0]
    if kind not in RECIPES:
        parser.error(f"{options.data} holds neither boxes nor masks of classes")
    contest = Contest(kind, options.data, Path(options.out), 60 * options.core_minutes, {})
    names = [name.strip() for name in options.only.split(";") if name.strip()]
    print(table(compete(contest, options.seeds, names), contest), end="")


if __name__ == "__main__":
    main()
