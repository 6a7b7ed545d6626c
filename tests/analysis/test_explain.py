# SPDX-License-Identifier: Apache-2.0
"""`viticulture explain`: the analyses of a run, or of another network, on one page."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import viticulture
from dense_scenes import mask_folder
from photographs import pictures
from refusals import refused
from untrained import untrained
from viticulture import cli
from viticulture.analysis.explanation import Explanation, read_explanation
from viticulture.analysis.layers import LayerAnalysis, analyze_layers, layer_similarity, patch_features
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.taps import Taps

TASK = DataSpec(("a", "b"), (8, 8), (0.5,) * 3, (0.5,) * 3)
DHVT = {"embed_dim": 32, "depth": 2}
IMAGES = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def student(name: str = "vit_nano", data_spec: DataSpec = TASK, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_student(name, data_spec, None if "resnet" in name else 2, options).eval()


@pytest.mark.parametrize(("name", "options"), [("vit_nano", {}), ("dhvt_tiny_cifar_patch2", DHVT)])
def test_features_are_the_patches_alone(name: str, options: dict[str, Any]) -> None:
    net = student(name, **options)
    taps = Taps(net, frozenset({"blocks"}))
    assert taps.layout is not None
    readings = taps(IMAGES[:2])
    for tokens, grid, block in zip(
        *patch_features(readings.blocks, taps.layout, IMAGES[:2]), readings.blocks, strict=True
    ):
        assert grid == (4, 4)
        torch.testing.assert_close(tokens, block[:, taps.layout.prefix : taps.layout.prefix + 16], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "options", "norms"),
    [
        ("vit_nano", {}, ["norm"]),
        ("vit_nano", {"global_pool": "avg"}, ["fc_norm"]),
        ("dhvt_tiny_cifar_patch2", DHVT, ["norm"]),
    ],
)
def test_layers_are_read_through_their_norms(name: str, options: dict[str, Any], norms: list[str]) -> None:
    """Wang et al.'s reading: block i's input through its first norm, then the last output through the last norm."""
    net = student(name, **options)
    blocks = [net.get_submodule(name) for name in Taps(net, frozenset({"blocks"})).layout.blocks]  # type: ignore[union-attr]
    inputs: list[torch.Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, given: inputs.append(given[0])) for block in blocks]
    readings = Taps(net, frozenset({"blocks", "norms"}))(IMAGES[:2])
    for hook in hooks:
        hook.remove()
    assert len(readings.norms) == len(blocks) + 1
    for block, given, found in zip(blocks, inputs, readings.norms[:-1], strict=True):
        torch.testing.assert_close(found, block.get_submodule("norm1")(given))
    last = readings.blocks[-1]
    for norm in norms:
        last = net.get_submodule(norm)(last)
    torch.testing.assert_close(readings.norms[-1], last)


def test_every_layer_and_every_image_count() -> None:
    net = student()
    layers = len(Taps(net, frozenset({"blocks"})).layout.blocks)  # type: ignore[union-attr]
    found, whole = analyze_layers(net, torch.split(IMAGES, 8)), analyze_layers(net, [IMAGES])
    assert found.images == whole.images == 20
    assert len(found.distance) == len(found.entropy) == len(found.uniform) == len(found.cka) - 1 == layers
    assert len(analyze_layers(net, [IMAGES], "blocks").cka) == layers
    torch.testing.assert_close(found.distance, whole.distance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.amplitude, whole.amplitude, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.cka.diag(), torch.ones(layers + 1, dtype=torch.float64))
    torch.testing.assert_close(found.cka, analyze_layers(net, [IMAGES[:8], IMAGES[8:16]]).cka)
    assert found.uniform[0][1] == math.log(16)
    assert found.frequencies == [0, 0.5]
    pairs = list(zip(torch.split(IMAGES, 8), torch.split(IMAGES, 8), strict=True))
    torch.testing.assert_close(layer_similarity(net, net, pairs), found.cka)


def test_a_rectangular_grid_has_no_amplitudes_and_a_cnn_no_attention() -> None:
    wide = torch.randn(8, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    found = analyze_layers(student(data_spec=replace(TASK, image_size=(8, 12))), [wide])
    assert found.frequencies == []
    assert found.amplitude.shape == (len(found.cka), 0)
    refused("reads attention", lambda: analyze_layers(student("test_resnet"), [IMAGES], "blocks"))
    with pytest.raises(UserError, match=r"no norm before each block.*`blocks`"):
        layer_similarity(student("test_resnet"), student(), [(IMAGES, IMAGES)])
    refused("unknown reading of layers 'norm'", lambda: analyze_layers(student(), [IMAGES], "norm"))


@pytest.mark.parametrize("compared", [False, True])
def test_numbers_survive_json(compared: bool) -> None:
    inside = replace(analyze_layers(student(), [IMAGES]), cka=torch.tensor([[1.0, float("nan")], [0.5, 1.0]]).double())
    found = Explanation("last", "test", inside, *(("other", inside.cka) if compared else ()))
    text = json.dumps(found.to_dict(), allow_nan=False)
    again = Explanation.from_dict(json.loads(text))
    assert (again.weights, again.split, again.compared_with) == (found.weights, found.split, found.compared_with)
    assert again.analysis.reading == "norms"
    for name in (field.name for field in fields(LayerAnalysis) if field.name != "reading"):
        torch.testing.assert_close(getattr(again.analysis, name), getattr(inside, name), rtol=0, atol=0, equal_nan=True)
    assert (again.cka is None) != compared
    if again.cka is not None:
        torch.testing.assert_close(again.cka, inside.cka, rtol=0, atol=0, equal_nan=True)


def test_explain_writes_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"data.per_class": 4, "train.epochs": 1, "schedule.warmup_epochs": 0}
    run = viticulture.train("digits", "default/digits", out=str(tmp_path / "a<b"), overrides=small)
    assert cli.main(["explain", str(run.path), "--compare-with", str(run.path), "--images", "16"]) == 0
    assert "explain.html" in capsys.readouterr().out
    (tmp_path / "labels.json").write_text("[]")
    for out in (tmp_path / "labels.html", run.path / "run.html"):
        refused("choose another name", viticulture.explain, run.path, out=str(out))
    assert (tmp_path / "labels.json").read_text() == "[]"
    refused("holds the data", viticulture.data, tmp_path / "labels.csv", tmp_path / "labels.csv")
    page = (run.path / "explain.html").read_text(encoding="utf-8")
    shared = {"Attention distance, pixels", "Similarity of layers", "16 test images"}
    for text in shared | {"Attention entropy, nats", "Delta log amplitude", "a&lt;b"}:
        assert text in page
    assert "a<b" not in page
    kept = read_explanation(run.folder)
    assert kept is not None
    assert kept.analysis.images == 16
    assert cli.main(["report", str(run.path)]) == 0
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert all(text in report for text in shared)
    assert cli.main(["explain", str(run.path), "--images", "3"]) == 2
    assert "at least 4 images" in capsys.readouterr().err


def test_two_students_are_compared_layer_by_layer() -> None:
    first, second = student(), student("dhvt_tiny_cifar_patch2", **DHVT)
    pairs = list(zip(torch.split(IMAGES, 8), torch.split(IMAGES, 8), strict=True))
    found = layer_similarity(first, second, pairs)
    assert found.shape == (len(analyze_layers(first, [IMAGES]).cka), 2 + 1)
    torch.testing.assert_close(found, layer_similarity(second, first, pairs[:2]).T)
    assert (found < 0.999).all()


def test_layers_without_norms_are_read_by_their_outputs(tmp_path: Path) -> None:
    options = {"student.name": "botnet14t", "student.options": {"embed_dim": 32, "num_heads": 2}}
    small = {"data.per_class": 4, "train.epochs": 1, "schedule.warmup_epochs": 0, **options}
    run = viticulture.train("digits", "default/digits", out=str(tmp_path / "run"), overrides=small)
    assert cli.main(["explain", str(run.path), "--images", "16"]) == 0
    kept = read_explanation(run.folder)
    assert kept is not None
    assert kept.analysis.reading == "blocks"
    assert len(kept.analysis.distance) == 2
    assert kept.attention


def test_weights_and_checkpoints_are_compared_with_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = untrained(tmp_path / "run", **{"images.eval_crop": 1.0})
    photos = str(pictures(tmp_path / "photos", {"a": 6, "b": 6}))
    folder = str(run.weights("last"))
    page = tmp_path / "inside.html"
    words = ["--images", "8", "--out", str(page)]
    for first, second in ((folder, str(run.path)), (str(run.path), folder)):
        assert cli.main(["explain", first, photos, "--compare-with", second, *words]) == 0
        assert "inside.html" in capsys.readouterr().out
        found = json.loads(page.with_suffix(".json").read_text())
        cka = torch.tensor(found["compared_with"]["cka"])
        torch.testing.assert_close(cka.diag(), torch.ones(len(cka)))
        assert found["images"] == 8
        assert "Similarity of layers" in page.read_text(encoding="utf-8")
    assert not (run.path / "explain.json").exists()
    for missing in ([folder], [folder, photos], [str(run.path), photos]):
        assert cli.main(["explain", *missing]) == 2
        assert "--out inside.html" in capsys.readouterr().err
    assert cli.main(["explain", str(tmp_path / "nowhere"), photos, *words]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_masks_next_to_images_are_left_out(tmp_path: Path) -> None:
    folder, data = untrained(tmp_path / "run").weights("last"), mask_folder(tmp_path / "data", {"train": 1, "test": 4})
    page = tmp_path / "inside.html"
    viticulture.explain(str(folder), str(data), out=str(page))
    assert json.loads(page.with_suffix(".json").read_text())["images"] == 4
