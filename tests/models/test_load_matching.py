# SPDX-License-Identifier: Apache-2.0
"""Position tables are resampled between grids, the first blocks are loaded without the others, and a narrower ViT takes
channels of a wider one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import nn

from exact import CLOSE
from refusals import refused
from viticulture.config.resolve import resolve
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.models.weights.load_matching import State
from viticulture.models.weights.sources import initialize

TINY = {"embed_dim": 16, "depth": 3, "num_heads": 2}
FILE = "model.safetensors"


def data_spec(height: int = 16, width: int = 16) -> DataSpec:
    return DataSpec(("a", "b"), (height, width), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def student(of: DataSpec, seed: int = 0, name: str = "vit_nano", patch: int = 4, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return create_student(name, of, patch, {**TINY, **options}).eval()


@pytest.mark.parametrize(
    ("name", "options", "size", "other"),
    [
        ("vit_nano", {"reg_tokens": 8}, (16, 16), (8, 32)),  # 1 + 8 + 16 rows: a square with nothing before it
        ("vit_nano", {"no_embed_class": True}, (8, 24), (24, 8)),
        ("cit_tiny_aligned", {"stem_width": 16}, (8, 12), (16, 24)),  # 3 + 6 rows, patch embeddings inside stems
        ("cit_tiny", {"tokens": 2}, (8, 32), (16, 16)),  # as many patches, elsewhere
    ],
)
def test_positions_are_resampled_between_grids(
    tmp_path: Path, name: str, options: dict[str, Any], size: tuple[int, int], other: tuple[int, int]
) -> None:
    theirs, ours = student(data_spec(*size), 1, name, **options), student(data_spec(*other), 2, name, **options)
    save(theirs, tmp_path, data_spec(*size))
    old, new = ((height // 4, width // 4) for height, width in (size, other))
    assert f"positions resampled from {old[0]}x{old[1]} to {new[0]}x{new[1]} patches" in initialize(ours, str(tmp_path))
    table, found = theirs.get_parameter("pos_embed"), ours.get_parameter("pos_embed")
    prefix = table.shape[1] - old[0] * old[1]
    patches = resample_abs_pos_embed(table[:, prefix:], list(new), list(old), num_prefix_tokens=0)
    assert torch.equal(found[:, :prefix], table[:, :prefix])
    assert torch.equal(found[:, prefix:], patches)


@pytest.mark.parametrize(
    ("name", "options", "into"),
    [
        ("vit_nano", {}, {"reg_tokens": 4}),
        ("vit_nano", {"reg_tokens": 4}, {}),
        ("vit_nano", {"no_embed_class": True}, {}),
        ("cit_tiny_aligned", {}, {}),
    ],
)
def test_a_square_table_in_a_bare_file_is_resampled_by_its_tokens(
    tmp_path: Path, name: str, options: dict[str, Any], into: dict[str, Any]
) -> None:
    safetensors.torch.save_file(student(data_spec(), 1, name, **options).state_dict(), tmp_path / FILE)
    warnings = initialize(student(data_spec(8, 24), 2, name, **into), str(tmp_path / FILE))
    assert "positions resampled from 4x4 to 2x6 patches" in warnings


def test_an_oblong_table_in_a_bare_file_needs_its_folder(tmp_path: Path) -> None:
    theirs = student(data_spec(8, 24), 1)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / FILE)
    same = student(data_spec(8, 24), 2)
    assert initialize(same, str(tmp_path / FILE))[1:] == ["44 of 44 tensors loaded"]
    assert torch.equal(same.get_parameter("pos_embed"), theirs.get_parameter("pos_embed"))
    with pytest.raises(UserError, match=r"table of 13 rows .* name the run or the folder"):
        initialize(student(data_spec(), 2), str(tmp_path / FILE))


def test_an_oblong_table_of_as_many_rows_as_a_square_stays(tmp_path: Path) -> None:
    theirs = student(data_spec(8, 32), 1)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / FILE)
    said = initialize(same := student(data_spec(8, 32), 2), str(tmp_path / FILE))
    assert "positions are taken to be of 2x8 patches, as here" in said
    assert torch.equal(same.get_parameter("pos_embed"), theirs.get_parameter("pos_embed"))


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}])
def test_positions_of_tokens_are_part_of_them_where_a_student_has_none(tmp_path: Path, options: dict[str, Any]) -> None:
    """`no_embed_class` adds positions to patches alone: the same function either way."""
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for number, bare in enumerate((False, True)):
        theirs, ours = (student(data_spec(), seed, no_embed_class=bare == (seed == 1), **options) for seed in (1, 2))
        with torch.no_grad():
            theirs.get_parameter("pos_embed").normal_()
            ours.get_parameter("pos_embed").normal_()
        save(theirs, tmp_path / str(number), data_spec())
        initialize(ours, str(tmp_path / str(number)))
        torch.testing.assert_close(ours(images), theirs(images))


def test_a_token_that_never_had_a_position_takes_none_of_a_patch(tmp_path: Path) -> None:
    theirs = student(data_spec(), 1).state_dict()
    theirs["reg_token"] = torch.ones(1, 4, 16)  # more tokens than the table has rows before its patches
    save(student(data_spec(), 1), tmp_path, data_spec())
    safetensors.torch.save_file(theirs, tmp_path / FILE)
    ours = student(data_spec(), 2, reg_tokens=4, no_embed_class=True)
    initialize(ours, str(tmp_path))
    assert torch.equal(ours.get_parameter("reg_token"), theirs["reg_token"])


def test_a_file_of_weights_is_read_by_the_config_next_to_it(tmp_path: Path) -> None:
    save(student(data_spec(32, 128), 1), tmp_path, data_spec(32, 128))
    by_folder, by_file = student(data_spec(64, 64), 2), student(data_spec(64, 64), 2)
    said = initialize(by_folder, str(tmp_path))[1:]
    assert initialize(by_file, str(tmp_path / FILE))[1:] == said
    assert "positions resampled from 8x32 to 16x16 patches" in said
    assert torch.equal(by_file.get_parameter("pos_embed"), by_folder.get_parameter("pos_embed"))
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert initialize(student(data_spec(64, 64), 2), str(tmp_path / FILE))[1:] == ["44 of 44 tensors loaded"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_nano", {}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("dhvt_nano", {"distilled": True}),
        ("cit_tiny", {"tokens": 3, "inference": "mean"}),
    ],
)
def test_a_head_is_loaded_by_class_name(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    known, turned, others = ("cat", "dog", "truck"), ("truck", "cat", "dog"), ("apple", "pear", "plum")
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def of(classes: tuple[str, ...], seed: int) -> nn.Module:
        return student(replace(data_spec(), classes=classes), seed, name, **options)

    theirs = of(known, 1)
    torch.nn.init.normal_(theirs.get_parameter("head.bias"))
    save(theirs, tmp_path, replace(data_spec(), classes=known))
    ours = of(turned, 2)
    assert "rows of the head put in order of the classes" in initialize(ours, str(tmp_path), classes=turned)
    torch.testing.assert_close(ours(pixels), theirs(pixels)[:, [2, 0, 1]])

    anew, fresh = of(others, 2), of(others, 2)
    said = initialize(anew, str(tmp_path), classes=others)
    assert "the head there is of other classes: cat, dog, truck" in said
    assert any(warning.startswith("the head is new: head.weight, head.bias") for warning in said)
    for key, value in anew.state_dict().items():
        assert torch.equal(value, (fresh if key.startswith("head") else theirs).state_dict()[key]), key

    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "bare.safetensors")
    initialize(bare := of(others, 2), str(tmp_path / "bare.safetensors"), classes=others)
    assert torch.equal(bare(pixels), theirs(pixels))


@pytest.mark.parametrize("blocks", [0, 2, 3])
def test_the_first_blocks_are_loaded_and_the_rest_is_initialized(tmp_path: Path, blocks: int) -> None:
    """ "A Closer PartialViT", Sec. 4.1, Figures 2 and 4: patches, positions, class token and k leading blocks."""
    deep = {"depth": 11} if blocks == 2 else {}
    theirs = student(data_spec(), 1, **deep)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1)
    save(theirs, tmp_path, data_spec())
    ours, fresh = student(data_spec(), 2, **deep), student(data_spec(), 2, **deep).state_dict()
    warnings = initialize(ours, str(tmp_path), blocks)
    assert f"the first {blocks} blocks and what comes before them are loaded, all else is random" in warnings
    assert not [warning for warning in warnings if "not there" in warning or "not used" in warning]
    before = ("cls_token", "pos_embed", "patch_embed.", *(f"blocks.{number}." for number in range(blocks)))
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name] if name.startswith(before) else fresh[name]), name


def test_invalid_numbers_of_blocks_are_refused(tmp_path: Path) -> None:
    save(student(data_spec()), tmp_path, data_spec())
    refused("between 0 and the student's 3 blocks, got 4", lambda: initialize(student(data_spec()), str(tmp_path), 4))
    cnn = create_student("resnet10t", data_spec(32, 32))
    save(cnn, tmp_path / "cnn", data_spec(32, 32))
    refused("needs a student with blocks, and a ResNet has none", initialize, cnn, str(tmp_path / "cnn"), 1)
    for values, words in (({"init_blocks": 2}, "no init; name the weights"), ({"init": "x", "init_blocks": -1}, "-1")):
        refused(words, resolve, "x", {"student": {"name": "vit_nano", **values}})


def widened(narrow: State, depth: int, heads: int) -> State:
    """The function of a ViT in one of twice the width and heads: each channel of the residual stream stands twice, so
    that LayerNorm is what it was, and what reads channels reads the first of the two; further blocks add nothing."""
    wide: State = {}
    for key, value in narrow.items():
        rows = value
        if ".attn.qkv." in key:  # each head twice, of which the projection reads the first
            rows = value.unflatten(0, (3, heads, -1)).repeat_interleave(2, 1).flatten(0, 2)
        elif not key.startswith("head.") and value.ndim != 3:
            rows = value.repeat_interleave(2, 0)
        if key.endswith(".attn.proj.weight"):
            columns = rows.unflatten(1, (heads, -1))
            rows = torch.stack([columns, torch.zeros_like(columns)], 2).flatten(1)
        elif value.ndim == 2:
            rows = torch.stack([rows, torch.zeros_like(rows)], 2).flatten(1)
        wide[key] = rows.repeat_interleave(2, 2) if value.ndim == 3 else rows
    last = {key: value for key, value in wide.items() if key.startswith(f"blocks.{depth - 1}.")}
    for key, value in last.items():
        adds = ".attn.proj." in key or ".mlp.fc2." in key
        wide[key.replace(f".{depth - 1}.", f".{depth}.")] = torch.zeros_like(value) if adds else value
    return wide


@pytest.mark.parametrize("bare", [False, True])
def test_a_narrower_vit_takes_evenly_spaced_channels_and_heads_of_a_wider_one(tmp_path: Path, bare: bool) -> None:
    """Weight selection (Xu et al., ICLR 2024), held to a wider ViT that computes what the narrower one does: fails if
    queries, keys and values are selected as one table, if heads are mixed, if the residual stream is selected
    differently anywhere, if blocks are spread, or if the head of the same classes stays random."""
    narrow = student(data_spec(), 1).double()
    wide = student(data_spec(), 2, embed_dim=32, depth=4, num_heads=4).double()
    wide.load_state_dict(widened(narrow.state_dict(), 3, 2))
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(wide(images), narrow(images), **CLOSE)
    save(wide.float(), tmp_path, data_spec())
    if bare:  # heads are then taken to be as wide as the student's
        (tmp_path / "config.json").unlink()
    said = initialize(ours := student(data_spec(), 3), str(tmp_path / FILE))
    assert "16 of 32 channels selected, evenly spaced" in said
    assert "44 of 44 tensors loaded" in said
    assert any("there but not used: blocks.3." in line for line in said)
    expected = narrow.float().state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in ours.state_dict().items())


def test_heads_of_a_wider_vit_are_selected_by_its_own_number(tmp_path: Path) -> None:
    """As many heads of twice the size keep every second channel of each; more heads than there are, of all channels."""
    save(wide := student(data_spec(), 1, embed_dim=32), tmp_path, data_spec())
    initialize(ours := student(data_spec(), 2), str(tmp_path))
    initialize(finer := student(data_spec(), 2, num_heads=4), str(tmp_path))
    theirs = wide.state_dict()["blocks.0.attn.qkv.weight"].unflatten(0, (3, 2, 16))
    expected = theirs[:, :, ::2, ::2].flatten(0, 2)
    assert torch.equal(ours.state_dict()["blocks.0.attn.qkv.weight"], expected)
    assert torch.equal(finer.state_dict()["blocks.0.attn.qkv.weight"], expected)


def test_a_resampled_grid_colors_and_other_classes_go_with_selected_channels(tmp_path: Path) -> None:
    save(wide := student(data_spec(), 1, embed_dim=32), tmp_path, data_spec())
    others = replace(data_spec(32, 16), classes=("c", "d", "e"), mean=(0.5,), std=(0.5,))
    said = initialize(ours := student(others, 2), str(tmp_path), classes=others.classes)
    assert "positions resampled from 4x4 to 8x4 patches" in said
    assert any(line.startswith("the head is new: head.weight") for line in said)
    table = wide.get_parameter("pos_embed")[..., ::2]
    patches = resample_abs_pos_embed(table[:, 1:], [8, 4], [4, 4], num_prefix_tokens=0)
    assert torch.equal(ours.get_parameter("pos_embed")[:, 1:], patches)
    kernel = wide.get_parameter("patch_embed.proj.weight")[::2].sum(1, keepdim=True)
    torch.testing.assert_close(ours.get_parameter("patch_embed.proj.weight"), kernel)
