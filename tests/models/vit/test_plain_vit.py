# SPDX-License-Identifier: Apache-2.0
"""ViT-S and ViT-B are those of Bootstrapping ViTs' code: outputs, counts, initialization; bare timm loads them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from conftest import GOLDEN, Golden
from formula_fill import fill, image
from networks import error
from viticulture.errors import UserError
from viticulture.models.cpu.dropout import Dropout
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import blueprint, count, create_student, matching, takes_patch_size
from viticulture.models.weights.files import load, save

Load = Callable[[str], Golden]
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["bootstrapping_vits"]
NO_DROPOUT = {"attn_drop_rate": 0.0, "proj_drop_rate": 0.0}


def data_spec(classes: int, pixels: int) -> DataSpec:
    return DataSpec(tuple(map(str, range(classes))), (pixels, pixels), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


def renamed(official: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights of the authors' ViT as timm does; their position table is [T, 1, D]."""
    names = {
        "transformer.norm.": "norm.",
        "transformer.layers.": "blocks.",
        "attention.linear_qkv": "attn.qkv",
        "attention.linear_out": "attn.proj",
        "linear1": "fc1",
        "linear2": "fc2",
        "pos_embed.pos_embed": "pos_embed",
        "cls_head": "head",
    }
    found = {}
    for key, value in official.items():
        value = value.transpose(0, 1) if key == "pos_embed.pos_embed" else value
        for theirs, ours in names.items():
            key = key.replace(theirs, ours)
        found[key] = value
    return found


def test_a_block_is_the_official_encoder_layer(golden: Load) -> None:
    """Pre-norm."""
    data = golden("boot_encoder_layer_prenorm")
    config = data.about["config"]
    options = {"embed_dim": config["embed_dim"], "num_heads": config["num_heads"], "depth": 1, "mlp_ratio": 2}
    student = create_student("vit_small", data_spec(2, 16), 8, {**options, **NO_DROPOUT})
    student.blocks[0].load_state_dict(renamed(data.part("w/")))
    ours = student.blocks[0](data["in/x"].transpose(0, 1))
    assert error(ours.transpose(0, 1), data["out/y"]) < 1e-6


def test_a_tiny_model_is_the_official_one(golden: Load) -> None:
    """Logits and every block's output; the authors' weights load strictly."""
    data = golden("boot_vit_tiny")
    sizes = {"embed_dim": 18, "depth": 3, "num_heads": 9, "mlp_ratio": 2}
    student = create_student("vit_small", data_spec(5, 64), 16, {**sizes, **NO_DROPOUT})
    student.load_state_dict(renamed(data.part("w/")))
    found: list[Tensor] = []
    for block in student.blocks:
        block.register_forward_hook(lambda _module, _inputs, x: found.append(x))
    assert error(student(data["in/x"]), data["out/logits"]) < 1e-6
    for place, features in enumerate(found):
        assert error(features.transpose(0, 1), data[f"out/feat{place}"]) < 1e-6


