# SPDX-License-Identifier: Apache-2.0
"""Trainings on unbalanced classes: exact, resumable, and refused where they would change nothing."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from sklearn.metrics import balanced_accuracy_score

from refusals import refused
from resumed import check_same_bits, whole_and_resumed
from viticulture.config.checks import check_parts
from viticulture.config.load import load_config
from viticulture.data.balance import class_weights
from viticulture.data.batches.evaluation import evaluation_batches
from viticulture.losses import cross_entropy
from viticulture.training.feed import training_loader
from viticulture.training.metrics import read_curves
from viticulture.training.module import TrainingModule
from viticulture.training.replay import Replay
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import begin
from viticulture.training.state import load_checkpoint

MIXED = {"augment.mix.mixup": 0.8}
SMALL: dict[str, Any] = {"data.per_class": 4, "train.epochs": 3, "schedule.warmup_epochs": 0, "train.batch_size": 10}


def session(out: Path, **overrides: Any) -> Any:
    return begin("digits", "default/digits", 0, str(out), False, {**SMALL, **overrides}, "test")


@pytest.mark.parametrize(
    "asked",
    [{"data.sampling": "balanced", **MIXED}, {"data.class_weights": {"3": 7.0, "8": 0.5}, **MIXED}],
    ids=["sampling", "weights"],
)
def test_an_interrupted_run_resumes_exactly(asked: dict[str, Any], tmp_path: Path) -> None:
    """In the middle of an epoch, with mixing."""
    whole, again = whole_and_resumed(partial(session, **asked), tmp_path, steps=6)
    check_same_bits(whole.method.state_dict(), again.method.state_dict())


def test_weights_reach_the_label_term(tmp_path: Path) -> None:
    made = session(tmp_path / "run", **{"data.class_weights": {"3": 7.0}})
    batch = training_loader(made).batch(0, 0)
    weights = class_weights({"3": 7.0}, [str(i) for i in range(10)], torch.full((10,), 4))
    made.method.eval()
    with torch.no_grad():
        found = made.method.losses(batch)["label"]
        expected = cross_entropy(made.method.student(batch["image"]), batch["label"], made.method.smoothing, weights)
    torch.testing.assert_close(found, expected)
    assert weights[3] / weights[0] == pytest.approx(7)
    assert "class_weights" not in made.method.state_dict()


def test_sampling_reaches_batches_and_cached_logits(tmp_path: Path) -> None:
    made, natural = (
        session(tmp_path / word, **{"data.per_class": None, "data.fraction": 0.02, "data.sampling": word})
        for word in ("balanced", "natural")
    )
    loader = training_loader(made)
    labels = torch.cat([loader.batch(0, step)["label"] for step in range(len(loader))])
    whole = made.dataset.train.records.labels[loader.order(0)]
    counts = torch.bincount(whole, minlength=10)
    assert counts.max() - counts.min() <= 1
    assert torch.equal(labels, whole[: len(labels)])
    machine = SimpleNamespace(root_device=torch.device("cpu"))
    trainer: Any = SimpleNamespace(strategy=machine, world_size=1, global_rank=0, precision="32-true")
    kept = [Replay(each, 1.0)._key(trainer) for each in (made, natural)]
    assert kept[0] != kept[1]


class Counts(Callback):
    """Records the last validation's counts by class."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.recalls = pl_module.sums["recalls"]


def test_best_weights_have_the_best_balanced_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference: scikit-learn's, of batches of unequal size."""
    monkeypatch.setattr("viticulture.data.batches.evaluation.MAX_BATCH", 7)
    overrides = {"train.best_by": "balanced_accuracy", "data.val_fraction": 0.02, "optim.lr": 0.003}
    overrides |= {"train.validate": "val", "train.epochs": 6}
    made = session(tmp_path / "run", **overrides)
    counts = Counts()
    fit(made, more=[counts])
    curves = read_curves(made.run.metrics)
    measured = [value for _, value in curves["val/balanced_accuracy"]]
    images = made.dataset.val
    (batch,) = evaluation_batches(images, made.method.data_spec, len(images), torch.device("cpu"), None)
    said = made.method.student.eval()(batch["image"]).argmax(-1)
    assert measured[-1] == pytest.approx(balanced_accuracy_score(batch["label"], said), abs=1e-6)
    right, shown = counts.recalls
    assert torch.equal(shown, torch.bincount(batch["label"], minlength=10).float())
    assert torch.equal(right, torch.bincount(batch["label"][said == batch["label"]], minlength=10).float())
    assert measured != [value for _, value in curves["val/accuracy"]]
    best = json.loads((tmp_path / "run" / "weights" / "best" / "config.json").read_text())
    high = max(measured)
    state = load_checkpoint(made.run.checkpoint)["callbacks"]["BestCheckpoint"]
    assert state["best"] == pytest.approx(high)
    told = [value >= high - state["error"] for value in measured]
    assert best["epoch"] == 6 - told[::-1].index(True)
    assert "val/balanced_accuracy" not in read_curves(_fitted(tmp_path / "plain").metrics)


def _fitted(out: Path) -> RunFolder:
    """Fit one epoch by the defaults."""
    made = session(out, **{"train.epochs": 1})
    fit(made)
    return made.run


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("mae/photos", {"data.sampling": "balanced"}, "data.sampling balances classes.*mae uses none"),
        ("mae/photos", {"data.class_weights": "balanced"}, "which method mae lacks"),
        ("default/digits", {"data.class_weights": {3: 2}}, "keys are words, got 3 in data.class_weights; write '3'"),
        ("bootstrap/digits", {"data.class_weights": "balanced"}, "guide bootstrap uses itself"),
        ("default/digits", {"data.class_weights": {"ten": 2}}, "class in data.class_weights.*ten"),
        ("default/digits", {"data.class_weights": {"3": -1}}, "data.class_weights.3 must be positive"),
        ("default/digits", {"data.class_weights": "even"}, "class_weights"),
        ("default/digits", {"data.class_weights": {"3": "much"}}, "class_weights"),
        ("default/digits", {"data.sampling": "even"}, "data.sampling"),
        (
            "mae/photos",
            {"train.best_by": "balanced_accuracy", "train.validate": "val"},
            "train.best_by.*method mae has none",
        ),
        (
            "default/digits",
            {"train.best_by": "balanced_accuracy", "train.validate": "test"},
            "add --train.validate val",
        ),
        ("default/digits", {"train.best_by": "f1"}, "best_by"),
        ("default/digits", {"data.sampling": "balanced", "data.class_weights": "balanced"}, "balance classes twice"),
    ],
)
def test_what_would_change_nothing_is_refused(
    recipe: str, overrides: dict[str, Any], said: str, tmp_path: Path
) -> None:
    refused(said, begin, "digits", recipe, 0, str(tmp_path / "run"), False, overrides, "test")
    assert not (tmp_path / "run").exists()


def test_objects_have_no_classes_of_images_to_balance() -> None:
    name = "detection/photos"
    refused("method detection uses none", lambda: check_parts(load_config(name, {"data.sampling": "balanced"})))
