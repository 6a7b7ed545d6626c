# SPDX-License-Identifier: Apache-2.0
"""Official checkpoints start the package's students, whatever else they contain."""

import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from cit_students import aligned
from conftest import Golden
from networks import data_spec, randomized, tiny
from refusals import refused
from resumed import check_same_bits
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
    assert "the head is new: head.weight, head.bias" in warnings
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


Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """An official file."""

    network: Callable[[Load], nn.Module]  # the student that starts from it
    weights: Callable[[Load], Weights]  # of its authors' network, by their names
    wrap: Callable[[Weights], Any]  # weights -> the file's content
    # Prefixes of the student's tensors that the file has not, for the reason in the layout's comment.
    anew: tuple[str, ...] = ()


def part(name: str, prefix: str = "w/") -> Callable[[Load], Weights]:
    return lambda golden: golden(name).part(prefix)


def of(network: Callable[[], nn.Module], *left: str) -> Callable[[Load], Weights]:
    """Return random weights by a network's own names, without those that begin like `left`."""
    return lambda _: {
        name: torch.randn_like(value) if value.is_floating_point() else value
        for name, value in network().state_dict().items()
        if not name.startswith(left)
    }


def simmim(_: Load) -> Weights:
    """SimMIM's ViT: biases of q and v alone, layer scales, relative positions for absolute ones."""
    weights = of(lambda: student(24), "pos_embed")(_)
    for name in [name for name in weights if name.endswith("qkv.bias")]:
        q, _, v = weights.pop(name).chunk(3)
        block = name.removesuffix("attn.qkv.bias")
        weights |= {f"{block}attn.q_bias": q, f"{block}attn.v_bias": v}
        weights |= {f"{block}gamma_{k}": torch.rand(24) for k in (1, 2)}
    return {
        **weights,
        "mask_token": torch.ones(1, 1, 24),
        "rel_pos_bias.relative_position_bias_table": torch.ones(4, 4),
        "rel_pos_bias.relative_position_index": torch.ones(5, 5, dtype=torch.int64),
    }


def bootstrapping_vit(golden: Load) -> nn.Module:
    data_spec = DataSpec(tuple("abcde"), (64, 64), HALF, HALF)
    return create_student("vit_small", data_spec, 16, {"embed_dim": 18, "depth": 3, "num_heads": 9, "mlp_ratio": 2})


HEAD = ("head.",)
OFFICIAL: dict[str, Layout] = {
    "MAE": Layout(lambda _: student(24), part("mae_forward_normpix1"), lambda w: training_state(model=w)),
    "MAE-Lite": Layout(
        lambda _: student(24), part("mae_forward_normpix1"), lambda w: {"model": prefixed("module.model.", w)}
    ),
    "MoCo-v3": Layout(  # trained without classes
        lambda _: student(16, 3),
        part("moco_tiny_step"),
        lambda w: {"state_dict": prefixed("module.", w), "arch": "vit_tiny"},
        HEAD,
    ),
    "SimMIM": Layout(  # no absolute positions, and no classes
        lambda _: student(24, 3),
        simmim,
        lambda w: training_state(model={**prefixed("encoder.", w), "decoder.0.weight": torch.ones(2)}),
        (*HEAD, "pos_embed"),
    ),
    "DINO": Layout(  # trained without classes
        lambda _: student(24, 3),
        of(lambda: student(24)),
        lambda w: training_state(
            student=prefixed("module.backbone.", {name: 0 * value for name, value in w.items()}),
            teacher={**prefixed("backbone.", w), "head.mlp.0.weight": torch.ones(2, 2)},
        ),
        HEAD,
    ),
    "SEED": Layout(  # a projector in the classifier's place
        lambda _: timm.create_model("test_resnet", num_classes=3),
        of(lambda: timm.create_model("test_resnet", num_classes=0)),
        lambda w: {
            "state_dict": {
                **prefixed("module.student.", {**w, "fc.0.weight": torch.ones(2, 2)}),
                **prefixed("module.teacher.", {"conv1.weight": torch.ones(2)}),
                "module.queue": torch.ones(2, 2),
            }
        },
        ("fc.",),
    ),
    "DeiT": Layout(
        lambda _: student(24, 5, global_pool="avg"),
        part("mae_vit_classifier_gap1"),
        lambda w: training_state(model=w, model_ema={name: 0 * value for name, value in w.items()}),
    ),
    "CiT": Layout(lambda golden: aligned(golden)[0], part("cit_tiny"), lambda w: training_state(model=w)),
    "DHVT": Layout(lambda _: tiny(4), part("dhvt_model_p4"), lambda w: training_state(model=w, model_ema={})),
    "RedNet by mmcls": Layout(
        lambda _: red(), part("rednet_tiny"), lambda w: {"meta": {}, "state_dict": prefixed("backbone.", w)}
    ),
    "RedNet by Co-advise": Layout(
        lambda _: red(), part("rednet_tiny"), lambda w: {"state_dict": prefixed("module.model.", w)}
    ),
    "Bootstrapping's ViT": Layout(bootstrapping_vit, part("boot_vit_tiny"), lambda w: training_state(model=w)),
    "Bootstrapping's agent": Layout(
        lambda _: agent(), part("boot_agent_reslike_convsl_prenorm"), lambda w: training_state(model=w)
    ),
    "Bootstrapping's agent beside a ViT": Layout(
        lambda _: agent(),
        part("boot_agent_reslike_convsl_prenorm"),
        lambda w: training_state(model={**prefixed("models.cnn.", w), "models.vit.cls_token": torch.ones(1, 1, 18)}),
    ),
}


