# SPDX-License-Identifier: Apache-2.0
"""Runs on gray images of one channel and on five bands of 16 bits: every command from training to serving."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import viticulture
from colored import SMALL
from refusals import refused
from resumed import check_same_weights, whole_and_resumed
from viticulture.analysis.galleries import FILE, read_galleries
from viticulture.analysis.reconstruction import reconstruction_gallery
from viticulture.deploy.serve.predictor import Predictor
from viticulture.errors import UserError
from viticulture.evaluation.model import of_run, of_source
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.models.weights.sources import initialize
from viticulture.tasks.classification import ClassPrediction
from viticulture.tasks.results import read_predictions
from viticulture.tasks.task import task_of
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session, begin

TOP = 4000
KINDS: dict[str, dict[str, Any]] = {
    "gray": {"images.channels": 1, "images.normalize": "dataset"},
    "bands": {"images.channels": 5, "images.normalize": "half", "images.range": [0, TOP], "images.fit": "pad"},
}
LITTLE = {"depth": 2, "embed_dim": 24, "num_heads": 3}
BASE = {**SMALL, "images.image_size": 16, "images.cache_size": 20, "student.options": LITTLE}
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="needs the extra onnx"
)


def shade(label: int, seed: int) -> np.ndarray:
    """Draw [20, 18] in [0, 1], lighter downwards or upwards, with noise."""
    rows = np.linspace(0, 0.8, 20)[:: 1 - 2 * label, None]
    return np.random.default_rng(1000 + seed).random((20, 18)) * 0.2 + rows


def written(root: Path, kind: str, images: int = 48) -> Path:
    for i in range(images):
        name = root / "ab"[i % 2] / f"{i:02d}"
        name.parent.mkdir(parents=True, exist_ok=True)
        shown = shade(i % 2, i)
        if kind == "gray":
            Image.fromarray((255 * shown).astype(np.uint8)).save(name.with_suffix(".png"))
        else:  # what tells classes apart lies in the last band alone
            noise = np.random.default_rng(i).random((20, 18, 4))
            np.save(name.with_suffix(".npy"), (TOP * np.dstack([noise, shown])).astype(np.uint16))
    return root


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def data(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("data") / kind, kind)


@pytest.fixture(scope="module")
def run(kind: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> viticulture.Run:
    """Train and evaluate a run, and draw its page."""
    out = tmp_path_factory.mktemp("runs") / kind
    settings = {**BASE, **KINDS[kind], "train.epochs": 8, "optim.lr": 3e-3}
    return viticulture.train(str(data), "default/tiny-images", out=str(out), overrides=settings, progress=False)


def session(data: Path, kind: str, out: Path, recipe: str = "default/tiny-images", **more: Any) -> Session:
    return begin(str(data), recipe, 0, str(out), False, {**BASE, **KINDS[kind], **more}, "test")


def test_an_interrupted_run_resumes_exactly(kind: str, data: Path, tmp_path: Path) -> None:
    """With all augmentation that images of these channels allow."""
    changes = {
        "augment.rand_augment": {},
        "augment.blur": {},
        "augment.color_jitter": {"hue": 0.0},
        "augment.erase": {},
    }
    whole, again = whole_and_resumed(partial(session, data, kind, **changes), tmp_path, steps=3)
    check_same_weights(whole, again, ("last",))


def test_a_student_is_trained_on_every_channel(run: viticulture.Run, kind: str) -> None:
    subject = of_run(RunFolder(run.path))
    assert subject.data_spec.channels == KINDS[kind]["images.channels"]
    counting = task_of(RunFolder(run.path)).read_results().counting
    assert counting is not None
    assert counting.top1 >= 0.8


def test_predictions_of_files_and_arrays_are_the_evaluations(run: viticulture.Run, kind: str, data: Path) -> None:
    names = RunFolder(run.path).read("split.json")["names"]["test"][:4]
    told = task_of(RunFolder(run.path)).predict([data / name for name in names], "best")
    arrays = [np.load(data / n) if kind == "bands" else np.asarray(Image.open(data / n))[..., None] for n in names]
    kept = read_predictions(RunFolder(run.path), "best/test", probabilities=True).probabilities
    assert kept is not None
    for given in (arrays, [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]):
        for expected, found in zip(told, run.predict(given), strict=True):
            assert isinstance(found, ClassPrediction)
            assert found.probabilities == expected.probabilities
    probabilities = [list(prediction.probabilities.values()) for prediction in told]
    np.testing.assert_allclose(probabilities, kept[:4], atol=1e-3)  # which are kept with 11 bits


def test_a_folder_of_weights_keeps_channels_and_range_and_timm_builds_it(run: viticulture.Run, kind: str) -> None:
    folder = RunFolder(run.path).weights("best")
    subject, own = of_source(str(folder)), of_run(RunFolder(run.path), "best")
    assert subject.image_settings.pixel_format == own.image_settings.pixel_format
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, own.data_spec.channels, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(images), own.network(images), rtol=1e-4, atol=1e-5)  # other kernels


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("from_pixels", [False, True])
def test_the_exported_file_takes_these_channels(
    run: viticulture.Run, data: Path, tmp_path: Path, from_pixels: bool
) -> None:
    import onnxruntime

    viticulture.export(str(run.path), str(tmp_path / "a.onnx"), from_pixels=from_pixels)
    file = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    subject = of_run(RunFolder(run.path))
    (taken,) = file.get_inputs()
    if not from_pixels:
        assert taken.shape[1:] == [subject.data_spec.channels, 16, 16]
        return
    levels = np.random.default_rng(0).integers(0, 256, (20, 18, subject.data_spec.channels)).astype(np.uint8)
    (logits,) = file.run(["logits"], {"pixels": levels})
    values = levels * (TOP / 255) if subject.image_settings.range else levels
    (answer,) = run.predict(values.astype(np.float64) if subject.image_settings.range else values)
    found = torch.from_numpy(logits[0]).softmax(0)
    torch.testing.assert_close(found, torch.tensor(list(answer.probabilities.values())), rtol=0, atol=5e-3)


def test_pages_and_the_server_draw_pictures_and_name_the_channels(run: viticulture.Run, kind: str, data: Path) -> None:
    galleries = read_galleries(RunFolder(run.path).path / FILE)
    assert galleries is not None
    shown = [
        gallery
        for part in galleries.values()
        for gallery in part
        if gallery.title != "Every token's attention to every token"
    ]
    assert {"examples", "attention"} <= galleries.keys()
    for gallery in shown:
        assert ("first three" in gallery.note) == (kind == "bands")
        for pictures, _ in gallery.groups:
            assert pictures[0].shape[2:] == (3,)
            assert kind == "bands" or (pictures[0] == pictures[0][..., :1]).all()
    page = (run.path / "report.html").read_text("utf-8")
    assert ("the first three are displayed as red, green and blue" in page) == (kind == "bands")
    path = sorted(data.glob("a/*"))[0]
    with path.open("rb") as file:
        (row,) = Predictor(task_of(RunFolder(run.path))).rows([("a", file)], draw=True)
    assert row["label"] in ("a", "b")
    assert row["picture"].startswith("data:image/")
    assert viticulture.explain(run, images=16).stat().st_size > 1000


def test_masked_patches_of_five_channels_are_reconstructed(tmp_path: Path) -> None:
    data = written(tmp_path / "data", "bands", 24)
    for recipe in ("mae/photos", "mae/simmim-cifar100"):
        method = {
            "student.name": "mae_tiny",
            "student.options": LITTLE,
            "images.image_size": 16,
            "student.patch_size": 4,
        }
        made = session(data, "bands", tmp_path / recipe.replace("/", "-"), recipe, **method)
        fit(made)
        gallery = reconstruction_gallery(made.run, made.dataset)
        assert "first three" in gallery.note
        assert all(picture.shape == (16, 16, 3) for pictures, _ in gallery.groups for picture in pictures)
        made.run.unlock()


@pytest.mark.parametrize(("channels", "words"), [(1, "summed to one"), (5, "repeated for 5")])
def test_weights_of_three_channels_start_other_students_as_timm_does(tmp_path: Path, channels: int, words: str) -> None:
    data_spec = DataSpec(("a", "b"), (16, 16), (0.5,) * 3, (0.5,) * 3)
    color = create_student("vit_nano", data_spec, 4)
    save(color, tmp_path / "color", data_spec)
    other = DataSpec(("a", "b"), (16, 16), (0.5,) * channels, (0.5,) * channels)
    student = create_student("vit_nano", other, 4)
    warnings = initialize(student, str(tmp_path / "color"))
    assert any(words in warning for warning in warnings)
    image = torch.randn(2, 1, 16, 16)
    ours, theirs = (net.patch_embed(image.expand(-1, c, -1, -1)) for net, c in ((student, channels), (color, 3)))
    if channels == 1:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert ours.shape == theirs.shape


def test_three_channels_are_required_before_a_folder_is_made(data: Path, kind: str, tmp_path: Path) -> None:
    """Hue, a teacher of color, corruptions."""
    out = tmp_path / "out"
    refused(r"color_jitter.hue turns colors", session, data, kind, out, **{"augment.color_jitter": {"hue": 0.1}})
    data_spec = DataSpec(("a", "b"), (16, 16), (0.5,) * 3, (0.5,) * 3)
    save(create_student("vit_nano", data_spec, 4), tmp_path / "teacher", data_spec)
    with pytest.raises(UserError, match=r"guides.logits: the teacher .* takes 3 channels, and images.channels is"):
        session(data, kind, out, **{"guides.logits.teacher": str(tmp_path / "teacher")})
    assert not out.exists()


def test_a_network_of_other_channels_cannot_be_compared(run: viticulture.Run, tmp_path: Path) -> None:
    data_spec = DataSpec(("a", "b"), (16, 16), (0.5,) * 3, (0.5,) * 3)
    save(create_student("vit_nano", data_spec, 4), tmp_path / "color", data_spec)
    with pytest.raises(UserError, match=r"color takes 3 channels, and these images have [15]; compare networks"):
        viticulture.explain(run, compare_with=str(tmp_path / "color"), images=16)


def test_corruptions_of_color_are_refused_and_other_images_evaluated(run: viticulture.Run, data: Path) -> None:
    refused(r"19 corruptions need color images, and .* images.channels [15]", viticulture.robustness, run)
    assert viticulture.evaluate(run, str(data)) is not None
