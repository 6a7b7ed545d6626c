# SPDX-License-Identifier: Apache-2.0
"""`viticulture explain` of networks that are no runs: weights folders, checkpoints, timm's models."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

import viticulture
from dense_scenes import mask_folder
from photographs import pictures
from untrained import untrained
from viticulture import cli


def test_weights_and_checkpoints_are_looked_into_beside_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run beside a checkpoint of the same weights is alike itself, whichever of the two is named first; a folder of
    weights on images of one's own. Fails if one of them is shown other pixels, the run's explain.json is replaced by
    numbers about other images, or what is missing ends in a traceback."""
    run, photos = (
        untrained(tmp_path / "run", **{"images.eval_crop": 1.0}),
        str(pictures(tmp_path / "photos", {"a": 6, "b": 6})),
    )
    file = tmp_path / "w.safetensors"
    weights = safetensors.torch.load_file(run.weights("last") / "model.safetensors")
    safetensors.torch.save_file(weights, file)
    folder = str(run.weights("last"))
    page = tmp_path / "inside.html"
    words = ["--images", "8", "--out", str(page)]
    for first, second in ((folder, str(run.path)), (str(run.path), folder)):
        assert cli.main(["explain", first, photos, "--beside", second, *words]) == 0
        assert "inside.html" in capsys.readouterr().out
        found = json.loads(page.with_suffix(".json").read_text())
        cka = torch.tensor(found["beside"]["cka"])
        torch.testing.assert_close(cka.diag(), torch.ones(len(cka)))
        assert found["images"] == 8
        assert "Similarity of layers" in page.read_text(encoding="utf-8")
    assert not (run.path / "explain.json").exists()
    for missing in ([folder], [folder, photos], [str(run.path), photos]):
        assert cli.main(["explain", *missing]) == 2
        assert "--out inside.html" in capsys.readouterr().err
    assert cli.main(["explain", str(tmp_path / "nowhere"), photos, *words]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_masks_beside_images_are_none_of_them(tmp_path: Path) -> None:
    """Four test images with their masks. Fails where a network is looked into with the masks as well."""
    folder, data = untrained(tmp_path / "run").weights("last"), mask_folder(tmp_path / "data", {"train": 1, "test": 4})
    page = tmp_path / "inside.html"
    viticulture.explain(str(folder), str(data), out=str(page))
    assert json.loads(page.with_suffix(".json").read_text())["images"] == 4
