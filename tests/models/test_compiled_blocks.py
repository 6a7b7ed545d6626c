# SPDX-License-Identifier: Apache-2.0
"""A network compiled by block."""

import copy

import pytest
import timm
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import viticulture.models.students  # noqa: F401  registers them
from networks import random_images, randomized
from viticulture.models.compiled_blocks import DropPathOfTensor, compile_blocks

SMALL = {
    "vit_nano": {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 4, "num_heads": 2},
    "dhvt_nano": {"img_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2},
}


def small(name: str = "vit_nano", drop_path: float = 0.0) -> nn.Module:
    return randomized(timm.create_model(name, num_classes=3, drop_path_rate=drop_path, **SMALL[name]))


@pytest.mark.parametrize("name", SMALL)
def test_equal_blocks_are_traced_once(name: str) -> None:
    """Although each drops paths with another probability, and two passes follow. Catches: a graph a block, as of a
    probability that is a number; a block that runs uncompiled."""
    counter = CompileCounter()
    network = small(name, drop_path=0.3).train()
    torch._dynamo.reset()
    assert compile_blocks(network, backend=counter, fullgraph=True)
    for _ in range(2):
        network(random_images(2, 3, 8, 8))
    assert counter.frame_count == 1
    operations = counter.op_count
    network.eval()(random_images(2, 3, 8, 8))
    assert counter.frame_count == 2
    assert counter.op_count > operations


def test_outputs_and_hooks_are_those_of_eager_mode() -> None:
    network = small().eval()
    expected = network(random_images(2, 3, 8, 8))
    found: list[int] = []
    for index, block in enumerate(network.blocks):
        block.register_forward_hook(lambda *_, index=index: found.append(index))
    compile_blocks(network, backend="eager")
    torch.testing.assert_close(network(random_images(2, 3, 8, 8)), expected)
    assert found == [0, 1, 2, 3]


def test_a_copy_reads_its_own_weights() -> None:
    """Catches: a forward pass bound to the block that was copied."""
    network = small().eval()
    compile_blocks(network, backend="eager")
    copied = copy.deepcopy(network)
    before = copied(random_images(2, 3, 8, 8))
    for weight in network.blocks.parameters():
        weight.data.zero_()
    torch.testing.assert_close(copied(random_images(2, 3, 8, 8)), before, rtol=0, atol=0)
    assert set(copied.state_dict()) == set(small().state_dict())


def test_blocks_that_differ_are_left_alone() -> None:
    """A CNN's stages, and a network that does not name its blocks."""
    for network in (timm.create_model("resnet10t", num_classes=3), nn.Linear(2, 2)):
        kinds = [type(module) for module in network.modules()]
        assert not compile_blocks(network, backend="eager")
        assert [type(module) for module in network.modules()] == kinds


def test_drop_path_of_a_tensor_drops_whole_images() -> None:
    """Each image is 0 or x / keep, timm's DropPath; the share that is kept lies within five standard errors. Catches: a
    draw a token; no scale; a probability of keeping taken for one of dropping."""
    layer = DropPathOfTensor(0.25, True, torch.device("cpu")).train()
    torch.manual_seed(0)
    x = torch.ones(4000, 2, 3)
    y = layer(x)
    kept = y[:, 0, 0] > 0
    torch.testing.assert_close(y, kept.view(-1, 1, 1) * x / 0.75)
    assert abs(kept.float().mean() - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5
    torch.testing.assert_close(layer.eval()(x), x, rtol=0, atol=0)
    whole = DropPathOfTensor(0.0, True, torch.device("cpu")).train()
    torch.testing.assert_close(whole(x), x, rtol=0, atol=0)
