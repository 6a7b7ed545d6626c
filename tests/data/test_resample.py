# SPDX-License-Identifier: Apache-2.0
"""Cropping and resizing agree with Pillow, one image at a time and as matrices."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from viticulture.data.transforms.resample import by_matrices, on_pixels, one_by_one, resample, resize_to_square

SIDE = 40


def pictures(count: int, side: int = SIDE) -> Tensor:
    """Draw smooth color waves with some noise and hard edges, [count, 3, side, side] uint8."""
    generator = torch.Generator().manual_seed(0)
    place = torch.linspace(0, 6, side)
    phase = 6 * torch.rand(count, 3, 1, 1, generator=generator)
    waves = 128 + 90 * torch.sin(place[:, None] + phase) * torch.cos(0.7 * place + 2 * phase)
    waves[..., side // 3 : side // 2] += 70
    return (waves + 8 * torch.randn(count, 3, side, side, generator=generator)).clamp(0, 255).to(torch.uint8)


def shares(edges: list[tuple[int, int, int, int]]) -> Tensor:
    return torch.tensor(edges, dtype=torch.float64) / SIDE


EDGES = [(0, 0, 40, 40), (3, 7, 30, 21), (11, 0, 5, 40), (39, 39, 1, 1), (20, 5, 16, 16)]


@pytest.mark.parametrize("size", [(16, 16), (24, 16), (64, 50), (7, 90)])
@pytest.mark.parametrize("cubic", [False, True])
def test_a_box_is_resized_as_by_pillow(size: tuple[int, int], cubic: bool) -> None:
    """Within 0.3 of a level on average, two at most: torch keeps filter weights in 16 bits."""
    images = pictures(len(EDGES))
    ours = resample(images, shares(EDGES), size, torch.full((len(EDGES),), cubic))
    way = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    for image, (top, left, height, width), result in zip(images, EDGES, ours, strict=True):
        source = Image.fromarray(image.permute(1, 2, 0).numpy())
        wanted = source.crop((left, top, left + width, top + height)).resize((size[1], size[0]), way)
        difference = np.abs(np.asarray(wanted).astype(int) - result.permute(1, 2, 0).numpy())
        assert difference.mean() < 0.3
        assert difference.max() <= 2


@pytest.mark.parametrize("size", [(16, 16), (24, 31), (70, 50)])
def test_matrices_equal_the_kernel(size: tuple[int, int]) -> None:
    """Within one level, since the kernel's weights of 16 bits may tip a rounding."""
    images, cubic = pictures(len(EDGES)), torch.tensor([True, False, True, False, True])
    edges = torch.tensor(EDGES)
    one, all_at_once = one_by_one(images, edges, size, cubic), by_matrices(images, edges, size, cubic)
    assert (one.int() - all_at_once.int()).abs().max() <= 1


def test_each_image_has_its_own_box_and_filter() -> None:
    images, cubic = pictures(len(EDGES)), torch.tensor([True, False, True, False, True])
    whole = resample(images, shares(EDGES), (20, 20), cubic)
    for k in range(len(EDGES)):
        assert torch.equal(
            whole[k], resample(images[k : k + 1], shares(EDGES[k : k + 1]), (20, 20), cubic[k : k + 1])[0]
        )
    assert torch.equal(whole, resample(list(images), shares(EDGES), (20, 20), cubic))


@pytest.mark.parametrize("size", [(20, 20), (SIDE, SIDE)])
def test_memory_layout_changes_nothing(size: tuple[int, int]) -> None:
    images, cubic = pictures(len(EDGES)), torch.tensor([True, False, True, False, True])
    stored = images.contiguous(memory_format=torch.channels_last)
    boxes = shares(EDGES) if size != (SIDE, SIDE) else torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(len(EDGES), 1)
    found = resample(list(stored), boxes, size, cubic)
    assert found.is_contiguous()
    assert torch.equal(found, resample(list(images), boxes, size, cubic))


def test_resizing_to_the_same_size_is_the_identity() -> None:
    images = pictures(3)
    boxes, cubic = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(3, 1), torch.tensor([True, False, True])
    for given in (images, list(images)):
        found = resample(given, boxes, (SIDE, SIDE), cubic)
        assert torch.equal(found, images)
        found.zero_()
        assert torch.equal(images, pictures(3))


@pytest.mark.parametrize("shape", [(30, 50), (5, 7), (1, 1), (1, 40), (16, 16)])
def test_resizing_is_pillows_within_a_level(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    found = resize_to_square(pixels, 16)
    wanted = np.asarray(Image.fromarray(pixels).resize((16, 16), Image.Resampling.BICUBIC))
    assert found.flags.c_contiguous
    assert found.shape == (16, 16, 3)
    assert np.abs(found.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("shape", [(20_001, 1), (1, 20_001), (3, 9_999), (100_000, 30)])
def test_a_strip_is_averaged_before_resizing(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    along = np.linspace(0, 9, max(shape))
    wave = (128 + 100 * np.sin(along)).astype(np.uint8)
    pixels = np.repeat((wave[:, None] if shape[0] > shape[1] else wave[None]), min(shape), int(shape[0] > shape[1]))
    pixels = np.stack([pixels, 255 - pixels, pixels // 2], axis=-1)
    seen: list[torch.Size] = []

    def watched(image: Tensor, **options: Any) -> Tensor:
        seen.append(image.shape[2:])
        return interpolate(image, **options)

    interpolate = F.interpolate
    monkeypatch.setattr(F, "interpolate", watched)
    resized = resize_to_square(pixels, 8)
    assert max(seen[0]) <= 64 * max(8, min(shape))
    pillow = np.asarray(Image.fromarray(pixels).resize((8, 8), Image.Resampling.BICUBIC))
    assert np.abs(resized.astype(int) - pillow).max() <= 2


@pytest.mark.parametrize("shape", [(512, 1), (1, 512), (640, 10)])
def test_a_shape_of_64_to_1_is_resized_plainly(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    plain = F.interpolate(image, size=(8, 8), mode="bicubic", antialias=True)[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(resize_to_square(pixels, 8), plain)


def test_boxes_end_on_pixels_inside_the_image() -> None:
    boxes = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.999, 0.0, 0.001, 1.0], [1 / 3, 1 / 3, 1 / 3, 1 / 3]])
    assert on_pixels(boxes, 10, 10).tolist() == [[9, 9, 1, 1], [9, 0, 1, 10], [3, 3, 4, 4]]
    tiny = resample(pictures(3), boxes, (5, 5), torch.tensor([True, True, False]))
    assert torch.equal(tiny[0], pictures(3)[0, :, -1:, -1:].expand(3, 5, 5))
