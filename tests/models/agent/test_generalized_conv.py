# SPDX-License-Identifier: Apache-2.0
"""CONV is the convolution of the paper's Appendix A with as many taps as heads, and the authors' layer."""

from collections.abc import Callable

import pytest
import torch

from conftest import Golden
from networks import BACKENDS, error, neighbor_matrices
from refusals import refused
from simulated_gpu import simulated_gpu, waits
from viticulture.models.agent.generalized_conv import GeneralizedConv, kernel, kernel_positions, square, tight

Load = Callable[[str], Golden]


def test_it_is_the_official_layer(golden: Load) -> None:
    """Output, every gradient and the 0/1 matrices of the authors' Conv_ManyHead with 9 heads on a map of 5x4."""
    data = golden("boot_conv_manyhead_H9")
    conv = GeneralizedConv(12, heads=9)
    conv.load_state_dict(data.part("w/"))
    x = data["in/x"].clone().requires_grad_()
    y = conv(x)
    assert error(y, data["out/y"]) < 1e-5
    (y * data["in/c"]).sum().backward()
    assert x.grad is not None
    assert error(x.grad, data["gin/x"]) < 1e-5
    for name, parameter in conv.named_parameters():
        assert parameter.grad is not None
        assert error(parameter.grad, data[f"grad/{name}"]) < 1e-5
    theirs = data["out/phi"].unflatten(1, (9, 20)).transpose(0, 1)
    torch.testing.assert_close(neighbor_matrices(9, 5, 4), theirs.double(), rtol=0, atol=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 9, 10, 12, 16, 25])
def test_it_is_a_sum_of_constant_matrices_times_weights(heads: int) -> None:
    """Eq. (3) and (14): Y = sum_h Phi_h X W_h, on an oblong map smaller than some windows; so are gradients."""
    generator = torch.Generator().manual_seed(heads)
    conv = GeneralizedConv(3, heads).double()
    x = torch.randn(2, 3, 4, 3, dtype=torch.float64, generator=generator)
    tokens, taps = x.flatten(2).mT, conv.weight.permute(2, 1, 0)  # [B, n, D]; W_h: from, to
    expected = (neighbor_matrices(heads, 4, 3).unsqueeze(1) @ tokens @ taps.unsqueeze(1)).sum(
        0
    ) + conv.bias  # [B, n, D]
    found = conv(x).flatten(2).mT
    torch.testing.assert_close(found, expected)
    fast = GeneralizedConv(3, heads)
    fast.load_state_dict(conv.state_dict())
    torch.testing.assert_close(fast(x.float()).flatten(2).mT.double(), expected, rtol=1e-4, atol=1e-5)
    cotangent = torch.randn(found.shape, dtype=torch.float64, generator=generator)
    ours, theirs = (torch.autograd.grad((y * cotangent).sum(), conv.weight)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("heads", "picture"),
    [
        (1, ["#"]),
        (2, [".#.", ".#.", "..."]),
        (3, [".#.", "##.", "..."]),
        (4, [".#.", "###", "..."]),
        (6, ["###", "###", "..."]),  # published, Agent-B
        (7, ["###", "###", "#.."]),
        (9, ["###", "###", "###"]),  # published, Agent-S
        (10, ["..#..", ".###.", ".###.", ".###.", "....."]),
        (12, ["..#..", ".###.", "#####", ".###.", "....."]),
        (16, [".###.", "####.", "#####", ".###.", "..#.."]),
        (17, ["#####", "#####", "#####", "##...", "....."]),
    ],
)
def test_the_window_is_the_published_one_or_the_nearest_odd_one(heads: int, picture: list[str]) -> None:
    half = len(picture) // 2
    places = kernel_positions(heads)
    drawn = ["".join(".#"[(r, c) in places] for c in range(-half, half + 1)) for r in range(-half, half + 1)]
    assert drawn == picture
    assert len(places) == heads
    assert places == sorted(places)  # heads go row by row


def test_one_head_is_a_linear_layer() -> None:
    """Sec. 3.1.1: a 1x1 convolution is Y = X W."""
    conv, x = GeneralizedConv(5, heads=1), torch.randn(2, 5, 3, 4)
    linear = torch.nn.functional.linear(x.permute(0, 2, 3, 1), conv.weight[..., 0], conv.bias)
    torch.testing.assert_close(conv(x), linear.permute(0, 3, 1, 2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [4, 6, 9])
def test_layout_precision_and_compilation_change_no_result(heads: int, backend: str) -> None:
    torch.manual_seed(0)
    conv, x = GeneralizedConv(8, heads), torch.randn(2, 8, 6, 5)
    y = conv(x)
    last = conv(x.contiguous(memory_format=torch.channels_last))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, y)
    torch.testing.assert_close(torch.compile(conv, fullgraph=True, backend=backend)(x), y)
    with torch.autocast("cpu", torch.bfloat16):
        half = conv(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), y, rtol=3e-2, atol=3e-2)
    half.float().sum().backward()
    assert conv.weight.grad is not None
    assert conv.weight.grad.dtype == torch.float32


def test_initialization_is_xaviers_rule_for_all_taps_together() -> None:
    """Uniform within sqrt(6 / 2 D H), as an ordinary convolution with H taps; no bias. Source: the authors' code."""
    conv = GeneralizedConv(64, heads=9)
    bound = (6 / (2 * 64 * 9)) ** 0.5
    assert bound * 0.99 < conv.weight.abs().max() <= bound
    assert conv.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not conv.bias.any()


def test_unused_places_of_a_window_are_zero_or_cut() -> None:
    taps = torch.arange(1.0, 7).expand(2, 3, 6)
    assert kernel(taps, square(6))[0, 0].tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert kernel(taps, tight(6))[0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert [tight(heads) for heads in (1, 2, 3, 9)] == [(0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 1, 0), (1, 1, 1, 1)]


def test_no_heads_are_refused() -> None:
    refused("at least one head, got 0", kernel_positions, 0)


def test_its_kernel_is_built_without_waiting_for_a_gpu() -> None:
    with simulated_gpu() as gpu:
        conv, x = GeneralizedConv(4, heads=3).to(gpu), torch.ones(1, 4, 3, 3, device=gpu)
        waits.clear()
        assert conv(x).device == gpu
        assert not waits
