# SPDX-License-Identifier: Apache-2.0
"""A file that takes pixels predicts as `predict`, and effects of other preprocessing are measured."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from untrained import SIDE, photo, untrained
from viticulture.api import export, predict
from viticulture.data.image_settings import ImageSettings
from viticulture.data.transforms.resample import on_pixels
from viticulture.deploy.onnx.preparation import compare_preparations
from viticulture.evaluation import inputs
from viticulture.models.data_spec import DataSpec
from viticulture.training.run_folder import RunFolder

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="needs the extra onnx"
)

SHAPES = [(24, 40), (300, 200), (20, 20), (8, 8), (17, 401)]


def exact_halves(image: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Return where a resize, width first, has a half to round, itself or in a value that it reads, [H, W, C]."""

    def resized(x: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        return F.interpolate(x, size=size, mode=interpolation, antialias=True)

    def halves(x: torch.Tensor) -> torch.Tensor:
        return (x.remainder(1) - 0.5).abs() < 1e-6

    wide = resized(torch.tensor(image).permute(2, 0, 1)[None].double(), (image.shape[0], size[1]))
    found = halves(resized(wide.round(), size)) | (resized(halves(wide).double(), size).abs() > 1e-9)
    return found[0].permute(1, 2, 0).numpy()


@needs_onnx
@pytest.mark.parametrize(
    ("interpolation", "crop", "fit", "tall"),
    [
        ("bicubic", 0.75, "crop", SIDE), ("bilinear", 0.75, "crop", SIDE), ("bicubic", 1.0, "pad", SIDE),
        ("bicubic", 1.0, "stretch", SIDE), ("bicubic", 1.0, "pad", SIDE - 6), ("bicubic", 1.0, "stretch", SIDE - 6),
        ("bicubic", 0.75, "crop", SIDE - 6),
    ],
)  # fmt: skip
def test_the_steps_inside_are_pillows_within_a_gray_level(interpolation: str, crop: float, fit: Any, tall: int) -> None:
    """Pillow computes with weights of some 20 bits: 1 in 100 values or less is rounded otherwise, apart from those that
    are a half exactly, as where bilinear weights are multiples of 1/32."""
    import onnxruntime

    from viticulture.deploy.onnx.pixels import _steps

    settings = ImageSettings([tall, SIDE], 20, eval_crop=crop, eval_interpolation=interpolation, fit=fit)  # type: ignore[arg-type]
    steps = _steps(DataSpec(("a",), (tall, SIDE), (0, 0, 0), (1, 1, 1)), settings, 10, 20)
    session = onnxruntime.InferenceSession(steps.SerializeToString(), providers=["CPUExecutionProvider"])
    kind = Image.Resampling.BICUBIC if interpolation == "bicubic" else Image.Resampling.BILINEAR
    for height, width in SHAPES:
        pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3)).astype(np.uint8)
        around = max(width, round(height * SIDE / tall)), max(height, round(width * tall / SIDE))
        image = Image.fromarray(pixels)
        if fit == "pad":
            page = Image.new("RGB", around, (124, 116, 104))  # the mean color of ImageNet
            page.paste(image, ((around[0] - width) // 2, (around[1] - height) // 2))
            image = page
        stored = image.resize((20, 20), Image.Resampling.BICUBIC)
        sides = torch.tensor([[height, width] if fit == "crop" else around[::-1]])
        box = settings.crop.boxes(torch.empty(1, 0), sides, (tall, SIDE))
        top, left, high, wide = on_pixels(box, 20, 20)[0].tolist()
        cut = stored.crop((left, top, left + wide, top + high))
        expected = np.asarray(cut.resize((SIDE, high), kind).resize((SIDE, tall), kind))  # Pillow 13 may turn the order
        (shown,) = session.run(None, {"pixels": pixels})
        gap = np.abs(np.rint(shown[0].transpose(1, 2, 0) * 255) - expected)
        assert gap.max() <= 1, (height, width)
        halves = exact_halves(np.asarray(cut), (tall, SIDE), interpolation)
        assert halves.mean() < 0.3, (height, width)
        assert (gap > 0)[~halves].mean() < 0.02, (height, width)


@needs_onnx
def test_the_steps_inside_declare_their_channels() -> None:
    import onnxruntime

    from viticulture.deploy.onnx.pixels import _steps

    steps = _steps(
        DataSpec(("a",), (SIDE, SIDE), (0,) * 5, (1,) * 5),
        ImageSettings(SIDE, 20, normalize="half", channels=5),
        10,
        20,
    )
    session = onnxruntime.InferenceSession(steps.SerializeToString(), providers=["CPUExecutionProvider"])
    (image,) = session.run(None, {"pixels": np.zeros((24, 40, 5), np.uint8)})
    (declared,) = steps.graph.output
    assert [axis.dim_value for axis in declared.type.tensor_type.shape.dim] == list(image.shape) == [1, 5, SIDE, SIDE]


@needs_onnx
def test_a_file_that_takes_pixels_predicts_as_predict(tmp_path: Path) -> None:
    import onnxruntime

    run = untrained(tmp_path / "run")
    export(str(run.path), str(tmp_path / "a.onnx"), from_pixels=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"), providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["a", "b"]
    for seed, shape in enumerate(SHAPES):
        path = photo(tmp_path / f"{seed}.png", seed, shape)
        (logits,) = session.run(["logits"], {"pixels": np.asarray(Image.open(path))})
        (answer,) = predict(str(run.path), str(path))  # type: ignore[arg-type]
        expected = torch.tensor(list(answer.probabilities.values()))
        found = torch.from_numpy(logits[0]).softmax(0)
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)


def of_photos(folder: Path, size: tuple[int, int], stored: int) -> RunFolder:
    """Create a run with test images in a folder, cached with so many pixels a side."""
    for i in range(6):
        photo(folder / "photos" / "ab"[i % 2] / f"{i}.png", i, size)
    sizes: dict[str, Any] = {"images.eval_crop": 1.0, "images.cache_size": stored}
    run = untrained(folder / "run", **sizes)
    data = run.read("run.json")["data"]
    run.update(data={**data, "folder": str(folder / "photos")})
    run.write("split.json", {"names": {"train": [], "test": ["a/0.png", "b/1.png", "a/2.png"]}})
    return run


@needs_onnx
def test_a_file_appears_once_it_takes_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "student.onnx"
    out.write_bytes(b"older")
    monkeypatch.setattr("viticulture.deploy.onnx.pixels.add_preparation", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        export(untrained(tmp_path / "run").path, out, from_pixels=True)
    assert out.read_bytes() == b"older"
    assert [path.name for path in tmp_path.glob("*onnx*")] == ["student.onnx"]


def test_the_effect_of_timms_transform_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = compare_preparations(of_photos(tmp_path / "same", (SIDE, SIDE), SIDE))
    moved = compare_preparations(of_photos(tmp_path / "moved", (60, 40), 20))
    assert same is not None
    assert moved is not None
    assert same.images == moved.images == 3
    assert same.largest < 1e-5, "float32"
    assert not same.visible
    assert replace(same, largest=0.01).visible
    assert replace(same, same=2 / 3).visible
    assert moved.largest > 1e-4
    assert moved.largest >= moved.mean > 0
    monkeypatch.setattr(inputs, "MAX_SENT_PIXELS", 100)  # which bounds what strangers send
    assert compare_preparations(RunFolder(tmp_path / "moved" / "run")) == moved
    (tmp_path / "same" / "run" / "split.json").unlink()  # as of a run on the Hub
    assert compare_preparations(RunFolder(tmp_path / "same" / "run")) is None
    gone = of_photos(tmp_path / "gone", (20, 20), 20)
    gone.update(data={**gone.read("run.json")["data"], "folder": str(tmp_path / "nowhere")})
    assert compare_preparations(gone) is None
    given = of_photos(tmp_path / "given", (20, 20), 20)
    data = {"source": str(tmp_path / "given" / "photos"), "folder": None, "given": "an object's fingerprint"}
    given.update(data={**given.read("run.json")["data"], **data})
    assert compare_preparations(given) is None
