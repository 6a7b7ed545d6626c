# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of AAL, arXiv:2211.13852: pruning of trained links."""

from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

from refusals import refused
from trained import trained
from viticulture import api
from viticulture.analysis.links import magnitude_strengths, printed_strengths, read_links, select
from viticulture.cli import main
from viticulture.models.links import Links, read_link_set
from viticulture.training.run_folder import RunFolder

GRID = (2, 2)


def links_of(weights: list[list[float]]) -> Links:
    """Create links of blocks of 2 maps and 1, layers of 2 heads and 1; [map, head]."""
    links = Links({"a": 2, "b": 1}, [2, 1], [GRID] * 2, [[0, 1], [0, 1]])
    with torch.no_grad():
        links.convolutions[0].weight.copy_(torch.tensor(weights)[:, :, None, None])
    return links


def test_strengths_are_scaled_over_all_links_and_averaged_over_channels_and_heads() -> None:
    """Worked by hand: |w| from 1 to 5, w from -3 to 5."""
    links = links_of([[1.0, -3.0, 5.0], [2.0, 2.0, -1.0], [-2.0, 4.0, -3.0]])
    block_a, block_b = [(0 + 2 + 1 + 1) / 4 / 4, (4 + 0) / 2 / 4], [(1 + 3) / 2 / 4, 2 / 4]
    torch.testing.assert_close(magnitude_strengths(links), torch.tensor([block_a, block_b]))
    block_a, block_b = [(4 + 0 + 5 + 5) / 4 / 8, (8 + 2) / 2 / 8], [(1 + 7) / 2 / 8, 0 / 8]
    torch.testing.assert_close(printed_strengths(links), torch.tensor([block_a, block_b]))


def test_the_printed_algorithm_prunes_no_random_link() -> None:
    """Every printed strength of initial links lies near 0.5, far above 0.05: why magnitudes are the default."""
    torch.manual_seed(0)
    full = read_link_set("full", 3, 4)
    links = Links({"a": 24, "b": 32, "c": 48}, [6] * 4, [GRID] * 4, full)
    strengths = printed_strengths(links)
    assert (strengths - 0.5).abs().max() < 0.1
    assert select(strengths) == full


def test_a_link_set_is_recovered_from_its_weights() -> None:
    channels = {f"blocks.{i}": count for i, count in enumerate((24, 32, 48, 96, 136, 232, 384))}
    alpha = read_link_set("alpha", 7, 12)
    links = Links(channels, [6] * 12, [GRID] * 12, read_link_set("full", 7, 12))
    with torch.no_grad():
        for (block, layer), weights in links.weights().items():
            weights.mul_(1.0 if layer in alpha[block] else 0.01)
    assert select(magnitude_strengths(links)) == alpha
    refused(r"no link is stronger than 0\.9", lambda: select(magnitude_strengths(links), 0.9))


def test_a_runs_links_are_saved_for_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    file = tmp_path / "w.safetensors"
    safetensors.torch.save_file(timm.create_model("test_efficientnet", num_classes=3).state_dict(), file)
    teacher = f"test_efficientnet={file}"
    settings = {
        "student.options": {"embed_dim": 12, "depth": 3, "num_heads": 3},
        "guides.mine.class": "attention_link",
        "guides.mine.teacher": teacher,
        "guides.mine.teacher_view.image_size": 32,
        "data.per_class": 2,
        "train.epochs": 2,
        "schedule.warmup_epochs": 0,
        "engine.device": "cpu",
    }
    run = api.train("digits", "default/digits", out=str(tmp_path / "full"), overrides=settings)
    file.rename(tmp_path / "elsewhere.safetensors")
    assert "Links to the teacher" in run.report.read_text()
    learned = read_links(RunFolder.open(run.path))
    refused(r"unknown guide with links in .*yours.*valid: mine", lambda: read_links(RunFolder.open(run.path), "yours"))
    assert len(learned.magnitudes) == 3
    assert not learned.inside
    torch.testing.assert_close(learned.magnitudes[-1], learned.links.magnitudes())
    assert not torch.equal(learned.magnitudes[0], learned.magnitudes[-1])
    (tmp_path / "elsewhere.safetensors").rename(file)

    strengths = magnitude_strengths(learned.links)
    threshold = strengths.flatten().median().item()
    out = tmp_path / "links.yaml"
    assert main(["links", str(run.path), "--out", str(out), "--threshold", str(threshold)]) == 0
    assert f"--guides.mine.links{out}" in "".join(capsys.readouterr().out.split())
    assert read_link_set(str(out), *strengths.shape) == select(strengths, threshold)
    settings["guides.mine.links"] = str(out)
    chosen = trained(tmp_path / "selective", settings)
    assert set(read_links(RunFolder.open(chosen.path)).links.weights()) == {
        (block, layer) for block, layer in torch.nonzero(strengths > threshold).tolist()
    }
    plain = {key: value for key, value in settings.items() if "guides" not in key}
    trained(tmp_path / "plain", plain)
    assert main(["links", str(tmp_path / "plain")]) == 2
    assert "trained without the guide attention_link" in capsys.readouterr().err
    assert main(["links", str(run.path), "--rule", "signed"]) == 2
    assert "did you mean printed?" in capsys.readouterr().err
