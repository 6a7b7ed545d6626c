# SPDX-License-Identifier: Apache-2.0
"""Hybrid ViTs: halvings down to the patch, then timm's ViT; residual branches start at zero."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from networks import train
from refusals import refused
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import count, create_student, fitting_patch, takes_patch_size
from viticulture.models.vit.hybrid_vit import Residual, ResidualEmbed


def data_spec(pixels: int, height: int | None = None) -> DataSpec:
    return DataSpec(("a", "b"), (height or pixels, pixels), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.mark.parametrize(("pixels", "patch", "patches"), [(32, 8, 16), (64, 16, 16), (32, 4, 64), (16, 2, 64)])
def test_every_halving_makes_the_map_half_as_wide_until_a_pixel_is_a_patch(
    pixels: int, patch: int, patches: int
) -> None:
    student = create_student("hybrid_nano", data_spec(pixels), patch, {"embed_dim": 32})
    assert student.patch_embed(torch.zeros(2, 3, pixels, pixels)).shape == (2, patches, 32)
    halvings = [layer for layer in student.patch_embed.stages if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in halvings] == [32 >> k for k in reversed(range(len(halvings)))]
    assert 2 ** len(halvings) == patch
    assert not isinstance(student.patch_embed.stages[-1], Residual)
    found = [layer.conv1.in_channels for layer in student.patch_embed.stages if isinstance(layer, Residual)]
    assert found == [16, 8][: len(halvings) - 1][::-1]


def test_residual_branches_start_at_zero() -> None:
    student = create_student("hybrid_nano", data_spec(32), 8).eval()
    x = torch.randn(2, 16, 256)
    assert torch.equal(student.blocks(x), x)
    maps = torch.randn(2, 8, 4, 4)
    assert torch.equal(Residual(8).eval()(maps), maps.relu())


def test_every_parameter_is_trained() -> None:
    torch.manual_seed(0)
    student = create_student("hybrid_nano", data_spec(16), 4, {"embed_dim": 32, "num_heads": 2}).train()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 0, 1])
    train(optimizer, lambda: nn.functional.cross_entropy(student(images), labels), steps=3)
    assert [name for name, p in student.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_every_block_attends_between_all_patches() -> None:
    student = create_student("hybrid_nano", data_spec(64), 8, {"embed_dim": 32, "num_heads": 2, "depth": 1}).eval()
    nn.init.normal_(student.blocks[0].attn.proj.weight)
    x = torch.randn(1, 64, 32, requires_grad=True)
    slope: Tensor = torch.autograd.grad(student.blocks(x)[0, 0].square().sum(), x)[0]
    assert (slope[0].abs().sum(1) > 0).all()


def test_most_of_the_product_is_counted() -> None:
    student = create_student("hybrid_micro", data_spec(32), 8)
    parameters, products = count(student, (32, 32))
    # torch 2.11 to 2.14 do not count the products of a CPU's fused attention
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        student(torch.zeros(1, 3, 32, 32))
    assert products == counter.get_total_flops() // 2
    assert parameters == sum(p.numel() for p in student.parameters())


def test_it_takes_its_patch_from_the_data_and_oblong_images() -> None:
    assert takes_patch_size("hybrid_nano")
    patches = {side: fitting_patch("hybrid_nano", (side, side)) for side in (8, 28, 30, 32, 36, 48, 64, 96, 160, 224)}
    assert patches == {8: 2, 28: 4, 30: 2, 32: 8, 36: 4, 48: 8, 64: 16, 96: 16, 160: 32, 224: 32}
    student = create_student("hybrid_nano", data_spec(32, height=64), 8, {"embed_dim": 32, "num_heads": 2})
    assert student.patch_embed.grid_size == (8, 4)
    assert student(torch.zeros(1, 3, 64, 32)).shape == (1, 2)


@pytest.mark.parametrize(
    ("pixels", "patch", "options", "words"),
    [
        (30, 6, {}, "patch_size must be a power of two of at least 2, got 6"),
        (32, 1, {}, "patch_size must be a power of two of at least 2, got 1"),
        (36, 8, {}, "image size must be a multiple of the patch size, got 36x36 and 8"),
        (32, 8, {"embed_dim": 30, "num_heads": 2}, "embed_dim must be a multiple of patch_size / 2, got 30 and 8"),
        (32, 8, {"dynamic_img_size": True}, "a hybrid ViT decides dynamic_img_size itself"),
    ],
)
def test_invalid_settings_are_refused(pixels: int, patch: int, options: dict[str, object], words: str) -> None:
    refused(words, lambda: create_student("hybrid_nano", data_spec(pixels), patch, options))


def test_an_image_of_another_size_is_refused() -> None:
    embed = ResidualEmbed(32, 8, 3, 32)
    refused(r"made for 32x32 pixels, got \(16, 16\)", embed, torch.zeros(1, 3, 16, 16))


def test_an_exported_hybrid_has_operators_that_converters_support() -> None:
    """ExecuTorch 1.5.1: zeros of an image whose layout changes; coremltools 9.0: an alias of a whole slice."""
    student = create_student("hybrid_nano", data_spec(32), 8).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(student, (torch.randn(2, 3, 32, 32),), dynamic_shapes=(batch,), strict=False)
    operations = list(program.run_decompositions({}).graph.nodes)
    assert not [node for node in operations if "alias" in str(node.target)]
    assert not [node for node in operations if node.kwargs.get("memory_format") is torch.channels_last]