@pytest.mark.parametrize(
    ("name", "reference"),
    [("vit_small", "full_boot_vit_s"), pytest.param("vit_base", "full_boot_vit_b", marks=pytest.mark.slow)],
)
def test_full_size_models_are_the_official_ones(golden: Load, name: str, reference: str) -> None:
    """Logits, and four statistics of every block's output (an epsilon of 1e-6 for 1e-5 does not show here)."""
    data = golden(reference)
    config = data.about["config"]
    student = create_student(name, data_spec(config["num_classes"], config["img"]), 16).eval()
    student.load_state_dict(renamed(fill(config["state"])))
    found: list[Tensor] = []
    for block in student.blocks:
        block.register_forward_hook(lambda _module, _inputs, x: found.append(x.transpose(0, 1)))
    with torch.no_grad():
        logits = student(image((2, 3, config["img"], config["img"])))
    statistics = torch.stack([torch.stack([x.mean(), x.std(), x.flatten()[0], x.flatten()[-1]]) for x in found])
    assert error(logits, data["out/logits"]) < 1e-4
    torch.testing.assert_close(statistics, data["out/feature_stats"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("entry", "name", "extra"),
    [("ViT-S", "vit_small", 0), ("ViT-B", "vit_base", 0), ("ViT-S entmax", "vit_small_sparse", 6)],
)
@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_parameters_and_macs_are_the_official_ones(entry: str, name: str, extra: int, classes: int) -> None:
    """To the last digit of the reference, [S, Table 1]; the sparse ones have one number a layer more."""
    with torch.device("meta"):
        student = timm.create_model(name, num_classes=classes, img_size=224, patch_size=16)
    parameters = sum(weight.numel() for weight in student.parameters())
    assert (parameters - extra) / 1e6 == pytest.approx(NUMBERS[entry][f"params_{classes}"], abs=5.1e-5)
    if classes == 100:
        _, macs = count(student, (224, 224))
        assert macs / 1e9 == pytest.approx(NUMBERS[entry]["gmacs_224"], abs=5.1e-5)


@torch.no_grad()
def test_the_published_initialization() -> None:
    """Patches N(0, 1); tokens and positions N(0, 0.02^2); Xavier, qkv as one matrix; biases of the MLP N(0, 1)."""
    torch.manual_seed(0)
    student = create_student("vit_small", data_spec(100, 64), 16, {"start": "published"}).requires_grad_(False)
    D = 288
    assert student.patch_embed.proj.weight.std() == pytest.approx(1, rel=0.01)
    assert not student.patch_embed.proj.bias.any()
    assert student.cls_token.std() == pytest.approx(0.02, rel=0.15)
    assert student.pos_embed.std() == pytest.approx(0.02, rel=0.05)
    for block in student.blocks:
        widths = {"attn.qkv": 3 * D + D, "attn.proj": 2 * D, "mlp.fc1": 5 * D, "mlp.fc2": 5 * D}
        for name, width in widths.items():
            layer, bound = block.get_submodule(name), (6 / width) ** 0.5
            assert 0.999 * bound < layer.weight.abs().max() <= bound
            assert layer.weight.std() == pytest.approx(bound / 3**0.5, rel=0.02)
            if "mlp" in name:
                assert layer.bias.std() == pytest.approx(1, rel=0.15)
            else:
                assert not layer.bias.any()
    for part in student.head.parameters():
        assert 0.9 * D**-0.5 < part.abs().max() <= D**-0.5
    assert (student.norm.weight == 1).all()

    usual = create_student("vit_small", data_spec(100, 64), 16)
    assert usual.pos_embed.std() == pytest.approx(0.5, rel=0.02)
    assert not usual.blocks[0].mlp.fc1.bias.any()
    wide = create_student("vit_small", data_spec(100, 64), 16, {"start": "published", "position_std": 0.1})
    assert wide.pos_embed.std() == pytest.approx(0.1, rel=0.05)
    with pytest.raises(UserError, match="unknown start 'publisht'; did you mean published"):
        create_student("vit_small", data_spec(100, 64), 16, {"start": "publisht"})


@pytest.mark.slow
def test_bare_timm_builds_the_same_network(tmp_path: Path) -> None:
    images, expected = torch.randn(4, 3, 16, 16), {}
    torch.save(images, tmp_path / "images.pt")
    for name in ("vit_small", "vit_base"):
        student = create_student(name, data_spec(5, 16), 8, {"depth": 2, "start": "published"}).eval()
        save(student, tmp_path / name, data_spec(5, 16))
        with torch.inference_mode():
            expected[name] = student(images)
        epsilons = {module.eps for module in student.modules() if isinstance(module, nn.LayerNorm)}
        assert epsilons == {1e-5 if name == "vit_small" else 1e-6}
    program = (
        "import json, sys, timm, torch\n"
        "found = []\n"
        "for folder in sys.argv[2:]:\n"
        "    net = timm.create_model(f'local-dir:{folder}', pretrained=True).eval()\n"
        "    rates = net.blocks[0].attn.attn_drop.p, net.blocks[0].mlp.drop1.p, net.blocks[0].attn.proj_drop.p\n"
        "    found.append([sorted({m.eps for m in net.modules() if isinstance(m, torch.nn.LayerNorm)}), *rates])\n"
        "    with torch.inference_mode():\n"
        "        torch.save(net(torch.load(sys.argv[1])), f'{folder}/logits.pt')\n"
        "assert not [name for name in sys.modules if name.startswith('viticulture')]\n"
        "print(json.dumps(found))\n"
    )
    words = [tmp_path / "images.pt", *(tmp_path / name for name in expected)]
    command = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[[1e-5], 0.1, 0.1, 0.1], [[1e-6], 0, 0, 0]]
    for name, logits in expected.items():
        torch.testing.assert_close(torch.load(tmp_path / name / "logits.pt"), logits, rtol=1e-5, atol=1e-6)


def test_dropout_acts_where_the_paper_has_it() -> None:
    """Attention probabilities, MLP hidden and both branches: 4 places a block at 0.1, none in ViT-B."""
    for name, places in (("vit_small", 4), ("vit_base", 0)):
        student = create_student(name, data_spec(5, 16), 8, {"depth": 1})
        rates = [module.p for module in student.modules() if isinstance(module, nn.Dropout) and module.p]
        assert rates == [0.1] * places
        assert type(student.blocks[0].mlp.drop1) is (Dropout if places else nn.Dropout)


@pytest.mark.parametrize("name", ["vit_small_sparse", "vit_base_sparse"])
def test_sparse_students_are_saved_and_loaded(name: str, tmp_path: Path) -> None:
    student = create_student(name, data_spec(5, 16), 8, {"depth": 2, "start": "published"}).eval()
    with torch.no_grad():
        student.blocks[1].attn.alpha_offset.fill_(0.3)
    save(student, tmp_path, data_spec(5, 16))
    again, _, config = load(tmp_path)
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(again(images), student(images))
    assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(images), student(images))
    assert config["architecture"] == blueprint(again).architecture == name
    assert name in matching()
    assert takes_patch_size("vit_small")
