# SPDX-License-Identifier: Apache-2.0
"""SimMIM: train without labels by reconstructing patches that a mask token replaces.

Paper: Xie et al., "SimMIM: A Simple Framework for Masked Image Modeling", CVPR 2022, arXiv:2111.09886; one of the
methods that "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443, compares. Recipes:
recipes/mae/simmim-*.yaml.

    loss = mean over images of |prediction - image|, mean over the image's masked pixels     [Xie et al., Sec. 3.4]

The encoder processes all places: masked patches are replaced by one trained token, and a single linear layer predicts
every patch. Deviations: the authors' ViT has relative positions, ours those of the student; they take one mean over the
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
from ..guides.guide import Batch, Capability
from ..models.vit.patches import PatchGrid, begin, check, choose_positions, finish, patchify, position_tables, project
from .method import BatchSpec, Method, Setup

UNITS = 7  # along the shorter side of an image, unless a recipe says otherwise: 32 pixels at 224


class SimMIM(Method):
    """Mask squares of an image with a token and reconstruct them.

    Args:
        mask_ratio: share of masked squares, in (0, 1).
        mask_unit: side of a square, pixels, a multiple of the patch; null takes the nearest to a seventh of the image's
            shorter side. Squares at the right and lower edge may be cut off.
        positions: `fixed` gives the student a constant table of sines and cosines; `learned` trains the student's.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.PATCHES})
    capturable = True
    depends_on_length = False
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
        super().__init__(setup, forward=partial(self.encode, vit))
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
        """Return the reconstruction loss and the terms of guides, which read this pass with a token for every patch.

        mask = the patches of the squares with the least noise                                [B, P]
        tokens = encode(patches, a trained token in place of the masked ones)                 [B, prefix + P, D]
        prediction = one linear layer of the patches' tokens                                  [B, P, C p p]
        reconstruction = mean over images of mean over their masked pixels of |prediction - image|, in pixels
        """
        mask = self.mask(batch["noise"])
        encoded = self.taps(batch["image"], mask)
        prediction = self._predict(encoded.output, mask)
        return {"reconstruction": self._distance(prediction, mask, batch["image"]), **self.guide_losses(batch, encoded)}

    def encode(self, vit: VisionTransformer, images: Tensor, mask: Tensor) -> Tensor:
        """Encode the patches, with the token in place of the masked ones, [B, prefix + P, D]."""
        decoder = self.auxiliary["decoder"]
        assert isinstance(decoder, PixelDecoder)
        prefix_table, table = position_tables(vit)
        patches = decoder.covered(project(vit, patchify(images, self.patch)), mask)
        x: Tensor = vit.blocks(begin(vit, patches + table, prefix_table))
        return finish(vit, x)

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss under masks that are the same in every epoch."""
        images = batch["image"]
        mask = self.mask(self.batch_spec.noise_of(images))
        return {"loss": self._distance(self._predict(self.taps.output(images, mask), mask), mask, images)}

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images as patches [B, P, C p p], masked ones as predicted, and the mask [B, P].

        Args:
            noise: [B, squares] uniform numbers; they choose the masks.
        """
        mask = self.mask(noise)
        prediction = self._predict(self.taps.output(images, mask), mask)
        return torch.where(mask[..., None], prediction, patchify(images, self.patch)), mask

    def mask(self, noise: Tensor) -> Tensor:
        """Return the mask [B, P]: the patches of the squares with the least noise [B, squares]."""
        chosen = noise.argsort(dim=1, stable=True)[:, : self.masked_units]
        squares = torch.zeros_like(noise, dtype=torch.bool).scatter(1, chosen, True)
        places = torch.unflatten(squares, 1, self.units)
        places = places.repeat_interleave(self.unit[0], 1).repeat_interleave(self.unit[1], 2)
        return places[:, : self.grid[0], : self.grid[1]].flatten(1)

    def _predict(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Predict all patches in float32: [B, prefix + P, D] -> [B, P, C p p]."""
        prediction: Tensor = self.auxiliary["decoder"](tokens[:, -mask.shape[1] :])
        return prediction.float()

    def _distance(self, prediction: Tensor, mask: Tensor, images: Tensor) -> Tensor:
        distances = (prediction - patchify(images, self.patch)).abs().mean(-1)  # [B, P]
        return ((distances * mask).sum(1) / mask.sum(1)).mean()


class PixelDecoder(nn.Module):
    """The token of masked patches, and the layer that predicts pixels: [B, P, D] -> [B, P, values]."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(nn.init.trunc_normal_(torch.zeros(width), std=0.02, a=-0.02, b=0.02))
        self.predict = nn.Linear(width, values)

    def covered(self, patches: Tensor, mask: Tensor) -> Tensor:
        """Return embedded patches [B, P, D] with the token where `mask` [B, P] holds."""
        return torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(x)


def nearest_unit(image_size: PatchGrid, patch: PatchGrid) -> PatchGrid:
    """Return a square of about a seventh of the image's shorter side, in whole patches, at least one; pixels."""
    side = min(image_size) / UNITS
    height, width = (max(round(side / patch_side), 1) * patch_side for patch_side in patch)
    return height, width
