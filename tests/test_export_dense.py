# SPDX-License-Identifier: Apache-2.0
"""Exported detectors and segmenters: each part against a run's, and the whole in onnxruntime."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

from viticulture.data.batches.evaluation import whole_views
from viticulture.data.image_set import CachedImages, Records
from viticulture.data.transforms.resample import resize_to_square
from viticulture.deploy.onnx.detection import (
    Canvas,
    DetectorGraph,
    ImageGraph,
    SegmenterGraph,
    check_agreement,
    different,
    paste,
    perturbed,
    random_image,
    stable_image,
    stretch,
    to_image,
)
from viticulture.deploy.onnx.detections import Detections, _top
from viticulture.deploy.onnx.graph import to_onnx
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.detection.detector import DetectorSizes
from viticulture.models.detection.networks import Segmenter, detector, segmenter
from viticulture.models.students import create_student
from viticulture.tasks.annotated_task import AnnotatedModel
from viticulture.tasks.detection import find
from viticulture.tasks.segmentation import classify_pixels

TASK = DataSpec(("Blüte", "leaf", "berry"), (64, 64), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
STORE = 80
SIZES = ((64, 64), (80, 80), (37, 90), (200, 31), (3, 5))  # 2 x 3, enlarged, has levels at exact halves
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")), reason="needs the extra onnx"
)
needs_masks = pytest.mark.skipif(find_spec("pycocotools") is None, reason="needs the extra dense")


def image(height: int, width: int) -> Tensor:
    """Draw smooth colors, [H, W, 3] uint8."""
    coarse = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(height + width))
    smooth = F.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)[0]
    return (255 * smooth).permute(1, 2, 0).to(torch.uint8).contiguous()


def network(kind: str, masks: bool = False) -> Any:
    """Create a network with confident heads, so that boxes differ from image to image and suppress each other."""
    torch.manual_seed(0)
    student = create_student("vit_nano", replace(TASK, classes=()), 8, {"depth": 1})
    if kind == "segmenter":
        made: Any = segmenter(student, TASK)
        torch.nn.init.normal_(made.predict.weight)
    else:
        made = detector(student, TASK, heads=DetectorSizes(16, masks, 16, 0.1))
        torch.nn.init.normal_(made.rpn.head.bbox_pred.weight, std=0.1)
        torch.nn.init.normal_(made.rpn.head.cls_logits.weight, std=0.5)
        torch.nn.init.normal_(made.roi_heads.box_predictor.cls_score.weight, std=1.0)
        torch.nn.init.normal_(made.roi_heads.box_predictor.bbox_pred.weight, std=0.3)
    return made.eval().requires_grad_(False)


def graph_of(made: Any) -> Any:
    """The computation of a network's file."""
    return (SegmenterGraph if isinstance(made, Segmenter) else DetectorGraph)(made, TASK, STORE)


def fitted(picture: Tensor) -> CachedImages:
    """Return an image as a run caches it."""
    pixels = torch.from_numpy(resize_to_square(picture.numpy(), STORE)).permute(2, 0, 1)[None]
    return CachedImages(pixels, torch.arange(1), Records(torch.tensor([-1]), torch.tensor([picture.shape[:2]]), [""]))


@pytest.mark.parametrize("size", SIZES)
def test_the_canvas_is_the_runs(size: tuple[int, int]) -> None:
    """Two gray levels (one of either rounding) are allowed."""
    picture = image(*size)
    ((_, expected, place),) = whole_views(fitted(picture), TASK, 1, torch.device("cpu"))
    canvas = Canvas(TASK, STORE)
    height, width = place.extents[0].tolist()
    assert canvas.extent(picture) == (height, width)
    found = canvas(picture)
    levels = (found - expected).abs() * 255 * torch.tensor(TASK.std)[:, None, None]
    assert levels.max() < 2.01
    assert levels.mean() < 0.5
    torch.testing.assert_close(found[..., height:, :], expected[..., height:, :])
    torch.testing.assert_close(found[..., width:], expected[..., width:])


@pytest.mark.parametrize("size", SIZES)
def test_results_are_mapped_back_as_in_a_run(size: tuple[int, int]) -> None:
    """Boxes as `Placement.back`, maps as F.interpolate of the image's part."""
    ((_, _, place),) = whole_views(fitted(image(*size)), TASK, 1, torch.device("cpu"))
    height, width = extent = tuple(place.extents[0].tolist())
    generator = torch.Generator().manual_seed(0)
    boxes = 64 * torch.rand(5, 4, generator=generator).sort(1).values
    torch.testing.assert_close(to_image(boxes, extent, size), place.back(0, boxes))
    maps = torch.randn(2, 64, 64, generator=generator)
    expected = F.interpolate(maps[None, :, :height, :width], size=size, mode="bilinear")[0]
    torch.testing.assert_close(stretch(maps, extent, size), expected, rtol=1e-4, atol=1e-4)


