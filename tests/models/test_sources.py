# SPDX-License-Identifier: Apache-2.0
"""One grammar names trained networks everywhere: what each form brings, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from timm.models._registry import _model_pretrained_cfgs

from networks import data_spec, randomized
from public_weights import write_lite
from refusals import refused
from viticulture.config.start import load_started
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.teachers.outputs import load_teacher
from viticulture.models.weights.checksum import FILES
from viticulture.models.weights.files import save
from viticulture.models.weights.sources import anchored, describe, initialize, open_network, place_of

COLORS = DataSpec(("a", "b"), (32, 48), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def saved(folder: Path, name: str = "vit_nano", spec: DataSpec = COLORS, **options: Any) -> torch.nn.Module:
    net = randomized(create_student(name, spec, 8 if name == "vit_nano" else None, options)).eval()
    save(net, folder, spec)
    return net


@pytest.mark.parametrize("form", ["run", "folder", "local-dir", "file inside"])
def test_a_folder_names_its_network_colors_and_size(tmp_path: Path, form: str) -> None:
    """A run, its folder of weights, timm's prefix, or the weights file in such a folder. Fails if a form loads other
    weights, or if one forgets classes, colors or size."""
    net = saved(tmp_path / "run/weights/best", depth=2)
    source = {
        "run": f"{tmp_path}/run",
        "folder": f"{tmp_path}/run/weights/best",
        "local-dir": f"local-dir:{tmp_path}/run",
        "file inside": f"{tmp_path}/run/weights/best/{FILES[0]}",
    }[form]
    opened, spec, about = open_network(source)
    x = torch.rand(2, 3, 32, 48)
    assert torch.equal(opened(x), net(x))
    assert spec == COLORS
    assert (about.architecture, about.options()) == ("vit_nano", {"depth": 2})
    assert place_of(source).is_relative_to(tmp_path)
    assert Path(anchored(source)).is_absolute()
    started = create_student("vit_nano", COLORS, 8, {"depth": 2})
    assert "32 of 32 tensors loaded" in initialize(started, source)


def test_a_file_and_its_architecture_are_a_network(tmp_path: Path) -> None:
    """ARCHITECTURE=FILE, FILE with an architecture, and a tag whose colors are others. Fails if a file alone passes for
    a network, or the tag is not heeded."""
    net = randomized(timm.create_model("test_vit", num_classes=3)).eval()
    torch.save(net.state_dict(), tmp_path / "w.pth")
    x = torch.rand(1, 3, 160, 160)
    for source, architecture in ((f"test_vit={tmp_path}/w.pth", ""), (f"{tmp_path}/w.pth", "test_vit")):
        opened, spec, about = open_network(source, architecture)
        assert torch.equal(opened(x), net(x))
        assert (spec.classes, spec.image_size, about.architecture) == (("0", "1", "2"), (160, 160), "test_vit")
    assert describe("vit_small_patch16_224.dino=w.pth").normalize != describe("vit_small_patch16_224=w.pth").normalize
    with pytest.raises(UserError, match="does not contain the name of its network; add it: ARCHITECTURE="):
        open_network(f"{tmp_path}/w.pth")
    with pytest.raises(UserError, match=r"does not fit test_resnet: the file lacks .*; the network lacks cls_token"):
        open_network(f"test_resnet={tmp_path}/w.pth")
    with pytest.raises(UserError, match="does not fit test_resnet"):
        initialize(create_student("test_vit", data_spec(size := 3, 160, 160)), f"test_resnet={tmp_path}/w.pth")
    torch.save({"w": open}, tmp_path / "code.pth")
    with pytest.raises(UserError, match="holds Python objects, which are never loaded"):
        open_network(f"test_vit={tmp_path}/code.pth")
    with pytest.raises(UserError, match=r"nowhere is no folder; name one that holds model.safetensors and config.json"):
        describe(f"local-dir:{tmp_path}/nowhere")
    assert size == 3


def test_weights_and_outputs_are_finite(tmp_path: Path) -> None:
    """Fails if a student starts from, or learns from, a network whose training has failed."""
    state = timm.create_model("test_vit", num_classes=3).state_dict()
    state["norm.weight"][0] = torch.nan
    safetensors.torch.save_file(state, tmp_path / "w.safetensors")
    student = create_student("test_vit", data_spec(3, 160, 160))
    for use in (lambda source: open_network(source, "test_vit"), lambda source: initialize(student, source)):
        with pytest.raises(UserError, match=r"weights of .* are not finite: norm.weight; take another checkpoint"):
            use(f"{tmp_path}/w.safetensors")
    net = saved(tmp_path / "w", spec=data_spec(3))
    with torch.no_grad():
        net.patch_embed.proj.bias.fill_(1e38)
        net.patch_embed.proj.weight.fill_(0)
        net.pos_embed.fill_(3.4e38)
    save(net, tmp_path / "large", data_spec(3))
    with pytest.raises(UserError, match=r"outputs of the teacher .* are not finite"):
        load_teacher(str(tmp_path / "large"), data_spec(3), output="features")


def test_a_license_that_forbids_commercial_use_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of timm's weights, where timm knows it; a file's is unknown. Fails if such weights are loaded without a word."""
    net = timm.create_model("test_resnet")
    safetensors.torch.save_file(net.state_dict(), tmp_path / "w.safetensors")
    described: Any = _model_pretrained_cfgs["test_resnet.r160_in1k"]
    monkeypatch.setattr(described, "file", str(tmp_path / "w.safetensors"))
    monkeypatch.setattr(described, "license", "cc-by-nc-4.0")
    student = create_student("test_resnet", data_spec(3, 64, 64))
    words = "must not be used commercially: license cc-by-nc-4.0"
    assert words in " ".join(initialize(student, "test_resnet"))
    open_network("test_resnet")
    assert words in capsys.readouterr().err
    open_network(f"test_resnet={tmp_path}/w.safetensors")
    assert words not in capsys.readouterr().err


