# SPDX-License-Identifier: Apache-2.0
"""Boxes and masks follow their image: equal to torchvision's functions, image by image."""

import math
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from refusals import refused
from viticulture.data.batches.targets import placed_objects
from viticulture.data.targets.objects import Objects
from viticulture.data.targets.outlines import bitmap, encoded
from viticulture.data.transforms.crop import Letterbox, ResizedCrop, ScaleJitter
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.mix import Mix
from viticulture.data.transforms.placement import Placement, check_follows, placement
from viticulture.data.transforms.view import Augment

GRAY = (0.5, 0.5, 0.5)
CANVAS = (48, 64)


def placed(augment: Augment, sizes: list[tuple[int, int]], u: Tensor, side: int) -> Placement:
    return placement(augment, torch.tensor(sizes), side, u)


def objects(boxes: Tensor) -> Objects:
    count = len(boxes)
    return Objects(boxes, torch.arange(count), torch.zeros(count, dtype=torch.bool))


@pytest.mark.parametrize("seed", range(6))
def test_boxes_follow_as_torchvisions(seed: int) -> None:
    """Within half a cached pixel times the enlargement."""
    generator = torch.Generator().manual_seed(seed)
    side = 96
    augment = Augment([ScaleJitter((0.3, 2.5)), Flip(0.5)], CANVAS, GRAY, GRAY, 0)
    u = torch.rand(16, augment.columns, generator=generator, dtype=torch.float64)
    place = placed(augment, [(side, side)] * 16, u, side)
    corners = torch.rand(16, 5, 2, generator=generator) * 60
    boxes = torch.cat([corners, corners + 8 + torch.rand(16, 5, 2, generator=generator) * 25], 2)
    for i in range(16):
        factor = (0.3 + 2.2 * u[i, 0]) * min(CANVAS[0] / side, CANVAS[1] / side)
        scaled = max(math.floor(side * factor + 1e-9), 1)
        found = tv_tensors.BoundingBoxes(boxes[i], format="XYXY", canvas_size=(side, side))
        found = F.resize(found, [scaled, scaled])
        top, left = (math.floor(u[i, 1 + k] * (max(scaled - CANVAS[k], 0) + 1)) for k in (0, 1))
        shown = min(scaled, CANVAS[0]), min(scaled, CANVAS[1])
        found = F.clamp_bounding_boxes(F.crop(found, top, left, *shown))
        found = F.pad(found, [0, 0, CANVAS[1] - shown[1], CANVAS[0] - shown[0]])
        if u[i, 3] < 0.5:
            found = F.horizontal_flip(found)
        torch.testing.assert_close(
            place.boxes(i, boxes[i]), found.as_subclass(Tensor), rtol=0, atol=0.51 * max(factor, 1) + 1e-3
        )


def test_the_box_of_a_cut_object_bounds_what_is_left() -> None:
    """A triangle whose corners lie outside the canvas: the box is that of its visible mask, mirrored or not;
    an object that is whole keeps its box. Catches: the annotated box clipped to the canvas."""
    side = 64
    pixels = np.zeros((side, side), np.uint8)
    pixels[8:56, 8:56] = np.tri(48, 48)[:, ::-1]  # ones in the lower right half
    boxes = torch.tensor([[8.0, 8, 56, 56], [20.25, 24.5, 32.75, 37.5]])
    small = np.zeros_like(pixels)
    small[25:37, 21:32] = 1
    found = Objects(boxes, torch.arange(2), torch.zeros(2, dtype=torch.bool), [encoded(pixels), encoded(small)])
    for mirrored in (0.0, 1.0):
        augment = Augment([ScaleJitter((2.0, 2.0)), Flip(mirrored)], (64, 64), GRAY, GRAY, 0)
        u = torch.tensor([[0.5, 0.4, 0.4, 0.5]], dtype=torch.float64)  # rows and columns 13 to 45
        place = placed(augment, [(side, side)], u, side)
        whole = placed_objects(place, 0, found, masks=True)
        for box, plane, kept in zip(whole["boxes"], whole["masks"], (False, True), strict=True):
            down, across = (plane.any(axis).nonzero()[:, 0] for axis in (1, 0))
            bounds = torch.tensor([across[0], down[0], across[-1] + 1, down[-1] + 1])
            clipped = placed_objects(place, 0, found, masks=False)["boxes"][int(kept)]
            assert torch.equal(box, clipped if kept else bounds)
        assert not torch.equal(whole["boxes"][0], placed_objects(place, 0, found, masks=False)["boxes"][0])


