# SPDX-License-Identifier: Apache-2.0
"""Heads as in ViTDet's code: pooling, anchors, losses, masks and weight decay, one by one."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.models.detection.roi_heads as theirs
from torch import Tensor, nn

from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.detection.detector import Detector, DetectorSizes
from viticulture.models.detection.detectron2 import AlignedPool, cut_masks
from viticulture.models.detection.networks import detector, load_network
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.optim import Optim

SIZE = (64, 64)
DATA_SPEC = DataSpec(("disk", "square"), SIZE, (0.5,) * 3, (0.5,) * 3)
HEADS = DetectorSizes(16, True, 32, 0.0, heads="detectron2")
OPTIONS = {"class_token": False, "global_pool": "avg", "embed_dim": 16, "depth": 2, "num_heads": 2}
WINDOWS: dict[str, Any] = {"window": 2, "global_blocks": [1], "relative_positions": True}


def made(**keywords: Any) -> Detector:
    torch.manual_seed(0)
    student = create_student("mae_tiny", replace(DATA_SPEC, classes=()), 16, OPTIONS)
    return detector(student, DATA_SPEC, heads=HEADS, **keywords)


def targets() -> list[dict[str, Tensor]]:
    masks = torch.zeros(2, *SIZE, dtype=torch.uint8)
    masks[0, 4:36, 4:40] = 1
    masks[1, 10:62, 20:60] = 1
    boxes = torch.tensor([[4.0, 4, 40, 36], [20, 10, 60, 62]])
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "masks": masks[:0]}
    return [{"boxes": boxes, "labels": torch.tensor([0, 1]), "masks": masks}, empty]


def images() -> Tensor:
    return torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def test_a_box_is_pooled_between_centers_of_pixels() -> None:
    """Of maps whose values are places in the image, every bin is its own center, exactly, on the level for its size.
    Catches: half a pixel of shift, another level, bins of another image."""
    boxes = [torch.tensor([[10.0, 12, 24, 26], [13, 19, 111, 75]]), torch.tensor([[12.0, 13, 244, 243]])]
    maps = {}
    for level in range(4):
        centers = (torch.arange(256 // 2 ** (level + 2)) + 0.5) * 2 ** (level + 2)
        place = torch.stack(torch.meshgrid(centers, centers, indexing="ij"))  # [2, h, w]
        maps[str(level)] = torch.stack([place, place + 1000]) + 1e5 * level
    pooled = AlignedPool(7)(maps, boxes, [(256, 256)] * 2)
    for number, (left, top, right, bottom) in enumerate(torch.cat(boxes).tolist()):
        area = (right - left) * (bottom - top)
        level = min(max(int((4 + torch.tensor(area).sqrt().div(224).log2()).floor()), 2), 5) - 2
        share = (torch.arange(7) + 0.5) / 7
        shift = 1000 * (number == 2) + 1e5 * level
        torch.testing.assert_close(pooled[number, 0, :, 0], top + share * (bottom - top) + shift, rtol=0, atol=0.05)
        torch.testing.assert_close(pooled[number, 1, 0], left + share * (right - left) + shift, rtol=0, atol=0.05)


def test_anchors_have_the_area_of_their_side() -> None:
    """Fails if they are rounded to whole pixels, or a ratio is upside down."""
    cells = made().rpn.anchor_generator.cell_anchors
    for side, boxes in zip((32, 64, 128, 256, 512), cells, strict=True):
        width, height = (boxes[:, 2:] - boxes[:, :2]).unbind(1)
        torch.testing.assert_close(width * height, torch.full((3,), float(side**2)))
        torch.testing.assert_close(height / width, torch.tensor([0.5, 1.0, 2.0]))


def test_losses_are_torchvisions_with_absolute_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same layers, pooling and draws in torchvision's loop, whose smooth error is made absolute and whose masks get
    an output for the background. Catches: a mean over positives alone, deltas or masks of another class."""
    network = made().train()
    seen: dict[str, Any] = {}
    sampled = network.roi_heads.select_training_samples
    monkeypatch.setattr(
        network.roi_heads, "select_training_samples", lambda *given: seen.setdefault("drawn", sampled(*given))
    )
    objects = targets()
    ours = network.losses(images(), objects)
    labeled = [{**target, "labels": target["labels"] + 1} for target in objects]
    proposals, matched, labels, deltas = seen["drawn"]
    heads, maps = network.roi_heads, network.maps(images())
    scores, moves = heads.box_predictor(heads.box_head(heads.box_roi_pool(maps, proposals, [SIZE] * 2)))
    absolute: Callable[..., Tensor] = lambda a, b, beta, reduction: F.l1_loss(a, b, reduction=reduction)  # noqa: E731
    monkeypatch.setattr(theirs.F, "smooth_l1_loss", absolute)
    classifier, box = theirs.fastrcnn_loss(scores, moves, labels, deltas)
    positive = [label > 0 for label in labels]
    boxes = [p[here] for p, here in zip(proposals, positive, strict=True)]
    logits = heads.mask_predictor(heads.mask_head(heads.mask_roi_pool(maps, boxes, [SIZE] * 2)))
    assert logits.shape[1] == 2
    padded = torch.cat([torch.full_like(logits[:, :1], 9.0), logits], 1)
    monkeypatch.setattr(theirs, "project_masks_on_boxes", cut_masks)
    numbers = [m[here] for m, here in zip(matched, positive, strict=True)]
    whole = [target["labels"] for target in labeled]
    mask = theirs.maskrcnn_loss(padded, boxes, [target["masks"] for target in objects], whole, numbers)
    assert sum(map(len, boxes)) > 0
    for name, value in {"classifier": classifier, "box_reg": box, "mask": mask}.items():
        torch.testing.assert_close(ours[name], value)
    assert set(ours) == {"objectness", "rpn_box_reg", "classifier", "box_reg", "mask"}
    torch.stack(list(ours.values())).sum().backward()
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


