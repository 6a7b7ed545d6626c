# SPDX-License-Identifier: Apache-2.0
"""Backbone, pyramid, windows and heads: equal to torchvision's model and plain attention, and loaded from disk."""

import copy
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from timm.models import VisionTransformer
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead

from refusals import refused
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.detection.backbone import MapBackbone
from viticulture.models.detection.detector import Detector, DetectorSizes, SimpleFeaturePyramid
from viticulture.models.detection.networks import detector, load_network, open_windows, segmenter
from viticulture.models.students import create_student
from viticulture.models.weights.files import load, save

SIZE = (64, 64)
TASK = DataSpec(("disk", "square"), SIZE, (0.5,) * 3, (0.5,) * 3)
BARE = DataSpec((), SIZE, (0.5,) * 3, (0.5,) * 3)
SMALL = DetectorSizes(width=16, samples=32)
NO_TOKEN = {"class_token": False, "global_pool": "avg"}


def student(name: str = "vit_nano", patch: int | None = 16, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return create_student(name, BARE, patch, options)


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def scenes() -> list[dict[str, Tensor]]:
    boxes = torch.tensor([[4.0, 4, 40, 36], [20, 10, 60, 62]])
    masks = torch.zeros(2, *SIZE, dtype=torch.uint8)
    masks[0, 4:36, 4:40] = 1
    masks[1, 10:62, 20:60] = 1
    return [
        {"boxes": boxes, "labels": torch.tensor([0, 1]), "masks": masks},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "masks": masks[:0]},
    ]


