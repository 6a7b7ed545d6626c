# SPDX-License-Identifier: Apache-2.0
"""Learn without labels by painting what is masked: a masked autoencoder.

Paper: He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377; for small ViTs "A
Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes: recipes/mae/.

    kept, masked = the patches with the least noise, and the others
    tokens = encoder(kept patches)    painted = decoder(tokens, a mask token for every masked patch)
    loss = mean over masked patches and their pixels of (painted - target)^2     [He et al., Sec. 3], plus guides' terms

The kept student is the encoder; the decoder is thrown away after training.

Equal to the authors' code. Deviations that change no result: masked patches are not even embedded, mask tokens stand
behind the kept ones instead of between them (attention knows no order, positions are added), kept patches leave the
decoder before its last hidden layer, because no loss reads them, and a patch lists its pixels channel by channel
(`models.vit.patches`).
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from timm.layers.norm import LayerNorm
from timm.models import VisionTransformer
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from ..errors import UserError
from ..guides.guide import Batch, Given
from ..models.vit.patches import PatchGrid, check, embed, finish, patchify, rows
from ..models.vit.positions import choose_positions, sincos
from .method import BatchSpec, Method, Setup

HEAD = 32  # width of a head of the decoder


def split(noise: Tensor, mask_ratio: float) -> tuple[Tensor, Tensor]:
    """Numbers of the kept and of the masked patches: those with the least noise are kept.

    Args:
        noise: [B, P] uniform numbers.
        mask_ratio: share of masked patches; floor(P (1 - mask_ratio)) are kept.

    Returns: [B, K] and [B, P - K].
    """
    order = noise.argsort(dim=1, stable=True)
    keep = int(noise.shape[1] * (1 - mask_ratio))
    return order[:, :keep], order[:, keep:]


def encode(student: VisionTransformer, images: Tensor, kept: Tensor | None = None) -> Tensor:
    """What the ViT makes of the kept patches: [B, C, H, W] -> [B, prefix + K, D], after its last norm.

    Where all patches are kept, equal to `student.forward_features` followed by `student.fc_norm`, which is nothing
    where the last norm stands before pooling.

    Args:
        student: checked by `models.vit.patches.check`.
        images: normalized.
        kept: [B, K] numbers of the patches to look at; None takes all. Others are not computed.
    """
    x: Tensor = student.blocks(embed(student, images, kept))
    return finish(student, x)


class Decoder(nn.Module):
    """Paints the masked patches: its own embedding, one mask token for all, fixed positions, blocks, a linear layer.

    Shape: [B, prefix + K, D] -> [B, R, values].

    Args:
        encoder_width: D.
        grid: rows and columns of patches.
        values: numbers to predict for a patch.
        width: of its tokens, a multiple of 4 and of heads.
        depth: blocks.
        heads: of its attention.
        mlp_ratio: width of the hidden layers over `width`.
    """

    positions: Tensor

    def __init__(
        self,
        encoder_width: int,
        grid: PatchGrid,
        values: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(encoder_width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("positions", sincos(grid, width, prefix=0)[0], persistent=False)
        self.blocks = nn.Sequential(*(Block(width, heads, mlp_ratio, qkv_bias=True) for _ in range(depth)))
        self.norm = LayerNorm(width)
        self.predict = nn.Linear(width, values)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, latent: Tensor, kept: Tensor, masked: Tensor) -> Tensor:
        """Predictions for the masked patches, in the order of `masked`."""
        x = self.embed(latent)
        prefix = x.shape[1] - kept.shape[1]
        seen = x[:, prefix:] + self.positions[kept]
        hidden = (self.mask_token + self.positions[masked]).to(x.dtype)
        x = torch.cat([x[:, :prefix], seen, hidden], dim=1)
        for block in self.blocks[:-1]:
            x = block(x)
        last: Any = self.blocks[-1]
        x = (x + last.attn(last.norm1(x)))[:, x.shape[1] - masked.shape[1] :]
        return self.predict(self.norm(x + last.mlp(last.norm2(x))))


def targets(images: Tensor, patch: PatchGrid, masked: Tensor, patch_norm: bool = True) -> Tensor:
    """What the decoder is to paint, [B, R, C p p]: the pixels of the masked patches.

        (x - mean) / sqrt(var + 1e-6)    over each patch, var unbiased      [He et al., Sec. 3, MAE's code]
        = s (x - mean) / sqrt(biased var + 1e-6 s^2),    s^2 = (n - 1) / n for n values: a layer norm, many times faster

    Args:
        images: [B, C, H, W], normalized.
        patch: height and width, pixels.
        masked: [B, R] numbers of patches.
        patch_norm: standardize each patch; else pixels as they are.
    """
    pixels = rows(patchify(images, patch), masked)
    if not patch_norm:
        return pixels
    values = pixels.shape[-1]
    share = (values - 1) / values
    return F.layer_norm(pixels, (values,), pixels.new_full((values,), share**0.5), eps=1e-6 * share)


def restored(painted: Tensor, pixels: Tensor) -> Tensor:
    """The inverse of `targets`: standardized patches [..., C p p] with the mean and the spread of `pixels`, theirs."""
    mean, variance = pixels.mean(-1, keepdim=True), pixels.var(-1, keepdim=True)  # unbiased
    return painted * (variance + 1e-6).sqrt() + mean


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
    asks_length = False
    batch_spec = BatchSpec(labels=False)

    def __init__(
        self,
        setup: Setup,
        *,
        mask_ratio: float = 0.75,
        patch_norm: bool = True,
        decoder_width: int | None = None,
        decoder_depth: int = 1,
        positions: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        vit = check(setup.student)
        super().__init__(setup, partial(encode, vit))
        grid, self.patch = vit.patch_embed.grid_size, vit.patch_embed.patch_size
        patches = grid[0] * grid[1]
        self.batch_spec = replace(self.batch_spec, noise=patches)
        if not 0 < mask_ratio < 1 or not 0 < int(patches * (1 - mask_ratio)) < patches:
            raise UserError(
                f"method.mask_ratio must leave some of the {patches} patches and mask some, got {mask_ratio}"
            )
        if decoder_depth < 1:
            raise UserError(f"method.decoder_depth must be at least 1, got {decoder_depth}")
        width = decoder_width or max(vit.embed_dim // 2 // HEAD, 1) * HEAD
        if width % HEAD:
            raise UserError(f"method.decoder_width must be a multiple of {HEAD}, got {width}")
        choose_positions(vit, positions)
        self.mask_ratio, self.patch_norm = mask_ratio, patch_norm
        values = setup.data_spec.channels * self.patch[0] * self.patch[1]
        if patch_norm and values == 1:
            raise UserError(
                "method.patch_norm standardizes each patch, and a patch of one pixel of one channel is one value; take "
                "a larger student.patch_size, or method.patch_norm false"
            )
        self.auxiliary["decoder"] = Decoder(vit.embed_dim, grid, values, width, decoder_depth, width // HEAD)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The reconstruction of the masked patches, and what guides add.

            kept, masked = split(noise)                       [B, K] and [B, R] of the P patches
            tokens = encode(student, images, kept)            [B, prefix + K, D]
            painted = decoder(tokens, kept, masked)           [B, R, C p p]
            reconstruction = mean of (painted - target)^2     in squared pixels, or without unit with `patch_norm`

        Guides read the encoder's pass, and find the numbers of the patches that it saw in the batch, as `kept`.
        """
        kept, masked = split(batch["noise"], self.mask_ratio)
        readings = self.taps(batch["image"], kept)
        painted = self.auxiliary["decoder"](readings.outputs[0], kept, masked)
        loss = self._distance(painted, batch["image"], masked)
        return {"reconstruction": loss, **self.guided({**batch, "kept": kept}, readings)}

    def measures(self, batch: Batch) -> dict[str, Tensor]:
        """The loss under masks that are the same for every epoch."""
        images = batch["image"]
        kept, masked = split(self.batch_spec.noise_of(images), self.mask_ratio)
        return {"loss": self._distance(self._painted(images, kept, masked), images, masked)}

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Patches of the images, [B, P, C p p], the masked ones as they are painted, and which ones those are, [B, P].

        With `patch_norm` a painted patch gets the mean and the spread of the true one, which are not asked of it.

        Args:
            images: [B, C, H, W], normalized.
            noise: [B, P] uniform numbers; they choose the masks.
        """
        kept, masked = split(noise, self.mask_ratio)
        painted, patches = self._painted(images, kept, masked).float(), patchify(images, self.patch)
        if self.patch_norm:
            painted = restored(painted, rows(patches, masked))
        mask = torch.zeros_like(noise, dtype=torch.bool).scatter(1, masked, True)
        return patches.scatter(1, masked[..., None].expand_as(painted), painted), mask

    def _painted(self, images: Tensor, kept: Tensor, masked: Tensor) -> Tensor:
        return self.auxiliary["decoder"](self.taps.output(images, kept), kept, masked)

    def _distance(self, painted: Tensor, images: Tensor, masked: Tensor) -> Tensor:
        return F.mse_loss(painted.float(), targets(images, self.patch, masked, self.patch_norm))
