# SPDX-License-Identifier: Apache-2.0
"""Test-time augmentation (TTA): a classifier evaluated on several views of each image, by their mean probabilities.

    one         the image as evaluation feeds it
    mirrored    and its mirror image
    middle      the image, and its middle resized to the same size
    four        all of these: the image and its middle, each unchanged and mirrored
    six         and a smaller middle, unchanged and mirrored

Training crops enlarge objects; the two middles do the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError, received, unknown
from .data_spec import DataSpec

TTAMode = Literal["one", "mirrored", "middle", "four", "six"]
TTA_KEY = "views"  # key of config.json next to weights; without it a network is evaluated on one view
TEMPERATURE_KEY = "temperature"  # key of config.json next to weights: numbers that divide the logits
MIDDLE, SMALL_MIDDLE = 0.1, 0.2
"""Share of a side that is cut off at each edge, rounded to whole pixels of the network's input."""


@dataclass(frozen=True)
class TTAView:
    """One view of an image."""

    margin: float = 0.0  # cut off at each edge, as a share of the side; the rest is resized to the same size
    mirrored: bool = False  # left and right exchanged

    def of(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape."""
        height, width = images.shape[-2:]
        if self.margin:
            y, x = round(self.margin * height), round(self.margin * width)
            images = F.interpolate(images[..., y : height - y, x : width - x], (height, width), mode="bicubic")
        return images.flip(-1) if self.mirrored else images


ALL_VIEWS = tuple(TTAView(margin, mirrored) for margin in (0.0, MIDDLE, SMALL_MIDDLE) for mirrored in (False, True))
TTA_VIEWS: dict[TTAMode, tuple[TTAView, ...]] = {
    "one": ALL_VIEWS[:1],
    "mirrored": ALL_VIEWS[:2],
    "middle": ALL_VIEWS[:3:2],
    "four": ALL_VIEWS[:4],
    "six": ALL_VIEWS,
}
"""From cheap to expensive."""


class TTAModel(nn.Module):
    """A network whose logits are those of the mean probabilities over views.

    Args:
        network: [B, C, H, W] -> logits [B, K], in evaluation mode.
        views: of each image.
        multilabel: whether the probabilities are one sigmoid per class instead of a softmax.
        number: whether the output is a number, which is averaged itself.
    """

    def __init__(self, network: nn.Module, views: Sequence[TTAView], multilabel: bool, number: bool = False) -> None:
        super().__init__()
        self.network, self.views, self.multilabel, self.number = network, tuple(views), multilabel, number

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> logits [B, K] float32 whose softmax (sigmoid) is the mean."""
        if torch.compiler.is_exporting():  # a file holds the network once
            together = self.network(torch.cat([view.of(images) for view in self.views]))
            logits = together.unflatten(0, (len(self.views), -1)).float()
        else:  # takes the memory of one view
            logits = torch.stack([self.network(view.of(images)) for view in self.views]).float()
        if self.number:
            return logits.mean(0)
        if self.multilabel:
            return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)  # finite for any logits
        return logits.log_softmax(-1).logsumexp(0)  # up to the log of the number of views, which a softmax ignores


class Calibrated(nn.Module):
    """A network whose logits [B, C] are divided by a temperature, or by one per label (scores/calibration.py)."""

    temperature: Tensor

    def __init__(self, network: nn.Module, temperature: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("temperature", torch.tensor(temperature, dtype=torch.float32))

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> logits [B, C] float32."""
        return self.network(images).float() / self.temperature


def temperature_of(config: dict[str, Any], classes: int) -> tuple[float, ...]:
    """Return the temperatures that a config.json holds; () for none. Raises: UserError for other values."""
    values = config.get(TEMPERATURE_KEY) or ()
    valid = isinstance(values, list | tuple) and all(isinstance(v, float) and isfinite(v) and v > 0 for v in values)
    if not valid or len(values) not in (0, 1, classes):
        raise UserError(
            f"{TEMPERATURE_KEY} in config.json must be one positive number, or one per label, got {received(values)}; "
            "evaluate the run again"
        )
    return tuple(values)


def tta_mode(config: dict[str, Any]) -> TTAMode:
    """Return the mode that a config.json names. Raises: UserError for an unknown one."""
    name = config.get(TTA_KEY, "one")
    if name not in get_args(TTAMode):
        raise unknown("views in config.json", name, get_args(TTAMode))
    return name


def describe(mode: TTAMode) -> str:
    """Return the mode in words, such as "2 views (mirrored)"; "" for one view."""
    count = len(TTA_VIEWS[mode])
    return "" if count == 1 else f"{count} views ({mode})" if count == 2 else f"{count} views"


def with_tta(network: nn.Module, mode: TTAMode, data_spec: DataSpec) -> nn.Module:
    """Return the network with test-time augmentation; for one view the network itself."""
    if mode == "one":
        return network
    return TTAModel(network, TTA_VIEWS[mode], data_spec.multilabel, data_spec.scale is not None).eval()
