# SPDX-License-Identifier: Apache-2.0
"""Whoever shows images to a trained network shows the same: what is drawn is what the network saw."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import viticulture
from untrained import SIDE, photo, untrained
from viticulture.analysis.pictures import attention_galleries, fine_attention, occlusion
from viticulture.data.dataset import prepare_test
from viticulture.data.image_set import Images
from viticulture.errors import UserError
from viticulture.evaluation.agreement import read_agreement
from viticulture.evaluation.localization import evaluate as localize
from viticulture.evaluation.localization.evaluate import read_localizations
from viticulture.evaluation.model import EvaluatedModel, device_for, of_run
from viticulture.evaluation.robustness.evaluate import read_robustness
from viticulture.report.pictures import gallery
from viticulture.study.disagreement import _attention
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of


def shown(subject: EvaluatedModel, folder: Path) -> tuple[Images, list[Tensor]]:
    """Two oblong images, one a class, and what the network is given while a test runs."""
    for name in subject.data_spec.classes:
        photo(folder / name / "0.png", ord(name))
    seen: list[Tensor] = []
    subject.network.get_submodule("patch_embed").register_forward_pre_hook(
        lambda _, given: seen.append(given[0].clone())
    )
    return prepare_test(str(folder), subject.data_spec.classes, subject.image_settings)[0], seen


def as_pixels(subject: EvaluatedModel, given: Tensor) -> list[np.ndarray]:
    """What a network was given, as a person sees it: [H, W, 3] uint8."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (subject.data_spec.mean, subject.data_spec.std))
    return list((255 * (given * std + mean)).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


def test_the_photograph_beside_the_attention_is_what_the_network_saw(tmp_path: Path) -> None:
    """Pixel by pixel, of an image that evaluation crops. Catches: maps of the center beside the whole photograph, and
    maps of a crop that is not the run's."""
    subject = of_run(untrained(tmp_path / "run"))
    images, seen = shown(subject, tmp_path / "photos")
    html = "".join(map(gallery, attention_galleries(subject, images)))
    drawn = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(code)))) for code in re.findall(r"base64,([^\"]+)", html)
    ]
    (given,) = seen
    (evaluated,) = [batch["image"] for batch in subject.batches(images)]
    assert torch.equal(given, evaluated), "the maps are of what evaluation shows"
    for picture, expected in zip((drawn[0], drawn[5]), as_pixels(subject, given), strict=True):
        assert np.array_equal(picture, expected)
    assert images.original(0).shape[:2] != (SIDE, SIDE)


def test_an_occlusion_map_points_at_what_a_prediction_depends_on(tmp_path: Path) -> None:
    """A network that reads one corner of the image. Catches: rows and columns exchanged, drops of another class or of
    the wrong sign, squares that cover something else than the mean color, and coarse attention drawn on a page."""

    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            height, width = x.shape[2] // 4, x.shape[3] // 4
            return torch.stack([x[:, :, :height, -width:].abs().sum((1, 2, 3)), torch.zeros(len(x))], 1)

    subject = of_run(untrained(tmp_path / "run"))
    images, _ = shown(subject, tmp_path / "photos")
    for view, values in (pictures for pictures, _ in occlusion(replace(subject, network=Corner()), images).groups):
        assert view.shape[:2] == (SIDE, SIDE)
        assert np.unravel_index(values.argmax(), values.shape) == (0, 7)
        assert values[3:].max() == values[:, :5].max() == 0


def test_a_page_has_attention_maps_only_where_they_are_fine_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4 x 4 patches. Catches: one bright cell of a coarse map that seems to point at something."""
    subject = of_run(untrained(tmp_path / "run"))
    images, _ = shown(subject, tmp_path / "photos")
    assert attention_galleries(subject, images)
    assert not fine_attention(subject, images)
    monkeypatch.setattr("viticulture.analysis.pictures.MIN_GRID", 4)
    assert fine_attention(subject, images)


def test_the_view_beside_the_boxes_is_what_the_network_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: examples of a localization that are cropped otherwise than the images judged."""
    run = untrained(tmp_path / "run")
    subject = of_run(run)
    images, seen = shown(subject, tmp_path / "photos")
    monkeypatch.setattr(localize, "of_run", lambda *_: subject)
    found = localize.localize(run, images, {f"{name}/0.png": np.array([[10.0, 4.0, 30.0, 20.0]]) for name in "ab"})
    for example, expected in zip(found.examples, as_pixels(subject, seen[0]), strict=True):
        assert np.array_equal(example.view, expected)


def test_where_two_methods_looked_is_drawn_beside_what_each_was_shown(tmp_path: Path) -> None:
    """Catches: a photograph that is not cropped, maps in another order than the images; and a mistake in between, which
    would leave the maps out without a word."""
    run = untrained(tmp_path / "run")
    subject = of_run(run)
    images, _ = shown(subject, tmp_path / "photos")
    (batch,) = subject.batches(images)
    looked = _attention(run, images, np.array([1, 0]))
    assert len(looked) == 2
    for (view, _), expected in zip(looked, reversed(as_pixels(subject, batch["image"])), strict=True):
        assert np.array_equal(view, expected)


def test_views_and_batches_show_the_same(tmp_path: Path) -> None:
    """What is drawn or corrupted first, then normalized, is what is judged; the batch size changes nothing."""
    run = untrained(tmp_path / "run")
    subject = of_run(run)
    images, _ = shown(subject, tmp_path / "photos")
    (batch,) = subject.batches(images)
    ((places, pixels),) = subject.views(images)
    assert pixels.dtype == torch.uint8
    assert torch.equal(subject.normalized(pixels), batch["image"])
    assert torch.equal(places, batch["index"])
    assert len(list(of_run(run, batch_size=1).batches(images))) == 2


def test_nobody_else_decides_what_a_trained_network_is_shown() -> None:
    """Ten places built the crop and an eleventh forgot it. Evaluation, analysis and pages ask an `EvaluatedModel`
    for their batches and their device."""
    package = Path(viticulture.__file__).parent
    own = re.compile(r"CenterCrop\(|evaluation_(batches|views)|cuda\.is_available")
    files = [file for part in ("evaluation", "analysis", "report") for file in (package / part).rglob("*.py")]
    assert [file.stem for file in files if own.search(file.read_text(encoding="utf-8"))] == ["model"]


def test_a_gpu_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the recipe asks for the CPU. Catches: looking pinned to the CPU, a run of `--device cpu` on a GPU."""
    asked = {name: config_of(untrained(tmp_path / name, **{"engine.device": name})) for name in ("auto", "cuda", "cpu")}
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        kinds = {name: device_for(recipe).type for name, recipe in asked.items()}
        assert kinds == {**dict.fromkeys(("auto", "cuda"), "cuda" if there else "cpu"), "cpu": "cpu"}


@pytest.mark.parametrize("content", [{"a": 1}, {"a": {}}, {"images": "x"}, {}])
def test_damaged_measurements_are_named_in_a_line(tmp_path: Path, content: dict[str, object]) -> None:
    """A file that holds JSON of another shape. Catches: a KeyError or TypeError from within."""
    from viticulture.analysis.explanation import read_explanation

    run = RunFolder(tmp_path)
    readers = {
        "agreement.json": read_agreement,
        "explain.json": read_explanation,
        "localization.json": read_localizations,
        "robustness.json": read_robustness,
    }
    for name, read_again in readers.items():
        run.write(name, content)
        if not content and name in ("localization.json", "robustness.json"):
            assert read_again(run) == {}
            continue
        with pytest.raises(UserError, match=f"{name} is damaged"):
            read_again(run)
