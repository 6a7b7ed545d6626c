# SPDX-License-Identifier: Apache-2.0
"""A classifier that is asked about each image more than once: test-time augmentation.

    one         the image as evaluation shows it
    mirrored    and its mirror image
    middle      the image, and its middle resized to the same size
    four        all of these: the image and its middle, each as it is and mirrored
    six         and the heart of the image, as it is and mirrored

Training crops show things larger than the whole image does; the middle and the heart undo that. What a network says is
the mean of the probabilities that it gives to the views.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import unknown
from .data_spec import DataSpec

Views = Literal["one", "mirrored", "middle", "four", "six"]
VIEWS = "views"
"""Key of config.json beside weights; what has none is asked once."""
MIDDLE, HEART = 0.1, 0.2
"""Share of a side that is cut off at each edge, rounded to whole pixels of the network's input."""


@dataclass(frozen=True)
class View:
    """One way to look at an image.

    Args:
        margin: cut off at each edge, as a share of the side; what is left is resized to the same size.
        mirrored: left and right exchanged.
    """

    margin: float = 0.0
    mirrored: bool = False

    def of(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape."""
        height, width = images.shape[-2:]
        if self.margin:
            y, x = round(self.margin * height), round(self.margin * width)
            images = F.interpolate(images[..., y : height - y, x : width - x], (height, width), mode="bicubic")
        return images.flip(-1) if self.mirrored else images


EVERY = tuple(View(margin, mirrored) for margin in (0.0, MIDDLE, HEART) for mirrored in (False, True))
NAMED: dict[Views, tuple[View, ...]] = {
    "one": EVERY[:1],
    "mirrored": EVERY[:2],
    "middle": EVERY[:3:2],
    "four": EVERY[:4],
    "six": EVERY,
}
"""From cheap to dear."""
TOLD: dict[Views, str] = {
    "mirrored": "2 views (mirrored)",
    "middle": "2 views (middle)",
    "four": "4 views",
    "six": "6 views",
}
"""What a person reads; nothing of one."""


class SeveralViews(nn.Module):
    """A network that answers with the mean over views; whoever takes its logits takes those answers.

    Args:
        network: [B, C, H, W] -> logits [B, K], in evaluation mode.
        views: of each image.
        several: whether an image may show any number of the classes, so that each has a sigmoid of its own.
    """

    def __init__(self, network: nn.Module, views: Sequence[View], several: bool) -> None:
        super().__init__()
        self.network, self.views, self.several = network, tuple(views), several

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] -> logits [B, K] float32 whose softmax (sigmoid) is the mean."""
        if torch.compiler.is_exporting():  # a file holds the network once
            together = self.network(torch.cat([view.of(images) for view in self.views]))
            logits = together.unflatten(0, (len(self.views), -1)).float()
        else:  # takes the memory of one view
            logits = torch.stack([self.network(view.of(images)) for view in self.views]).float()
        if self.several:
            return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)  # finite for any logits
        return logits.log_softmax(-1).logsumexp(0)  # a softmax does not see that the log of their number is missing


def views_in(config: dict[str, Any]) -> Views:
    """Those that a config.json names. Raises: UserError for others."""
    name = config.get(VIEWS, "one")
    if name not in get_args(Views):
        raise unknown("views in config.json", name, get_args(Views))
    return name


def told(views: Views) -> str:
    """In words; "" for one."""
    return TOLD.get(views, "")


def answering(network: nn.Module, views: Views, data_spec: DataSpec) -> nn.Module:
    """The network that answers by these views; by one itself."""
    return network if views == "one" else SeveralViews(network, NAMED[views], data_spec.several).eval()
