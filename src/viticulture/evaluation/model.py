# SPDX-License-Identifier: Apache-2.0
"""A network under evaluation. Everything that feeds images to a trained network does it through here, so that all of it
crops, resizes and normalizes them alike and on the same device.

    model = of_run(RunFolder.open("runs/photos"))
    for batch in model.batches(dataset.test):
        logits = model.network(batch["image"])
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..config.resolve import Config
from ..config.schema import of_class
from ..data.batches.evaluation import evaluation_batches, evaluation_view, evaluation_views, usual_batch
from ..data.batches.loader import CPU
from ..data.batches.targets import Batch
from ..data.dataset import ImageSettings
from ..data.image_set import Images
from ..data.image_settings import CROP_MODES, Fitting
from ..data.images.format import Pixels, as_picture
from ..data.transforms.crop import BoxCrop, Resize
from ..data.transforms.transform import send
from ..errors import UserError
from ..models.data_spec import DataSpec
from ..models.heads import every_head
from ..models.similarity import SimilarityNetwork, TrainFeatures
from ..models.tta import Calibrated, TTAMode, describe, temperature_of, tta_mode, with_tta
from ..models.weights.files import load
from ..models.weights.sources import open_network
from ..text import log, shell_word
from ..training.machine import keep_freed_memory
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of

ONE_HEAD = "its one head"


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """A network and how images are prepared for it.

    Args:
        network: in inference mode, on `device`; it takes [B, C, H, W] float32.
        data_spec: its classes; H and W, pixels; mean and deviation of the channels, which lie in [0, 1].
        whole: feed it the whole image, resized, in place of that part.
        eval_views: views of that part whose predictions are averaged.
        train_features: by which images of other things are noticed; None where they are not.
    """

    network: nn.Module
    data_spec: DataSpec
    image_settings: ImageSettings
    device: torch.device
    batch_size: int
    architecture: str = ""
    whole: bool = False
    eval_views: TTAMode = "one"
    temperature: tuple[float, ...] = ()
    train_features: TrainFeatures | None = None

    @cached_property
    def tta_network(self) -> nn.Module:
        """The network averaged over its views and calibrated, [B, C, H, W] -> logits [B, K]."""
        network = with_tta(self.network, self.eval_views, self.data_spec)
        return Calibrated(network, self.temperature).eval().to(self.device) if self.temperature else network

    @cached_property
    def similarity_network(self) -> SimilarityNetwork | None:
        """The same network with the similarity to the training images; None where that is not known."""
        if self.train_features is None:
            return None
        return SimilarityNetwork(self.tta_network, self.network, self.train_features).eval().to(self.device)

    @property
    def crop(self) -> BoxCrop:
        """The part of an image that it is fed."""
        return Resize() if self.whole else self.image_settings.crop

    def batches(self, images: Images) -> Iterator[Batch]:
        """Yield every image once, in order, on the device.

        A batch holds `image` [B, C, H, W] float32, normalized; `label` [B], -1 without; `index` [B], its position.
        """
        return evaluation_batches(images, self.data_spec, self.batch_size, self.device, self.crop)

    def views(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """The same before normalization, on the CPU: places [B], and pixels [B, C, H, W] uint8.
        What is drawn or corrupted comes from here and goes on to the network by `normalized`."""
        return evaluation_views(images, self.data_spec, self.batch_size, CPU, self.crop)

    def normalized(self, pixels: Tensor) -> Tensor:
        """The network's input of pixels [B, C, H, W] uint8: (pixels / 255 - mean) / std, float32 on its device."""
        return evaluation_view(self.data_spec).normalize(send(pixels, self.device))


def of_run(run: RunFolder, weights: str = "", batch_size: int | None = None) -> EvaluatedModel:
    """Load a run's student, with images prepared as the run's validation images were."""
    recipe = config_of(run)  # which imports what a student of the user's code needs
    folder = run.weights(weights or run.which()[0])
    student, data_spec, config = load(folder)
    device = device_for(recipe)
    keep_freed_memory()
    return EvaluatedModel(
        student.to(device), data_spec, recipe.images, device, batch_size or usual_batch(data_spec.image_size),
        _architecture(config),
        eval_views=tta_mode(config), temperature=temperature_of(config, len(data_spec.classes)),
        train_features=TrainFeatures.load(folder, config, student),
    )  # fmt: skip


