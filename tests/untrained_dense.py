# SPDX-License-Identifier: Apache-2.0
"""Folders of runs whose detector or segmenter has random weights, sure enough to find something."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from viticulture.models.dense.detector import Heads
from viticulture.models.dense.networks import detector, segmenter
from viticulture.models.students import create_student
from viticulture.models.task import Task
from viticulture.models.weights.files import save
from viticulture.training.recipe import read, resolve
from viticulture.training.rundir import FORMAT, RunDir
from viticulture.version import VERSION

SIDE, STORE = 64, 80
CLASSES = ("=cmd()", "<i>merlot</i>", "berry")


def untrained_dense(folder: Path, kind: str, masks: bool = False) -> RunDir:
    """A run of `detection` or `segmentation` on images of 64 x 64 pixels, kept at 80."""
    run, name = RunDir(folder), f"{kind}/photos"
    sizes = {"images.image_size": SIDE, "images.store_size": STORE, "student.name": "vit_nano", "student.patch_size": 8}
    run.write("recipe.yaml", resolve(name, read(name), sizes).to_yaml())
    data: dict[str, Any] = {"source": "cells", "folder": None, "name": "cells", "fingerprint": "", "classes": CLASSES}
    facts = {"seed": 0, "command": "", "commit": None, "started": "", "remarks": []}
    student = {"name": "vit_nano", "parameters": 12345, "macs": None}
    known = {"format": FORMAT, "recipe": name, "status": "finished", "hardware": {}}
    known |= {"data": {**data, "images": {"train": 90}}}
    run.write("run.json", {**known, **facts, "student": student, "versions": {"viticulture": VERSION}})
    task = Task(CLASSES, (SIDE, SIDE), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    torch.manual_seed(0)
    backbone = create_student("vit_nano", replace(task, classes=()), 8, {"depth": 1})
    network: Any
    if kind == "segmentation":
        network, described = segmenter(backbone, task), {"blocks": [], "dropout": 0.0}
        torch.nn.init.normal_(network.predict.weight)
    else:
        heads = Heads(16, masks, 16, 0.1)
        network, described = detector(backbone, task, heads=heads), {"heads": asdict(heads)}
        for weight, std in (
            (network.rpn.head.bbox_pred.weight, 0.1),
            (network.rpn.head.cls_logits.weight, 0.5),
            (network.roi_heads.box_predictor.cls_score.weight, 1.0),
            (network.roi_heads.box_predictor.bbox_pred.weight, 0.3),
        ):
            torch.nn.init.normal_(weight, std=std)
    save(network, run.weights("last"), task, {"dense": {"kind": kind, **described}})
    return run