def test_an_image_is_where_its_box_is() -> None:
    height, width, side = 60, 90, 72
    pixels = torch.zeros(3, height, width, dtype=torch.uint8)
    pixels[:, 20:44, 30:66] = 255
    stored = torch.nn.functional.interpolate(pixels[None].float(), (side, side), mode="bilinear", antialias=True).byte()
    augment = Augment([ScaleJitter((0.5, 1.5)), Flip(0.5)], CANVAS, GRAY, GRAY, 0)
    u = torch.rand(24, augment.columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sizes = torch.tensor([[height, width]] * 24)
    place = placement(augment, sizes, side, u)
    canvas = augment.change(augment.cut(stored.expand(24, -1, -1, -1), sizes, u), u)
    seen = 0
    for i in range(24):
        found = placed_objects(place, i, objects(torch.tensor([[30.0, 20, 66, 44]])), masks=False)["boxes"]
        if not len(found):
            continue
        rows, columns = (canvas[i, 0] > 200).nonzero().unbind(1)
        spanned = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
        torch.testing.assert_close(found[0], spanned, rtol=0, atol=2.5)  # edges are blurred by two resizes
        seen += 1
    assert seen > 12


@pytest.mark.skipif(find_spec("pycocotools") is None, reason="needs the extra dense")
def test_outlines_equal_their_full_bitmaps() -> None:
    draw = np.random.default_rng(0)
    height, width = 60, 90
    augment = Augment([ScaleJitter((0.4, 2.0)), Flip(0.5)], CANVAS, GRAY, GRAY, 0)
    u = torch.rand(12, augment.columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    place = placed(augment, [(height, width)] * 12, u, 72)
    shapes: list[Any] = []
    for _ in range(30):
        center, angles = draw.uniform(-5, 95, 2), np.sort(draw.uniform(0, 2 * np.pi, 7))
        ring = center + draw.uniform(0.2, 30) * np.stack([np.cos(angles), np.sin(angles)], 1)
        shapes.append(
            [ring.ravel().round(2).tolist(), (ring * 0.4 + 20).ravel().round(2).tolist()][: 1 + len(shapes) % 2]
        )
    shapes.append(encoded(draw.integers(0, 2, (height, width))))
    for i in range(12):
        expected = [place.mask(i, torch.from_numpy(bitmap(shape, height, width)), 0) for shape in shapes]
        assert torch.equal(torch.from_numpy(place.outlines(i, shapes)), torch.stack(expected))
    assert sum(int(mask.any()) for mask in expected) > 10


def test_a_mask_is_where_its_image_is() -> None:
    side = 64
    pixels = (torch.arange(side)[:, None] // 8 * 8 + torch.arange(side)[None] // 8).to(torch.uint8)
    augment = Augment([ScaleJitter((0.6, 2.0)), Flip(0.5)], CANVAS, GRAY, GRAY, 0)
    u = torch.rand(12, augment.columns, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sizes = torch.tensor([[40, 64]] * 12)
    place = placement(augment, sizes, side, u)
    images = augment.change(augment.cut(pixels.expand(12, 3, -1, -1).contiguous(), sizes, u), u)
    for i in range(12):
        mask = place.mask(i, pixels, outside=128)  # gray fills the canvas, too
        same = (images[i, 0].int() - mask.int()).abs() <= 2
        assert same.float().mean() > 0.6  # edges between blocks differ, as one is interpolated
        height, width = place.extents[i].tolist()
        inside = torch.zeros(CANVAS, dtype=torch.bool)
        inside[:height, :width] = True
        inside = inside.flip(1) if place.mirrored[i] else inside
        assert (mask[~inside] == 128).all()
        assert (mask[inside] < 128).all()


def test_a_letterbox_can_be_undone() -> None:
    sizes = [(30, 90), (90, 30), (48, 64), (480, 640)]
    place = placed(Augment([Letterbox()], CANVAS, GRAY, GRAY, 0), sizes, torch.empty(4, 0), 80)
    for i, (height, width) in enumerate(sizes):
        boxes = torch.tensor([[0.0, 0, width, height], [width / 3, height / 4, width / 2, height / 2]])
        torch.testing.assert_close(place.back(i, place.boxes(i, boxes)), boxes, rtol=1e-5, atol=1e-4)
        assert (place.extents[i] <= torch.tensor(CANVAS)).all()
        assert (place.extents[i] == torch.tensor(CANVAS)).any()


def test_objects_that_are_cut_off_are_removed() -> None:
    place = placed(Augment([Letterbox()], (32, 32), GRAY, GRAY, 0), [(32, 32)], torch.empty(1, 0), 32)
    boxes = torch.tensor([[1.0, 1, 9, 9], [31.6, 3, 40, 9], [33, 33, 40, 40], [2, 2, 8, 8]])
    found = Objects(boxes, torch.tensor([4, 5, 6, 7]), torch.tensor([False, False, False, True]))
    kept = placed_objects(place, 0, found, masks=False)
    assert kept["labels"].tolist() == [4]
    assert kept["boxes"].tolist() == [[1, 1, 9, 9]]


def test_padding_is_zero_after_normalization() -> None:
    mean, std = (0.25, 0.5, 0.75), (0.2, 0.3, 0.4)
    augment = Augment([ScaleJitter((0.5, 0.5))], (32, 32), mean, std, 0)
    images = torch.full((1, 3, 16, 16), 255, dtype=torch.uint8)
    cut = augment.cut(images, torch.tensor([[16, 16]]), torch.zeros(1, 3, dtype=torch.float64))
    seen = augment.normalize(cut)
    assert seen[0, :, 20:, 20:].abs().max() < 0.5 / 255 / 0.2  # a gray level's rounding
    assert (cut[0, :, :16, :16] == 255).all()


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"scale_jitter": ScaleJitter, "mix": Mix}, "cannot follow augment.mix"),
        ({"resized_crop": ResizedCrop}, "cannot follow augment.resized_crop"),
        ({"scale_jitter": ScaleJitter, "flip": type("Flip", (Flip,), {})}, "cannot follow augment.flip"),
        ({"flip": Flip}, "the recipe has none"),
    ],
    ids=["mixed", "a crop", "a person's own class of that name", "no scale_jitter"],
)
def test_a_transform_without_targets_is_refused(kinds: dict[str, type], words: str) -> None:
    refused(words, check_follows, kinds)
