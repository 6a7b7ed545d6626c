# SPDX-License-Identifier: Apache-2.0
"""DHVT is the authors': forward and backward, tiny and full size, in both modes; counts, initialization, symmetries."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import GOLDEN, Golden
from formula_fill import fill, image
from networks import check_gradients, check_one_graph, error, random_images, randomized, tiny
from refusals import refused
from slowly import slow_but
from viticulture.models.dhvt.dhvt import DHVT, DHVTBlock, Parts, Shape, checkpoint_filter_fn
from viticulture.models.dhvt.layers import DAFF, HIMHSA, SOPE, Pointwise
from viticulture.models.students import count

Load = Callable[[str], Golden]
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["dhvt"]


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor], float]] = {
    "dhvt_sope_p2": (lambda: SOPE(2, 16), lambda m, x: m(x).flatten(1, 2), 1e-5),
    "dhvt_sope_p4": (lambda: SOPE(4, 16), lambda m, x: m(x).flatten(1, 2), 1e-5),
    "dhvt_sope_p16": (lambda: SOPE(16, 16), lambda m, x: m(x).flatten(1, 2), 1e-5),
    "dhvt_hi_mhsa": (lambda: HIMHSA(16, 4), lambda m, x: m(x), 1e-5),
    "dhvt_daff": (lambda: DAFF(12, 48), lambda m, x: m(x, (3, 3)), 1e-5),
    "dhvt_block": (lambda: DHVTBlock(Shape(embed_dim=16), Parts()), lambda m, x: m(x, (3, 3)), 1e-5),
    "dhvt_model_p4": (lambda: tiny(4), lambda m, x: m(x), 1e-4),
    "dhvt_model_p16": (lambda: tiny(16), lambda m, x: m(x), 1e-4),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_official_code(golden: Load, name: str) -> None:
    """Outputs in both modes, every gradient, running statistics after one step; the authors' weights load strictly."""
    make, call, tolerance = CASES[name]
    data, module = golden(name), make()
    left_out = module.load_state_dict(checkpoint_filter_fn({"model": data.part("w/")}, module), strict=False)
    assert not left_out.unexpected_keys
    assert all(key.endswith("num_batches_tracked") for key in left_out.missing_keys)

    with torch.no_grad():
        assert error(call(module.eval(), data["in/x"]), data["out/eval"]) < tolerance
    x = data["in/x"].clone().requires_grad_()
    y = call(module.train(), x)
    assert error(y.detach(), data["out/train"]) < tolerance
    (y * data["in/c"]).sum().backward()
    assert x.grad is not None
    assert error(x.grad, data["gin/x"]) < tolerance
    theirs = data.part("grad/")
    assert theirs.keys() == dict(module.named_parameters()).keys()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None
        if key.endswith(("conv1.bias", "conv2.bias", "conv3.bias")):  # BatchNorm removes them: rounding is all there is
            assert parameter.grad.abs().max() < 1e-5 * largest, key
        else:
            assert error(parameter.grad.reshape(theirs[key].shape), theirs[key]) < tolerance, key
    for key, statistic in data.part("after/").items():
        assert error(module.state_dict()[key], statistic) < tolerance, key


