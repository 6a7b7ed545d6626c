# SPDX-License-Identifier: Apache-2.0
"""The class token's attention to patches, in every student that has one: AAL, arXiv:2211.13852, Eq. (3)."""

from typing import Any

import pytest
import torch
from timm.models.convit import MHSA
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from refusals import refused
from viticulture.models.data_spec import DataSpec
from viticulture.models.layout import layout
from viticulture.models.students import create_student
from viticulture.models.taps import Readings, Taps

ATTENTION = frozenset({"attention", "class_attention"})
PIT = {"patch_size": 8, "stride": 4, "base_dims": [4, 4, 4], "depth": [1, 2, 1], "heads": [2, 4, 8]}
CONVIT = {"embed_dim": 6, "depth": 4, "num_heads": 2, "local_up_to_layer": 2}
VIT = {"embed_dim": 12, "depth": 2, "num_heads": 3}

CASES = [  # student, options, image, grid of every layer that has a class token
    ("vit_nano", VIT, (16, 24), [(4, 6)] * 2),
    ("deit_tiny_distilled_patch16_224", VIT, (16, 24), [(4, 6)] * 2),
    ("dhvt_tiny_cifar_patch4", {"embed_dim": 16, "depth": 2}, (16, 24), [(4, 6)] * 2),
    ("pit_ti_224", PIT, (30, 37), [(6, 8), (3, 4), (3, 4), (2, 2)]),
    ("pit_ti_distilled_224", PIT, (32, 32), [(7, 7), (4, 4), (4, 4), (2, 2)]),
    ("convit_tiny", CONVIT, (16, 16), [(4, 4)] * 2),
]


def grow(name: str, options: dict[str, Any], size: tuple[int, int]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    options = dict(options)
    patch = options.pop("patch_size", None if name.startswith("dhvt") else 4)
    data_spec = DataSpec(("a", "b", "c"), size, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    return create_student(name, data_spec, patch, options), torch.randn(2, 3, *size)


def probabilities(net: nn.Module, images: Tensor) -> list[Tensor]:
    """Compute the attention of every layer with plain scores, [B, h, T, T], from the layer's input."""
    found: list[Tensor] = []

    def compute(layer: Any, given: tuple[Tensor, ...]) -> None:
        tokens = given[0]
        if hasattr(layer, "queries_keys_values"):
            q, k, _ = layer.queries_keys_values(tokens)
        else:
            q, k, _ = layer.qkv(tokens).reshape(*tokens.shape[:2], 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)
        found.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1))

    handles = [net.get_submodule(name).register_forward_pre_hook(compute) for name in layout(net).attention]
    net(images)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(("name", "options", "size", "grids"), CASES)
def test_a_class_map_is_the_class_tokens_row_over_the_patches(
    name: str, options: dict[str, Any], size: tuple[int, int], grids: list[tuple[int, int]]
) -> None:
    """Eq. (3): the softmax's row of the class token, cut to the patches, normalized again, row by row."""
    net, images = grow(name, options, size)
    net.eval()
    readings = Taps(net, ATTENTION)(images)
    assert [reading.grid for reading in readings.attention] == layout(net).grids(size) == grids
    prefix = 2 if "distilled" in name else 1
    for reading, whole, (rows, columns) in zip(readings.attention, probabilities(net, images), grids, strict=True):
        row = whole[:, :, 0, prefix : prefix + rows * columns]
        expected = (row / row.sum(-1, keepdim=True)).reshape(*row.shape[:2], rows, columns)
        torch.testing.assert_close(reading.class_maps(), expected)
        torch.testing.assert_close(readings.class_attention.pop(0), expected)
        torch.testing.assert_close(reading.class_maps().sum((-2, -1)), torch.ones(row.shape[:2]))


@pytest.mark.parametrize(("name", "options", "size"), [case[:3] for case in CASES])
def test_reading_class_attention_changes_no_bit(name: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    net, images = grow(name, {**options, "drop_path_rate": 0.2}, size)
    net.train()
    runs = []
    for read in (lambda: Readings(Taps(net)(images).outputs), lambda: Taps(net, ATTENTION)(images)):
        net.load_state_dict(grow(name, {**options, "drop_path_rate": 0.2}, size)[0].state_dict())  # batch statistics
        net.zero_grad()
        torch.manual_seed(3)
        readings = read()
        sum(logits.square().sum() for logits in readings.outputs).backward()
        runs.append((readings.outputs, [parameter.grad for parameter in net.parameters()]))
    assert all(map(torch.equal, runs[0][0], runs[1][0]))
    for one, other in zip(runs[0][1], runs[1][1], strict=True):
        assert one is other is None or torch.equal(one, other)


def test_cost_is_linear_in_patches() -> None:
    """MACs of all class maps are h D per patch and layer."""
    costs = []
    for side in (16, 32):
        net, images = grow("vit_nano", VIT, (side, side))
        readings = Taps(net, ATTENTION)(images)
        with FlopCounterMode(display=False) as counter:
            for reading in readings.attention:
                reading.class_maps()
        costs.append(counter.get_total_flops() // 2)
    patches = 16
    assert costs == [2 * 2 * 3 * 12 * patches, 2 * 2 * 3 * 12 * 4 * patches]  # layers, images, heads, width


def test_keys_are_not_stored_twice_for_the_backward_pass() -> None:
    net, images = grow("vit_nano", VIT, (32, 32))
    readings = Taps(net, ATTENTION)(images)
    own = {reading.qkv.untyped_storage().data_ptr() for reading in readings.attention}
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for reading in readings.attention:
            reading.class_maps()
    patches, heads, batch = 64, 3, 2
    assert max(kept) <= 4 * batch * heads * patches  # one map a head, less than the keys by the width of a head


def test_a_map_is_older_than_its_blocks_output() -> None:
    """Autograd runs later nodes first; maps after the pass would hold all their gradients at once."""
    net, images = grow("vit_nano", VIT, (16, 16))
    readings = Taps(net, frozenset({"blocks", "class_attention"}))(images)
    ages = [
        (one.grad_fn._sequence_nr(), other.grad_fn._sequence_nr())
        for one, other in zip(readings.class_attention, readings.blocks, strict=True)
    ]
    assert ages[0][0] < ages[0][1] < ages[1][0] < ages[1][1]


def test_convits_layers_without_class_token_are_not_read() -> None:
    net, _ = grow("convit_tiny", CONVIT, (16, 16))
    where = layout(net)
    assert where.attention == ("blocks.2.attn", "blocks.3.attn")
    assert where.class_token
    assert all(isinstance(net.get_submodule(name), MHSA) for name in where.attention)


def test_pits_blocks_are_its_stages_maps() -> None:
    net, images = grow("pit_ti_distilled_224", PIT, (32, 32))
    readings = Taps(net.eval(), frozenset({"blocks"}))(images)
    torch.testing.assert_close(
        readings.blocks, net.forward_intermediates(images, intermediates_only=True), rtol=0, atol=0
    )


def test_a_student_without_class_token_has_no_class_attention() -> None:
    net, images = grow("vit_nano", {**VIT, "class_token": False, "global_pool": "avg"}, (16, 16))
    readings = Taps(net, frozenset({"attention"}))(images)
    assert not layout(net).class_token
    refused("no class token", lambda: readings.attention[0].class_maps())
