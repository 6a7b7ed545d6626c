# SPDX-License-Identifier: Apache-2.0
"""The agent CNN equals the authors': forward and backward, tiny and full size; counts, maps, initialization."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F

from boot_names import both, renamed
from conftest import GOLDEN, Golden
from formula_fill import fill, image
from networks import BACKENDS, data_spec, error, random_images, randomized
from refusals import refused
from slowly import slow_but
from viticulture.errors import UserError
from viticulture.losses import cross_entropy, soft_distillation
from viticulture.models.agent.agent_cnn import OFFICIAL, AgentCNN, AgentShape, ResStem, Sizes
from viticulture.models.agent.agent_cnn import by_own_names as ours
from viticulture.models.agent.build import agent_for, sizes_of
from viticulture.models.students import count, create_student, matching
from viticulture.models.taps import Taps
from viticulture.models.weights.files import load, save
from viticulture.optim import Optim

Load = Callable[[str], Golden]
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["bootstrapping_vits"]
TINY = Sizes(embed_dim=18, depth=3, num_heads=9, hidden=36, dropout=0.0)


@pytest.mark.parametrize(("name", "heads", "norm"), [("convsl_prenorm", 9, "pre"), ("manyhead6_postnorm", 6, "post")])
def test_it_is_the_official_agent(golden: Load, name: str, heads: int, norm: Any) -> None:
    """Logits and maps in evaluation; logits, gradients and running statistics of a training step, within 1e-4."""
    data = golden(f"boot_agent_reslike_{name}")
    sizes = Sizes(embed_dim=18, depth=3, num_heads=heads, hidden=36, dropout=0.0)
    agent = AgentCNN(sizes, AgentShape(norm=norm), num_classes=5, stem_width=6)
    missing, unexpected = agent.load_state_dict(ours(data.part("w/")), strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)

    with torch.no_grad():
        logits, maps = agent.eval().forward_with_features(data["in/x"])
    assert error(logits, data["out/eval_logits"]) < 1e-4
    for block, found in enumerate(maps):
        assert error(found, data[f"out/eval_feat{block}"]) < 1e-4
    torch.testing.assert_close(agent(data["in/x"]), logits)
    assert error(agent.train()(data["in/x"]), data["out/train_logits"]) < 1e-4
    statistics = ours(data.part("after/"))
    assert statistics
    for key, statistic in statistics.items():
        assert error(agent.state_dict()[key], statistic) < 1e-4, key


@pytest.mark.parametrize(("name", "stem"), [("base", "plain"), ("reslike", "res")])
def test_full_size_agents_are_the_official_ones(golden: Load, name: str, stem: str) -> None:
    """Logits, and mean, standard deviation, first and last number of every block's map, in evaluation mode."""
    data = golden(f"full_boot_agent_s_{name}")
    agent = timm.create_model("agent_small", num_classes=100, stem=stem).eval()
    weights = ours(fill(data.about["config"]["state"]))
    assert not agent.load_state_dict(weights, strict=False).unexpected_keys
    with torch.no_grad():
        logits, maps = agent.forward_with_features(image((2, 3, 224, 224)))
    found = torch.stack([torch.stack([x.mean(), x.std(), x.flatten()[0], x[-1, -1, -1, -1]]) for x in maps])
    assert error(logits, data["out/logits"]) < 1e-3
    torch.testing.assert_close(found, data["out/feature_stats"], rtol=1e-3, atol=1e-4)


def test_its_gradients_are_the_official_ones(golden: Load) -> None:
    """The agent's half of one joint training step: CE + T^2 KL(ViT || agent) at T = 4, every parameter's gradient."""
    data = golden("boot_joint_step")
    agent = AgentCNN(TINY, num_classes=5, stem_width=6).train()
    agent.load_state_dict(both(data.part("w/"))[1], strict=False)
    logits, maps = agent.forward_with_features(data["in/x"])
    assert error(logits, data["out/logits_cnn"]) < 1e-4
    for block, found in enumerate(maps):
        assert error(found, data[f"out/feat_cnn{block}"]) < 1e-4
    taught = soft_distillation(logits, data["out/logits_vit"], temperature=4.0)
    (cross_entropy(logits, data["in/label"].long()) + taught).backward()

    gradients = {name: parameter.grad for name, parameter in agent.named_parameters() if parameter.grad is not None}
    lengths = {
        renamed(name.removeprefix("models.cnn."), OFFICIAL): length
        for name, length in data.about["config"]["grad_l2_norms"].items()
        if name.startswith("models.cnn.")
    }
    assert lengths.keys() == gradients.keys()
    for name, length in lengths.items():
        assert float(gradients[name].norm()) == pytest.approx(length, rel=1e-4, abs=2e-6), name
    for name, gradient in both(data.part("grad/"))[1].items():
        if lengths[name] > 1e-5:
            assert error(gradients[name], gradient) < 1e-4, name


