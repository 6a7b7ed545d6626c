# SPDX-License-Identifier: Apache-2.0
"""Hybrid ViTs of bottlenecks: ResNet's stages down to the patch, attention between 1x1 layers behind them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viticulture.errors import UserError
from viticulture.models.students import create_student, fitting_patch, takes_patch_size
from viticulture.models.task import Task
from viticulture.models.vit.bottlenecks import Bottleneck, Residual, ResNetEmbed, TokenNorm

NAME = "hybrid_bottleneck"
SMALL = {"embed_dim": 64, "num_heads": 2}


def task(pixels: int, height: int | None = None) -> Task:
    return Task(("a", "b"), (height or pixels, pixels), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.mark.parametrize(
    ("patch", "widths", "pooled"),
    [(2, [32], 0), (4, [16, 32], 0), (8, [8, 16, 32], 0), (16, [8, 16, 32], 1), (32, [4, 8, 16, 32], 1)],
)
def test_stages_halve_the_image_until_a_pixel_is_a_patch(patch: int, widths: list[int], pooled: int) -> None:
    """Catches a halving too many or too few, a stage that is not twice as wide, pooling of small images."""
    embed = ResNetEmbed(4 * patch, patch, 3, 64)
    assert embed(torch.zeros(2, 3, 4 * patch, 4 * patch)).shape == (2, 16, 64)
    stages = [layer.conv2.out_channels for layer in embed.stages if isinstance(layer, Residual)]
    assert stages == widths
    assert [layer.out_channels for layer in embed.stages if isinstance(layer, nn.Conv2d)][2:] == [widths[0], 64]
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in embed.stages) == pooled


def test_a_bottleneck_is_what_its_words_say() -> None:
    """Against the same written with torch's functions for flat tokens; catches a norm over the wrong axis, a missing
    ReLU, attention that mixes images."""
    torch.manual_seed(0)
    block = Bottleneck(16, 2, 0.5).train()
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(3, 5, 16)

    def norm(layer: TokenNorm, y: Tensor) -> Tensor:
        flat = y.reshape(15, -1)
        centered = flat - flat.mean(0)
        return (centered / (flat.var(0, unbiased=False) + 1e-5).sqrt() * layer.weight + layer.bias).reshape(y.shape)

    y = norm(block.norm1, x @ block.down.weight.T).clamp(min=0)
    q, k, v = (y @ block.attn.qkv.weight.T).reshape(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    y = ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).reshape(3, 5, 8)
    y = norm(block.norm2, y @ block.attn.proj.weight.T).clamp(min=0)
    expected = (x + norm(block.norm3, y @ block.up.weight.T)).clamp(min=0)
    assert torch.allclose(block(x), expected, atol=1e-4)


def test_a_strided_residual_keeps_a_mean_of_four_pixels() -> None:
    """What a fresh one gives is its shortcut's alone; catches a stride of the wrong branch."""
    block = Residual(4, 8, stride=2).eval()
    x = torch.randn(2, 4, 6, 6)
    assert torch.allclose(block(x), F.relu(block.short[2](block.short[1](F.avg_pool2d(x, 2)))))
    assert block(x).shape == (2, 8, 3, 3)


def test_at_the_start_bottlenecks_add_nothing_and_then_all_of_it_learns() -> None:
    """Catches a branch that is random at the start, or one that stays dead."""
    torch.manual_seed(0)
    student = create_student(NAME, task(32), 8, SMALL).train()
    x = torch.randn(2, 16, 64)
    assert torch.equal(student.blocks(x), x.relu())
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 0, 1])
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(student(images), labels).backward()
        optimizer.step()
    silent = [name for name, p in student.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_every_block_attends_between_all_patches() -> None:
    """What a patch gives depends on every other one, though no convolution reaches it; it counts as a ViT."""
    student = create_student(NAME, task(64), 8, {**SMALL, "depth": 1}).eval()
    nn.init.ones_(student.blocks[0].norm3.weight)
    x = torch.rand(1, 64, 64, requires_grad=True)
    slope: Tensor = torch.autograd.grad(student.blocks(x)[0, 0].square().sum(), x)[0]
    assert (slope[0].abs().sum(1) > 0).all()


def test_it_leaves_its_patch_to_the_data_and_takes_oblong_images() -> None:
    """Patches are other hybrids'; catches a grid that is turned."""
    assert takes_patch_size(NAME)
    assert [fitting_patch(NAME, (side, side)) for side in (32, 64, 224)] == [8, 16, 32]
    student = create_student(NAME, task(32, height=64), 8, SMALL)
    assert student.patch_embed.grid_size == (8, 4)
    assert student(torch.zeros(2, 3, 64, 32)).shape == (2, 2)


def test_a_width_that_no_stage_can_have_is_told() -> None:
    with pytest.raises(UserError, match="embed_dim must be a multiple of patch_size / 2, got 36 and 16"):
        create_student(NAME, task(64), 16, {"embed_dim": 36, "num_heads": 2})


def test_an_exported_one_holds_what_converters_know() -> None:
    """As other hybrids: no alias, no change of an image's layout, for any number of images."""
    student = create_student(NAME, task(32), 8, SMALL).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(student, (torch.randn(2, 3, 32, 32),), dynamic_shapes=(batch,), strict=False)
    operations = list(program.run_decompositions({}).graph.nodes)
    assert not [node for node in operations if "alias" in str(node.target)]
    assert not [node for node in operations if node.kwargs.get("memory_format") is torch.channels_last]