def of_source(source: str) -> EvaluatedModel:
    """Load any other network, by a source as for `open_network`. Raises: UserError if it cannot be loaded."""
    network, data_spec, about = open_network(source)
    described = about.cfg
    fit: Fitting = next((ours for ours, theirs in CROP_MODES.items() if theirs == described.get("crop_mode")), "crop")
    crop = described.get("crop_pct") or 1.0
    if fit != "crop" and crop < 1:
        log(f"{source}: whole images are used, where timm cuts their edges off as well (crop_pct {crop:g})")
        crop = 1.0
    image_settings = ImageSettings(
        image_size=list(data_spec.image_size),
        eval_crop=crop,
        eval_interpolation="bilinear" if described.get("interpolation") == "bilinear" else "bicubic",
        normalize="imagenet"
        if data_spec.channels == 3
        else "half",  # for what lies around an image; the student has its own
        channels=data_spec.channels,
        range=about.config.get("range"),
        fit=fit,
    )
    device = _device()
    keep_freed_memory()
    return EvaluatedModel(
        network.to(device), data_spec, image_settings, device, usual_batch(data_spec.image_size),
        architecture=_architecture(about.config) if about.config else about.architecture,
        eval_views=tta_mode({**about.config}),
        temperature=temperature_of({**about.config}, len(data_spec.classes)),
    )  # fmt: skip


def check_classes(run: RunFolder, classes: tuple[str, ...]) -> None:
    """Raises: UserError for a run that was trained without labels."""
    if not classes:
        student = run.read("run.json")["student"]["name"]
        raise UserError(
            f"{run.path} was trained without labels, so it does not classify; train it on labels first: "
            f"viticulture train DATA --student {student} --init {shell_word(run.path)}"
        )


def check_one_class(run: RunFolder, data_spec: DataSpec) -> None:
    """Raises: UserError for a run that was trained without labels, on several an image, or on numbers."""
    check_classes(run, data_spec.classes)
    if data_spec.multilabel or data_spec.scale is not None:
        what = "several labels an image" if data_spec.multilabel else "a number"
        raise UserError(
            f"{run.path} predicts {what}, and this measures one class; evaluate it on other images by "
            f"viticulture evaluate {shell_word(run.path)} DATA"
        )


def pictures(pixels: Tensor) -> list[Pixels]:
    """Views [B, C, H, W] uint8 as pages display them, [H, W, 3] each (`channels.as_picture`)."""
    return [as_picture(view) for view in pixels.permute(0, 2, 3, 1).cpu().numpy()]


def device_for(config: Config) -> torch.device:
    """Return the device to evaluate a run's student on: a GPU if there is one, unless the recipe names the CPU."""
    return CPU if config.engine.device == "cpu" else _device()


def _device() -> torch.device:
    return torch.device("cuda") if torch.cuda.is_available() else CPU


def _architecture(config: Mapping[str, Any]) -> str:
    return json.dumps([config.get(key) for key in ("student", "architecture", "model_args")], sort_keys=True)


@dataclass(frozen=True)
class OutputHeads:
    """The heads of a student."""

    # Class token first, then the teachers' as `guides.co_advise.teachers` calls them; one name for one head.
    names: tuple[str, ...]
    rule: str  # which of them make the student's output: "class token", "mean of 3 heads" or "its one head"

    def rule_with(self, views: TTAMode) -> str:
        """Name the heads that make the predictions, and the views of an image where there are several."""
        if not (by_views := describe(views)):
            return self.rule
        return by_views if self.rule == ONE_HEAD else f"{self.rule}, {by_views}"

    def combine(self, logits: Tensor) -> Tensor:
        """The student's output out of all heads' logits: [K, B, C] -> [B, C]."""
        return logits.mean(0) if self.rule.startswith("mean") else logits[0]


@torch.no_grad()
def heads_of(student: nn.Module, images: Tensor, config: Config) -> OutputHeads:
    """Find which heads make a student's output by comparing them with it."""
    logits = all_logits(student, images)
    advisers = of_class(config.values["guides"], "co_advise").values()
    taught = tuple(teacher for guide in advisers for teacher in guide.get("teachers") or ())
    names = taught if len(taught) == len(logits) - 1 else tuple(f"head {k}" for k in range(2, len(logits) + 1))
    if len(logits) == 1:
        return OutputHeads(("class",), ONE_HEAD)
    output = student(images).float()
    distance = {
        "class token": (output - logits[0]).abs().max(),
        f"mean of {len(logits)} heads": (output - logits.mean(0)).abs().max(),
    }
    return OutputHeads(("class", *names), min(distance, key=lambda rule: float(distance[rule])))


def all_logits(student: nn.Module, images: Tensor) -> Tensor:
    """The logits of every head, [K, B, C] float32, class token first."""
    return torch.stack(every_head(student, images)).float()
