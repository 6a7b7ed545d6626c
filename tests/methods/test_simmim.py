# SPDX-License-Identifier: Apache-2.0
"""SimMIM masks squares, replaces them by a token, and its loss reads masked pixels alone."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from label_free import start
from mae_students import vit
from refusals import refused
from resumed import check_same_bits, whole_and_resumed
from trained import weights
from viticulture.methods.mae import encode
from viticulture.methods.method import Setup
from viticulture.methods.simmim import SimMIM
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.vit.patches import patchify, unpatchify

HALF = (0.5, 0.5, 0.5)


def method(student: nn.Module, size: tuple[int, int] = (32, 32), **options: Any) -> SimMIM:
    torch.manual_seed(1)
    return SimMIM(Setup(student, DataSpec((), size, HALF, HALF)), **options)


def drawn(simmim: SimMIM, images: int = 3, size: tuple[int, int] = (32, 32)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(images, 3, *size, generator=generator), torch.rand(
        images, simmim.batch_spec.noise, generator=generator
    )


def reconstructed_by(simmim: SimMIM, images: Tensor, noise: Tensor) -> Tensor:
    """Return the reconstruction of every patch, visible ones included."""
    mask = simmim.mask(noise)
    return simmim._predict(simmim.taps.output(images, mask), mask)


def test_masks_are_squares_and_their_number_is_rounded_up() -> None:
    """ceil(ratio * squares) squares of the smallest noise [Xie et al.'s MaskGenerator], row by row."""
    simmim = method(vit((16, 32), 4), (16, 32), mask_unit=8, mask_ratio=0.6)
    assert simmim.batch_spec.noise == 2 * 4
    noise = torch.tensor([[0.0, 0.9, 0.9, 0.9, 0.1, 0.2, 0.3, 0.4]])
    squares = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)  # 0.6 * 8 rounded up is 5
    expected = squares.repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(simmim.mask(noise)[0].unflatten(0, (4, 8)), expected)


def test_squares_at_the_edge_are_cut_off() -> None:
    simmim = method(vit(20, 4), (20, 20), mask_unit=8, mask_ratio=0.5)
    assert simmim.batch_spec.noise == 9
    noise = torch.arange(9.0).flip(0)[None]  # the last five squares
    found = simmim.mask(noise)[0].unflatten(0, (5, 5))
    assert torch.equal(found[2:, 2:4].all(1), torch.ones(3, dtype=torch.bool))
    assert found[4].all()
    assert not found[:2].any()


@pytest.mark.parametrize(("size", "patch", "unit"), [(224, 16, 2), (32, 4, 1), (96, 8, 2), (192, 4, 7)])
def test_the_default_square_is_a_seventh_of_the_side(size: int, patch: int, unit: int) -> None:
    with torch.device("meta"):
        student = vit(size, patch)
    assert method(student, (size, size), positions="learned").unit == (unit, unit)


def test_masked_pixels_do_not_reach_the_student() -> None:
    simmim = method(vit(patch=4, reg_tokens=2))
    images, noise = drawn(simmim)
    mask = simmim.mask(noise)
    patches = patchify(images, (4, 4))
    holes = unpatchify(patches.masked_fill(mask[..., None], 7.0), (8, 8), (4, 4))
    assert torch.equal(reconstructed_by(simmim, images, noise), reconstructed_by(simmim, holes, noise))
    everything = unpatchify(patches.masked_fill(~mask[..., None], 7.0), (8, 8), (4, 4))
    assert not torch.equal(reconstructed_by(simmim, images, noise), reconstructed_by(simmim, everything, noise))
    painted = reconstructed_by(simmim, images, noise)[mask]
    assert len(painted.unique(dim=0)) == len(painted)  # places differ, though they hold the same token


def test_without_masks_the_student_is_unchanged() -> None:
    student = vit(patch=4)
    simmim = method(student)
    images, _ = drawn(simmim)
    nothing = torch.zeros(3, 64, dtype=torch.bool)
    torch.testing.assert_close(simmim.taps(images, nothing).output, encode(student, images))


def test_the_loss_is_the_distance_over_masked_pixels() -> None:
    """L1 summed over masked pixels and channels, divided by their number; and its gradient."""
    simmim = method(vit(patch=4))
    nn.init.zeros_(simmim.auxiliary["decoder"].predict.weight)
    nn.init.constant_(simmim.auxiliary["decoder"].predict.bias, 0.5)
    images, noise = drawn(simmim)
    mask = simmim.mask(noise)
    pixels = unpatchify(mask[..., None].expand(-1, -1, 48).float(), (8, 8), (4, 4))
    (loss,) = simmim.losses({"image": images, "noise": noise}).values()
    torch.testing.assert_close(loss, ((images - 0.5).abs() * pixels).sum() / pixels.sum())
    loss.backward()
    bias = simmim.auxiliary["decoder"].predict.bias
    signs = patchify((0.5 - images).sign(), (4, 4))[mask].mean(0) / 48
    torch.testing.assert_close(bias.grad, signs)
    measured = simmim.metrics({"image": images})["loss"]
    assert torch.equal(measured, simmim.metrics({"image": images})["loss"])
    assert simmim.auxiliary["decoder"].mask_token.grad is not None


def test_pictures_hold_the_reconstruction_alone() -> None:
    simmim = method(vit(patch=4))
    images, noise = drawn(simmim)
    patches, mask = simmim.reconstruct(images, noise)
    true, painted = patchify(images, (4, 4)), reconstructed_by(simmim, images, noise)
    assert torch.equal(patches[~mask], true[~mask])
    assert torch.equal(patches[mask], painted[mask])


def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    whole, again = whole_and_resumed(partial(start, **{"method.name": "simmim"}), tmp_path)
    check_same_bits(whole.method.state_dict(), again.method.state_dict())
    assert not [name for name in weights(again.run.path) if "decoder" in name or "mask_token" in name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: method(vit(patch=4), mask_unit=6), "multiple of the patch, got 6 and patches of 4x4"),
        (lambda: method(vit(patch=4), mask_unit=0), "multiple of the patch, got 0"),
        (lambda: method(vit(patch=4), mask_unit=32), "some of the 1 squares of 32x32 pixels.*smaller method.mask_unit"),
        (lambda: method(vit(patch=4), mask_ratio=0.0), "mask_ratio.*got 0.0"),
        (lambda: method(vit(patch=4), mask_ratio=1.0), "mask_ratio.*got 1.0"),
        (lambda: method(vit(patch=4), positions="none"), "fixed or learned"),
        (lambda: method(create_student("dhvt_nano", DataSpec((), (32, 32), HALF, HALF), 4)), "plain ViT.*DHVT"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    refused(message, make)
