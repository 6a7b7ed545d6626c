# SPDX-License-Identifier: Apache-2.0
"""Official checkpoints start the package's students, whatever else they contain."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from cit_students import aligned
from conftest import Golden
from networks import data_spec, tiny
from refusals import refused
from viticulture.errors import UserError
from viticulture.methods.mae import encode, split
from viticulture.models.agent.agent_cnn import AgentCNN, AgentShape, Sizes
from viticulture.models.cit.rednet import RedNet
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.checkpoint_keys import strip_prefixes
from viticulture.models.weights.files import read_checkpoint, read_weights
from viticulture.models.weights.sources import initialize, open_network, place_of

Load = Callable[[str], Golden]
HALF = (0.5, 0.5, 0.5)
SETTINGS = Namespace(lr=1e-3, output_dir="out", betas=[0.9, 0.95], nested=Namespace(dist_url="env://"))


def student(width: int, classes: int = 0, **options: Any) -> nn.Module:
    """Create a student of the golden files' sizes with random weights."""
    torch.manual_seed(3)
    sizes = {"embed_dim": width, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
    return create_student("mae_tiny", data_spec(classes), 8, sizes | options).eval()


def prefixed(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in weights.items()}


def training_state(**parts: Any) -> dict[str, Any]:
    """Return what scripts store with the weights: an optimizer's state, the epoch, a loss scaler, settings."""
    state = {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-3}]}
    return {**parts, "optimizer": state, "epoch": 399, "scaler": {"scale": 65536.0}, "args": SETTINGS}


