# SPDX-License-Identifier: Apache-2.0
"""Involution is the authors' layer, for every kernel, stride and size, to any derivative, in little memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import Golden
from networks import check_gradients, check_one_graph, error, randomized
from refusals import refused
from viticulture.kernels import plain_kernels
from viticulture.models.cit.rednet import Involution, checkpoint_filter_fn
from viticulture.models.cpu import involution
from viticulture.models.cpu.involution import involve

Load = Callable[[str], Golden]


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("name", ["involution_k3_s1", "involution_k7_s1"])
def test_it_is_the_official_layer(golden: Load, name: str) -> None:
    data = golden(name)
    settings = data.about["config"]
    layer = Involution(settings["channels"], settings["kernel"], settings["stride"], settings["group_channels"])
    layer.load_state_dict(checkpoint_filter_fn(data.part("w/"), layer))
    with torch.no_grad():
        assert error(layer.eval()(data["in/x"]), data["out/eval"]) < 1e-5
    x = data["in/x"].clone().requires_grad_()
    y = layer.train()(x)
    assert error(y, data["out/train"]) < 1e-5
    (y * data["in/c"]).sum().backward()
    assert x.grad is not None
    assert error(x.grad, data["gin/x"]) < 1e-5
    for key, gradient in checkpoint_filter_fn(data.part("grad/"), layer).items():
        ours = layer.get_parameter(key).grad
        assert ours is not None
        assert error(ours, gradient) < 1e-5, key


@pytest.mark.parametrize("size", [(1, 1), (5, 8), (9, 6)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel_size", [1, 3, 7])
def test_it_is_its_definition(kernel_size: int, stride: int, size: tuple[int, int]) -> None:
    """Value and both gradients against unfolded neighborhoods, for oblong, odd and tiny images, 3 groups of 2."""
    x = drawn(2, 6, *size)
    kernels = drawn(2, 3, kernel_size**2, -(-size[0] // stride), -(-size[1] // stride))
    ours = involve(x, kernels, stride)
    with plain_kernels():
        theirs = involve(x, kernels, stride)
    torch.testing.assert_close(ours, theirs)
    direction = drawn(*theirs.shape, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (x, kernels), direction), torch.autograd.grad(theirs, (x, kernels), direction)
    )


def test_a_constant_kernel_is_a_convolution() -> None:
    x, taps = drawn(2, 6, 7, 9), drawn(3, 9)
    everywhere = taps[None, :, :, None, None].expand(2, 3, 9, 7, 9)
    filters = taps.view(3, 1, 3, 3).repeat_interleave(2, dim=0)
    torch.testing.assert_close(involve(x, everywhere), F.conv2d(x, filters, padding=1, groups=6))


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_are_exact(stride: int) -> None:
    """Finite differences in float64."""
    x, kernels = drawn(1, 4, 3, 4), drawn(1, 2, 9, -(-3 // stride), -(-4 // stride))
    assert torch.autograd.gradcheck(lambda x, kernels: involve(x, kernels, stride), (x, kernels))


def test_a_frozen_input_costs_no_gradient() -> None:
    x, kernels = drawn(1, 4, 3, 4), drawn(1, 2, 9, 3, 4)
    both = torch.autograd.grad(involve(x, kernels).sum(), (x, kernels))
    (alone,) = torch.autograd.grad(involve(x.detach(), kernels).sum(), kernels)
    assert torch.equal(alone, both[1])
    (alone,) = torch.autograd.grad(involve(x, kernels.detach()).sum(), x)
    assert torch.equal(alone, both[0])


class Largest(TorchDispatchMode):
    """Records the numbers of the largest float32 tensor that any operation returns."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.entries = max(self.entries, out.untyped_storage().nbytes() // 4)
        return out


@pytest.mark.parametrize("stride", [1, 2])
def test_neighborhoods_are_never_materialized(stride: int) -> None:
    x = drawn(2, 64, 32, 32, dtype=torch.float32)
    kernels = drawn(2, 2, 49, 32 // stride, 32 // stride, dtype=torch.float32)
    with Largest() as seen:
        y = involve(x, kernels, stride)
        y.sum().backward()
    assert seen.entries < 2 * max(x.numel(), kernels.numel()) < 49 * y.numel() / 4


def test_block_size_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, kernels = drawn(5, 4, 4, 6), drawn(5, 2, 9, 4, 6)
    results = []
    for block in (1, 2 * 9 * 4 * 8 * 2, 2**30):
        monkeypatch.setattr(involution, "BLOCK", block)
        y = involve(x, kernels)
        results.append([y.detach(), *torch.autograd.grad((y * y).sum(), (x, kernels))])
    assert all(
        torch.equal(first, other) for others in results[1:] for first, other in zip(results[0], others, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_into_one_graph(backend: str) -> None:
    layer, x = randomized(Involution(8, 3, 2, group_width=4)), drawn(2, 8, 5, 6, dtype=torch.float32)
    check_one_graph(layer, x, backend, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_changes_rounding_only(dtype: torch.dtype) -> None:
    """Sums over taps are taken in float32; gradients keep their dtypes."""
    layer = randomized(Involution(32, 7))
    x = drawn(2, 32, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype):
        y = layer(x)
    assert y.dtype == torch.float32
    assert error(y, layer(x)) < 0.02
    y.sum().backward()
    check_gradients([x, layer.conv2.weight])

    half, kernels = x.detach().to(dtype), drawn(2, 2, 49, 8, 8, dtype=torch.float32).to(dtype)
    exact = involve(half.float(), kernels.float())
    assert torch.equal(involve(half, kernels), exact.to(dtype))


def test_memory_layouts_change_no_result() -> None:
    layer, x = randomized(Involution(32, 3, 2)).eval(), drawn(2, 32, 6, 8, dtype=torch.float32)
    y = layer(x)
    torch.testing.assert_close(layer(x.contiguous(memory_format=torch.channels_last)), y)
    torch.testing.assert_close(layer.to(memory_format=torch.channels_last)(x), y, rtol=1e-4, atol=1e-5)


def test_means_at_the_edge_of_a_stride_are_of_existing_pixels() -> None:
    layer, x = Involution(16, 3, 2), drawn(1, 16, 5, 7, dtype=torch.float32)
    expected = F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
    torch.testing.assert_close(layer.pool(x), expected)
    assert layer(x).shape == (1, 16, 3, 4)


def test_mistakes_are_named() -> None:
    refused("multiple of an involution's group_width, got 24 and 16", Involution, 24)
    refused("must be odd, got 4", Involution, 16, 4)
    for shape in ((1, 2, 9, 2, 3), (1, 4, 9, 3, 4), (1, 2, 8, 3, 4), (1, 2, 4, 3, 4)):
        with pytest.raises(ValueError, match=r"kernels must be \[B, G, K \* K, 3, 4\]"):
            involve(torch.zeros(1, 6, 3, 4), torch.zeros(shape))
