# SPDX-License-Identifier: Apache-2.0
"""A network looking at images. Whoever shows images to a trained network does it through here, so that all of them
show the same part of an image, in the same size and colors, on the same device.

    subject = of_run(RunFolder.open("runs/photos"))
    for batch in subject.batches(dataset.test):
        logits = subject.network(batch["image"])
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..config.resolve import Config
from ..data.augment.crop import BoxCrop, Squeeze
from ..data.batches.batch import Batch
from ..data.batches.evaluation import as_seen, evaluation_batches, evaluation_views
from ..data.batches.loader import CPU
from ..data.channels import Levels, as_picture
from ..data.dataset import ImageSettings
from ..data.image_settings import CROP_MODES, Fitting
from ..data.images import Images
from ..data.transfer import send
from ..models.data_spec import DataSpec
from ..models.teachers.open import open_teacher
from ..models.views import Views, answering, views_in
from ..models.weights.files import find_weights, load
from ..text import tell
from ..training.run_folder import RunFolder
from ..training.run_inputs import recipe_of

BATCH = 256


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, and how it is shown images.

    Args:
        network: in inference mode, on `device`; it takes [B, C, H, W] float32.
        data_spec: its classes; H and W, pixels; mean and deviation of the channels, which lie in [0, 1].
        image_settings: in which size images are kept for it, and which part of them it is shown.
        device: where it computes.
        batch_size: images at once.
        architecture: what its weights do not say of it.
        whole: show it the whole image, squeezed, in place of that part.
        eval_views: of that part, by which it tells classes.
    """

    network: nn.Module
    data_spec: DataSpec
    image_settings: ImageSettings
    device: torch.device
    batch_size: int = BATCH
    architecture: str = ""
    whole: bool = False
    eval_views: Views = "one"

    @cached_property
    def answers(self) -> nn.Module:
        """The network by its views, [B, C, H, W] -> logits [B, K]; who looks inside takes `network`."""
        return answering(self.network, self.eval_views, self.data_spec)

    @property
    def crop(self) -> BoxCrop:
        """The part of an image that it is shown."""
        return Squeeze() if self.whole else self.image_settings.crop

    def batches(self, images: Images) -> Iterator[Batch]:
        """Every image once, in order, on the device: `image` [B, C, H, W] float32, normalized; `label` [B], -1 without;
        `index` [B], its place among the images."""
        return evaluation_batches(images, self.data_spec, self.batch_size, self.device, self.crop)

    def views(self, images: Images) -> Iterator[tuple[Tensor, Tensor]]:
        """The same before normalization, on the CPU: places [B], and pixels [B, C, H, W] uint8.
        What is drawn, or spoilt first, comes from here and goes on to the network by `normalized`."""
        return evaluation_views(images, self.data_spec, self.batch_size, CPU, self.crop)

    def normalized(self, pixels: Tensor) -> Tensor:
        """What the network takes for pixels [B, C, H, W] uint8: (pixels / 255 - mean) / std, float32 on its device."""
        return as_seen(self.data_spec).normalize(send(pixels, self.device))


def of_run(run: RunFolder, weights: str = "", batch_size: int = BATCH) -> Subject:
    """A run's student, shown images as the run's validation was.

    Args:
        run: a run with weights.
        weights: best, last or ema; by default those that count.
        batch_size: images at once.
    """
    recipe = recipe_of(run)  # which imports what a student of a person's own needs
    student, data_spec, config = load(run.weights(weights or run.which()[0]))
    device = device_for(recipe)
    return Subject(
        student.to(device), data_spec, recipe.section("images"), device, batch_size, _architecture(config),
        eval_views=views_in(config),
    )  # fmt: skip


def of_source(source: str) -> Subject:
    """Any other network: a folder of weights, a timm name with pretrained weights, or ARCHITECTURE=FILE.

    Raises: UserError if it cannot be had.
    """
    views: Views = "one"
    folder, kept = find_weights(source), None
    if folder is not None:
        network, data_spec, config = load(folder)
        architecture, described, kept = _architecture(config), config["pretrained_cfg"], config.get("range")
        views = views_in(config)
    else:
        network, data_spec = open_teacher(source)
        architecture, described = source.partition("=")[0], getattr(network, "pretrained_cfg", {})
    fit: Fitting = next((ours for ours, theirs in CROP_MODES.items() if theirs == described.get("crop_mode")), "crop")
    crop = described.get("crop_pct") or 1.0
    if fit != "crop" and crop < 1:
        tell(f"{source}: images are shown whole, where timm cuts their edges off as well (crop_pct {crop:g})")
        crop = 1.0
    image_settings = ImageSettings(
        image_size=list(data_spec.image_size),
        eval_crop=crop,
        eval_interpolation="bilinear" if described.get("interpolation") == "bilinear" else "bicubic",
        normalize="imagenet"
        if data_spec.channels == 3
        else "half",  # for what lies around an image; the student has its own
        channels=data_spec.channels,
        range=kept,
        fit=fit,
    )
    device = _device()
    return Subject(
        network.eval().to(device), data_spec, image_settings, device, architecture=architecture, eval_views=views
    )


def pictures(pixels: Tensor) -> list[Levels]:
    """Views [B, C, H, W] uint8 as a person is shown them, [H, W, 3] each (`channels.as_picture`)."""
    return [as_picture(view) for view in pixels.permute(0, 2, 3, 1).cpu().numpy()]


def device_for(recipe: Config) -> torch.device:
    """Where a run's student is looked at: on a GPU where there is one, unless the recipe asks for the CPU."""
    return CPU if recipe.section("engine").device == "cpu" else _device()


def _device() -> torch.device:
    return torch.device("cuda") if torch.cuda.is_available() else CPU


def _architecture(config: Mapping[str, Any]) -> str:
    return json.dumps([config.get(key) for key in ("student", "architecture", "model_args")], sort_keys=True)