def test_masks_are_pasted_as_by_torchvision() -> None:
    shares = torch.rand(5, 28, 28, generator=torch.Generator().manual_seed(0))
    boxes = torch.tensor(
        [[3.2, 4.7, 20.1, 33.9], [0, 0, 50, 40], [45.5, 30, 50, 40], [7.1, 7.2, 7.5, 7.9], [0, 9, 4, 11]]
    )
    expected = paste_masks_in_image(shares[:, None], boxes, (40, 50))[:, 0]
    torch.testing.assert_close(paste(shares, boxes, (40, 50)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masks", [False, True])
def test_the_graph_detects_as_the_detector(masks: bool) -> None:
    made = network("detector", masks)
    graph = Detections(made, 64)
    told: list[list[int]] = []
    for seed in range(4):
        pixels = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(seed)) * (1 + seed)
        (expected,) = made(pixels)
        found = dict(zip(("boxes", "scores", "labels", "masks"), graph(pixels), strict=False))
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-4, msg=name)
        told.append(found["labels"].tolist())
    assert min(map(len, told)) > 3
    assert len({label for labels in told for label in labels}) > 1


def test_boxes_are_pooled_as_by_torchvision_for_odd_grids() -> None:
    """29 tokens a side leave 14 on the coarsest map."""
    data_spec = replace(TASK, image_size=(232, 232))
    torch.manual_seed(0)
    student = create_student("vit_nano", replace(data_spec, classes=()), 8, {"depth": 1})
    made = detector(student, data_spec, heads=DetectorSizes(16, False, 16)).eval().requires_grad_(False)
    maps = made.maps(torch.randn(1, 3, 232, 232))
    pool: Any = made.roi_heads.box_roi_pool
    boxes = torch.tensor([[1.0, 2, 229, 231], [10, 20, 100, 90], [3, 5, 40, 30]])
    expected = pool(maps, [boxes], [(232, 232)])
    found = Detections(made, 232)._pooled([maps[name] for name in pool.featmap_names], boxes, pool)
    torch.testing.assert_close(found, expected)


@needs_masks
@pytest.mark.parametrize("size", SIZES[:4])
def test_a_file_predicts_as_predict(size: tuple[int, int]) -> None:
    """All but a few boxes and pixels, where gray levels are rounded otherwise."""
    from pycocotools.mask import decode

    picture = image(*size)
    (found,) = find(AnnotatedModel(network("detector", masks=True), TASK), fitted(picture))
    assert found.outlines is not None
    masks = torch.stack([torch.from_numpy(decode(outline)).bool() for outline in found.outlines])
    expected = (torch.from_numpy(found.boxes), torch.from_numpy(found.scores), torch.from_numpy(found.labels), masks)
    said = graph_of(network("detector", masks=True))(picture)
    assert len(said) == 4
    assert different(list(said[:3]), expected[:3]) < 0.25
    (classes,) = graph_of(network("segmenter"))(picture)
    (known,) = classify_pixels(AnnotatedModel(network("segmenter"), TASK), fitted(picture))
    assert (classes.numpy() == known).mean() > 0.97
    assert len(np.unique(known)) > 1


def test_differences_are_counted() -> None:
    """By place, class, score and mask."""
    boxes, scores, labels = (
        torch.tensor([[0.0, 0, 9, 9], [5, 5, 20, 20]]),
        torch.tensor([0.9, 0.5]),
        torch.tensor([0, 1]),
    )
    masks = torch.ones(2, 4, 4, dtype=torch.bool)
    whole = (boxes, scores, labels, masks)
    turned = [each.flip(0) for each in whole]
    assert different(turned, whole) == 0
    assert different([each[:1] for each in whole], whole) == pytest.approx(1 / 3)
    assert different([boxes + 1, scores, labels, masks], whole) == 1
    assert different([boxes, scores, labels.flip(0), masks], whole) == 1
    assert different([boxes, scores, labels, ~masks], whole) == 1
    assert different([torch.tensor([[1, 2]])], (torch.tensor([[1, 3]]),)) == 0.5


def canvas_of(file: Any, seed: int) -> Any:
    """Return the same file with gray levels rounded as by other kernels."""

    def answers(picture: Tensor) -> Any:
        with perturbed(file.canvas, seed):
            return file(picture)

    return answers


