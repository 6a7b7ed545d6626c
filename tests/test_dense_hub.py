# SPDX-License-Identifier: Apache-2.0
"""Detectors and segmenters on the Hub are used by name, and their cards agree with their files."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml

import viticulture
from fake_hub import FakeHub, check_anonymous
from untrained import photo
from untrained_dense import CLASSES, object_results, pixel_results, untrained_dense
from viticulture.cli import main
from viticulture.command import parse_command
from viticulture.deploy.hub.push import contents
from viticulture.models.detection.networks import load_network
from viticulture.models.weights.sources import initialize
from viticulture.tasks.task import task_of
from viticulture.training.run_folder import RunFolder

NAME, SECRET = "somebody/berries", "/home/somebody/vineyard"
KINDS = ("detection", "segmentation")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Create runs on images in a folder, with results."""
    root = tmp_path_factory.mktemp("runs")
    made = {kind: untrained_dense(root / kind, kind) for kind in KINDS}
    for run in made.values():
        data = {**run.read("run.json")["data"], "source": f"{SECRET}/cells", "folder": f"{SECRET}/cells"}
        run.update(command=f"viticulture train {SECRET}/cells", data=data)
    object_results(made["detection"])
    pixel_results(made["segmentation"])
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_pushed_run_is_used_by_its_name(
    kind: str, runs: dict[str, RunFolder], online: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs[kind]
    assert main(["push", str(run.path), NAME, "--weights", "last"]) == 0
    assert f"{online.address}/{NAME}" in capsys.readouterr().out
    image = photo(tmp_path / "a.png", 3, (70, 50))
    ours: Any
    theirs: Any
    (ours,) = viticulture.predict(str(run.path), [str(image)], weights="last")
    (theirs,) = viticulture.predict(f"hf-hub:{NAME}", [str(image)])
    assert [name for name in online.fetched if name.endswith(".safetensors")] == ["weights/last/model.safetensors"]
    if kind == "detection":
        assert theirs.threshold == ours.threshold == 0.25
        assert len(ours.objects.scores) > 3
        for name in ("boxes", "scores", "labels"):
            np.testing.assert_array_equal(getattr(theirs.objects, name), getattr(ours.objects, name))
    else:
        np.testing.assert_array_equal(theirs.pixels, ours.pixels)
    opened = viticulture.open(f"hf-hub:{NAME}")
    assert opened.classes == CLASSES
    sent, kept = task_of(opened.folder).read_results(), task_of(run).read_results()
    assert sent is not None
    assert kept is not None
    assert sent == kept.of_weights("last")
    student = load_network(run.weights("last"))[0].backbone.student
    bare = timm.create_model(f"hf-hub:{NAME}", pretrained=True, cache_dir=str(tmp_path / "timm")).eval()
    pixels = torch.randn(2, 3, 64, 64)
    assert bare.num_classes == 0
    assert torch.equal(bare(pixels), student(pixels))
    begun = load_network(run.weights("last"))[0].backbone.student
    weight, known = (net.get_parameter("blocks.0.attn.qkv.weight") for net in (begun, student))
    torch.nn.init.zeros_(weight)
    initialize(begun, f"hf-hub:{NAME}")
    assert torch.equal(weight, known)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_is_pushed_names_a_local_path(kind: str, runs: dict[str, RunFolder]) -> None:
    check_anonymous(contents(runs[kind], NAME), runs[kind].path.parent)


def test_a_student_with_windows_is_not_pushed_alone(tmp_path: Path) -> None:
    """timm knows no relative positions within windows."""
    run = untrained_dense(tmp_path / "run", "detection", class_token=False, global_pool="avg")
    for window in (0, 4):
        file = run.weights("last") / "config.json"
        config = json.loads(file.read_text("utf-8"))
        file.write_text(json.dumps({**config, "network": {**config["network"], "window": window}}))
        sent = contents(run, NAME)
        assert ("model.safetensors" in sent, b"import timm" in bytes(sent["README.md"])) == (not window, not window)


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_agrees_with_the_files(kind: str, runs: dict[str, RunFolder]) -> None:
    card = bytes(contents(runs[kind], NAME, "last")["README.md"]).decode()
    _, head, body = card.split("---\n", 2)
    about = yaml.safe_load(head)
    (result,) = about["model-index"][0]["results"]
    assert about["library_name"] == "viticulture"
    if kind == "detection":
        assert (about["pipeline_tag"], result["metrics"][0]["value"]) == ("object-detection", 0.4)
        assert "Its average precision (AP) is 40.0 % (95 % interval 30.0 to 50.0)" in body
        assert "objects in 20 test images" in body
        assert "| last/test | boxes | 40.0 % | 30.0 % | 50.0 % |" in body
        assert "| =cmd() | background | 4 |" in body
        assert "from a score of 0.25 on" in body
        assert "Lowest AP: berry (38.0 %)" in body
    else:
        assert (about["pipeline_tag"], result["metrics"][0]["value"]) == ("image-segmentation", 0.6)
        assert "Its mean IoU over the classes is 60.0 % (95 % interval 50.0 to 70.0)" in body
        assert "| berry everywhere | 10.0 % |" in body
        assert "Every pixel gets one of its classes" in body
    assert "<i>merlot" not in body
    assert "of one training (seed 0)" in body
    assert "Another seed would give another network" in body
    lines = re.findall(r"^viticulture .*?(?=\s+#|$)", body, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        parse_command(line.split()[1:])
    assert "\n\n\n" not in body
    assert not re.search(r"[^\n]\n#+ ", body), "a heading within a table"


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_without_results_has_no_metrics(kind: str, runs: dict[str, RunFolder], tmp_path: Path) -> None:
    other = RunFolder(Path(shutil.copytree(runs[kind].path, tmp_path / "run")))
    shutil.copytree(other.weights("last"), other.weights("last").with_name("ema"))
    sent = contents(other, NAME, "ema")
    card = bytes(sent["README.md"]).decode()
    assert "It has not been evaluated" in card
    assert "## Results" not in card
    assert "evaluation.json" not in sent
    assert "\n\n\n" not in card
