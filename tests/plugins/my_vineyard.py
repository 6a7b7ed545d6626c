"""One of each kind that a recipe may name by its dotted path, and some that do not fit."""

from typing import Any

import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from torch import Tensor, nn

from viticulture.plugins import Batch, BatchSpec, DataSpec, Guide, Method, Setup, Transform


def small_vit(pretrained: bool = False, **keywords: Any) -> VisionTransformer:
    """A ViT of one block."""
    keywords = {key: value for key, value in keywords.items() if not key.startswith(("pretrained", "cache"))}
    return VisionTransformer(**{"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, **keywords})


def vit_tiny() -> None:
    """Named like a network of the package."""


class Shift(Transform):
    """Add a few gray levels.

    Args:
        most: gray levels.
    """

    columns = 1

    def __init__(self, most: int = 8) -> None:
        self.most = most

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        assert images.dtype == torch.uint8
        levels = (u[:, 0] * self.most).to(images.device, torch.int16).view(-1, 1, 1, 1)
        return (images + levels).clamp_max(255).to(torch.uint8)


class Rotation(Method):
    """Tell by how many quarter turns an image was turned (Gidaris et al., arXiv:1803.07728).

    Args:
        turns: how many to tell apart.
    """

    provides = frozenset()
    batch_spec = BatchSpec(labels=False)

    def __init__(self, setup: Setup, *, turns: int = 4) -> None:
        super().__init__(setup)
        self.turns = turns
        self.auxiliary["head"] = nn.Linear(16, turns)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        images = torch.cat([torch.rot90(batch["image"], turn, (2, 3)) for turn in range(self.turns)])
        turn = torch.arange(self.turns, device=images.device).repeat_interleave(len(batch["image"]))
        return {"rotation": F.cross_entropy(self.auxiliary["head"](self.student(images)), turn)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.losses(batch)["rotation"]}


class Looking(Guide):
    """Needs attention, and does nothing with it."""

    needs = frozenset({"attention"})

    def __init__(self, student: nn.Module, data_spec: DataSpec) -> None:
        super().__init__()

    def losses(self, batch: Batch, readings: Any) -> dict[str, Tensor]:
        return {}


class Unfinished(Guide):
    """Says no losses."""


class Alone(Guide):
    """Takes no student."""

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()

    def losses(self, batch: Batch, readings: Any) -> dict[str, Tensor]:
        return {}


class Untyped(Alone):
    """Leaves open what its keyword is."""

    def __init__(self, student: nn.Module, data_spec: DataSpec, *, weight=1.0) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
