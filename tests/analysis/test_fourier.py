# SPDX-License-Identifier: Apache-2.0
"""Fourier amplitudes separate smooth layers from detailed ones, as the notebook of Park and Kim does."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from refusals import refused
from viticulture.analysis.layers import frequencies, relative_log_amplitude

Load = Callable[[str], Any]


def test_it_is_the_official_code(golden: Load) -> None:
    """Mean over images and channels."""
    data = golden("fourier_delta_log_amplitude")
    found = relative_log_amplitude(data["in/tokens"], (4, 4)).mean(0)
    torch.testing.assert_close(found, data["out/half_diagonal"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", [4, 5, 14])
def test_it_is_the_half_diagonal_of_the_shifted_spectrum(side: int) -> None:
    """Even and odd grids, from index side // 2 of the shifted spectrum on."""
    tokens = torch.randn(2, side * side, 3, generator=torch.Generator().manual_seed(side))
    maps = tokens.double().reshape(2, side, side, 3).permute(0, 3, 1, 2).numpy()
    logs = np.log(np.abs(np.fft.fftshift(np.fft.fft2(maps), axes=(-2, -1))) + 1e-6).mean(1)
    diagonal = np.stack([np.diag(image)[side // 2 :] for image in logs])
    expected = torch.from_numpy(diagonal - diagonal[:, :1])
    found = relative_log_amplitude(tokens, (side, side))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    assert len(frequencies((side, side))) == found.shape[1]
    assert frequencies((side, side))[:2] == [0, 2 / side]


def test_a_wave_has_its_frequency() -> None:
    """2 periods on 8 patches, on a mean of 1, half as high: log 1/4 at 2/8, next to nothing elsewhere."""
    place = torch.arange(8.0)
    wave = 1 + 0.5 * torch.cos(2 * math.pi * 2 * (place[:, None] + place) / 8)
    found = relative_log_amplitude(wave.reshape(1, 64, 1), (8, 8))[0]
    assert found[2].item() == pytest.approx(math.log(0.25), abs=1e-5)
    assert (found[[1, 3]] < -10).all()
    assert frequencies((8, 8))[2] == 0.5


def test_amplitudes_are_relative_and_fall_by_smoothing() -> None:
    tokens = 5 * torch.randn(4, 36, 8, generator=torch.Generator().manual_seed(0))
    maps = tokens.reshape(4, 6, 6, 8)
    near = maps + maps.roll(1, 1)
    smooth = (near + near.roll(1, 2)).flatten(1, 2) / 4
    plain, smoothed = (relative_log_amplitude(x, (6, 6)).mean(0) for x in (tokens, smooth))
    torch.testing.assert_close(relative_log_amplitude(100 * tokens, (6, 6)).mean(0), plain, rtol=1e-3, atol=1e-3)
    gap = plain - smoothed
    assert 0 < gap[1] < gap[2]
    expected = -2 * math.log(math.cos(math.pi * 2 / 6))  # two means of neighbors, each cos(omega / 2)
    assert gap[2].item() == pytest.approx(expected, rel=1e-3)


def test_grids_without_a_diagonal_are_refused() -> None:
    refused("square", relative_log_amplitude, torch.zeros(1, 8, 2), (2, 4))
    refused("all of its patches", relative_log_amplitude, torch.zeros(1, 10, 2), (3, 3))
