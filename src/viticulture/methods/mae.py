# SPDX-License-Identifier: Apache-2.0
"""Learn without labels by painting what is masked: a masked autoencoder.

Paper: He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377; for small ViTs "A
Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes: recipes/mae/.

    loss = mean over masked patches and their pixels of (painted - target)^2     [He et al., Sec. 3], plus guides' terms

The kept student is the encoder; the decoder is thrown away after training.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Given, Guide
from ..models.taps import Seen
from ..models.task import Task
from ..models.vit.patches import Decoder, check, encode, patchify, restored, rows, split, targets
from ..models.vit.positions import choose_positions
from ..optim import Optim, Schedule
from .method import Method

HEAD = 32  # width of a head of the decoder


class MAE(Method):
    """Mask most patches, encode the others, paint the masked ones.

    Args:
        mask_ratio: share of masked patches, in (0, 1).
        patch_norm: paint each patch standardized by its own mean and spread; false paints pixels.
        decoder_width: of the decoder's tokens, a multiple of 32 (one head for 32); null takes half the student's width.
        decoder_depth: blocks of the decoder.
        positions: `fixed` gives the student a table of sines and cosines and keeps it as it is; `learned` trains the
            student's own.
    """

    gives: ClassVar[frozenset[Given]] = frozenset()
    labeled: ClassVar[bool] = False

    def __init__(
        self,
        student: nn.Module,
        task: Task,
        guides: Mapping[str, Guide],
        optim: Optim,
        schedule: Schedule,
        *,
        mask_ratio: float = 0.75,
        patch_norm: bool = True,
        decoder_width: int | None = None,
        decoder_depth: int = 1,
        positions: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__(student, task, guides, optim, schedule)
        vit = check(student)
        grid, self.patch = vit.patch_embed.grid_size, vit.patch_embed.patch_size
        self.noise = grid[0] * grid[1]
        if not 0 < mask_ratio < 1 or not 0 < int(self.noise * (1 - mask_ratio)) < self.noise:
            raise UserError(
                f"method.mask_ratio must leave some of the {self.noise} patches and mask some, got {mask_ratio}"
            )
        if decoder_depth < 1:
            raise UserError(f"method.decoder_depth must be at least 1, got {decoder_depth}")
        width = decoder_width or max(vit.embed_dim // 2 // HEAD, 1) * HEAD
        if width % HEAD:
            raise UserError(f"method.decoder_width must be a multiple of {HEAD}, got {width}")
        choose_positions(vit, positions)
        self.mask_ratio, self.patch_norm = mask_ratio, patch_norm
        values = 3 * self.patch[0] * self.patch[1]
        self.auxiliary["decoder"] = Decoder(vit.embed_dim, grid, values, width, decoder_depth, width // HEAD)
        self.taps.run = partial(encode, vit)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        loss, kept, seen = self._paint(batch["image"], batch["noise"])
        return {"reconstruction": loss, **self.guided({**batch, "kept": kept}, seen)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """The loss under masks that are the same for every epoch."""
        images = batch["image"]
        noise = torch.rand(len(images), self.noise, generator=torch.Generator().manual_seed(0)).to(images.device)
        return {"loss": self._paint(images, noise)[0]}

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Patches of the images, [B, P, 3 p p], the masked ones as they are painted, and which ones those are, [B, P].

        With `patch_norm` a painted patch gets the mean and the spread of the true one, which are not asked of it.

        Args:
            images: [B, 3, H, W], normalized.
            noise: [B, P] uniform numbers; they choose the masks.
        """
        kept, masked = split(noise, self.mask_ratio)
        painted = self.auxiliary["decoder"](self.taps(images, kept).logits[0], kept, masked).float()
        patches = patchify(images, self.patch)
        if self.patch_norm:
            painted = restored(painted, rows(patches, masked))
        mask = torch.zeros_like(noise, dtype=torch.bool).scatter(1, masked, True)
        return patches.scatter(1, masked[..., None].expand_as(painted), painted), mask

    def _paint(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Seen]:
        kept, masked = split(noise, self.mask_ratio)
        seen = self.taps(images, kept)
        painted = self.auxiliary["decoder"](seen.logits[0], kept, masked)
        target = targets(images, self.patch, masked, self.patch_norm)
        return F.mse_loss(painted.float(), target), kept, seen