@pytest.mark.parametrize("layout", OFFICIAL)
def test_every_tensor_of_an_official_file_is_loaded(golden: Load, tmp_path: Path, layout: str) -> None:
    """All but the layout's `anew` change to the file's values, and a line names those that do not; counters of batch
    norms may be missing. Catches: a name that is not translated, weights of another network in the file."""
    official = OFFICIAL[layout]
    network = official.network(golden)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.fill_(7)
    torch.save(official.wrap(official.weights(golden)), tmp_path / "w.pth")
    lines = initialize(network, str(tmp_path / "w.pth"))
    state = {name: value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    same = {name for name, value in state.items() if value.eq(7).all()}
    assert same == {name for name in state if name.startswith(official.anew or ("-",))}
    assert all(any(name in line for line in lines) for name in same)
    assert sum("tensors loaded" in line for line in lines) == 1


def test_a_key_selects_tensors_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    """Catches: the raw weights where the averaged ones are asked for, unsaid."""
    net = timm.create_model("test_vit", num_classes=2)
    raw = {f"model.{name}": value for name, value in net.state_dict().items()}
    averaged = {f"model_ema.{name}": value + 1 for name, value in net.state_dict().items()}
    safetensors.torch.save_file({**raw, **averaged}, tmp_path / "w.safetensors")
    torch.save(net.state_dict(), tmp_path / "w.pth")
    fresh = timm.create_model("test_vit", num_classes=2)
    initialize(fresh, f"{tmp_path}/w.safetensors#model_ema")
    assert torch.equal(fresh.state_dict()["norm.weight"], net.state_dict()["norm.weight"] + 1)
    for name in ("w.safetensors#nonsense", "w.pth#model_ema"):
        refused("it has no weights under", initialize, fresh, f"{tmp_path}/{name}")


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("layout", ["SimMIM", "timm"])
def test_layer_scales_are_loaded(layout: str, scaled: bool, tmp_path: Path) -> None:
    """A network's file in two forms gives the same logits: to a network with layer scales, and to one without.
    Catches: scales that are dropped, or multiplied along the inputs of a layer."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    vit = randomized(timm.create_model("vit_tiny_patch16_224", init_values=0.1, **sizes)).eval()
    theirs: Weights = {}
    for name, value in vit.state_dict().items():
        if layout == "SimMIM" and name.endswith("qkv.bias"):
            q, k, v = value.chunk(3)
            k.zero_()
            theirs |= {name.replace("qkv.bias", "q_bias"): q, name.replace("qkv.bias", "v_bias"): v}
        else:
            theirs[re.sub(r"ls(\d)\.gamma", r"gamma_\1", name) if layout == "SimMIM" else name] = value
    torch.save(training_state(model=prefixed("encoder.", theirs) if layout == "SimMIM" else theirs), tmp_path / "w.pth")
    ours = timm.create_model("vit_tiny_patch16_224", init_values=1.0 if scaled else None, **sizes).eval()
    lines = initialize(ours, str(tmp_path / "w.pth"))
    assert not any("anew" in line or "not used" in line for line in lines)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), vit(x))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("beit_base_patch16_224", {"embed_dim": 24, "depth": 2, "num_heads": 2}),
        ("swinv2_tiny_window8_256", {"embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}),
    ],
)
def test_networks_with_separate_biases_keep_them(name: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    """Catches: biases of queries and values that are joined for a network that has them apart, too."""
    there, here = (randomized(timm.create_model(name, num_classes=3, **sizes), seed) for seed in (0, 1))
    torch.save({"model": there.state_dict()}, tmp_path / "w.pth")
    initialize(here, str(tmp_path / "w.pth"))
    check_same_bits(here.state_dict(), there.state_dict())


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
