# SPDX-License-Identifier: Apache-2.0
"""Shifted patch tokenization and locality self-attention: the paper's equations, pixel by pixel and token by token."""

import math
from pathlib import Path

import pytest
import torch
from timm.models import VisionTransformer

from networks import error
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.vit.attention import is_plain
from viticulture.models.vit.plain_vit import LocalAttention, ShiftedPatchEmbed
from viticulture.models.weights.files import load, save

DATA = DataSpec(tuple(map(str, range(100))), (32, 32), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
SMALL_VIT = {"num_heads": 12, "mlp_ratio": 2, "qkv_bias": False, "start": "xavier_normal"}


def test_shifted_patches_are_the_papers() -> None:
    """Eq. (2) to (4), each value looked up in the image: the patch, then the image shifted by half a patch towards
    each corner, zeros from beyond its edge.

    Fails for another shift, a mirrored or repeated edge, shifts along the axes, LayerNorm after the projection, or
    patches column by column.
    """
    torch.manual_seed(0)
    p, height, width = 4, 8, 12
    layer = ShiftedPatchEmbed((height, width), p, 2, 5)
    torch.nn.init.normal_(layer.norm.weight)
    torch.nn.init.normal_(layer.norm.bias)
    images = torch.randn(3, 2, height, width)
    for b, image in enumerate(images):
        for patch in range(6):
            top, left = p * (patch // 3), p * (patch % 3)
            values = []
            for dy, dx in ((0, 0), (-2, -2), (-2, 2), (2, -2), (2, 2)):
                for channel in range(2):
                    for y in range(top + dy, top + dy + p):
                        for x in range(left + dx, left + dx + p):
                            inside = 0 <= y < height and 0 <= x < width
                            values.append(image[channel, y, x].item() if inside else 0.0)
            v = torch.tensor(values)
            v = (v - v.mean()) / (v.var(unbiased=False) + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias
            assert error(layer(images)[b, patch], layer.proj.weight @ v + layer.proj.bias) < 1e-5


def test_locality_self_attention_is_the_papers() -> None:
    """Eq. (7) and (8), head by head and query by query: the softmax of q k / tau over the other tokens alone.

    Fails if a token attends to itself, tau is one for all heads or missing, or heads are cut otherwise.
    """
    torch.manual_seed(0)
    heads, dim, tokens = 3, 12, 5
    layer = LocalAttention(dim, heads, qkv_bias=True)
    assert error(layer.inverse_temperature, torch.full((heads, 1, 1), 0.5)) < 1e-6  # d = 4
    torch.nn.init.uniform_(layer.inverse_temperature, 0.2, 2.0)
    x = torch.randn(2, tokens, dim)
    q, k, v = layer.qkv(x).chunk(3, -1)
    mixed = torch.zeros(2, tokens, dim)
    for head in range(heads):
        part = slice(4 * head, 4 * head + 4)
        for i in range(tokens):
            others = [j for j in range(tokens) if j != i]
            scores = torch.stack([(q[:, i, part] * k[:, j, part]).sum(-1) for j in others], 1)
            weights = (scores * layer.inverse_temperature[head]).softmax(1)
            mixed[:, i, part] = sum(weights[:, n, None] * v[:, j, part] for n, j in enumerate(others))
    assert error(layer(x), layer.proj(mixed)) < 1e-6
    assert not is_plain(layer)


@pytest.mark.parametrize(("name", "parameters"), [("vit_mini", 2_709_796), ("vit_mini_local", 2_747_248)])
def test_sizes_are_the_papers(name: str, parameters: int) -> None:
    """The paper's networks, of 2.8 million parameters with 200 classes; counted by hand from its sizes for CIFAR-100.

    9 (192 576 + 192 193 + 2 384 + 192 384 + 384 + 384 192 + 192) + 12,480 + 192 + 384 + 19,300
    + 9,408 (patches of 48 values), or + 480 + 240 192 + 192 + 9 12 (of 240, normalized; temperatures)
    """
    student = create_student(name, DATA, 4, SMALL_VIT)
    assert sum(weight.numel() for weight in student.parameters()) == parameters


def test_weights_begin_as_in_the_papers_code() -> None:
    """Matrices Xavier-normal, q, k and v and the patches as one; class token and positions N(0, 1); no biases."""
    torch.manual_seed(0)
    student = create_student("vit_mini", DATA, 4, SMALL_VIT)
    assert isinstance(student, VisionTransformer)
    assert student.pos_embed is not None
    block = student.blocks[3]
    for weight, rows, columns in (
        (block.attn.qkv.weight, 576, 192), (block.mlp.fc1.weight, 384, 192), (student.patch_embed.proj.weight, 192, 48),
        (student.head.weight, 100, 192),
    ):  # fmt: skip
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (rows + columns)), rel=0.05)
    assert student.pos_embed.std().item() == pytest.approx(1, rel=0.05)
    assert not any(bias.any() for name, bias in student.named_parameters() if name.endswith(".bias"))


def test_drop_path_may_be_that_of_every_block() -> None:
    """Fails if the rate rises from zero, or one branch of a block is never left out."""
    student = create_student("vit_mini", DATA, 4, {"depth": 3, "drop_path_rate": 0.1, "constant_drop_path": True})
    assert [getattr(block, name).drop_prob for block in student.blocks for name in ("drop_path1", "drop_path2")] == [
        0.1
    ] * 6


@pytest.mark.parametrize("parts", [{}, {"shifted_patches": False}, {"local_attention": False}])
def test_each_part_trains_and_is_loaded(parts: dict[str, bool], tmp_path: Path) -> None:
    """Ten steps lower the loss in bfloat16 and move temperatures; saved weights give the same network again."""
    torch.manual_seed(0)
    options = {"depth": 2, "embed_dim": 24, "num_heads": 3, **parts}
    data = DataSpec(("a", "b", "c"), (16, 16), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    student = create_student("vit_mini_local", data, 4, options)
    x, label = torch.randn(24, 3, 16, 16), torch.arange(24) % 3
    optimizer, losses = torch.optim.AdamW(student.train().parameters(), lr=3e-3), []
    for _ in range(10):
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(student(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    temperatures = [p for name, p in student.named_parameters() if name.endswith("inverse_temperature")]
    assert len(temperatures) == (2 if parts.get("local_attention", True) else 0)
    assert all((p != 8**-0.5).all() for p in temperatures)
    save(student, tmp_path, data)
    assert torch.equal(load(tmp_path)[0](x), student.eval()(x))


def test_patches_must_tile_the_image() -> None:
    with pytest.raises(UserError, match="multiple of the patch size, got 30x32 and 4"):
        ShiftedPatchEmbed((30, 32), 4, 3, 8)