SPARSE = "gmacs_224_without_dense_phi_product"
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "Agent-S base (agent-small)": ("agent_small", {"stem": "plain"}),
    "Agent-S res-like": ("agent_small", {}),
    "Agent-B base": ("agent_base", {"stem": "plain"}),
    "Agent-B res-like": ("agent_base", {}),
    "Agent-S res-like, down-sampling after blocks 1 and 4 (0-based) - reproduces the paper FLOPs": (
        "agent_small",
        {"pool_after": [1, 4]},
    ),
    "Agent-B res-like, paper Table 7 placement (2/2/8)": ("agent_base", {"pool_after": [1, 3]}),
    "Agent-B res-like, down-sampling after 3 and 9 (4/6/2)": ("agent_base", {"pool_after": [3, 9]}),
}


@pytest.mark.parametrize("entry", COUNTED)
def test_parameters_and_macs_are_the_official_ones(entry: str) -> None:
    """For 10, 100 and 1000 classes; MACs of 6 heads are those of the code without its dense 0/1 matrix."""
    (name, options), numbers = COUNTED[entry], NUMBERS[entry]
    for classes in (10, 100, 1000):
        if f"params_{classes}" in numbers:
            with torch.device("meta"):
                agent = timm.create_model(name, num_classes=classes, **options)
            parameters = sum(parameter.numel() for parameter in agent.parameters())
            assert parameters / 1e6 == pytest.approx(numbers[f"params_{classes}"], abs=5.1e-5)
    with torch.device("meta"):
        _, macs = count(timm.create_model(name, num_classes=100, **options), (224, 224))
    assert macs / 1e9 == pytest.approx(numbers.get(SPARSE, numbers["gmacs_224"]), abs=5.1e-5)


