# SPDX-License-Identifier: Apache-2.0
"""A tapped pass is the ordinary pass, and its readings are what the layers computed."""

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from refusals import refused
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.layout import Layout, layout
from viticulture.models.students import create_student
from viticulture.models.taps import READINGS, Readings, Taps

BOTH = frozenset({"blocks", "attention"})
EVERY = frozenset(READINGS)
TASK = DataSpec(("a", "b", "c"), (8, 12), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SIZES = {"embed_dim": 16, "depth": 3, "num_heads": 2}


def student(name: str = "vit_nano", **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return create_student(name, TASK, 4, {**SIZES, **options})


def images(requires_grad: bool = False) -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(1)).requires_grad_(requires_grad)


@pytest.mark.parametrize(
    ("name", "prefix", "options"),
    [
        ("vit_nano", 1, {}),
        ("vit_nano", 0, {"class_token": False, "global_pool": "avg"}),
        ("vit_tiny_patch16_224", 4, {"reg_tokens": 3, "qk_norm": True, "init_values": 0.1}),
        ("deit_tiny_distilled_patch16_224", 2, {}),
    ],
)
def test_a_tapped_pass_is_the_ordinary_pass(name: str, prefix: int, options: dict[str, Any]) -> None:
    """Logits and every gradient, dropout included; blocks are those of timm's `forward_intermediates`."""
    net = student(name, proj_drop_rate=0.1, drop_path_rate=0.1, **options).train()
    runs = []
    for taps in (None, Taps(net, BOTH)):
        net.zero_grad()
        torch.manual_seed(2)
        readings = Readings(Taps(net)(images()).outputs) if taps is None else taps(images())
        sum(logits.square().sum() for logits in readings.outputs).backward()
        runs.append((readings, [p.grad for p in net.parameters()], torch.random.get_rng_state()))
    (plain, gradients, state), (tapped, tapped_gradients, tapped_state) = runs
    assert len(plain.outputs) == len(tapped.outputs) == (2 if "distilled" in name else 1)
    assert all(map(torch.equal, plain.outputs, tapped.outputs))
    assert all(map(torch.equal, gradients, tapped_gradients))
    assert torch.equal(state, tapped_state)

    net.eval()
    readings = Taps(net, BOTH)(images())
    parts = net.forward_intermediates(images(), output_fmt="NLC", return_prefix_tokens=prefix > 0)[1]
    expected = [torch.cat([p[1], p[0]], 1) for p in parts] if prefix else parts
    names, attention = tuple(f"blocks.{i}" for i in range(3)), tuple(f"blocks.{i}.attn" for i in range(3))
    assert layout(net) == Layout(names, attention, (2, 2, 2), prefix, 4, 0, (1, 1, 1), prefix > 0)
    assert layout(net).grid((8, 12)) == (2, 3)
    torch.testing.assert_close(readings.blocks, expected, rtol=0, atol=0)


def unfused_probabilities(net: nn.Module) -> list[Tensor]:
    """Attention of every layer as timm computes it without fusion, caught at its dropout layer."""
    found: list[Tensor] = []
    for block in net.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _m, _i, output: found.append(output))
    net(images())
    return found


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "reg_tokens": 2}])
def test_attention_is_what_timm_computes_without_fusion(options: dict[str, Any]) -> None:
    """softmax(q k^T / sqrt(d)); the class token's row is that row, cut to the patches and normalized again."""
    net = student("vit_tiny_patch16_224", **options).eval()
    readings = Taps(net, frozenset({"attention"}))(images())
    assert not readings.blocks
    for reading, expected in zip(readings.attention, unfused_probabilities(copy.deepcopy(net)), strict=True):
        torch.testing.assert_close(reading.scores().softmax(-1), expected)
        row = expected[:, :, 0, -6:]  # 2x3 patches come last
        torch.testing.assert_close(reading.class_scores().softmax(-1), row / row.sum(-1, keepdim=True))
        assert reading.queries().shape == reading.keys().shape == (2, 2, expected.shape[-1], 8)


def test_tokens_behind_the_patches_are_no_patches() -> None:
    net = create_student("dhvt_tiny_cifar_patch4", TASK, None, {"embed_dim": 16, "depth": 2}).eval()
    inputs: list[Tensor] = []
    for block in net.blocks:
        block.attn.register_forward_pre_hook(lambda _m, given: inputs.append(given[0]))
    readings = Taps(net, BOTH)(images())
    for block, given, reading in zip(net.blocks, inputs, readings.attention, strict=True):
        q, k, _ = block.attn.queries_keys_values(given)
        row = (block.attn.scale * q @ k.mT).softmax(-1)[:, :, 0, 1:7]  # the class token, 2x3 patches, 4 head tokens
        torch.testing.assert_close(reading.class_scores().softmax(-1), row / row.sum(-1, keepdim=True))
    assert torch.equal(readings.outputs[0], net(images()))