class Whole(nn.Module):
    """Backbone and pyramid by torchvision's interface."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.backbone, self.pyramid, self.out_channels = detector.backbone, detector.pyramid, 24

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        (features,) = self.backbone(x)
        return self.pyramid(features)


def test_losses_and_detections_are_those_of_torchvision() -> None:
    """Every term, gradient and detection of its Mask R-CNN around the same backbone, weights and draws."""
    ours = detector(student(), TASK, heads=DetectorSizes(width=24, masks=True, samples=64, min_score=0.0))
    norm = ours.roi_heads.box_head[0][1].__class__
    theirs = MaskRCNN(
        Whole(ours),
        rpn_anchor_generator=AnchorGenerator(tuple((s,) for s in (32, 64, 128, 256, 512)), ((0.5, 1.0, 2.0),) * 5),
        rpn_head=RPNHead(24, 3, conv_depth=2),
        rpn_post_nms_top_n_train=256,
        rpn_post_nms_top_n_test=128,
        box_batch_size_per_image=64,
        box_score_thresh=0.0,
        box_head=FastRCNNConvFCHead((24, 7, 7), [24] * 4, [96], norm),
        box_predictor=FastRCNNPredictor(96, 3),
        mask_head=MaskRCNNHeads(24, [24] * 4, 1, norm),
        mask_predictor=MaskRCNNPredictor(24, 24, 3),
        min_size=64,
        max_size=64,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
    )
    theirs.rpn.load_state_dict(ours.rpn.state_dict())
    theirs.roi_heads.load_state_dict(ours.roi_heads.state_dict())
    targets = scenes()
    torch.manual_seed(3)
    for _ in targets:
        torch.empty(1).uniform_()  # torchvision draws a size for each image
    found = ours.train().losses(images(), targets)
    torch.manual_seed(3)
    expected = theirs.train()(list(images()), [{**target, "labels": target["labels"] + 1} for target in targets])
    assert {f"loss_{name}" if f"loss_{name}" in expected else name for name in found} == set(expected)
    for name, term in found.items():
        torch.testing.assert_close(term, expected.get(f"loss_{name}", expected.get(name)), rtol=1e-5, atol=1e-6)
    shared = [parameter for parameter in ours.backbone.parameters() if parameter.requires_grad]
    gradients, others = (
        torch.autograd.grad(torch.stack(list(terms.values())).sum(), shared) for terms in (found, expected)
    )
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-6)
    with torch.no_grad():
        mine, answers = ours.eval()(images()), theirs.eval()(list(images()))
    for one, two in zip(mine, answers, strict=True):
        assert len(one["boxes"]) > 0
        assert torch.equal(one["labels"], two["labels"] - 1)
        torch.testing.assert_close(one["boxes"], two["boxes"])
        torch.testing.assert_close(one["scores"], two["scores"])


@pytest.mark.parametrize(
    ("name", "patch", "options"),
    [
        ("vit_nano", 16, {}),
        ("dhvt_nano", 16, {}),
        pytest.param("mae_tiny", 16, {}, marks=pytest.mark.slow),
        ("cit_tiny", 16, {"stems": ["conv"]}),
        ("resnet10t", None, {}),
        pytest.param("deit_tiny_patch16_224", None, {}, marks=pytest.mark.slow),
    ],
)
def test_any_student_is_a_backbone(name: str, patch: int | None, options: dict[str, object]) -> None:
    network = detector(student(name, patch, **options), TASK, heads=SMALL).train()
    (stride,) = network.backbone.strides
    (features,) = network.backbone(images())
    assert features.shape == (2, network.backbone.widths[0], SIZE[0] // stride, SIZE[1] // stride)
    terms = network.losses(images(), scenes())
    torch.stack(list(terms.values())).sum().backward()
    assert [name for name, p in network.named_parameters() if p.requires_grad and p.grad is None] == []
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    assert all("norm" in name or "mlp" in name for name in frozen), frozen


def test_the_map_is_that_of_the_patches() -> None:
    vit = student("vit_nano")
    assert isinstance(vit, VisionTransformer)
    caught: list[Tensor] = []
    vit.blocks[-1].register_forward_hook(lambda _m, _i, output: caught.append(output))
    (features,) = MapBackbone(vit, SIZE).eval()(images())
    expected = caught[-1][:, vit.num_prefix_tokens :].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    torch.testing.assert_close(features, expected)


def test_the_pyramid_has_five_levels_each_half_of_the_previous() -> None:
    """Scales 4, 2, 1, 1/2 and every second place of the last, normalized over channels."""
    maps = SimpleFeaturePyramid(32, 12)(torch.randn(2, 32, 8, 8))
    assert [tuple(level.shape) for level in maps.values()] == [(2, 12, s, s) for s in (32, 16, 8, 4, 2)]
    for level in maps.values():
        torch.testing.assert_close(level.mean(1), torch.zeros_like(level.mean(1)), rtol=0, atol=1e-5)
    assert torch.equal(maps["pool"], maps["3"][..., ::2, ::2])


def test_attention_in_one_window_or_global_is_plain_attention() -> None:
    plain = student("mae_tiny", 16, depth=2, **NO_TOKEN)
    expected = MapBackbone(copy.deepcopy(plain), SIZE).eval()(images())[0]
    for window, blocks in ((4, ()), (2, (0, 1))):
        ours = copy.deepcopy(plain)
        open_windows(ours, window, blocks, relative=True)
        found = MapBackbone(ours, SIZE).eval()(images())[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_windows_restrict_attention() -> None:
    for blocks, reached in (((), 4), ((0,), 16)):
        vit = student("mae_tiny", 16, depth=1, **NO_TOKEN)
        open_windows(vit, 2, blocks, relative=False)
        seen = images(1).requires_grad_()
        MapBackbone(vit, SIZE).eval()(seen)[0][0, :, 0, 0].square().sum().backward()
        assert seen.grad is not None
        patches = seen.grad[0].unflatten(1, (4, 16)).unflatten(3, (4, 16)).abs().sum((0, 2, 4))
        assert int((patches > 0).sum()) == reached
        assert (patches[:2, :2] > 0).all()


def test_relative_positions_are_trained() -> None:
    vit = student("mae_tiny", 16, depth=1, **NO_TOKEN)
    network = detector(vit, TASK, heads=SMALL, window=2, relative_positions=True).train()
    torch.stack(list(network.losses(images(), scenes()).values())).sum().backward()
    tables = [p for name, p in network.named_parameters() if name.endswith(("rel_pos_h", "rel_pos_w"))]
    assert [tuple(table.shape) for table in tables] == [(3, 16)] * 2
    assert all(table.grad is not None and table.grad.abs().sum() > 0 for table in tables)


def test_a_segmenter_predicts_a_class_per_pixel() -> None:
    network = segmenter(student("vit_nano"), TASK, blocks=(1, 3)).eval()
    assert network(images()).shape == (2, 2, *SIZE)
    assert network.predict.in_channels == 128
    with torch.no_grad():
        network.predict.weight.zero_()
        network.predict.bias.copy_(torch.tensor([0.0, 1.0]))
    assert (network(images()).argmax(1) == 1).all()


@pytest.mark.parametrize("name", ["vit_nano", "dhvt_nano"])
def test_an_external_head_takes_a_segmenters_student_by_name(name: str) -> None:
    """segmentation_models_pytorch's DPT, as in docs/guides/detection.md."""
    smp = pytest.importorskip("segmentation_models_pytorch", reason="a heavier head is another package's")
    ours = segmenter(student(name, 8), TASK, blocks=(0, 1, 2, 3)).eval()
    theirs = smp.DPT("tu-" + name, encoder_weights=None, classes=2, num_classes=0, img_size=SIZE, patch_size=8).eval()
    prefix = "backbone.student."
    learnt = {key.removeprefix(prefix): value for key, value in ours.state_dict().items() if key.startswith(prefix)}
    theirs.encoder.model.load_state_dict(learnt)
    theirs.encoder._output_indices = [0, 1, 2, 3]
    with torch.no_grad():
        for mine, other in zip(ours.backbone(images()), theirs.encoder(images())[0], strict=True):
            torch.testing.assert_close(other, mine)
        assert theirs(images()).shape == (2, 2, *SIZE)


