# SPDX-License-Identifier: Apache-2.0
"""Cheap dropout has dropout's distribution, scale and gradient, and attention with it is attention."""

import math
from collections.abc import Callable

import pytest
import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from networks import BACKENDS, check_gradients, check_one_graph
from viticulture.models.cpu.dropout import Dropout, dropout, keep_bits, occurrences, replace_dropout
from viticulture.models.vit.attention import DroppedAttention


@pytest.mark.parametrize("p", [0.0001, 0.1, 0.5, 0.9, 0.999])
def test_decisions_are_independent_at_the_requested_rate(p: float) -> None:
    """Rate, and correlation at distances up to 17, within 5 standard errors of independent draws."""
    torch.manual_seed(0)
    count = 2_000_003  # no multiple of eight
    dropped = 1 - keep_bits(count, p).double()
    assert dropped.shape == (count,)
    assert set(dropped.unique().tolist()) == {0, 1}
    variance = p * (1 - p)
    assert abs(dropped.mean() - p) < 5 * math.sqrt(variance / count)
    for part in dropped.chunk(4):
        assert abs(part.mean() - p) < 5 * math.sqrt(4 * variance / count)
    for distance in range(1, 18):
        products = (dropped[distance:] - p) * (dropped[:-distance] - p)
        assert abs(products.mean()) < 5 * variance / math.sqrt(count), distance


@pytest.mark.parametrize("p", [0.3, 0.01, 0.0004])
def test_rare_events_follow_the_requested_rate(p: float) -> None:
    torch.manual_seed(0)
    count = 1_000_000
    places = occurrences(count, p)
    assert places[-1] == count
    found = places[places < count]
    gaps = found.diff()
    assert gaps.min() >= 1
    assert len(found) == pytest.approx(count * p, abs=5 * math.sqrt(count * p * (1 - p)))
    assert (gaps == 1).double().mean() == pytest.approx(p, abs=5 * math.sqrt(p / len(gaps)))
    assert occurrences(3, 1e-9).tolist() == [3] * 16
    firsts = [occurrences(10, p)[0] == 0 for _ in range(2000)]
    assert sum(firsts) == pytest.approx(2000 * p, abs=5 * math.sqrt(2000 * p) + 1)


def test_the_mean_is_preserved_and_gradients_follow_the_decisions() -> None:
    """y = x keep / (1 - p), dx = dy keep / (1 - p), in any memory order and dtype."""
    p = 0.3
    images = torch.rand(4, 6, 8, 10, dtype=torch.float64) + 1
    for x in (images, images.to(memory_format=torch.channels_last), images[:, ::2].mT, images.float(), images.half()):
        x = x.detach().requires_grad_()
        torch.manual_seed(0)
        y = dropout(x, p)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        kept = y != 0
        assert 0.6 < kept.double().mean() < 0.8
        torch.testing.assert_close(y, torch.where(kept, (x.double() / (1 - p)).to(x.dtype), 0.0))
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, torch.where(kept, 1 / (1 - p), 0.0).to(x.dtype))
    channels_last = dropout(images.to(memory_format=torch.channels_last), p)
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    half = dropout(torch.full((200_000,), 1.45, dtype=torch.bfloat16), 0.1)
    assert half.max() == (torch.tensor(1.45, dtype=torch.bfloat16).double() / 0.9).bfloat16()


def test_limits_are_the_identity_and_zero() -> None:
    """p = 0 and evaluation return x itself; p = 1 leaves nothing, with a zero gradient and no NaN."""
    x = torch.randn(100, requires_grad=True)
    assert dropout(x, 0.0) is x
    assert Dropout(0.0).train()(x) is x
    assert Dropout(0.5).eval()(x) is x
    y = Dropout(1.0).train()(x)
    assert not y.any()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert not gradient.any()
    assert keep_bits(9, 0.0).all()


def test_the_global_seed_alone_decides() -> None:
    torch.manual_seed(3)
    state, x = torch.get_rng_state(), torch.ones(1000)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.5), first)


def test_layers_are_replaced_where_they_drop() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.3), nn.Dropout(0.0)), nn.AlphaDropout(0.3)).eval()
    keys = list(net.state_dict())
    replace_dropout(net)
    assert [type(layer) for layer in net[1].children()] == [Dropout, nn.Dropout]
    assert (net[1][0].p, net[1][0].training, type(net[2])) == (0.3, False, nn.AlphaDropout)
    assert list(net.state_dict()) == keys


def randomized(attention: Attention) -> Attention:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return attention


def plainly(attention: Attention, x: Tensor, p: float) -> Tensor:
    """Attention with dropout in plain operations, with the same decisions."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = attention.q_norm(q), attention.k_norm(k)
    probabilities = (attention.scale * q @ k.mT).softmax(-1)
    mask = keep_bits(probabilities.numel(), p).view(probabilities.shape) / (1 - p)
    return attention.proj(attention.norm(((probabilities * mask) @ v).transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "scale_norm": True, "norm_layer": nn.LayerNorm}])
def test_attention_with_dropout_is_the_plain_form(options: dict[str, object]) -> None:
    """Output and all gradients of the written-out backward pass against autograd's, in float64."""
    p = 0.3
    attention = randomized(DroppedAttention(12, 3, qkv_bias=True, attn_drop=p, **options)).double().train()
    results, x = [], torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    runs: list[Callable[[], Tensor]] = [lambda: attention(x), lambda: plainly(attention, x, p)]
    for run in runs:
        torch.manual_seed(1)
        y = run()
        parts = [x, *attention.parameters()]
        results.append([y, *torch.autograd.grad((y * torch.arange(12.0)).sum(), parts, allow_unused=True)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_attention_is_timms_where_nothing_drops() -> None:
    x = torch.randn(2, 5, 12)
    torch.manual_seed(0)
    theirs = Attention(12, 3, attn_drop=0.2)
    ours = DroppedAttention(12, 3, attn_drop=0.2)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    still = DroppedAttention(12, 3).train()
    still.load_state_dict(theirs.state_dict())
    assert torch.equal(still(x), theirs(x))
    mask = torch.zeros(5, 5).masked_fill(torch.rand(5, 5) > 0.7, -10.0)
    runs = []
    for layer in (ours.train(), theirs.train()):
        torch.manual_seed(0)
        runs.append(layer(x, attn_mask=mask))
    assert torch.equal(*runs)


def test_attention_in_bfloat16_differs_by_rounding_alone() -> None:
    attention = randomized(DroppedAttention(32, 4, qkv_bias=True, attn_drop=0.2)).train()
    x = torch.randn(4, 9, 32) / 4
    torch.manual_seed(0)
    exact = attention(x)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        rough = attention(x)
    assert rough.dtype == torch.bfloat16
    assert (rough - exact).norm() < 0.03 * exact.norm()
    rough.float().sum().backward()
    check_gradients([attention.qkv.weight, attention.proj.weight])


@pytest.mark.parametrize("backend", BACKENDS)
def test_they_compile_into_one_graph(backend: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(randomized(DroppedAttention(12, 3, qkv_bias=True, attn_drop=0.3)), Dropout(0.4)).train()
    check_one_graph(net, torch.randn(2, 5, 12), backend)