def test_the_proposals_error_is_absolute_over_all_samples() -> None:
    """By hand for three anchors. Catches: a smooth error, a mean over those with an object."""
    rpn = made().rpn
    labels, moves = [torch.tensor([1.0, 0.0, 0.0])], torch.tensor([[0.01, -2.0, 0.0, 1.0]] + [[5.0] * 4] * 2)
    score, error = rpn.compute_loss(torch.zeros(3, 1), moves, labels, [torch.zeros(3, 4)])
    assert error.item() == pytest.approx(3.01 / 3)
    assert score.item() == pytest.approx(torch.tensor(2.0).log().item())


def test_masks_targets_are_zero_or_one() -> None:
    """A box around an object is all ones; one twice as wide is half ones. Fails if they are shifted or soft."""
    masks = targets()[0]["masks"]
    cut = cut_masks(masks, torch.tensor([[4.0, 4, 40, 36], [-32, 4, 40, 36]]), torch.tensor([0, 0]), 28)
    assert cut[0].all()
    assert torch.equal(cut[1, :, 14:], torch.ones(28, 14))
    assert not cut[1, :, :14].any()


def test_a_saved_network_detects_the_same(tmp_path: Path) -> None:
    """Boxes, scores, labels and masks after a round trip. Catches: heads that are rebuilt as torchvision's."""
    network = made(**WINDOWS).eval()
    described = {"network": {"kind": "detection", "heads": asdict(HEADS), **WINDOWS}}
    save(network, tmp_path, DATA_SPEC, described)
    loaded, _ = load_network(tmp_path)
    with torch.inference_mode():
        ours, again = network(images()), loaded(images())
    assert sum(len(one["boxes"]) for one in ours) > 0
    for one, other in zip(ours, again, strict=True):
        assert one["masks"].shape[1:] == (28, 28)
        assert set(one["labels"].tolist()) <= {0, 1}
        for name, value in one.items():
            torch.testing.assert_close(other[name], value)


def test_all_but_norms_of_tokens_and_positions_is_decayed() -> None:
    """As by detectron2's optimizer. Catches: a position table that decays, relative positions, biases or norms of maps
    that do not."""
    network = made(**WINDOWS)
    groups = Optim(weight_decay=0.05, decay_biases=True).groups(network)
    decayed = {name for group in groups for name, _ in group["params"] if group["weight_decay"]}
    every = {name for group in groups for name, _ in group["params"]}
    norms = {name for name, layer in network.backbone.student.named_modules() if isinstance(layer, nn.LayerNorm)}
    left = {f"{name}.{part}" for name in norms for part in ("weight", "bias")} | {"pos_embed"}
    assert every - decayed == every & {f"backbone.student.{name}" for name in left}
    assert {"backbone.student.blocks.0.attn.rel_pos_h", "rpn.head.cls_logits.bias"} <= decayed
    assert {"pyramid.levels.0.5.weight", "roi_heads.mask_head.0.1.bias"} <= decayed


def test_biases_start_at_zero() -> None:
    """Of the heads, and norms at one. Fails for torchvision's mask predictor, whose biases are random."""
    heads = made().roi_heads
    assert not any(value.any() for name, value in heads.named_parameters() if name.endswith("bias"))
    assert heads.mask_predictor.mask_fcn_logits.weight.std().item() == pytest.approx(0.001, rel=0.3)


def test_other_heads_are_refused() -> None:
    with pytest.raises(UserError, match=r"method.heads must be torchvision or detectron2"):
        partial(DetectorSizes, heads="mmdet")()  # type: ignore[arg-type]
