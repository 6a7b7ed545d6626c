# SPDX-License-Identifier: Apache-2.0
"""Every method with every guide, for students of every family: small recipes and their sessions."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from viticulture.config.resolve import Config, resolve
from viticulture.data.dataset import Dataset
from viticulture.data.sources.arrays import from_arrays
from viticulture.guides.guide import Batch
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.training.assemble import assemble
from viticulture.training.data import load_dataset
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session

SIDE, CLASSES = 16, ("a", "b", "c")
GRAY = (0.5, 0.5, 0.5)
TASK = DataSpec(CLASSES, (SIDE, SIDE), GRAY, GRAY)

METHODS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "mae": {"decoder_width": 32},
    "simmim": {},
    "moco_v3": {"width": 8, "hidden_width": 16},
    "distillation": {},
    "dino": {"local_crops": {"count": 2, "size": 8}, "prototypes": 8, "hidden_width": 16},
}
VIEWS = {name: {"moco_v3": ("2",), "dino": ("2", "_local_crops")}.get(name, ()) for name in METHODS}

GUIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("", {}),
    "logits": ("logits", {"teacher": "vit"}),
    "co_advise": ("co_advise", {"teachers": {}}),
    "one head": ("co_advise", {"teachers": {}, "token": "class"}),
    "attention_distillation": ("attention_distillation", {"teacher": "vit"}),
    "with hidden states": ("attention_distillation", {"teacher": "vit", "hidden_weight": 1.0}),
    "attention_link": ("attention_link", {"teacher": "cnn"}),
    "feature_distillation": ("feature_distillation", {"teacher": "cnn", "queue": 6}),
    "relation_distillation": ("relation_distillation", {"teacher": "vit"}),
    "bootstrap": ("bootstrap", {}),
    "shared bootstrap": ("bootstrap", {"weights": "aligned"}),
}
"""What a test calls it -> name of the guide and its keywords; a teacher as `make_teachers` names it."""

UNLABELED = ("mae", "simmim", "moco_v3", "distillation", "dino")
REFUSED = {
    **{(method, "logits"): "requires scores of the classes, which" for method in UNLABELED},
    **{
        (method, guide): "one label an image and scores of the classes"
        for method in UNLABELED
        for guide in ("co_advise", "one head")
    },
    **{(method, guide): "an image and scores" for method in UNLABELED for guide in ("bootstrap", "shared bootstrap")},
    **{(method, "feature_distillation"): "pooled features" for method in UNLABELED if method != "distillation"},
    **{("mae", guide): "a token for every patch" for guide in ("attention_link", "relation_distillation")},
    ("distillation", "none"): "trains by guides alone",
    ("supervised", "co_advise"): "need a student of 2 heads",  # which this one is not
}
"""Pairs that a plain ViT cannot be taught by, and words of the reason."""

TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}
STUDENTS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "vit": ("vit_nano", 4, {**TINY, "drop_path_rate": 0.1}),
    "vit with dropout": ("vit_small", 4, TINY),
    "sparse vit": ("vit_small_sparse", 4, TINY),
    "mae": ("mae_tiny", 4, {**TINY, "global_pool": "avg"}),
    "dhvt": ("dhvt_tiny_cifar_patch4", None, {**TINY, "drop_path_rate": 0.1}),
    "cit": ("cit_tiny", 4, {**TINY, "tokens": 1}),
    "many heads": ("mixer_tiny", 4, {"embed_dim": 16, "num_blocks": 2, "heads": 2}),
    "cnn": ("resnet10", None, {"channels": [8, 8, 8, 8], "stem_width": 8}),
    "rednet": ("rednet26", None, {"layers": [1, 1, 1, 1], "channels": [32, 32, 32, 32]}),
    "agent": ("agent_small", None, {"embed_dim": 16, "depth": 2}),
}
"""What a test calls a family -> student, patch size, options: of each as small a one as its class allows."""


@dataclass(frozen=True)
class Data:
    """Eight random images, with labels and without."""

    labeled: Dataset
    bare: Dataset


def make_data() -> Data:
    """Create the data in the cache."""
    pixels = np.random.default_rng(0).integers(0, 255, (8, SIDE, SIDE, 3), dtype=np.uint8)
    source = from_arrays("noise", CLASSES, {"train": (pixels, np.arange(8) % 3)})
    labeled, bare = (load_dataset(source, recipe(method, "none", Path()), seed=0) for method in ("supervised", "mae"))
    return Data(labeled, bare)


def make_teachers(folder: Path) -> Path:
    """Save a ViT and a CNN with random weights in a folder."""
    torch.manual_seed(0)
    save(create_student("vit_nano", TASK, 4, TINY), folder / "vit", TASK)
    save(create_student("resnet10", TASK, None, STUDENTS["cnn"][2]), folder / "cnn", TASK)
    return folder


def pair(method: str, guide: str, student: str, data: Data, teachers: Path) -> Session:
    """Start the session of a pair; raises UserError where they do not go together."""
    known, (name, patch, options) = recipe(method, guide, teachers), STUDENTS[student]
    values = {
        **known.values,
        "student": {**known.values["student"], "name": name, "patch_size": patch, "options": options},
    }
    wanted = Config(student, values)
    dataset = data.labeled if wanted.method_class.batch_spec.labels else data.bare
    made, warnings = assemble(wanted, dataset, seed=0)
    return Session(RunFolder("nowhere"), wanted, dataset, made, 0, warnings)


@cache
def recipe(method: str, guide: str, teachers: Path) -> Config:
    """Return a recipe of few and small images, for the first of the students."""
    name, keywords = GUIDES[guide]
    named, own = (
        {
            key: str(teachers / value)
            if key == "teacher"
            else {"one": str(teachers / "vit")}
            if key == "teachers"
            else value
            for key, value in entry.items()
        }
        for entry in (keywords, METHODS[method])
    )
    student, patch, options = STUDENTS["vit"]
    raw = {
        "student": {"name": student, "patch_size": patch, "options": options},
        "method": {"name": method, **own},
        "guides": {name: named} if name else {},
        "data": {"val_fraction": 0, "test_fraction": 0},
        "images": {"image_size": SIDE},
        "augment": {"flip": {}},
        **{f"augment{view}": {"flip": {}} for view in VIEWS[method]},
        "train": {"epochs": 2, "batch_size": 4, "validate": "none", "clip_norm": 1.0},
        "schedule": {"warmup_epochs": 0},
    }
    return resolve("pair", raw)


def step(session: Session, batch: Batch, optimizer: Optimizer) -> Tensor:
    """Run one training step without Lightning; return the loss."""
    method = session.method
    for guide in method.guides.values():
        guide.start_epoch(0, 2)
    loss = torch.stack(list(method.losses(batch).values())).sum()
    loss.backward()
    method.after_backward()
    for guide in method.guides.values():
        guide.after_backward()
    nn.utils.clip_grad_norm_(method.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def optimizer_of(session: Session) -> Optimizer:
    """Create the optimizer that Lightning gets."""
    method = session.method
    return method.optim.build(method.optim.groups(method.student, nn.ModuleDict({**method.guides, **method.auxiliary})))