@pytest.mark.parametrize(
    ("patch", "depth", "pixels", "stem", "pools", "rows"),
    [
        (16, 6, 224, "res", None, [28, 14, 7, 7, 7, 7]),  # Table 7, Agent-S
        (16, 12, 224, "res", None, [28, 28, 14, 14, *[7] * 8]),  # Table 7, Agent-B
        (16, 12, 224, "res", [2, 8], [28] * 3 + [14] * 6 + [7] * 3),  # the released Agent-B
        (16, 6, 224, "plain", None, [14] * 6),  # Table 6
        (16, 6, 224, "plain", [0], [14] + [7] * 5),
        (32, 3, 64, "res", None, [4, 2, 1]),
        (8, 4, 64, "res", None, [16, 8, 4, 4]),
        (4, 4, 32, "res", None, [16, 8, 4, 4]),
        (2, 4, 8, "res", None, [8, 4, 2, 2]),
        (4, 2, 32, "res", None, [16, 8]),
        (4, 1, 32, "res", None, [16]),
        (4, 9, 32, "res", None, [16, 16, 8] + [4] * 6),
        (7, 2, 28, "plain", None, [4, 4]),
    ],
)
def test_maps_have_the_published_sizes_and_follow_the_patch(
    patch: int, depth: int, pixels: int, stem: Any, pools: list[int] | None, rows: list[int]
) -> None:
    sizes = Sizes(patch, embed_dim=4, depth=depth, num_heads=1, hidden=4)
    agent = AgentCNN(sizes, AgentShape(stem=stem, pool_after=pools), num_classes=3).eval()
    _, maps = agent.forward_with_features(random_images(2, 3, pixels, 2 * pixels))
    assert [tuple(found.shape) for found in maps] == [(2, 4, side, 2 * side) for side in rows]
    assert [info["reduction"] for info in agent.feature_info] == [pixels // side for side in rows]
    assert depth - 1 not in agent.pool_after  # nobody would see it but the head


def test_taps_read_the_same_and_change_nothing() -> None:
    agent = randomized(AgentCNN(TINY, num_classes=5), scale=0.5).eval()
    images = random_images(2, 3, 64, 96)
    logits, maps = agent.forward_with_features(images)
    assert torch.equal(agent(images), logits)
    readings = Taps(agent, frozenset({"blocks"}))(images)
    assert len(readings.blocks) == len(maps) == 3
    assert all(torch.equal(one, other) for one, other in zip(readings.blocks, maps, strict=True))
    assert all(found.is_contiguous(memory_format=torch.channels_last) for found in maps)


def test_the_stem_is_that_of_the_code_not_of_the_paper() -> None:
    """conv 7x7 s2, BN, GELU, max-pool 3x3 s2, conv 3x3 s2 with bias; Table 7 says max-pool 2x2."""
    stem = randomized(ResStem(Sizes(embed_dim=8), 6, 3, "usual"), scale=0.5).eval()
    weights, images = stem.state_dict(), random_images(2, 3, 48, 32)
    y = F.conv2d(images, weights["conv1.weight"], stride=2, padding=3)
    y = F.batch_norm(y, *(weights[f"norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")))
    y = F.max_pool2d(F.gelu(y), 3, stride=2, padding=1)
    y = F.conv2d(y, weights["conv2.weight"], weights["conv2.bias"], stride=2, padding=1)
    torch.testing.assert_close(stem(images), y, rtol=1e-4, atol=1e-5)


def test_dropout_acts_inside_the_mlp_alone() -> None:
    """At a rate near 1 the MLP gives its output bias, and nothing else is dropped (the authors' unshared agent)."""
    sizes = Sizes(embed_dim=4, depth=1, num_heads=9, hidden=8, dropout=0.0)
    agent = AgentCNN(sizes, AgentShape(stem="plain", dropout=1 - 1e-9), num_classes=3)
    randomized(agent, scale=0.5).train()
    x = random_images(3, 4, 6, 6)
    block = agent.blocks[0]
    branch = block(x) - x - block.conv(block.norm1(x))
    torch.testing.assert_close(branch, block.mlp.fc2.bias[:, None, None].expand_as(branch), rtol=0, atol=1e-5)
    agent.eval()
    branch = block(x) - x - block.conv(block.norm1(x))
    assert not torch.allclose(branch, block.mlp.fc2.bias[:, None, None].expand_as(branch), atol=1e-3)


@pytest.mark.parametrize("start", ["usual", "published"])
def test_initialization_is_the_authors_with_or_without_their_mistake(start: Any) -> None:
    """Published: biases of stem and MLP N(1e-6, 1), patches N(0, 1); usual: 0 and Xavier."""
    torch.manual_seed(0)
    res = timm.create_model("agent_small", num_classes=10, start=start, depth=1)
    base = timm.create_model("agent_small", num_classes=10, start=start, depth=1, stem="plain")
    std = 1.0 if start == "published" else 0.0
    mlp = res.blocks[0].mlp
    for bias in (res.stem.conv2.bias, mlp.fc1.bias, mlp.fc2.bias):
        assert bias.std().item() == pytest.approx(std, rel=0.1)
    assert not res.blocks[0].conv.bias.any()
    assert not base.stem.bias.any()
    for weight, fan in (
        (res.stem.conv1.weight, (3 + 64) * 49),
        (res.stem.conv2.weight, (64 + 288) * 9),
        (mlp.fc1.weight, 5 * 288),
        (mlp.fc2.weight, 5 * 288),
    ):
        assert (6 / fan) ** 0.5 * 0.98 < weight.abs().max() <= (6 / fan) ** 0.5
    patches = 1.0 if start == "published" else (2 / (288 + 768)) ** 0.5
    assert base.stem.weight.std().item() == pytest.approx(patches, rel=0.02)
    assert res.head.weight.abs().max() <= 288**-0.5


@pytest.mark.parametrize(
    ("student", "options", "pixels", "patch", "sizes"),
    [
        ("vit_nano", {}, 32, 4, Sizes(4, 64, 4, 8, 256, 0.0)),
        ("vit_small", {}, 32, 4, Sizes(4, 288, 6, 9, 1152, 0.1)),
        ("vit_tiny_patch16_224", {"depth": 2, "proj_drop_rate": 0.2}, 224, None, Sizes(16, 192, 2, 3, 768, 0.2)),
        ("deit_tiny_distilled_patch16_224", {"depth": 2}, 32, 4, Sizes(4, 192, 2, 3, 768, 0.0)),
        ("dhvt_nano", {}, 32, 4, Sizes(4, 64, 4, 8, 256, 0.0)),
        ("vit_small_sparse", {"depth": 2}, 32, 4, Sizes(4, 288, 2, 9, 1152, 0.1)),
    ],
)
def test_an_agent_is_created_from_any_plain_vit_and_from_dhvt(
    student: str, options: dict[str, Any], pixels: int, patch: int | None, sizes: Sizes
) -> None:
    asked = data_spec(3, pixels, pixels)
    vit = create_student(student, asked, patch, options)
    assert sizes_of(vit) == sizes
    agent = agent_for(vit, asked)
    logits, maps = agent.forward_with_features(random_images(2, 3, pixels, pixels))
    assert logits.shape == (2, 3)
    tokens = (pixels // sizes.patch_size) ** 2
    for found in maps:
        assert found.shape[1] == sizes.embed_dim
        length = found.shape[2] * found.shape[3]
        assert max(tokens, length) % min(tokens, length) == 0


@pytest.mark.parametrize(
    ("student", "patch", "height", "width", "shape", "words"),
    [
        ("resnet10t", None, 32, 32, {}, "made from a ViT.*ResNet is none"),
        ("mixer_s16_224", None, 224, 224, {}, "MlpMixer is none"),
        ("vit_nano", 7, 28, 28, {}, "2, 4, 8, 16 or 32 pixels, got 7; take stem plain"),
        ("vit_nano", 1, 8, 8, {}, "2, 4, 8, 16 or 32 pixels, got 1"),
        ("vit_nano", 4, 28, 28, {}, r"map of 7x7 behind block 1 cannot be halved; set pool_after to \[0\]"),
        ("vit_nano", 4, 32, 12, {}, r"map of 8x3 behind block 1 cannot be halved; set pool_after to \[0\]"),
        ("vit_nano", 2, 2, 2, {}, r"map of 1x1 behind block 1 cannot be halved"),
        ("dhvt_nano", 4, 29, 32, {}, "map of 15x16 in block 0 and the student's 8x8 tokens.*multiple of 4 pixels"),
        ("vit_nano", 4, 32, 32, {"pool_after": [4]}, r"blocks from 0 to 3, got \[4\]"),
        ("vit_nano", 4, 32, 32, {"pool_after": [-1]}, r"blocks from 0 to 3, got \[-1\]"),
        ("vit_nano", 4, 32, 32, {"stem": "resnet"}, "stem must be plain or res, got 'resnet'"),
        ("vit_nano", 4, 32, 32, {"norm": "both"}, "norm must be pre or post"),
        ("vit_nano", 4, 32, 32, {"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ("vit_nano", 4, 32, 32, {"start": "default"}, "start must be usual or published"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(
    student: str, patch: int | None, height: int, width: int, shape: dict[str, Any], words: str
) -> None:
    asked = data_spec(3, height, width)
    with pytest.raises(UserError, match=words) as caught:
        agent_for(create_student(student, asked, patch), asked, AgentShape(**shape))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", slow_but(("post",), ["pre", "post"]))
def test_layout_precision_and_compilation_change_no_result(norm: Any, backend: str) -> None:
    agent = randomized(AgentCNN(TINY, AgentShape(norm=norm), num_classes=5), scale=0.5).eval()
    images = random_images(4, 3, 64, 64)
    logits, maps = agent.forward_with_features(images)
    torch.testing.assert_close(agent(images.contiguous(memory_format=torch.channels_last)), logits)
    moved = copy.deepcopy(agent).to(memory_format=torch.channels_last)
    torch.testing.assert_close(moved(images), logits, rtol=1e-4, atol=1e-4)
    compiled, seen = torch.compile(agent.forward_with_features, fullgraph=True, backend=backend)(images)
    torch.testing.assert_close([compiled, *seen], [logits, *maps], rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        half = agent(images)
    torch.testing.assert_close(half.float(), logits, rtol=0.1, atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = agent.train()(images).float().square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in agent.parameters())


@pytest.mark.parametrize("name", ["agent_small", "agent_base"])
def test_registered_agents_are_ordinary_students(name: str, tmp_path: Path) -> None:
    options = {"depth": 3, "embed_dim": 16, "num_heads": 4, "hidden": 32, "stem": "res", "pool_after": [0]}
    student = create_student(name, data_spec(), 4, options)
    assert name in matching()
    randomized(student, scale=0.5).eval()
    save(student, tmp_path, data_spec())
    again, known, _ = load(tmp_path)
    images = random_images(2, 3, 32, 32)
    assert torch.equal(again(images), student(images))
    assert known == data_spec()

    features = student.forward_features(images)
    assert features.shape == (2, 16, 8, 8)
    torch.testing.assert_close(student.forward_head(features), student(images))
    student.reset_classifier(2)
    assert student(images).shape == (2, 2)
    student.reset_classifier(0)
    torch.testing.assert_close(student(images), features.mean((2, 3)))
    refused("global_pool", student.reset_classifier, 2, "max")
    by_stage = timm.create_model(name, features_only=True, out_indices=[0, 2], patch_size=4, **options)
    assert [found.shape[-1] for found in by_stage(images)] == [16, 8]

    groups = Optim(layer_decay=0.5, decay_everything=True).groups(again)
    rates = {key: group["lr"] / 1e-3 for group in groups for key, _ in group["params"]}
    assert rates["stem.conv1.weight"] == 0.5**4
    assert rates["blocks.1.conv.weight"] == 0.5**2
    assert rates["norm.weight"] == rates["head.bias"] == 1
    assert {group["weight_decay"] for group in groups} == {0.05}


def test_unknown_settings_of_a_registered_agent_are_refused() -> None:
    with pytest.raises(UserError, match="unknown setting of agent_small 'stems'; did you mean stem"):
        create_student("agent_small", data_spec(), 4, {"stems": "base"})
    with pytest.raises(UserError, match="agent_small does not work on 2x2 images"):
        create_student("agent_small", data_spec(3, 2, 2), 4, {"pool_after": [0, 1, 2]})
