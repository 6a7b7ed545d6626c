# SPDX-License-Identifier: Apache-2.0
"""`images.fit` keeps oblong images whole, everywhere alike."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import viticulture
from refusals import refused
from viticulture.data.batches.evaluation import evaluation_views
from viticulture.data.dataset import ImageSettings, prepare
from viticulture.data.image_set import Images
from viticulture.data.images.decode import DecodedImage, Unreadable
from viticulture.data.images.fit import Fit
from viticulture.data.images.pillow import MAX_PIXELS
from viticulture.data.open import open_source
from viticulture.errors import UserError
from viticulture.tasks.results import read_predictions
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import begin

MEAN = (124, 116, 104)  # ImageNet's mean color


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write smooth pictures of two classes; one is rotated by its tag, one is a large JPEG."""
    folder: Path = tmp_path_factory.mktemp("oblong")
    for n in range(24):
        height, width = ((30, 50), (48, 20), (40, 40))[n % 3]
        y, x = np.linspace(0, 4, height)[:, None, None] + n, np.linspace(0, 5, width)[:, None]
        pixels = 128 + 100 * np.sin(y + np.arange(3)) * np.cos(x + n)
        (folder / "ab"[n % 2]).mkdir(exist_ok=True)
        image = Image.fromarray(pixels.astype(np.uint8))
        if n == 4:
            image.resize((width * 9, height * 9)).save(folder / "ab"[n % 2] / f"{n}.jpg")
        else:
            exif = Image.Exif()
            exif[0x112] = 6 if n == 5 else 1
            image.save(folder / "ab"[n % 2] / f"{n}.png", exif=exif)
    return folder


def evaluated(images: Images, *shape: int) -> torch.Tensor:
    """Return the evaluation's input, [N, 3, H, W] uint8."""
    views = evaluation_views(images, _Input(shape), 8, torch.device("cpu"))
    return torch.cat([view for _, view in views])


