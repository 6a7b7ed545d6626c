# SPDX-License-Identifier: Apache-2.0
"""Every use of a trained network feeds it the same images, and pictures are of its input."""

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
from refusals import refused
from untrained import SIDE, photo, untrained
from viticulture.analysis.pictures import attention_galleries, fine_attention, occlusion
from viticulture.data.dataset import prepare_test
from viticulture.data.image_set import Images
from viticulture.evaluation.agreement import read_agreement
from viticulture.evaluation.localization import evaluate as localize
from viticulture.evaluation.localization.evaluate import read_localizations
from viticulture.evaluation.model import EvaluatedModel, device_for, of_run
from viticulture.evaluation.robustness.evaluate import read_robustness
from viticulture.report.pictures import gallery
from viticulture.study.disagreement import _attention
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of


def fed(root: Path) -> tuple[RunFolder, EvaluatedModel, Images, list[Tensor]]:
    """Create a run, and two oblong images, one a class; record the network's inputs during a test."""
    run = untrained(root / "run")
    subject, seen = of_run(run), list[Tensor]()
    for name in subject.data_spec.classes:
        photo(root / "photos" / name / "0.png", ord(name))
    patches = subject.network.get_submodule("patch_embed")
    patches.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    return run, subject, prepare_test(str(root / "photos"), subject.data_spec.classes, subject.image_settings)[0], seen


def as_pixels(subject: EvaluatedModel, given: Tensor) -> list[np.ndarray]:
    """Convert a network's input to pixels, [H, W, 3] uint8."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (subject.data_spec.mean, subject.data_spec.std))
    return list((255 * (given * std + mean)).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())


def test_the_photograph_next_to_the_attention_is_the_input(tmp_path: Path) -> None:
    _, subject, images, seen = fed(tmp_path)
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


def test_an_occlusion_map_marks_what_a_prediction_depends_on(tmp_path: Path) -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            height, width = x.shape[2] // 4, x.shape[3] // 4
            return torch.stack([x[:, :, :height, -width:].abs().sum((1, 2, 3)), torch.zeros(len(x))], 1)

    _, subject, images, _ = fed(tmp_path)
    for view, values in (pictures for pictures, _ in occlusion(replace(subject, network=Corner()), images).groups):
        assert view.shape[:2] == (SIDE, SIDE)
        assert np.unravel_index(values.argmax(), values.shape) == (0, 7)
        assert values[3:].max() == values[:, :5].max() == 0


def test_a_page_has_attention_maps_where_they_are_fine_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, subject, images, _ = fed(tmp_path)
    assert attention_galleries(subject, images)
    assert not fine_attention(subject, images)
    monkeypatch.setattr("viticulture.analysis.pictures.MIN_GRID", 4)
    assert fine_attention(subject, images)


def test_the_view_of_a_localization_is_the_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, subject, images, seen = fed(tmp_path)
    monkeypatch.setattr(localize, "of_run", lambda *_: subject)
    found = localize.localize(run, images, {f"{name}/0.png": np.array([[10.0, 4.0, 30.0, 20.0]]) for name in "ab"})
    for example, expected in zip(found.examples, as_pixels(subject, seen[0]), strict=True):
        assert np.array_equal(example.view, expected)


def test_attention_of_two_methods_is_drawn_with_each_input(tmp_path: Path) -> None:
    run, subject, images, _ = fed(tmp_path)
    (batch,) = subject.batches(images)
    looked = _attention(run, images, np.array([1, 0]))
    assert len(looked) == 2
    for (view, _), expected in zip(looked, reversed(as_pixels(subject, batch["image"])), strict=True):
        assert np.array_equal(view, expected)


def test_views_and_batches_are_the_same_images(tmp_path: Path) -> None:
    run, subject, images, _ = fed(tmp_path)
    (batch,) = subject.batches(images)
    ((places, pixels),) = subject.views(images)
    assert pixels.dtype == torch.uint8
    assert torch.equal(subject.normalized(pixels), batch["image"])
    assert torch.equal(places, batch["index"])
    assert len(list(of_run(run, batch_size=1).batches(images))) == 2


def test_input_preparation_is_defined_once() -> None:
    """Evaluation, analysis and pages take their batches and device from an `EvaluatedModel`."""
    package = Path(viticulture.__file__).parent
    own = re.compile(r"CenterCrop\(|evaluation_(batches|views)|cuda\.is_available")
    files = [file for part in ("evaluation", "analysis", "report") for file in (package / part).rglob("*.py")]
    assert [file.stem for file in files if own.search(file.read_text(encoding="utf-8"))] == ["model"]


def test_a_gpu_is_used_unless_the_recipe_names_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {name: config_of(untrained(tmp_path / name, **{"engine.device": name})) for name in ("auto", "cuda", "cpu")}
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        kinds = {name: device_for(recipe).type for name, recipe in asked.items()}
        assert kinds == {**dict.fromkeys(("auto", "cuda"), "cuda" if there else "cpu"), "cpu": "cpu"}


@pytest.mark.parametrize("content", [{"a": 1}, {"a": {}}, {"images": "x"}, {}])
def test_damaged_measurements_are_named_in_one_line(tmp_path: Path, content: dict[str, object]) -> None:
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
        refused(f"{name} is damaged", read_again, run)