def test_a_classifier_of_mae_or_deit_gives_the_official_logits(golden: Load, tmp_path: Path) -> None:
    """Layout of both: {"model": weights} with the training_state's state and settings."""
    data = golden("mae_vit_classifier_gap1")
    torch.save(training_state(model=data.part("w/")), tmp_path / "w.pth")
    ours = student(24, 5, global_pool="avg")
    assert initialize(ours, str(tmp_path / "w.pth")) == [
        f"started from {tmp_path / 'w.pth'}",
        "32 of 32 tensors loaded",
    ]
    torch.testing.assert_close(ours(data["in/img"]), data["out/logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["MAE", "encoder", "MAE-Lite", "distilled"])
def test_an_encoder_of_mae_gives_the_official_latent(golden: Load, tmp_path: Path, layout: str) -> None:
    """MAE's training_state and published layout, and MAE-Lite's (.pth.tar), in which distillation adds a teacher."""
    data = golden("mae_forward_normpix1")
    weights = data.part("w/")
    encoder = {name: value for name, value in weights.items() if not name.startswith(("decoder", "mask"))}
    teacher = prefixed("module.tch_model.", {name: value + 1 for name, value in encoder.items()})
    lite = {"start_epoch": 400, "best_top1": 0.0}
    stored: dict[str, Any] = {
        "MAE": training_state(model=weights),
        "encoder": {"model": encoder},
        "MAE-Lite": {**lite, "model": prefixed("module.model.", weights)},
        "distilled": {**lite, "model": {**teacher, **prefixed("module.model.", weights)}},
    }[layout]
    torch.save(stored, tmp_path / "w.pth.tar")
    ours = student(24)
    warnings = " ".join(initialize(ours, str(tmp_path / "w.pth.tar")))
    assert "30 of 30 tensors loaded" in warnings
    assert ("there but not used" in warnings) == (layout != "encoder")
    kept, _ = split(data["in/noise"], data.about["config"]["mask_ratio"])
    latent = encode(ours, data["in/img"], kept)  # type: ignore[arg-type]
    torch.testing.assert_close(latent, data["out/latent"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_moco_v3_gives_its_trained_encoder(golden: Load, tmp_path: Path, wrapper: str) -> None:
    data = golden("moco_tiny_step")
    official = {**data.part("after/"), **data.part("w/")}
    torch.save({wrapper: prefixed("module.", official), "arch": "vit_tiny"}, tmp_path / "w.pth")
    ours = student(16, 3)
    warnings = " ".join(initialize(ours, str(tmp_path / "w.pth")))
    assert "30 of 32 tensors loaded" in warnings
    assert "the head starts anew: head.weight, head.bias" in warnings
    assert "there but not used: momentum_encoder." in warnings
    theirs, found = data.part("w/base_encoder."), ours.state_dict()
    assert all(torch.equal(found[name], theirs[name]) for name in found if not name.startswith("head."))


def test_moco_v2_gives_its_encoder_without_projector(tmp_path: Path) -> None:
    """{"state_dict": {"module.encoder_q.*"}} with fc.0 and fc.2, encoder_k and queue."""
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=0)
    heads = {f"fc.{layer}.weight": torch.zeros(2, 2) for layer in (0, 2)}
    queried = prefixed("module.encoder_q.", {**net.state_dict(), **heads})
    followed = prefixed("module.encoder_k.", {name: 0 * value for name, value in net.state_dict().items()})
    torch.save({"state_dict": {**queried, **followed, "module.queue": torch.zeros(2)}}, tmp_path / "w.pth.tar")
    taken, *_ = open_network(f"test_resnet={tmp_path / 'w.pth.tar'}")
    assert taken.state_dict().keys() == net.state_dict().keys()
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in taken.state_dict().items())


def test_checkpoints_of_lightning_and_dino_give_their_student() -> None:
    """`method.student.*` with other networks, and DINO's {"student", "teacher"}; compiled, or wrapped by DDP."""
    weights, others = {"norm.weight": torch.ones(2)}, {"norm.weight": torch.zeros(2)}
    for stored in (
        {"state_dict": {**prefixed("method.student.", weights), **prefixed("method.auxiliary.momentum.0.", others)}},
        {"student": prefixed("module.", others), "teacher": prefixed("backbone.", weights)},
        {"model": prefixed("module._orig_mod.", weights)},
        {"model": prefixed("_orig_mod.module.", weights)},
        {"state_dict": {**prefixed("model._orig_mod.", weights), "measure.total": torch.zeros(())}},
        weights,
    ):
        assert torch.equal(strip_prefixes(stored)["norm.weight"], weights["norm.weight"])
    assert strip_prefixes({"epoch": 3}) == strip_prefixes([1]) == strip_prefixes({"model": {}}) == {}


@pytest.mark.parametrize(
    ("prefix", "beside"),
    [("", ["mask_token", "decoder_pred.bias"]), ("module.base_encoder.", ["module.predictor.0.weight"])],
)
def test_a_checkpoint_gives_a_teacher_its_encoder_alone(tmp_path: Path, prefix: str, beside: list[str]) -> None:
    net = create_student("vit_nano", DataSpec((), (32, 32), HALF, HALF), 4).eval()
    others = dict.fromkeys([*beside, f"{prefix}head.0.weight"], torch.ones(2))
    torch.save({"model": {**prefixed(prefix, net.state_dict()), **others}}, tmp_path / "w.pth")
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(open_network(f"vit_nano={tmp_path / 'w.pth'}")[0].eval()(x), net(x))


@pytest.mark.parametrize(("key", "mean_first"), [("state_dict", True), ("model", False)])
def test_weights_or_their_ema_are_chosen_as_by_their_authors(tmp_path: Path, key: str, mean_first: bool) -> None:
    """timm loads the EMA; DeiT and DHVT fine-tune `model`; FILE#KEY takes the other."""
    last, mean = {"head.weight": torch.zeros(2, 3)}, {"head.weight": torch.ones(2, 3)}
    stored = training_state(**{key: last, f"{key}_ema": mean})
    assert strip_prefixes(stored)["head.weight"].eq(float(mean_first)).all()
    assert strip_prefixes({f"{key}_ema": mean})["head.weight"].eq(1).all()
    torch.save(stored, tmp_path / "w.pth")
    taken, other = (f"{key}_ema", key) if mean_first else (key, f"{key}_ema")
    assert read_checkpoint(tmp_path / "w.pth")[1] == [f"its {taken} is loaded; for another: w.pth#{other}"]
    weights, warnings = read_checkpoint(tmp_path / f"w.pth#{other}")
    assert weights["head.weight"].eq(float(not mean_first)).all()
    assert warnings == []
    with pytest.raises(UserError, match=f"no weights under teacher, but under {taken} and {other}"):
        read_weights(tmp_path / "w.pth#teacher")
    assert place_of(f"vit_nano={tmp_path}/w.pth#{other}") == place_of(f"{tmp_path}/w.pth") == tmp_path / "w.pth"


def red() -> nn.Module:
    return RedNet((1, 2, 0, 0), num_classes=0, global_pool="", stem_width=16, channels=(16, 32, 64, 128))


def agent() -> nn.Module:
    sizes = Sizes(embed_dim=18, depth=3, num_heads=9, hidden=36, dropout=0.0)
    return AgentCNN(sizes, AgentShape(norm="pre"), num_classes=5, stem_width=6)


OFFICIAL: dict[str, tuple[str, Callable[[Load], nn.Module], Callable[[dict[str, Tensor]], Any]]] = {
    "CiT": ("cit_tiny", lambda golden: aligned(golden)[0], lambda weights: training_state(model=weights)),
    "DHVT": ("dhvt_model_p4", lambda _: tiny(4), lambda weights: training_state(model=weights, model_ema={})),
    "RedNet by mmcls": (
        "rednet_tiny",
        lambda _: red(),
        lambda weights: {"meta": {}, "state_dict": prefixed("backbone.", weights)},
    ),
    "RedNet by Co-advise": (
        "rednet_tiny",
        lambda _: red(),
        lambda weights: {"state_dict": prefixed("module.model.", weights)},
    ),
    "agent": ("boot_agent_reslike_convsl_prenorm", lambda _: agent(), lambda weights: training_state(model=weights)),
    "agent beside a ViT": (
        "boot_agent_reslike_convsl_prenorm",
        lambda _: agent(),
        lambda weights: training_state(
            model={**prefixed("models.cnn.", weights), "models.vit.cls_token": torch.ones(1, 1, 18)}
        ),
    ),
}


@pytest.mark.parametrize("layout", OFFICIAL)
def test_every_tensor_of_an_official_file_is_loaded(golden: Load, tmp_path: Path, layout: str) -> None:
    name, build, wrap = OFFICIAL[layout]
    weights = golden(name).part("w/")
    network = build(golden)
    torch.save(wrap(weights), tmp_path / "w.pth")
    (taken,) = [line for line in initialize(network, str(tmp_path / "w.pth")) if "tensors loaded" in line]
    counts = sum(key.endswith("num_batches_tracked") for key in network.state_dict())
    found, there, *_ = (int(word) for word in taken.split() if word.isdigit())
    assert found >= there - counts
    assert found >= len(weights) - counts


@pytest.mark.parametrize("prefix", ["backbone.", "model.", "module."])
def test_an_official_rednet_is_a_teacher(tmp_path: Path, prefix: str) -> None:
    torch.manual_seed(0)
    net = timm.create_model("rednet26", num_classes=7).eval()
    stored = {}
    for key, value in net.state_dict().items():
        official = f"stem.{key[6:]}" if key.startswith("conv1.") else key
        official = official.replace("fc.", "head.fc.") if key.startswith("fc.") else f"{prefix}{official}"
        stored[official] = value
    torch.save({"state_dict": stored}, tmp_path / "w.pth")
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(open_network(f"rednet26={tmp_path / 'w.pth'}")[0].eval()(x), net(x))


def test_other_objects_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(2)}, "args": Namespace(output_dir=Path("out"))}, tmp_path / "w.pth")
    refused(r"pathlib.*save the weights alone as .safetensors", read_weights, tmp_path / "w.pth")


@pytest.mark.parametrize("layout", ["alone", "beside an agent"])
def test_a_vit_of_bootstrapping_gives_the_official_logits(golden: Load, tmp_path: Path, layout: str) -> None:
    """All 44 tensors by the names of its authors."""
    data = golden("boot_vit_tiny")
    weights = data.part("w/")
    if layout != "alone":
        weights = {**prefixed("models.vit.", weights), "models.cnn.layers.0.bn1.weight": torch.ones(18)}
    torch.save(training_state(model=weights), tmp_path / "w.pth")
    data_spec = DataSpec(tuple("abcde"), (64, 64), HALF, HALF)
    sizes = {"embed_dim": 18, "depth": 3, "num_heads": 9, "mlp_ratio": 2}
    ours = create_student("vit_small", data_spec, 16, sizes).eval()
    warnings = initialize(ours, str(tmp_path / "w.pth"))
    assert "44 of 44 tensors loaded" in warnings
    torch.testing.assert_close(ours(data["in/x"]), data["out/logits"], rtol=1e-5, atol=1e-6)
