# SPDX-License-Identifier: Apache-2.0
"""Feature maps of layers, and of agents read from a run's checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

from refusals import refused
from viticulture import cli
from viticulture.analysis.explanation import (
    agent_models,
    agents_of,
    feature_galleries,
    feature_map,
    feature_maps,
    read_explanation,
)
from viticulture.analysis.pictures import attention_galleries
from viticulture.api.run import Run
from viticulture.api.training import train
from viticulture.data.batches.loader import CPU
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import prepare
from viticulture.data.image_settings import ImageSettings
from viticulture.data.sources.arrays import from_arrays
from viticulture.evaluation.model import EvaluatedModel
from viticulture.models.agent.agent_cnn import AgentCNN
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.training.progress import showing
from viticulture.training.state import load_checkpoint

TASK = DataSpec(("a", "b"), (8, 8), (0.5,) * 3, (0.5,) * 3)
SMALL = {"data.per_class": 4, "train.epochs": 1, "schedule.warmup_epochs": 0}


def subject(name: str = "vit_nano") -> EvaluatedModel:
    torch.manual_seed(0)
    network = create_student(name, TASK, None if "resnet" in name else 2, {}).eval()
    return EvaluatedModel(network, TASK, ImageSettings(image_size=8), CPU, 256)


def joint(folder: Path, weights: str = "own") -> Run:
    """Train a ViT and an agent on a few digits."""
    agent = {"guides.bootstrap.weights": weights, "guides.bootstrap.features.weight": 1.0}
    return train("digits", "bootstrap/digits", out=str(folder), overrides={**SMALL, **agent})


def test_a_map_is_the_distance_from_the_image_s_mean() -> None:
    """By hand, two channels at three places: means (1, 4), distances sqrt((a^2 + b^2) / 2)."""
    features = torch.tensor([[[[0.0, 1.0, 2.0]], [[4.0, 0.0, 8.0]]], [[[9.0, 9.0, 9.0]], [[1.0, 1.0, 1.0]]]])
    expected = torch.tensor([[[0.5**0.5, 8**0.5, 8.5**0.5]], [[0.0, 0.0, 0.0]]])
    torch.testing.assert_close(feature_map(features), expected)


def test_layers_are_counted_from_one_and_drawn_in_order() -> None:
    vit, cnn = subject(), subject("test_resnet")
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    given: list[torch.Tensor] = []
    blocks: Any = vit.network.blocks
    with torch.inference_mode():
        handle = blocks[1].register_forward_hook(lambda _, __, output: given.append(output))
        maps = feature_maps(vit, images, (3, 2))
        handle.remove()
    assert list(maps) == [2, 3]
    tokens = given[0][:, 1:]  # behind the class token
    torch.testing.assert_close(maps[2].flatten(1), (tokens - tokens.mean(1, keepdim=True)).square().mean(2).sqrt())
    assert maps[2].shape == (2, 4, 4)
    assert all(found.ndim == 3 for found in feature_maps(cnn, images).values())
    refused(r"layers of the network must lie in 1 to \d+, got 0", feature_maps, vit, images, (0,))


def test_a_network_with_several_layers_per_block_counts_both() -> None:
    torch.manual_seed(0)
    network = timm.create_model("pit_ti_224", img_size=96, num_classes=2, depth=[1, 2, 2]).eval()
    pit = EvaluatedModel(
        network, DataSpec(("a", "b"), (96, 96), (0.5,) * 3, (0.5,) * 3), ImageSettings(image_size=96), CPU, 256
    )
    pixels = torch.randint(0, 255, (2, 3, 96, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    source = from_arrays("noise", ("a", "b"), {"train": (pixels.permute(0, 2, 3, 1).numpy(), np.arange(2))})
    with showing("reading images") as progress:
        whole = DataSettings(val_fraction=0, test_fraction=0)
        images = prepare(source, whole, pit.image_settings, 0, progress).train
    (first, _) = feature_galleries({"pit": pit}, images, (3,))
    assert first.groups[0][1] == ["pit", "layer 3"]
    assert attention_galleries(pit, images, (3,))[0].note == attention_galleries(pit, images)[0].note


@pytest.mark.parametrize("weights", ["own", "shared"])
def test_an_agent_is_read_from_the_last_checkpoint(tmp_path: Path, weights: str) -> None:
    run = joint(tmp_path / "run", weights).folder
    state = load_checkpoint(run.checkpoint)["state_dict"]
    (agent,) = agents_of(run).values()
    assert isinstance(agent, AgentCNN)
    assert not agent.training
    prefix = "method.guides.bootstrap.agent."
    kept = {key.removeprefix(prefix): value for key, value in state.items() if "agent." in key}
    assert kept.keys() == agent.state_dict().keys()
    for name, tensor in agent.state_dict().items():
        torch.testing.assert_close(tensor, kept[name], rtol=0, atol=0)
    assert any("running_mean" in name for name in kept)
    if weights == "shared":
        borrowed = agent.blocks[0].get_submodule("conv").get_parameter("weight")
        torch.testing.assert_close(borrowed.detach(), state["method.student.blocks.0.attn.proj.weight"], rtol=0, atol=0)
    run.checkpoint.unlink()
    assert agent_models(run) == {}


def test_the_maps_of_an_agent_are_drawn_with_its_students(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = joint(tmp_path / "run")
    words = ["explain", str(run.path), "--images", "8"]
    assert cli.main([*words, "--layers", "1,99"]) == 2
    assert "layers of the student must lie in 1 to" in capsys.readouterr().err
    assert not (run.path / "features.npz").exists()
    assert not (run.path / "explain.json").exists()
    assert cli.main([*words, "--layers", "1,3"]) == 0
    page = (run.path / "explain.html").read_text(encoding="utf-8")
    assert cli.main(["report", str(run.path)]) == 0
    report = (run.path / "report.html").read_text(encoding="utf-8")
    for text in (page, report):
        assert "Features of the layers" in text
        assert "its agent" in text
        assert "layers 1, 3" in text
        assert "layer 1, layer 3. Mean over heads" in text  # attention, of the same layers
        assert text.count("What the class token attends to") == 1
    found = read_explanation(run.folder)
    assert found is not None
    assert [len(squares) for squares, _ in found.attention[1].groups] == [1, 1]
    assert [len(maps) for maps, _ in found.features[0].groups] == [3, 3]  # the image and two layers of either network
