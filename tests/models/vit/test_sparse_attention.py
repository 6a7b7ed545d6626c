# SPDX-License-Identifier: Apache-2.0
"""Entmax is the official one and exact in its limits; a student with it trains, stays valid and exports."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import Golden
from networks import train
from refusals import refused
from viticulture.deploy.onnx.graph import to_onnx
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.vit.sparse_attention import Entmax, SparseAttention, threshold
from viticulture.models.weights.checkpoint_keys import strip_prefixes
from viticulture.optim import Optim

TASK = DataSpec(("a", "b", "c"), (16, 16), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
ALPHAS = (1.051, 1.2, 1.5, 1.8, 1.949)


def entmax(scores: Tensor, alpha: float, bisect: bool = False) -> Tensor:
    return Entmax.apply(scores, torch.tensor(alpha, dtype=scores.dtype), bisect)


@pytest.mark.parametrize("bisect", [False, True])
def test_it_is_the_official_entmax(bisect: bool, golden: Callable[[str], Golden]) -> None:
    """Probabilities and both gradients."""
    data = golden("boot_entmax")
    scores = data["in/x"].clone().requires_grad_()
    alpha = torch.tensor(data.about["config"]["alpha"], requires_grad=True)
    p = Entmax.apply(scores, alpha, bisect)
    (p * data["in/c"]).sum().backward()
    for ours, theirs in ((p, data["out/p"]), (scores.grad, data["gin/x"]), (alpha.grad, data["gin/alpha"])):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.3, 1.0, 3.0, 50.0])
def test_newton_converges_for_every_valid_alpha(alpha: float, spread: float) -> None:
    """tau is bisection's (60 halvings, float64) up to float32, for rows from constant to one-hot."""
    generator = torch.Generator().manual_seed(0)
    for keys in (2, 65, 785):
        z = spread * (alpha - 1) * torch.randn(20, keys, generator=generator)
        z -= z.amax(-1, keepdim=True)
        low, high = -torch.ones(20, 1, dtype=torch.float64), torch.zeros(20, 1, dtype=torch.float64)
        for _ in range(60):
            middle = (low + high) / 2
            above = (z.double() - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) > 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        torch.testing.assert_close(threshold(z, torch.tensor(alpha)).double(), low, rtol=0, atol=2e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_are_exact(alpha: float) -> None:
    """Finite differences in float64, for scores and alpha."""
    scores = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(Entmax.apply, (scores, torch.tensor(alpha, dtype=torch.float64).requires_grad_()))


@pytest.mark.parametrize("alpha", [0.4, 0.9, 1.1, 1.5, 1.9, 2.0, 3.0])
def test_a_free_alpha_may_lie_on_either_side_of_one_and_two(alpha: float) -> None:
    """The optimum's conditions: scores - p^(alpha - 1) / (alpha - 1) are equal for all keys with p > 0 and no larger
    for the others; rows sum to 1; both gradients are finite differences. Between 1 and 2 p is Newton's.

    Catches: bisection in the wrong direction below 1, an infinite slope of zeros above 2."""
    scores = 2 * torch.randn(20, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = entmax(scores, alpha, bisect=True)
    torch.testing.assert_close(p.sum(-1), torch.ones(20, dtype=torch.float64))
    assert (p > 0).all() if alpha <= 1 else (p == 0).any() or alpha < 1.5
    level = scores - p.pow(alpha - 1) / (alpha - 1)
    of_row = torch.where(p > 0, level, -torch.inf).amax(-1, keepdim=True)
    torch.testing.assert_close(torch.where(p > 0, level, of_row), of_row.expand_as(level), rtol=0, atol=1e-8)
    assert (torch.where(p > 0, of_row, scores) <= of_row + 1e-8).all()
    if 1 < alpha < 2:
        torch.testing.assert_close(p, entmax(scores, alpha), rtol=0, atol=1e-8)
    inputs = scores[:2].requires_grad_(), torch.tensor(alpha, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, a: Entmax.apply(s, a, True), inputs)


def test_a_free_alpha_decays_to_zero_and_comes_from_the_authors_file() -> None:
    """By the option; without a gradient one step of AdamW at a rate of 1 and a decay of 0.1 leaves nine tenths. The
    authors' name is read. Catches: an alpha that decays to 1.5, or is left out of what is decayed or read."""
    student = create_student("vit_small_sparse", TASK, 4, {"depth": 1, "embed_dim": 36, "free_alpha": True})
    layer = student.blocks[0].attn
    assert layer.alpha() == 1.5
    optim = Optim(lr=1.0, weight_decay=0.1, decay_everything=True)
    optimizer = optim.build(optim.groups(student))
    layer.free_alpha.grad = torch.zeros(())
    optimizer.step()
    assert layer.alpha().item() == pytest.approx(1.35)
    stored = {
        "pos_embed.pos_embed": torch.zeros(65, 1, 36),
        "transformer.layers.0.attention.softmax.alpha": torch.ones(()),
    }
    assert "blocks.0.attn.free_alpha" in strip_prefixes({"model": stored})
    assert student.eval()(torch.randn(1, 3, 16, 16)).isfinite().all()


def test_limits_and_symmetries() -> None:
    """alpha near 1 is nearly a softmax, near 2 nearly the projection onto the simplex."""
    x = torch.randn(50, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(entmax(x, 1.0001), x.softmax(-1), rtol=0, atol=1e-3)
    ordered = x.sort(-1, descending=True).values
    support = torch.arange(1, 10) * ordered > ordered.cumsum(-1) - 1  # sparsemax in closed form
    size = support.sum(-1, keepdim=True)
    tau = (ordered.cumsum(-1).gather(-1, size - 1) - 1) / size
    torch.testing.assert_close(entmax(x, 1.9999), (x - tau).clamp(min=0), rtol=0, atol=1e-3)
    p = entmax(x, 1.5)
    torch.testing.assert_close(entmax(x + 100, 1.5), p)
    torch.testing.assert_close(entmax(x.flip(-1), 1.5), p.flip(-1))
    torch.testing.assert_close(p.sum(-1), torch.ones(50, dtype=torch.float64))
    assert 0.2 < (p == 0).double().mean() < 0.8


def test_attention_weighs_values_by_entmax() -> None:
    """The layer written out; alpha starts at 1.5."""
    torch.manual_seed(0)
    layer, x = SparseAttention(12, 3, qkv_bias=True), torch.randn(2, 5, 12)
    assert layer.alpha() == 1.5
    assert torch.autograd.grad(layer.alpha(), layer.alpha_offset) == (1.0,)
    q, k, v = layer.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    p = entmax(4 * q @ k.mT / 2, 1.5)  # scores of some spread, so that some are zero
    assert (p == 0).any()
    layer.scale *= 4
    torch.testing.assert_close(layer(x), layer.proj((p @ v).transpose(1, 2).flatten(2)))
    with pytest.raises(NotImplementedError, match="masks"):
        layer(x, is_causal=True)
    refused("gate", SparseAttention, 12, 3, gated=True)


@pytest.mark.parametrize("offset", [-1e6, -1.0, 1.0, 1e6])
def test_every_trained_alpha_is_valid(offset: float) -> None:
    torch.manual_seed(0)
    layer = SparseAttention(12, 3, qkv_bias=True)
    with torch.no_grad():
        layer.alpha_offset.fill_(offset)
    assert 1.0499 < layer.alpha() < 1.9501
    for half in (False, True):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = layer(10 * torch.randn(2, 7, 12))
        y.float().square().sum().backward()
        assert y.isfinite().all()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_sparse_student_trains(compiled: bool) -> None:
    torch.manual_seed(0)
    student = create_student("vit_small_sparse", TASK, 4, {"depth": 2, "embed_dim": 36, "drop_path_rate": 0.1})
    x, label = torch.randn(24, 3, 16, 16), torch.arange(24) % 3
    optimizer = torch.optim.AdamW(student.train().parameters(), lr=3e-3)
    run = torch.compile(student, fullgraph=True, backend="aot_eager") if compiled else student
    losses = train(optimizer, lambda: torch.nn.functional.cross_entropy(run(x), label))
    assert losses[-1] < 0.9 * losses[0]
    assert all(block.attn.alpha_offset for block in student.blocks)


@pytest.mark.slow
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="needs the extra onnx"
)
@pytest.mark.parametrize("name", ["vit_small", "vit_small_sparse"])
def test_students_with_custom_attention_export_to_onnx(name: str, tmp_path: Path) -> None:
    import onnxruntime

    torch.manual_seed(0)
    student = create_student(name, TASK, 8, {"depth": 1, "embed_dim": 36}).train()
    file = to_onnx(student, tmp_path / "student.onnx", TASK)
    images = torch.randn(2, 3, *TASK.image_size)
    session = onnxruntime.InferenceSession(str(file))
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(found), student.eval()(images), rtol=1e-4, atol=1e-5)
