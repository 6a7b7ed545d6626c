# SPDX-License-Identifier: Apache-2.0
"""Learn without labels by painting what a mask token stands for: SimMIM.

Paper: Xie et al., "SimMIM: A Simple Framework for Masked Image Modeling", CVPR 2022, arXiv:2111.09886; one of the
methods that "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, compares. Recipes:
recipes/mae/simmim-*.yaml.

    loss = mean over images of |painted - image|, mean over the image's masked pixels     [Xie et al., Sec. 3.4]

The encoder sees all places: masked patches are replaced by one learnt token, and a single linear layer paints every
patch. Deviations: the authors' ViT has relative positions, ours those of the student; they take one mean over the
masked pixels of a batch, which is the same unless units are cut off by the image's edge.
"""

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from timm.models import VisionTransformer
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Given
from ..models.vit.patches import PatchGrid, begin, check, finish, patchify, position_tables, project
from ..models.vit.positions import choose_positions
from .method import BatchSpec, Method, Setup

UNITS = 7  # along the shorter side of an image, unless a recipe says otherwise: 32 pixels at 224


class SimMIM(Method):
    """Mask squares of an image, show the student a token in their place, paint them.

    Args:
        mask_ratio: share of masked squares, in (0, 1).
        mask_unit: side of a square, pixels, a multiple of the patch; null takes the one nearest to a seventh of the
            image's shorter side. Squares at the right and lower edge may be cut off.
        positions: `fixed` gives the student a table of sines and cosines and keeps it as it is; `learned` trains the
            student's own.
    """

    gives: ClassVar[frozenset[Given]] = frozenset({Given.PATCHES})
    asks_length = False
    batch_spec = BatchSpec(labels=False)

    def __init__(
        self,
        setup: Setup,
        *,
        mask_ratio: float = 0.6,
        mask_unit: int | None = None,
        positions: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        vit = check(setup.student)
        super().__init__(setup, partial(self._encode, vit))
        self.grid, self.patch = vit.patch_embed.grid_size, vit.patch_embed.patch_size
        unit = nearest_unit(setup.data_spec.image_size, self.patch) if mask_unit is None else (mask_unit, mask_unit)
        if min(unit) < 1 or any(side % patch for side, patch in zip(unit, self.patch, strict=True)):
            raise UserError(
                f"method.mask_unit must be a multiple of the patch, got {mask_unit} and patches of "
                f"{self.patch[0]}x{self.patch[1]} pixels"
            )
        self.unit = unit[0] // self.patch[0], unit[1] // self.patch[1]
        self.units = tuple(math.ceil(count / each) for count, each in zip(self.grid, self.unit, strict=True))
        squares = math.prod(self.units)
        self.batch_spec = replace(self.batch_spec, noise=squares)
        self.masked_units = math.ceil(squares * mask_ratio)
        if not 0 < mask_ratio < 1 or self.masked_units >= squares:
            raise UserError(
                f"method.mask_ratio must leave some of the {squares} squares of {unit[0]}x{unit[1]} pixels and mask "
                f"some, got {mask_ratio}; a smaller method.mask_unit makes more of them"
            )
        choose_positions(vit, positions)
        self.auxiliary["decoder"] = PixelDecoder(
            vit.embed_dim, setup.data_spec.channels * self.patch[0] * self.patch[1]
        )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """How far what is painted lies from the image, and what guides add.

            mask = the patches of the squares with the least noise                                [B, P]
            tokens = student(patches, a learnt token in place of the masked ones)                 [B, prefix + P, D]
            painted = one linear layer of the patches' tokens                                     [B, P, C p p]
            reconstruction = mean over images of mean over their masked pixels of |painted - image|, in pixels

        Guides read this pass, which has a token for every patch.
        """
        mask = self.mask(batch["noise"])
        readings = self.taps(batch["image"], mask)
        painted = self._painted(readings.outputs[0], mask)
        return {"reconstruction": self._distance(painted, mask, batch["image"]), **self.guided(batch, readings)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """The loss under masks that are the same for every epoch."""
        images = batch["image"]
        mask = self.mask(self.batch_spec.noise_of(images))
        return {"loss": self._distance(self._painted(self.taps.output(images, mask), mask), mask, images)}

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Patches of the images, [B, P, C p p], the masked ones as they are painted, and which ones those are, [B, P].

        Args:
            images: [B, C, H, W], normalized.
            noise: [B, squares] uniform numbers; they choose the masks.
        """
        mask = self.mask(noise)
        painted = self._painted(self.taps.output(images, mask), mask)
        return torch.where(mask[..., None], painted, patchify(images, self.patch)), mask

    def mask(self, noise: Tensor) -> Tensor:
        """Which patches are masked, [B, P]: those of the squares with the least noise.

        Args:
            noise: [B, squares] uniform numbers.
        """
        chosen = noise.argsort(dim=1, stable=True)[:, : self.masked_units]
        squares = torch.zeros_like(noise, dtype=torch.bool).scatter(1, chosen, True)
        places = torch.unflatten(squares, 1, self.units)
        places = places.repeat_interleave(self.unit[0], 1).repeat_interleave(self.unit[1], 2)
        return places[:, : self.grid[0], : self.grid[1]].flatten(1)

    def _painted(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """All patches, in float32: [B, prefix + P, D] -> [B, P, C p p]."""
        painted: Tensor = self.auxiliary["decoder"](tokens[:, -mask.shape[1] :])
        return painted.float()

    def _distance(self, painted: Tensor, mask: Tensor, images: Tensor) -> Tensor:
        apart = (painted - patchify(images, self.patch)).abs().mean(-1)  # [B, P]
        return ((apart * mask).sum(1) / mask.sum(1)).mean()

    def _encode(self, vit: VisionTransformer, images: Tensor, mask: Tensor) -> Tensor:
        """What the student makes of the patches and of the token in the masked places, [B, prefix + P, D]."""
        decoder = self.auxiliary["decoder"]
        assert isinstance(decoder, PixelDecoder)
        prefix_table, table = position_tables(vit)
        patches = decoder.covered(project(vit, patchify(images, self.patch)), mask)
        x: Tensor = vit.blocks(begin(vit, patches + table, prefix_table))
        return finish(vit, x)


class PixelDecoder(nn.Module):
    """The token that stands for masked patches, and the layer that paints: [B, P, D] -> [B, P, values]."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(nn.init.trunc_normal_(torch.zeros(width), std=0.02, a=-0.02, b=0.02))
        self.predict = nn.Linear(width, values)

    def covered(self, patches: Tensor, mask: Tensor) -> Tensor:
        """Embedded patches [B, P, D] with the token where `mask` [B, P] holds."""
        return torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)


def nearest_unit(image_size: PatchGrid, patch: PatchGrid) -> PatchGrid:
    """A square of about a seventh of the image's shorter side, in whole patches, at least one; pixels."""
    wanted = min(image_size) / UNITS
    height, width = (max(round(wanted / side), 1) * side for side in patch)
    return height, width
