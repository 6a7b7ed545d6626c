# SPDX-License-Identifier: Apache-2.0
"""numpy kernels on a CPU equal torch's plain operations."""

import pytest
import torch

from viticulture.data.transforms.pixels import below, cut_rows, to_bytes


@pytest.mark.parametrize("length", [1, 7, 12])
@pytest.mark.parametrize("shape", [(3, 3, 5, 9), (1, 3, 4, 1), (0, 3, 2, 4)])
def test_rows_are_cut_as_by_indexing(shape: tuple[int, ...], length: int) -> None:
    draw = torch.Generator().manual_seed(0)
    upright = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    for images in (upright, upright.mT):
        n, _, height, width = images.shape
        start = torch.randint(-30, 40, (n, height), generator=draw)
        found = cut_rows(images, start, length)
        assert found.shape == (n, height, 3, length)
        for image in range(n):
            for row in range(height):
                columns = (start[image, row] + torch.arange(length)).clamp(0, width - 1)
                assert torch.equal(found[image, row], images[image, :, row][:, columns])


def test_bytes_and_comparisons_are_torchs() -> None:
    values = torch.linspace(0, 255, 4081)
    assert torch.equal(to_bytes(values), values.to(torch.int16).to(torch.uint8))
    levels = torch.arange(256, dtype=torch.uint8).repeat(3, 1)
    limits = torch.tensor([[0], [100], [255]], dtype=torch.uint8)
    assert torch.equal(below(levels, limits), (levels < limits).to(torch.uint8))
    assert torch.equal(below(levels, 128), (levels < 128).to(torch.uint8))
    assert torch.equal(below(values, 17.0), (values < 17.0).to(torch.uint8))