def test_a_file_is_checked_on_an_image_with_stable_predictions() -> None:
    made = network("detector")
    made.backbone.student.patch_embed.proj.weight.mul_(3)  # sees a gray level as if it were three
    file, picture = graph_of(made), random_image((48, 64), 3)
    changed = max(different(canvas_of(file, seed)(picture), file(picture)) for seed in range(6))
    _, _, alone = stable_image(file, (48, 64))
    assert alone <= 0.02 < changed


def test_rounding_of_pixels_is_no_disagreement() -> None:
    file = graph_of(network("segmenter"))
    for seed in (11, 12):
        check_agreement(canvas_of(file, seed), file)


def test_of_equally_likely_places_the_first_are_taken() -> None:
    objectness = torch.zeros(3000)
    objectness[[1500, 2200]] = 1.0
    expected = [1500, *range(998), 2200, *range(2000, 2999)]
    assert _top(objectness, [2000, 1000], 1000)[:999].tolist() == expected[:999]
    assert _top(objectness, [2000, 1000], 1000)[1000:].tolist() == [2200, *range(2000, 2200), *range(2201, 3000)]
    made = network("detector")
    torch.nn.init.zeros_(made.rpn.head.cls_logits.weight)  # all places alike
    file: Any = graph_of(made)
    picture = random_image((48, 64), 0)
    with perturbed(file.canvas, 0):
        changed = file(picture)
    assert different(changed, file(picture)) < 0.2
    assert len(changed[0]) > 3


@pytest.mark.parametrize("kind", ["detector", "segmenter"])
@pytest.mark.parametrize("wrong", ["moved", "others", "nothing"])
def test_wrong_predictions_are_refused(kind: str, wrong: str) -> None:
    file = graph_of(network(kind))

    def answers(picture: Tensor) -> Any:
        said = file(picture)
        if kind == "segmenter":
            return (said[0].roll(5, 1) if wrong == "moved" else said[0] + 1,)
        boxes, scores, labels = said
        if wrong == "nothing":
            return boxes[:0], scores[:0], labels[:0]
        return (boxes + 1, scores, labels) if wrong == "moved" else (boxes, scores, (labels + 1) % 3)

    with pytest.raises(RuntimeError, match="of its outputs differ"):
        check_agreement(answers, file)


@needs_onnx
@pytest.mark.slow
def test_a_detector_with_equal_scores_everywhere_is_exported(tmp_path: Path) -> None:
    made = network("detector")
    torch.nn.init.zeros_(made.rpn.head.cls_logits.weight)
    assert to_onnx(made, tmp_path / "a.onnx", TASK, graph=type(graph_of(made)), cache_size=STORE).exists()


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["detector", "detector with masks", "segmenter"])
def test_onnxruntime_predicts_as_the_network(tmp_path: Path, kind: str) -> None:
    """On images of five sizes, none of them that of tracing."""
    import onnx
    import onnxruntime

    made = network(kind.split()[0], masks="masks" in kind)
    path = to_onnx(made, tmp_path / "a.onnx", TASK, graph=type(graph_of(made)), cache_size=STORE)
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    eager = graph_of(made)
    names = [each.name for each in session.get_outputs()]
    for size in SIZES:
        picture = image(*size)
        found = [torch.from_numpy(each) for each in session.run(None, {"image": picture.numpy()})]
        expected = eager(picture)
        assert [each.dtype for each in found] == [each.dtype for each in expected]
        assert different(found, expected) <= 0.02, size
    about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    assert about["classes"] == list(TASK.classes)
    assert (about["outputs"], about["image_size"]) == (names, [64, 64])
    assert about["kind"] == ("segmentation" if kind == "segmenter" else "detection")
    assert "any height and width" in about["input"]
    assert {each.version for each in onnx.load(str(path)).opset_import if each.domain == ""} == {ImageGraph.opset}


class Other(Segmenter):
    """Computes something else under tracing."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits.flip(1) if torch.compiler.is_compiling() else logits


@needs_onnx
@pytest.mark.slow
def test_a_file_that_disagrees_is_not_kept(tmp_path: Path) -> None:
    made = network("segmenter")
    made.__class__ = Other
    with pytest.raises(RuntimeError, match="of its outputs differ"):
        to_onnx(made, tmp_path / "a.onnx", TASK, graph=type(graph_of(made)), cache_size=STORE)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_before_tracing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.export, "export", None)
    (tmp_path / "file").touch()
    for name, said in {"x.txt": "must end in .onnx", "file/x.onnx": "not a writable folder"}.items():
        with pytest.raises(UserError, match=said):
            to_onnx(network("segmenter"), tmp_path / name, TASK, graph=SegmenterGraph, cache_size=STORE)