def test_readings_carry_the_exact_gradient() -> None:
    net = student().eval()
    pixels = images(requires_grad=True)
    readings = Taps(net, BOTH)(pixels)
    (tapped,) = torch.autograd.grad(
        readings.blocks[1].sin().sum() + readings.attention[1].class_scores().sin().sum(), pixels
    )

    x = net.blocks[0](net._pos_embed(net.patch_embed(pixels)))
    attn = net.blocks[1].attn
    q, k, _ = attn.qkv(net.blocks[1].norm1(x)).reshape(2, 7, 3, 2, 8).permute(2, 0, 3, 1, 4)
    row = (q[:, :, 0:1] @ k[:, :, 1:].mT).squeeze(2) / 8**0.5
    (by_hand,) = torch.autograd.grad(net.blocks[1](x).sin().sum() + row.sin().sum(), pixels)
    torch.testing.assert_close(tapped, by_hand)


def test_taps_leave_no_trace() -> None:
    net = student().train()
    keys = list(net.state_dict())
    taps = Taps(net, BOTH)
    readings = taps(images())
    alive = weakref.ref(readings.blocks[0])
    del readings
    gc.collect()
    assert alive() is None
    with pytest.raises((RuntimeError, AssertionError)):
        taps(torch.zeros(2, 3, 5, 5))
    assert all(not module._forward_hooks for module in net.modules())
    assert list(net.state_dict()) == keys
    restored = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    assert torch.equal(restored.eval()(images()), net.eval()(images()))
    assert len(taps(images()).blocks) == 3


def test_taps_survive_compilation() -> None:
    ran: list[str] = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        kind = "tapped" if len(graph.graph.output_node().args[0]) > 1 else "plain"
        return lambda *inputs: ran.append(kind) or graph.forward(*inputs)

    net = student().eval()
    expected = Taps(net, EVERY)(images())
    taps = Taps(net, EVERY)
    taps.compile(backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(net(images()), expected.outputs[0])
        readings = taps(images())
        torch.testing.assert_close(readings.outputs, expected.outputs)
        torch.testing.assert_close(readings.blocks, expected.blocks)
        torch.testing.assert_close(readings.attention[2].class_scores(), expected.attention[2].class_scores())
        torch.testing.assert_close(readings.class_attention, expected.class_attention)
    assert ran == ["plain", "tapped"] * 2
    readings.attention[2].class_scores().sum().backward()
    assert net.patch_embed.proj.weight.grad.abs().sum() > 0

    torch.testing.assert_close(Taps(net, BOTH)(images()).blocks, expected.blocks)
    assert ran == ["plain", "tapped"] * 2


def test_a_cnns_blocks_are_its_stages() -> None:
    """ResNet: the maps of timm's `forward_intermediates`, and no attention."""
    net = timm.create_model("resnet10t", num_classes=3).eval()
    pixels = torch.randn(1, 3, 32, 32)
    readings = Taps(net, frozenset({"blocks"}))(pixels)
    torch.testing.assert_close(
        readings.blocks, net.forward_intermediates(pixels, intermediates_only=True), rtol=0, atol=0
    )
    assert torch.equal(readings.outputs[0], net(pixels))
    refused("reads attention, which ResNet lacks", Taps, net, BOTH)


def test_a_bottlenecks_attention_is_timms() -> None:
    data_spec = DataSpec(("a", "b"), (64, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    net = create_student("botnet14t", data_spec, 8, {"embed_dim": 32, "num_heads": 2}).eval()
    given: list[Tensor] = []
    for block in net.stages[-1]:
        block.self_attn.register_forward_hook(lambda _m, _i, output: given.append(output))
    readings = Taps(net, BOTH)(torch.randn(2, 3, 64, 32))
    assert [tuple(maps.shape[1:]) for maps in readings.blocks[-2:]] == [(8, 16, 8), (32, 8, 4)]
    for reading, expected in zip(readings.attention, given, strict=True):
        assert (reading.grid, reading.patches, reading.prefix) == ((8, 4), 32, 0)
        values = reading.qkv.unflatten(-1, (3, 2, -1))[:, :, 2].transpose(1, 2)
        mixed = reading.scores().softmax(-1) @ values
        torch.testing.assert_close(mixed.transpose(1, 2).flatten(2), expected.flatten(2).mT)


def test_what_cannot_be_tapped_is_refused() -> None:
    refused(r"unknown tap 'atention'; did you mean attention", lambda: Taps(student(), frozenset({"atention"})))
    refused("Linear does not name its blocks", lambda: Taps(nn.Linear(1, 1), frozenset({"blocks"})))
    with pytest.raises(UserError, match="computes differently"):  # its scores hold a learned position term
        Taps(timm.create_model("vit_relpos_small_patch16_224", depth=1, embed_dim=12), BOTH)
    assert Taps(nn.Linear(1, 1))(torch.ones(1, 1)).blocks == []


def test_attention_outside_the_named_blocks_is_not_read() -> None:
    """A MobileViT names stages, and attends inside them: its blocks are read, without an error on the way."""
    student = timm.create_model("mobilevit_xxs", num_classes=3).eval()
    readings = Taps(student, frozenset({"blocks"}))(torch.zeros(1, 3, 64, 64))
    assert len(readings.blocks) > 1