class _Input:
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.image_size = shape[0], shape[-1]


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_evaluation_fits_whole_images_as_pillow(photos: Path, fit: Any) -> None:
    """Reference: ImageOps.pad, and a plain resize."""
    settings = ImageSettings(40, 40, fit=fit)
    source = open_source(photos)
    dataset = prepare(source, None, settings)
    for images in (dataset.train, dataset.test):
        assert images is not None
        for name, view in zip(images.records.names, evaluated(images, 40), strict=True):
            original = ImageOps.exif_transpose(Image.open(photos / name)).convert("RGB")
            side = max(original.size)
            whole = ImageOps.pad(original, (side, side), color=MEAN) if fit == "pad" else original
            expected = np.asarray(whole.resize((40, 40), Image.Resampling.BICUBIC)).astype(int)
            gap = np.abs(view.permute(1, 2, 0).numpy().astype(int) - expected)
            assert np.quantile(gap, 0.99) <= (12 if name.endswith("jpg") else 1), (
                f"{name}: a fraction of a JPEG differs"
            )
    cropped = prepare(source, None, ImageSettings(40, 40))
    assert cropped.fingerprint != dataset.fingerprint or fit == "stretch", "another cache, other pixels"


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_a_stream_equals_a_cache(photos: Path, fit: Any) -> None:
    held, streamed = (prepare(photos, None, ImageSettings(32, 40, stream=way, fit=fit)) for way in (False, True))
    assert torch.equal(evaluated(held.train, 32), evaluated(streamed.train, 32))
    assert held.train.extent(0) == streamed.train.extent(0)
    assert len(set(held.train.extent(1))) == 1


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_an_oblong_input_is_filled_by_the_whole_image(photos: Path, fit: Any) -> None:
    """Against Pillow, for an input of 24 x 40 from a square cache."""
    dataset = prepare(photos, None, ImageSettings([24, 40], 40, fit=fit))
    for name, view in zip(dataset.train.records.names, evaluated(dataset.train, 24, 40), strict=True):
        original = ImageOps.exif_transpose(Image.open(photos / name)).convert("RGB")
        width, height = original.size
        around = max(width, round(height * 40 / 24)), max(height, round(width * 24 / 40))
        whole = original
        if fit == "pad":
            whole = Image.new("RGB", around, MEAN)
            whole.paste(original, ((around[0] - width) // 2, (around[1] - height) // 2))
        stored = whole.resize((40, 40), Image.Resampling.BICUBIC)
        expected = np.asarray(stored.resize((40, 24), Image.Resampling.BICUBIC)).astype(int)
        gap = np.abs(view.permute(1, 2, 0).numpy().astype(int) - expected)
        assert np.quantile(gap, 0.99) <= (12 if name.endswith("jpg") else 2), name


def test_a_strip_that_would_fill_memory_is_unreadable() -> None:
    """A strip of 100,000 pixels padded to a square takes 30 GB."""
    long = int(MAX_PIXELS**0.5) + 1
    strip = DecodedImage(np.zeros((2, long, 3), np.uint8), 2, long, "RGB")
    with pytest.raises(Unreadable, match=r"padded to .* is more than"):
        Fit("pad", MEAN)(strip, "strip.png")
    assert Fit("stretch", MEAN)(strip, "strip.png")[1:3] == (long, long)


def test_a_run_predicts_as_evaluated_and_exports_its_fit_to_timm(photos: Path, tmp_path: Path) -> None:
    run = viticulture.train(
        str(photos), "default/digits", out=str(tmp_path / "run"), progress=False, epochs=1,
        overrides={
            "images.fit": "pad", "images.image_size": [16, 24], "data.test_fraction": 0.5, "train.batch_size": 4,
        },
    )  # fmt: skip
    folder = RunFolder.open(run.path)
    kept, names = read_predictions(folder, probabilities=True), folder.read("split.json")["names"]["test"]
    answers = run.predict([photos / name for name in names])
    found = np.array([list(answer.probabilities.values()) for answer in answers])  # type: ignore[union-attr]
    assert kept.probabilities is not None
    np.testing.assert_allclose(found, kept.probabilities, atol=2e-3)  # half precision
    config = json.loads((run.path / "weights" / "last" / "config.json").read_text(encoding="utf-8"))
    assert config["pretrained_cfg"]["crop_mode"] == "border"
    assert config["pretrained_cfg"]["input_size"] == [3, 16, 24]
    assert run.recipe["images"]["image_size"] == [16, 24]
    assert "16 x 24 pixels" in run.report.read_text(encoding="utf-8")
    viticulture.explain(run, images=8)
    viticulture.resume(str(run.path))
    boxes = tmp_path / "boxes.txt"
    boxes.write_text(f"{names[0]} 1 1 5 5\n")
    refused(r"boxes refer to the originals.*images\.fit pad", viticulture.localize, str(run.path), str(boxes))


def test_crops_are_refused_with_whole_images() -> None:
    refused(r"fit pad keeps images whole, and images\.eval_crop 0\.9", ImageSettings, 32, eval_crop=0.9, fit="pad")
    with pytest.raises(UserError, match="fit"):
        ImageSettings(32, fit="squash")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recipe", "size", "said"),
    [
        ("mae/photos", [16, 24], "method mae trains on squares"),
        ("bootstrap/digits", [16, 24], "method supervised and guides bootstrap trains on squares"),
        ("default/digits", [16], r"a side or \[height, width\], pixels, got \[16\]"),
        ("default/digits", [16, 0], "at least 1 pixel, got 0"),
        ("default/digits", [15, 24], "multiple of the patch size"),
    ],
)
def test_oblong_inputs_are_refused_where_squares_are_needed(
    photos: Path, tmp_path: Path, recipe: str, size: list[int], said: str
) -> None:
    refused(said, begin, str(photos), recipe, 0, str(tmp_path / "run"), False, {"images.image_size": size}, "test")
    assert not (tmp_path / "run").exists()
    assert ImageSettings([16, 16]) == ImageSettings(16)
