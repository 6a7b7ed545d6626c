# SPDX-License-Identifier: Apache-2.0
"""RedNet is the authors', block by block and at full size, and a model of timm like any other."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from conftest import GOLDEN, Golden
from formula_fill import fill, image
from networks import error, random_images
from slowly import slow_but
from viticulture.models.cit.rednet import LAYERS, RedBlock, RedNet, checkpoint_filter_fn
from viticulture.models.students import count
from viticulture.models.taps import Taps

Load = Callable[[str], Golden]
NUMBERS = json.loads((GOLDEN / "numbers.json").read_text())["co_advise"]
NARROW = {"stem_width": 16, "channels": (16, 32, 64, 128)}


def block() -> nn.Module:
    shortcut = nn.Sequential(nn.Conv2d(32, 64, 1, stride=2, bias=False), nn.BatchNorm2d(64))
    return RedBlock(32, 16, stride=2, downsample=shortcut)


CASES: dict[str, Callable[[], nn.Module]] = {
    "rednet_bottleneck_s2": block,
    "rednet_tiny": lambda: RedNet((1, 2, 0, 0), num_classes=0, global_pool="", **NARROW),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_official_code(golden: Load, name: str) -> None:
    """Outputs in both modes, every gradient (the network's as their norms); the authors' weights load."""
    data, module = golden(name), CASES[name]()
    module.load_state_dict(checkpoint_filter_fn({"state_dict": data.part("w/")}, module))
    with torch.no_grad():
        assert error(module.eval()(data["in/x"]), data["out/eval"]) < 1e-4
    x = data["in/x"].clone().requires_grad_()
    y = module.train()(x)
    assert error(y, data["out/train"]) < 1e-4
    (y * data["in/c"]).sum().backward()
    assert x.grad is not None
    assert error(x.grad, data["gin/x"]) < 1e-4
    compared = 0
    for key, theirs in checkpoint_filter_fn(data.part("grad/"), module).items():
        assert error(module.get_parameter(key).grad, theirs) < 1e-4, key  # type: ignore[arg-type]
        compared += 1
    for key, norm in checkpoint_filter_fn(data.about["config"].get("grad_l2_norms", {}), module).items():
        assert module.get_parameter(key).grad.norm() == pytest.approx(norm, rel=1e-4), key  # type: ignore[union-attr]
        compared += 1
    assert compared == len(list(module.parameters()))


def test_the_full_size_model_is_the_official_one(golden: Load) -> None:
    """Logits, and four statistics of every stage, in training mode (see the file's note)."""
    data = golden("full_rednet26")
    model = timm.create_model("rednet26").train()
    model.load_state_dict(checkpoint_filter_fn(fill(data.about["config"]["state"]), model))
    with torch.no_grad():
        logits, stages = None, []
        for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
            stage.register_forward_hook(lambda _module, _inputs, x: stages.append(x))
        logits = model(image((2, 3, 224, 224)))
    assert error(logits, data["out/logits"]) < 1e-3
    found = torch.stack([torch.stack([x.mean(), x.std(), x.flatten()[0], x.flatten()[-1]]) for x in stages])
    torch.testing.assert_close(found, data["out/stage_stats"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", slow_but(("rednet26",), LAYERS))
def test_parameters_and_macs_are_the_official_ones(name: str) -> None:
    expected = NUMBERS[name.replace("rednet", "RedNet-")]
    with torch.device("meta"):
        model = timm.create_model(name).eval()
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(expected["params"], abs=5.1e-5)
    if name in ("rednet26", "rednet38"):
        assert count(model, (224, 224))[1] / 1e9 == pytest.approx(expected["gmacs_224_conv_linear"], abs=5.1e-5)


def test_initialization_is_the_involution_authors() -> None:
    """Convolutions Kaiming-normal by fan-out without bias, a block's last norm zero."""
    torch.manual_seed(0)
    model = timm.create_model("rednet26").requires_grad_(False)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.weight[0, 0].numel()
            assert module.weight.std() == pytest.approx((2 / fan_out) ** 0.5, rel=0.15), name
            assert module.bias is None or not module.bias.any(), name
    assert all(not stage[0].bn3.weight.any() for stage in (model.layer1, model.layer4))


@pytest.mark.parametrize("small_images", [False, True])
def test_feature_maps_have_the_documented_sizes(small_images: bool) -> None:
    settings = {"small_images": small_images, **NARROW}
    x = random_images(2, 3, 37, 53)
    model = timm.create_model("rednet26", num_classes=5, **settings).eval()
    maps = timm.create_model("rednet26", features_only=True, **settings).eval()
    maps.load_state_dict(model.state_dict(), strict=False)
    reductions = [1, 1, 2, 4, 8] if small_images else [2, 4, 8, 16, 32]
    assert maps.feature_info.reduction() == reductions
    with torch.no_grad():
        final, taken = model.forward_intermediates(x)
        assert torch.equal(final, model.forward_features(x))
        for ours, theirs, channels, reduction in zip(
            taken, maps(x), maps.feature_info.channels(), reductions, strict=True
        ):
            torch.testing.assert_close(ours, theirs)
            assert ours.shape == (2, channels, -(-37 // reduction), -(-53 // reduction))
        readings = Taps(model, frozenset({"blocks"}))(x)
    assert len(readings.blocks) == 5
    assert all(map(torch.equal, readings.blocks, taken))
    assert readings.outputs[0].shape == (2, 5)


def test_an_official_checkpoint_loads_through_timm(tmp_path: Path) -> None:
    """A file of the authors' layout: `state_dict`, `backbone.` before all but the head, ConvModules. Strictly."""
    model = timm.create_model("rednet26", num_classes=4, **NARROW).eval()
    theirs: dict[str, Tensor] = {}
    for key, weight in model.state_dict().items():
        name = key.replace("conv1.1.conv2.", "conv1.1.conv2.conv.") if key.startswith("conv1.") else key
        for stage in range(1, 5):
            name = name.replace(".conv2.conv2.", ".conv2.conv2.conv.") if name.startswith(f"layer{stage}") else name
        name = f"stem.{name.removeprefix('conv1.')}" if name.startswith("conv1.") else name
        theirs[name.replace("fc.", "head.fc.") if name.startswith("fc.") else f"backbone.{name}"] = weight
    assert {"backbone.stem.1.conv2.conv.weight", "backbone.layer2.1.conv2.conv2.conv.bias"} < theirs.keys()
    torch.save({"state_dict": theirs, "meta": {"epoch": 130}}, tmp_path / "rednet.pth")
    overlay = {"file": str(tmp_path / "rednet.pth"), "num_classes": 4}
    loaded = timm.create_model("rednet26", pretrained=True, pretrained_cfg_overlay=overlay, **NARROW).eval()
    x = random_images(1, 3, 64, 64)
    assert torch.equal(loaded(x), model(x))


def test_the_whole_model_runs_in_bfloat16() -> None:
    """An involution multiplies activations, so rounding (2^-9) grows from layer to layer more than in a ResNet."""
    torch.manual_seed(0)
    model = timm.create_model("rednet26", small_images=True, zero_init_last=False, **NARROW).train()
    x = random_images(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    assert error(logits.float(), model(x)) < 0.3
    logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
