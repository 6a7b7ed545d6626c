# SPDX-License-Identifier: Apache-2.0
"""What a student that learnt by painting masked patches sees in the rest of an image.

found = reconstruct_some(RunFolder.open("runs/mae"), dataset, dataset.test)   # pictures, and how far from the truth
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..config.resolve import Config, method_class
from ..data.channels import shown
from ..data.dataset import Dataset
from ..data.images import Images
from ..evaluation.subject import Subject, device_for, pictures
from ..methods.method import BatchSpec
from ..models.data_spec import DataSpec
from ..models.vit.patches import PatchGrid, patchify, unpatchify
from ..training.assemble import assemble
from ..training.run_folder import RunFolder
from ..training.run_inputs import recipe_of
from ..training.state import beneath, load_checkpoint
from .galleries import Gallery, Group

MEASURED = 32  # images
SHOWN = 8
HIDDEN = 0.5  # gray of what is masked


@runtime_checkable
class Reconstructor(Protocol):
    """A method that paints what it masks: `mae` and `simmim`.

    Args:
        data_spec: what its student is shown.
        patch: height and width, pixels.
        batch_spec: how many uniform numbers choose the mask of an image.
    """

    data_spec: DataSpec
    patch: PatchGrid
    batch_spec: BatchSpec

    def reconstruct(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Patches [B, P, C p p], the masked ones as painted, and which ones those are, [B, P] bool."""


@dataclass(frozen=True)
class Reconstruction:
    """Images with gray levels in [0, 1], what was hidden of them, and what was painted there.

    Args:
        images: [B, C, H, W].
        painted: [B, C, H, W], the image itself where nothing was hidden; may leave [0, 1].
        masked: [B, H, W] bool.
        error: of each image, [B]: mean over its masked pixels and channels of the squared distance.
        flat_error: the same, were every masked patch painted in its own mean color.
    """

    images: Tensor
    painted: Tensor
    masked: Tensor
    error: Tensor
    flat_error: Tensor


def reconstruct(method: Reconstructor, images: Tensor, seed: int = 0) -> Reconstruction:
    """Mask images and have them painted.

    Args:
        method: in inference mode.
        images: [B, C, H, W], normalized as the student takes them.
        seed: of the masks.
    """
    with torch.inference_mode():
        patches, chosen = method.reconstruct(images, method.batch_spec.noise_of(images, seed))
    grid = images.shape[-2] // method.patch[0], images.shape[-1] // method.patch[1]
    masked = unpatchify(chosen[..., None].expand_as(patches), grid, method.patch)[:, 0]
    colors = torch.unflatten(patchify(images, method.patch), 2, (images.shape[1], -1))
    means = colors.mean(-1, keepdim=True).expand_as(colors).flatten(2)
    mean, std = (
        torch.tensor(values, device=images.device).view(-1, 1, 1)
        for values in (method.data_spec.mean, method.data_spec.std)
    )
    true, painted, flat = (
        part * std + mean
        for part in (images, unpatchify(patches, grid, method.patch), unpatchify(means, grid, method.patch))
    )
    return Reconstruction(true, painted, masked, distance(painted, true, masked), distance(flat, true, masked))


def reconstruct_some(run: RunFolder, dataset: Dataset, images: Images) -> Reconstruction:
    """What a run's method makes of images, all at once.

    Args:
        run: of a method that paints, with a checkpoint.
        dataset: the run's.
        images: of any split.
    """
    method, recipe = painter_of(run, dataset), recipe_of(run)
    assert isinstance(method, nn.Module)
    device = device_for(recipe)
    subject = Subject(method.to(device), method.data_spec, recipe.section("images"), device, len(images))
    (batch,) = subject.batches(images)
    return reconstruct(method, batch["image"])


def distance(painted: Tensor, true: Tensor, masked: Tensor) -> Tensor:
    """Mean squared distance over the masked pixels [B, H, W] of each image [B, C, H, W] -> [B]."""
    squares = (painted - true).square().mean(1) * masked
    return squares.sum((1, 2)) / masked.sum((1, 2))


def paints(recipe: Config) -> bool:
    """Whether a recipe's method paints what it masks."""
    return hasattr(method_class(recipe), "reconstruct")


def painter_of(run: RunFolder, dataset: Dataset) -> Reconstructor:
    """The method of a run as its last checkpoint holds it, with what it paints by, in inference mode.

    Raises: UserError if the run has no checkpoint.
    """
    recipe = recipe_of(run)
    state = beneath(load_checkpoint(run.checkpoint)["state_dict"], "method.")
    untaught = {**recipe.values, "guides": {}, "student": {**recipe.values["student"], "init": None}}
    method, _ = assemble(replace(recipe, values=untaught), dataset, seed=0)
    method.load_state_dict({name: value for name, value in state.items() if not name.startswith("guides.")})
    assert isinstance(method, Reconstructor)
    assert isinstance(method, nn.Module)
    method.eval()
    return method


def reconstruction_gallery(run: RunFolder, dataset: Dataset) -> Gallery:
    """Images that did not teach, where there are any, under the same masks every time."""
    if not run.checkpoint.exists():
        return Gallery("", note="What paints is kept in checkpoints/last.ckpt alone, and that file is gone.")
    splits = {"test": dataset.test, "validation": dataset.val, "training": dataset.train}
    split, images = next((name, images) for name, images in splits.items() if images is not None)
    some = images.part(torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:MEASURED])
    names = [f"{split}: {name.rsplit('/', 1)[-1]}" for name in some.records.names]
    return painted(reconstruct_some(run, dataset, some), names)


def painted(reconstruction: Reconstruction, names: list[str]) -> Gallery:
    """The first images as triples, and the mean errors of all."""
    masked = reconstruction.masked[:SHOWN].unsqueeze(1)
    parts_of = [
        reconstruction.images[:SHOWN],
        reconstruction.images[:SHOWN].masked_fill(masked, HIDDEN),
        reconstruction.painted[:SHOWN],
    ]
    triples = zip(*map(levels, parts_of), names, reconstruction.error.tolist(), strict=False)
    groups: list[Group] = [(parts, [name, f"mean squared error {error:.4f}"]) for *parts, name, error in triples]
    error, flat = reconstruction.error.mean().item(), reconstruction.flat_error.mean().item()
    note = (
        f"Mean squared error of masked pixels over {len(reconstruction.error)} images, gray levels from 0 to 1: "
        f"{error:.4f}; masked patches in their own mean color would have {flat:.4f}. "
        f"{100 * reconstruction.masked.float().mean():.0f} % of pixels are masked. With patch_norm, painted patches "
        f"have the mean and the spread of the true ones.{shown(reconstruction.images.shape[1])}"
    )
    return Gallery("Image, what is shown of it, what is painted", groups, note)


def levels(images: Tensor) -> list[NDArray[np.uint8]]:
    """Images [B, C, H, W] in [0, 1] as pictures."""
    bytes_ = (255 * images).round().clamp(0, 255).to(torch.uint8)
    return pictures(bytes_)