@pytest.mark.parametrize("kind", ["detection", "segmentation"])
def test_a_saved_network_loads(tmp_path: Path, kind: str) -> None:
    around: dict[str, object]
    vit = student("mae_tiny", 16, depth=2, **NO_TOKEN)
    if kind == "detection":
        around = {
            "heads": DetectorSizes(16, samples=32, min_score=0.0),
            "window": 2,
            "global_blocks": [1],
            "relative_positions": True,
        }
        network: nn.Module = detector(vit, TASK, **around)  # type: ignore[arg-type]
        around = {**around, "heads": asdict(around["heads"])}  # type: ignore[call-overload]
    else:
        around = {"blocks": [0, 1], "dropout": 0.1}
        network = segmenter(vit, TASK, **around)  # type: ignore[arg-type]
    save(network, tmp_path / "dense", TASK, {"network": {"kind": kind, **around}})
    found, data_spec = load_network(tmp_path / "dense")
    assert data_spec == TASK
    with torch.no_grad():
        mine, other = network.eval()(images()), found(images())
    if kind == "segmentation":
        assert torch.equal(mine, other)
    else:
        assert all(torch.equal(one["boxes"], two["boxes"]) for one, two in zip(mine, other, strict=True))
    classifier = create_student("vit_nano", TASK, 16)
    save(classifier, tmp_path / "plain", TASK)
    refused("holds a classifier", load_network, tmp_path / "plain")
    refused("and this needs a classifier", load, tmp_path / "dense")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: detector(student("vit_nano", 2), TASK), "patches of 4, 8, 16 or 32 pixels, got 2"),
        (lambda: detector(student("vit_nano"), TASK, window=2), "without class token"),
        (lambda: detector(student("dhvt_nano"), TASK, window=2), "need a plain ViT"),
        (lambda: detector(student("vit_small_sparse", **NO_TOKEN), TASK, window=2), "need a plain ViT"),
        (lambda: detector(student("mae_tiny", 16, **NO_TOKEN), TASK, window=9), "between 0 and the 4x4 tokens"),
        (lambda: detector(student("mae_tiny", 16, **NO_TOKEN), TASK, window=2, global_blocks=(12,)), "0 to 11, got 12"),
        (lambda: segmenter(student("vit_nano"), TASK, blocks=(7,)), "0 to 3, got 7"),
        (lambda: segmenter(student("vit_nano"), TASK, blocks=(2, 1)), "must rise"),
        (lambda: segmenter(student("vit_nano"), TASK, dropout=1.0), "dropout must lie in"),
        (lambda: DetectorSizes(width=4), "at least 8"),
        (lambda: DetectorSizes(samples=0), "samples must be at least 1"),
        (lambda: DetectorSizes(min_score=1.0), "min_score must lie in"),
    ],
)
def test_what_does_not_go_together_is_refused(made: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        made()  # type: ignore[operator]


def test_a_map_too_small_for_the_pyramid_is_refused() -> None:
    for side, tokens in ((16, 1), (32, 4)):
        data_spec = DataSpec(TASK.classes, (side, side), TASK.mean, TASK.std)
        vit = create_student("vit_nano", DataSpec((), (side, side), TASK.mean, TASK.std), 16, {"depth": 1})
        if tokens > 1:
            assert len(detector(vit, data_spec, heads=SMALL).maps(torch.zeros(1, 3, side, side))) == 5
        else:
            refused(
                "at least 2x2 tokens, got images of 16x16 pixels and patches of 16; set",
                detector,
                vit,
                data_spec,
                heads=SMALL,
            )


def test_the_whole_canvas_counts_as_image() -> None:
    """torchvision's poolers infer the maps' scales from the images' sizes, so these must be the canvas's."""
    from viticulture.models.detection.detector import _listed

    found = _listed(images())
    assert isinstance(found, ImageList)
    assert found.image_sizes == [SIZE, SIZE]
