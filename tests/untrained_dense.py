# SPDX-License-Identifier: Apache-2.0
"""Folders of runs whose detector or segmenter has random weights, confident enough to detect something."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from made_results import detected, segmented
from viticulture.config.load import load_config
from viticulture.models.data_spec import DataSpec
from viticulture.models.detection.detector import DetectorSizes
from viticulture.models.detection.networks import detector, segmenter
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.tasks.detection_metrics import ClassPrecision, DetectionResult, Precisions
from viticulture.tasks.segmentation_metrics import ClassIoU, SegmentationResult
from viticulture.training.run_folder import FORMAT, RunFolder
from viticulture.version import VERSION

SIDE, STORE = 64, 80
CLASSES = ("=cmd()", "<i>merlot</i>", "berry")


def untrained_dense(folder: Path, kind: str, masks: bool = False, **options: object) -> RunFolder:
    """Create a run of `detection` or `segmentation` on images of 64 x 64 pixels, cached at 80."""
    run, name = RunFolder(folder), f"{kind}/photos"
    sizes = {"images.image_size": SIDE, "images.cache_size": STORE, "student.name": "vit_nano", "student.patch_size": 8}
    run.write("recipe.yaml", load_config(name, sizes).to_yaml())
    data: dict[str, Any] = {"source": "cells", "folder": None, "name": "cells", "fingerprint": "", "classes": CLASSES}
    facts = {"seed": 0, "command": "", "commit": None, "started": "", "warnings": []}
    student = {"name": "vit_nano", "parameters": 12345, "macs": None}
    known = {"format": FORMAT, "recipe": name, "status": "finished", "hardware": {}}
    known |= {"data": {**data, "images": {"train": 90}}}
    run.write("run.json", {**known, **facts, "student": student, "versions": {"viticulture": VERSION}})
    data_spec = DataSpec(CLASSES, (SIDE, SIDE), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    torch.manual_seed(0)
    backbone = create_student("vit_nano", replace(data_spec, classes=()), 8, {"depth": 1, **options})
    network: Any
    if kind == "segmentation":
        network, described = segmenter(backbone, data_spec), {"blocks": [], "dropout": 0.0}
        torch.nn.init.normal_(network.predict.weight)
    else:
        heads = DetectorSizes(16, masks, 16, 0.1)
        network, described = detector(backbone, data_spec, heads=heads), {"heads": asdict(heads)}
        for weight, std in (
            (network.rpn.head.bbox_pred.weight, 0.1),
            (network.rpn.head.cls_logits.weight, 0.5),
            (network.roi_heads.box_predictor.cls_score.weight, 1.0),
            (network.roi_heads.box_predictor.bbox_pred.weight, 0.3),
        ):
            torch.nn.init.normal_(weight, std=std)
    save(network, run.weights("last"), data_spec, {"network": {"kind": kind, **described}})
    return run


def object_results(run: RunFolder) -> None:
    """Write evaluation.json with an AP of 40 % and threshold 0.25 for the last weights, 50 % and 0.75 for the best."""

    def result(ap: float, threshold: float) -> DetectionResult:
        per_class = tuple(ClassPrecision(name, 10, ap - 0.01 * i, ap, ap, None) for i, name in enumerate(CLASSES))
        boxes = Precisions(ap, ap, ap, (ap - 0.1, ap + 0.1), {"small": None, "medium": ap, "large": ap}, (), per_class)
        confusion = ((5, 1, 0, 4), (0, 7, 0, 3), (0, 0, 10, 0), (2, 0, 0, 0))
        return DetectionResult(20, 30, boxes, None, {"nothing": 0.0}, threshold, confusion)

    results: dict[str, Any] = {"last/test": result(0.4, 0.25), "best/test": result(0.5, 0.75)}
    run.write("evaluation.json", detected("best/test", results).to_dict())


def pixel_results(run: RunFolder) -> None:
    """Write evaluation.json with a mIoU of 60 % for the last weights."""
    per_class = tuple(ClassIoU(name, 1000, 0.7 - 0.1 * i) for i, name in enumerate(CLASSES))
    result = SegmentationResult(20, 0.6, (0.5, 0.7), 0.8, per_class, {"berry everywhere": 0.1}, ((9, 1, 0),) * 3)
    run.write("evaluation.json", segmented("last/test", {"last/test": result}).to_dict())