@pytest.mark.parametrize("name", ["tiny_cifar_patch4", "tiny_imagenet_patch16"])
def test_full_size_models_are_the_official_ones(golden: Load, name: str) -> None:
    """Logits, and mean, standard deviation, first and last number of every block's output, in evaluation mode."""
    data = golden(f"full_dhvt_{name}")
    pixels, classes = data.about["config"]["img"], data.about["config"]["num_classes"]
    model = timm.create_model(f"dhvt_{name}", num_classes=classes).eval()
    weights = checkpoint_filter_fn(fill(data.about["config"]["state"]), model)
    assert not model.load_state_dict(weights, strict=False).unexpected_keys
    found: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _inputs, x: found.append(x))
    with torch.no_grad():
        logits = model(image((2, 3, pixels, pixels)))
    statistics = torch.stack([torch.stack([x.mean(), x.std(), x.flatten()[0], x.flatten()[-1]]) for x in found])
    assert error(logits, data["out/logits"]) < 1e-3
    torch.testing.assert_close(statistics, data["out/block_stats"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "entry", slow_but(("dhvt_tiny_cifar_patch4 nc=100", "dhvt_small_imagenet_patch16 nc=1000"), NUMBERS)
)
def test_parameters_and_macs_are_the_official_ones(entry: str) -> None:
    """[S, Table 11]; the paper's GFLOPs leave out the two products of attention: the last assertion."""
    name, classes = entry.split(" nc=")
    pixels = 32 if "cifar" in name else 224
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=int(classes))
    parameters, macs = count(model, (pixels, pixels))
    tokens = math.prod([pixels // model.feature_info[0]["reduction"]] * 2) + 1 + model.blocks[0].attn.num_heads
    attention = len(model.blocks) * 2 * tokens**2 * model.embed_dim
    assert parameters / 1e6 == pytest.approx(NUMBERS[entry]["params"], abs=5.1e-5)
    assert macs / 1e9 == pytest.approx(NUMBERS[entry]["gmacs"], abs=5.1e-5)
    assert (macs - attention) / 1e9 == pytest.approx(NUMBERS[entry]["gmacs_without_attention_matmul"], abs=5.1e-5)


def test_initialization_is_the_authors() -> None:
    """Linear layers N(0, 0.02) without bias, convolutions uniform within 1 / sqrt(fan-in), norms and affines 1, 0."""
    torch.manual_seed(0)
    model = timm.create_model("dhvt_tiny_cifar_patch4", depth=2)
    for name, module in model.requires_grad_(False).named_modules():
        if isinstance(module, nn.Conv2d | Pointwise):
            fan_in = module.weight[0].numel()
            for tensor in (module.weight, module.bias):
                if tensor is not None:
                    assert tensor.abs().max() <= fan_in**-0.5, name
                    assert tensor.std() == pytest.approx((3 * fan_in) ** -0.5, rel=0.15), name
        elif isinstance(module, nn.Linear):
            assert module.weight.std() == pytest.approx(0.02, rel=0.03), name
            assert not module.bias.any(), name
        elif isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            assert (module.weight == 1).all(), name
            assert not module.bias.any(), name
    for name, parameter in model.named_parameters():
        if name.endswith(("cls_token", "pos_embed")):
            assert parameter.std() == pytest.approx(0.02, rel=0.2), name
        assert not name.endswith("alpha") or (parameter == 1).all(), name
        assert not name.endswith("beta") or not parameter.any(), name


@pytest.mark.parametrize("patch_size", [2, 4, 8, 16, 32])
def test_sope_halves_the_image_until_a_pixel_is_a_patch(patch_size: int) -> None:
    """[S, Sec. 1.2], written out with plain functions, for released and other patches and an odd, oblong image."""
    sope, x = randomized(SOPE(patch_size, 32)).eval(), random_images(2, 3, 45, 71)
    weights = sope.state_dict()
    y = x * weights["pre_affine.alpha"] + weights["pre_affine.beta"]
    steps = int(math.log2(patch_size))
    for step in range(steps):
        kernel = weights[f"proj.{2 * step}.0.weight"]
        assert len(kernel) == 32 // 2 ** (steps - 1 - step)
        y = F.conv2d(y, kernel, stride=2, padding=1)
        norm = [weights[f"proj.{2 * step}.1.{key}"] for key in ("running_mean", "running_var", "weight", "bias")]
        y = F.batch_norm(y, *norm)
        if step < steps - 1 or steps == 1:
            y = F.gelu(y)
    y = y * weights["post_affine.alpha"] + weights["post_affine.beta"]
    assert y.shape[2:] == (math.ceil(45 / patch_size), math.ceil(71 / patch_size))
    torch.testing.assert_close(sope(x), y.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(16, 24), (20, 12), (4, 4), (9, 30)])
def test_rotating_the_image_and_every_kernel_leaves_the_logits(size: tuple[int, int]) -> None:
    model = randomized(tiny()).eval()
    x = random_images(2, 3, *size)
    before = model(x)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 4 and parameter.shape[-1] == 3:
                parameter.copy_(parameter.mT.clone())
    torch.testing.assert_close(model(x.mT), before, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(model(x), before, rtol=1e-2)


def test_attention_is_permutation_equivariant() -> None:
    """HI-MHSA of shuffled patches is HI-MHSA, shuffled."""
    attn = randomized(HIMHSA(16, 4, prefix_tokens=2)).eval()
    x = random_images(2, 14, 16)
    order = torch.cat([torch.arange(2), 2 + torch.randperm(12, generator=torch.Generator().manual_seed(0))])
    torch.testing.assert_close(attn(x[:, order]), attn(x)[:, order], rtol=1e-4, atol=1e-5)


def test_a_distillation_token_is_treated_like_the_class_token() -> None:
    model = randomized(tiny(distilled=True)).train()
    x = random_images(2, 3, 16, 20)
    assert isinstance(model, DHVT)
    model.set_distilled_training()
    first, second = model(x)
    assert not torch.allclose(first, second, rtol=1e-2)
    with torch.no_grad():
        model.dist_token.copy_(model.cls_token)
        model.head_dist.load_state_dict(model.head.state_dict())
    first, second = model(x)
    torch.testing.assert_close(first, second)
    randomized(model.head_dist, seed=3)
    model.eval()
    features = model.forward_features(x)
    expected = (model.head(features[:, 0]) + model.head_dist(features[:, 1])) / 2
    torch.testing.assert_close(model(x), expected)


def test_drop_path_drops_whole_images_and_preserves_the_mean(golden: Load) -> None:
    """The official x / keep * floor(keep + u)."""
    data = golden("dhvt_drop_path")
    rate, x = data.about["config"]["drop_prob"], data["in/x"]
    block = DHVTBlock(Shape(embed_dim=16), Parts(), drop_path=rate)
    official = (data["out/y"] / x).flatten(1)
    torch.manual_seed(0)
    ours = (block.drop_path(x.expand(400, 6, 3, 2).flatten(0, 1)) / x.repeat(400, 1, 1)).flatten(1)
    for kept in (official, ours):
        torch.testing.assert_close(kept, kept[:, :1].expand_as(kept))
        dropped = kept[:, 0] == 0
        torch.testing.assert_close(kept[~dropped], torch.full_like(kept[~dropped], 1 / (1 - rate)))
    assert ours.mean() == pytest.approx(1, abs=0.05)
    assert torch.equal(block.eval().drop_path(x), x)
    rates = [
        getattr(b.drop_path, "drop_prob", 0) for b in DHVT(Shape(depth=3, embed_dim=16), drop_path_rate=0.2).blocks
    ]
    assert rates == pytest.approx([0, 0.1, 0.2])


@pytest.mark.slow  # `test_a_compiled_step_is_the_eager_one` compiles a smaller one by another backend
def test_the_whole_model_compiles_into_one_graph() -> None:
    model = randomized(tiny(drop_path_rate=0.2, distilled=True)).train()
    check_one_graph(model, random_images(4, 3, 16, 24), "aot_eager", rtol=1e-3, atol=1e-2)


def test_it_runs_in_bfloat16() -> None:
    torch.manual_seed(0)
    model = tiny().train()
    x = random_images(8, 3, 16, 24)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    assert error(logits.float(), model(x)) < 0.05
    logits.square().sum().backward()
    check_gradients(model.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SOPE(12, 32), "power of two.*got 12"),
        (lambda: SOPE(16, 20), "multiple of patch_size / 2, got 20 and 16"),
        (lambda: HIMHSA(32, 3), "multiple of num_heads, got 32 and 3"),
        (lambda: tiny().reset_classifier(3, "avg"), "global_pool must be 'token', got 'avg'"),
        (lambda: timm.create_model("dhvt_tiny_cifar_patch4", drop_path=0.1), "drop_path.*drop_path_rate"),
    ],
)
def test_invalid_settings_are_refused(make: Callable[[], Any], message: str) -> None:
    refused(message, make)
