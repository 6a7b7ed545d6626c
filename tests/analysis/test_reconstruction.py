# SPDX-License-Identifier: Apache-2.0
"""Pictures of a masked autoencoder's reconstructions: standardized patches become pixels again; plain errors."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from label_free import start
from mae_students import method, vit
from viticulture.analysis.galleries import FILE, read_galleries
from viticulture.analysis.reconstruction import levels, load_reconstructor, reconstruct, reconstruction_gallery
from viticulture.methods.mae import MAE, restored, targets
from viticulture.models.vit.patches import patchify, rows
from viticulture.report.pictures import gallery
from viticulture.tasks.results import Evaluated, Results
from viticulture.tasks.task import task_of
from viticulture.training.run import fit

IMAGES = torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(0))


class Perfect(nn.Module):
    """A decoder that knows the target, but for a factor."""

    def __init__(self, mae: MAE, images: Tensor, factor: float = 1.0) -> None:
        super().__init__()
        self.answer = lambda masked: factor * targets(images, mae.patch, masked, mae.patch_norm)

    def forward(self, latent: Tensor, kept: Tensor, masked: Tensor) -> Tensor:
        return self.answer(masked)


def knowing(factor: float = 1.0, patch_norm: bool = True) -> MAE:
    mae = method(vit((16, 24), 4), patch_norm=patch_norm).eval()
    mae.auxiliary["decoder"] = Perfect(mae, IMAGES, factor)
    return mae


def test_standardized_patches_become_pixels_again() -> None:
    images = IMAGES.clone()
    images[0, :, :4, :4] = 0.3
    images[0, :, 4:8, :4] *= 1e-4
    numbers = torch.tensor([[0, 6, 5]]).expand(4, -1)
    pixels = rows(patchify(images, (4, 4)), numbers)
    torch.testing.assert_close(restored(targets(images, (4, 4), numbers), pixels), pixels, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("patch_norm", [True, False])
def test_a_perfect_decoder_reconstructs_the_image(patch_norm: bool) -> None:
    found = reconstruct(knowing(patch_norm=patch_norm), IMAGES)
    torch.testing.assert_close(found.reconstructed, found.images, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.images, 0.5 * IMAGES + 0.5)
    assert found.error.max() < 1e-9
    assert found.masked.shape == (4, 16, 24)
    assert found.masked.float().mean() == 0.75


def test_errors_are_means_over_masked_pixels_in_gray_levels() -> None:
    """Zeros cost the variance within masked patches; visible pixels have no error."""
    found = reconstruct(knowing(0.0), IMAGES)
    where = found.masked.unsqueeze(1).expand_as(found.images)
    assert torch.equal(found.reconstructed[~where], found.images[~where])
    for image in range(4):
        patches = patchify(found.images[image : image + 1], (4, 4))[0]
        masked = patchify(where[image : image + 1].float(), (4, 4))[0][:, 0].bool()
        torch.testing.assert_close(found.error[image], patches[masked].var(1, correction=0).mean(), rtol=1e-4, atol=0)
        flat = patches[masked].unflatten(1, (3, 16)).var(2, correction=0).mean()
        torch.testing.assert_close(found.flat_error[image], flat, rtol=1e-4, atol=0)


def test_masks_follow_the_seed() -> None:
    mae = knowing()
    one, again, other = (reconstruct(mae, IMAGES, seed) for seed in (0, 0, 1))
    assert torch.equal(one.masked, again.masked)
    assert not torch.equal(one.masked, other.masked)


def test_gray_levels_are_clipped_and_rounded() -> None:
    (picture,) = levels(torch.tensor([[[[-1.0, 0.5]], [[0.0, 1.0]], [[0.999, 2.0]]]]))
    assert picture.tolist() == [[[0, 0, 255], [128, 255, 255]]]


@pytest.mark.parametrize("name", ["mae", "simmim"])
def test_a_runs_report_has_its_reconstructions(tmp_path: Path, name: str) -> None:
    session = start(tmp_path / "run", **{"method.name": name, "data.per_class": 4})
    fit(session)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    ours = reconstruct(load_reconstructor(session.run, session.dataset), images)
    assert torch.equal(ours.reconstructed, reconstruct(session.method.eval(), images).reconstructed)
    html = gallery(reconstruction_gallery(session.run, session.dataset))
    assert html.count("<img") == 24
    assert "Mean squared error" in html
    session.run.checkpoint.unlink()
    assert "last.ckpt" in gallery(reconstruction_gallery(session.run, session.dataset))
    plain = start(tmp_path / "plain", **{"method.name": "supervised"})
    task = task_of(plain.run)
    task.save_pictures(plain.dataset, Evaluated(Results("", {}, type(task))))
    assert set(read_galleries(plain.run.path / FILE) or ()) == {"examples"}
