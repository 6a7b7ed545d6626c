# SPDX-License-Identifier: Apache-2.0
"""Reconstructions of masked patches by a run that was pre-trained on them, as pictures and errors."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..config.resolve import Config
from ..data.dataset import Dataset
from ..data.images.format import displayed
from ..evaluation.model import EvaluatedModel, device_for, pictures
from ..methods.method import BatchSpec
from ..models.data_spec import DataSpec
from ..models.vit.patches import PatchGrid, patchify, unpatchify
from ..training.assemble import assemble
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from ..training.state import beneath, load_checkpoint
from .galleries import Gallery, Group, file_name

MEASURED = 32  # images
DRAWN = 8
MASK_GRAY = 0.5


@runtime_checkable
class Reconstructor(Protocol):
    """A method that reconstructs masked patches: `mae` and `simmim`."""

    data_spec: DataSpec
    patch: PatchGrid
    batch_spec: BatchSpec

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return patches [B, P, C p p], the masked ones reconstructed, and which ones are masked, [B, P] bool."""


@dataclass(frozen=True)
class Reconstruction:
    """Images with gray levels in [0, 1], their masks, and reconstructions."""

    images: Tensor
    reconstructed: Tensor  # [B, C, H, W], the image itself outside the mask; may leave [0, 1]
    masked: Tensor  # [B, H, W] bool
    error: Tensor  # per image, [B]: mean over its masked pixels and channels of the squared difference
    flat_error: Tensor  # the same for masked patches filled with their mean colors


def reconstruct(method: Reconstructor, images: Tensor, seed: int = 0) -> Reconstruction:
    """Mask and reconstruct images."""
    with torch.inference_mode():
        patches, chosen = method.reconstruct(images, method.batch_spec.noise_of(images, seed))
    grid = images.shape[-2] // method.patch[0], images.shape[-1] // method.patch[1]
    masked = unpatchify(chosen[..., None].expand_as(patches), grid, method.patch)[:, 0]
    colors = torch.unflatten(patchify(images, method.patch), 2, (images.shape[1], -1))
    means = colors.mean(-1, keepdim=True).expand_as(colors).flatten(2)
    spec = method.data_spec
    mean, std = (torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (spec.mean, spec.std))
    true, reconstructed, flat = (
        part * std + mean
        for part in (images, unpatchify(patches, grid, method.patch), unpatchify(means, grid, method.patch))
    )

    def error(part: Tensor) -> Tensor:
        return ((part - true).square().mean(1) * masked).sum((1, 2)) / masked.sum((1, 2))

    return Reconstruction(true, reconstructed, masked, error(reconstructed), error(flat))


def reconstructs(config: Config) -> bool:
    """Return whether a recipe's method reconstructs masked patches."""
    return hasattr(config.method_class, "reconstruct")


def load_reconstructor(run: RunFolder, dataset: Dataset) -> Reconstructor:
    """Load a run's method with its decoder from the last checkpoint, in inference mode."""
    config = config_of(run)
    state = beneath(load_checkpoint(run.checkpoint)["state_dict"], "method.")
    plain = {**config.values, "guides": {}, "student": {**config.values["student"], "init": None}}
    method, _ = assemble(replace(config, values=plain), dataset, seed=0)
    method.load_state_dict({name: value for name, value in state.items() if not name.startswith("guides.")})
    assert isinstance(method, Reconstructor)
    assert isinstance(method, nn.Module)
    method.eval()
    return method


def reconstruction_gallery(run: RunFolder, dataset: Dataset) -> Gallery:
    """Draw held-out images if there are any, with the same masks every time, and the mean errors."""
    if not run.checkpoint.exists():
        return Gallery("", note="The decoder is stored only in checkpoints/last.ckpt, which no longer exists.")
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    some = images.part(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MEASURED])
    method, recipe = load_reconstructor(run, dataset), config_of(run)
    assert isinstance(method, nn.Module)
    device = device_for(recipe)
    model = EvaluatedModel(method.to(device), method.data_spec, recipe.images, device, len(some))
    (batch,) = model.batches(some)
    result = reconstruct(method, batch["image"])

    true, masked = result.images[:DRAWN], result.masked[:DRAWN].unsqueeze(1)
    parts = map(levels, (true, true.masked_fill(masked, MASK_GRAY), result.reconstructed[:DRAWN]))
    captions = [f"{split}: {file_name(name)}" for name in some.records.names]
    triples = zip(*parts, captions, result.error.tolist(), strict=False)
    groups: list[Group] = [(triple, [caption, f"mean squared error {e:.4f}"]) for *triple, caption, e in triples]
    note = (
        f"Mean squared error of masked pixels over {len(result.error)} images, gray levels from 0 to 1: "
        f"{result.error.mean().item():.4f}; masked patches in their mean colors would have "
        f"{result.flat_error.mean().item():.4f}. {100 * result.masked.float().mean():.0f} % of pixels are masked. With "
        f"patch_norm, reconstructed patches have the mean and spread of the true "
        f"ones.{displayed(result.images.shape[1])}"
    )
    return Gallery("Image, its unmasked part, reconstruction", groups, note)


def levels(images: Tensor) -> list[NDArray[np.uint8]]:
    """Convert images [B, C, H, W] in [0, 1] to pictures."""
    return pictures((255 * images).round().clamp(0, 255).to(torch.uint8))
