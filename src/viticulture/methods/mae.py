# SPDX-License-Identifier: Apache-2.0
"""Masked autoencoder: train without labels by reconstructing masked patches.

Paper: He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377; for small ViTs "A
Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes: recipes/mae/.

    visible, masked = the patches with the least noise, and the others
    tokens = encoder(visible patches)    prediction = decoder(tokens, a mask token for every masked patch)
    loss = mean over masked patches and their pixels of (prediction - target)^2     [He et al., Sec. 3]

The student is the encoder; the decoder is thrown away after training.

Equal to the authors' code. Deviations that change no result: masked patches are not even embedded, mask tokens stand
behind the visible ones instead of between them (attention knows no order, positions are added), visible patches leave
the decoder before its last hidden layer, because no loss reads them, and a patch lists its pixels channel by channel
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
from ..guides.guide import Batch, Capability
from ..models.vit.patches import PatchGrid, check, choose_positions, embed, finish, patchify, rows, sincos
from .method import BatchSpec, Method, Setup

HEAD = 32  # width of a head of the decoder


def split(noise: Tensor, mask_ratio: float) -> tuple[Tensor, Tensor]:
    """Return the numbers of visible patches, those with the least noise, and of masked patches.

    Args:
        noise: [B, P] uniform numbers.
        mask_ratio: share of masked patches; V = floor(P (1 - mask_ratio)) stay visible.

    Returns: [B, V] and [B, P - V].
    """
    order = noise.argsort(dim=1, stable=True)
    visible = int(noise.shape[1] * (1 - mask_ratio))
    return order[:, :visible], order[:, visible:]


def encode(student: VisionTransformer, images: Tensor, visible: Tensor | None = None) -> Tensor:
    """Encode the visible patches, after the last norm: [B, C, H, W] -> [B, prefix + V, D]. Others are not computed.

    With all patches visible, equal to `student.forward_features` followed by `student.fc_norm`, which is the identity
    where the last norm stands before pooling.

    Args:
        visible: [B, V] numbers of patches; None for all.
    """
    x: Tensor = student.blocks(embed(student, images, visible))
    return finish(student, x)


class Decoder(nn.Module):
    """Predicts masked patches: an embedding, one mask token for all, fixed positions, blocks, a linear layer.

    Shape: [B, prefix + V, D] -> [B, R, values].

    Args:
        encoder_width: D.
        grid: rows and columns of patches.
        values: numbers to predict for a patch.
        width: of its tokens, a multiple of 4 and of heads.
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

    def forward(self, tokens: Tensor, visible: Tensor, masked: Tensor) -> Tensor:
        """Predict the masked patches, in the order of `masked`."""
        x = self.embed(tokens)
        prefix = x.shape[1] - visible.shape[1]
        placed = x[:, prefix:] + self.positions[visible]
        hidden = (self.mask_token + self.positions[masked]).to(x.dtype)
        x = torch.cat([x[:, :prefix], placed, hidden], dim=1)
        for block in self.blocks[:-1]:
            x = block(x)
        last: Any = self.blocks[-1]
        x = (x + last.attn(last.norm1(x)))[:, x.shape[1] - masked.shape[1] :]
        return self.predict(self.norm(x + last.mlp(last.norm2(x))))


def targets(images: Tensor, patch: PatchGrid, masked: Tensor, patch_norm: bool = True) -> Tensor:
    """Return the pixels of the masked patches, [B, R, C p p].

        (x - mean) / sqrt(var + 1e-6)    over each patch, var unbiased      [He et al., Sec. 3, MAE's code]
        = s (x - mean) / sqrt(biased var + 1e-6 s^2),    s^2 = (n - 1) / n for n values: a layer norm, many times faster

    Args:
        masked: [B, R] numbers of patches.
        patch_norm: standardize each patch; else pixels as they are.
    """
    pixels = rows(patchify(images, patch), masked)
    if not patch_norm:
        return pixels
    values = pixels.shape[-1]
    share = (values - 1) / values
    return F.layer_norm(pixels, (values,), pixels.new_full((values,), share**0.5), eps=1e-6 * share)


def restored(prediction: Tensor, pixels: Tensor) -> Tensor:
    """Invert `targets`: give standardized patches [..., C p p] the mean and spread of the true `pixels`."""
    mean, variance = pixels.mean(-1, keepdim=True), pixels.var(-1, keepdim=True)  # unbiased
    return prediction * (variance + 1e-6).sqrt() + mean


class MAE(Method):
    """Mask most patches, encode the others, reconstruct the masked ones.

    Args:
        mask_ratio: share of masked patches, in (0, 1).
        patch_norm: predict each patch standardized by its mean and spread; false predicts pixels.
        decoder_width: of the decoder's tokens, a multiple of 32 (one head for 32); null takes half the student's width.
        decoder_depth: blocks of the decoder.
        positions: `fixed` gives the student a constant table of sines and cosines; `learned` trains the student's.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset()
    capturable = True
    depends_on_length = False
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
        super().__init__(setup, forward=partial(encode, vit))
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
        """Return the reconstruction loss of the masked patches and the terms of guides.

            visible, masked = split(noise)                       [B, V] and [B, R] of the P patches
            tokens = encode(student, images, visible)            [B, prefix + V, D]
            prediction = decoder(tokens, visible, masked)        [B, R, C p p]
            reconstruction = mean of (prediction - target)^2     in squared pixels, or without unit with `patch_norm`

        Guides read the encoder's pass and find the numbers of its patches in the batch, as `visible`.
        """
        visible, masked = split(batch["noise"], self.mask_ratio)
        encoded = self.taps(batch["image"], visible)
        prediction = self.auxiliary["decoder"](encoded.output, visible, masked)
        loss = self._distance(prediction, batch["image"], masked)
        return {"reconstruction": loss, **self.guide_losses({**batch, "visible": visible}, encoded)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss under masks that are the same in every epoch."""
        images = batch["image"]
        visible, masked = split(self.batch_spec.noise_of(images), self.mask_ratio)
        return {"loss": self._distance(self._predict(images, visible, masked), images, masked)}

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images as patches [B, P, C p p], masked ones as predicted, and the mask [B, P].

        With `patch_norm` a predicted patch gets the true patch's mean and spread, which are not predicted.

        Args:
            noise: [B, P] uniform numbers; they choose the masks.
        """
        visible, masked = split(noise, self.mask_ratio)
        prediction, patches = self._predict(images, visible, masked).float(), patchify(images, self.patch)
        if self.patch_norm:
            prediction = restored(prediction, rows(patches, masked))
        mask = torch.zeros_like(noise, dtype=torch.bool).scatter(1, masked, True)
        return patches.scatter(1, masked[..., None].expand_as(prediction), prediction), mask

    def _predict(self, images: Tensor, visible: Tensor, masked: Tensor) -> Tensor:
        return self.auxiliary["decoder"](self.taps.output(images, visible), visible, masked)

    def _distance(self, prediction: Tensor, images: Tensor, masked: Tensor) -> Tensor:
        return F.mse_loss(prediction.float(), targets(images, self.patch, masked, self.patch_norm))