def test_a_start_brings_network_colors_and_size(tmp_path: Path) -> None:
    """Keys of the command stay, as do recipes made for their weights, and rows of a table. Fails if
    a network is fine-tuned in colors that it has not seen."""
    saved(tmp_path / "w", depth=2)
    config = load_started("default/photos", {"student.init": f"{tmp_path}/w"})
    assert (config.student.name, config.student.patch_size, config.student.options) == ("vit_nano", 8, {"depth": 2})
    assert config.images.normalize == [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]
    assert config.images.image_size == [32, 48]
    assert config.changes["images.normalize"] == config.changes["student.name"] == "init"
    assert load_started("default/photos", {**config.values["images"]} and {}).images.image_size is None

    file = f"tf_efficientnet_lite0={tmp_path}/x.pth"
    for keys, expected in (
        ({"student.init": file, "images.image_size": 96}, ("half", 96)),
        ({"student.init": f"{tmp_path}/x.pth", "student": "tf_efficientnet_lite0"}, ("half", 224)),
        ({"student.init": file, "images.normalize": "imagenet"}, ("imagenet", 224)),
    ):
        public = load_started("default/photos", keys)
        assert public.student.name == "tf_efficientnet_lite0"
        assert (public.images.normalize, public.images.image_size) == expected
    dense, usual = (load_started("detection/photos", keys).images for keys in ({"student.init": file}, {}))
    assert (dense.image_size, dense.normalize) == (usual.image_size, "half")
    for recipe, start in (("mae/photos-finetune", file), ("default/photos", "row:a"), ("default/photos", "given:a")):
        kept = load_started(recipe, {"student.init": start})
        assert kept.student.name == load_started(recipe, {}).student.name


def test_real_public_weights_open(tmp_path: Path) -> None:
    """EfficientNet-Lite0 by the grammar: 1,000 classes, 224 px, colors of 0.5; and a student takes all but the head."""
    source = f"tf_efficientnet_lite0={write_lite(tmp_path)}"
    net, spec, _ = open_network(source)
    assert (len(spec.classes), spec.image_size, spec.mean, spec.std) == (1000, (224, 224), (0.5,) * 3, (0.5,) * 3)
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 224, 224)).softmax(-1).max() < 0.9  # a gray image is nothing in particular
    warnings = initialize(create_student("tf_efficientnet_lite0", data_spec(3, 64, 64)), source)
    assert "the head is new: classifier.weight, classifier.bias" in warnings


def test_a_teacher_is_one_word(tmp_path: Path) -> None:
    """A network teaches by its features, a classifier by its predictions; recipes for a teacher take it."""
    saved(tmp_path / "classifier", spec=data_spec(3))
    saved(tmp_path / "features", spec=replace(data_spec(3), classes=()))
    for name, guide, key, value in (
        ("classifier", "logits", "temperature", 9.0),
        ("features", "feature_distillation", "queue", 9),
    ):
        config = load_started("default/photos", {"teacher": str(tmp_path / name), f"guides.{guide}.{key}": value})
        assert [*config.guides] == [guide]
        assert (config.guides[guide]["teacher"], config.guides[guide][key]) == (str(tmp_path / name), value)
        assert config.images.teacher_size == max(data_spec(3).image_size)
        assert (config.train.fixed_views is None) == (name == "features")
    config = load_started("distill/photos", {"teacher": str(tmp_path / "features")})
    assert {guide["teacher"] for guide in config.guides.values()} == {str(tmp_path / "features")}
    assert config.images.teacher_size == 128
    refused("nowhere", load_started, "default/photos", {"teacher": "nowhere"})


def test_another_method_drops_the_keys_of_the_recipes() -> None:
    config = load_started("default/photos", {"method.label_weight": 0.5, "method": "supervised"})
    assert config.values["method"]["smoothing"] == 0.1, "the same method keeps them"
    other = load_started("default/photos", {"method.mask_ratio": 0.5, "method.name": "simmim"})
    assert "smoothing" not in other.values["method"]
    assert other.values["method"]["mask_ratio"] == 0.5
