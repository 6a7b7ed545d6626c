# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning: a head that starts by logistic regression, frozen layers, sizes within a budget."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from photographs import pictures
from refusals import refused
from resumed import check_same_bits, check_same_weights, whole_and_resumed
from trained import trained, weights
from untrained import untrained
from viticulture.budget.budget import TimeBudget
from viticulture.budget.choices import FINE_TUNED_EPOCHS, fine_tuned_candidates
from viticulture.budget.measure import Measurements
from viticulture.budget.prepare import BudgetRequest, make_plan
from viticulture.config.checks import check_parts
from viticulture.config.load import load_config
from viticulture.config.resolve import Config
from viticulture.data.batches.evaluation import evaluation_batches
from viticulture.data.batches.loader import CPU
from viticulture.data.dataset import Dataset
from viticulture.data.image_settings import normalization
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save
from viticulture.optim.optim import layers_of
from viticulture.study.step_times import StepTimes
from viticulture.training.data import open_by_default, resolve_default
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session, begin

HALF = normalization("half", 3)
KEYS: dict[str, Any] = {
    "student.head": "probe",
    "data.per_class": 12,
    "data.val_fraction": 0.25,
    "train.validate": "val",
    "train.epochs": 2,
    "schedule.warmup_epochs": 0,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained network."""
    return trained(tmp_path_factory.mktemp("start") / "run", {"data.per_class": 4, "train.epochs": 3}, seed=1).path


def fine_tuned(start: Path, out: Path, **overrides: Any) -> Session:
    keys = {**KEYS, "student.init": str(start), **overrides}
    return begin("digits", "default/digits", 0, str(out), False, keys, "test")


def test_the_head_starts_at_the_optimum_of_logistic_regression(start: Path, tmp_path: Path) -> None:
    """There the mean probability of a class is its share of the images: the slope of the loss in its bias is 0."""
    session = fine_tuned(start, tmp_path / "run")
    student, images = session.method.student.eval(), session.dataset.train
    body = load_file(start / "weights/last/model.safetensors")
    check_same_bits(
        {name: value for name, value in student.state_dict().items() if not name.startswith("head.")},
        {name: value for name, value in body.items() if not name.startswith("head.")},
    )
    (batch,) = evaluation_batches(images, session.method.data_spec, len(images), CPU, session.config.images.crop)
    with torch.no_grad():
        probabilities = student(batch["image"]).softmax(1).mean(0)
    shares = torch.bincount(batch["label"], minlength=10) / len(images)
    torch.testing.assert_close(probabilities, shares, atol=0.003, rtol=0)
    assert any("logistic regression" in line for line in session.method.loaded)


def test_a_start_that_validates_better_than_every_epoch_is_the_best(start: Path, tmp_path: Path) -> None:
    session = fine_tuned(start, tmp_path / "run", **{"optim.lr": 1.0, "train.clip_norm": None})
    begun = {name: value.clone() for name, value in session.method.student.state_dict().items()}
    fit(session)
    check_same_bits(weights(session.run.path, "best"), begun)
    assert json.loads((session.run.weights("best") / "config.json").read_text())["epoch"] == 0


def test_an_epoch_as_good_as_the_start_is_the_best(start: Path, tmp_path: Path) -> None:
    session = fine_tuned(start, tmp_path / "run", **{"optim.lr": 1e-6})
    fit(session)
    assert json.loads((session.run.weights("best") / "config.json").read_text())["epoch"] == 2


def test_fine_tuning_resumes_bit_for_bit(start: Path, tmp_path: Path) -> None:
    def make(out: Path, **keys: Any) -> Session:
        return fine_tuned(start, out, **{"student.frozen_layers": 0.5, "train.batch_size": 20, **keys})

    check_same_weights(*whole_and_resumed(make, tmp_path), ("last", "best"))


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_the_first_layers_keep_their_weights(start: Path, tmp_path: Path, share: float) -> None:
    session = fine_tuned(start, tmp_path / "run", **{"student.frozen_layers": share})
    begun = {name: value.clone() for name, value in session.method.student.named_parameters()}
    layers = layers_of(session.method.student, "")
    fit(session)
    unchanged = {name for name, value in session.method.student.named_parameters() if torch.equal(begun[name], value)}
    assert unchanged == {name for name in begun if layers[name] < share * max(layers.values())}
    assert 0 < len(unchanged) < len(begun)


def test_a_network_without_layers_of_timm_refuses_to_freeze_some(start: Path, tmp_path: Path) -> None:
    class Plain(torch.nn.Linear):
        pass

    refused("student.frozen_layers needs a student with timm's group_matcher; Plain has none", layers_of,
            Plain(1, 1), "student.frozen_layers")  # fmt: skip


def test_a_trained_network_is_fine_tuned_by_default(tmp_path: Path) -> None:
    photos, network = pictures(tmp_path / "photos", {"a": 4, "b": 4}, 40), untrained(tmp_path / "network").path
    _, name, _ = open_by_default(str(photos))
    assert resolve_default(name, {}).name == name
    config = resolve_default(name, {"student.init": str(network)})
    assert (config.name, config.student.name, config.student.head) == ("finetune/photos", "vit_nano", "probe")
    assert config.images.image_size == 16


@pytest.mark.parametrize(
    ("side", "own", "sizes"),
    [
        (500, 224, [96, 128, 160, 224]),
        (64, 224, [96, 128]),
        (500, 112, [96, 112]),
        (500, 32, [32]),
        (20, 224, [96]),
        (20, 64, [64]),
    ],
)
def test_a_budget_chooses_among_sizes_up_to_the_networks_own(side: int, own: int, sizes: list[int]) -> None:
    candidates = fine_tuned_candidates(side, "resnet18", own)
    assert [each.image_size for each in candidates] == sizes
    assert {(each.student, each.epochs) for each in candidates} == {("resnet18", FINE_TUNED_EPOCHS)}


class Sized(Measurements):
    """A step takes a second per megapixel; which sizes were measured on noise is written down."""

    measured: ClassVar[list[int]] = []

    def step_times(self, config: Config, dataset: Dataset) -> StepTimes:
        side = config.images.image_size
        assert isinstance(side, int)
        self.measured.extend([side] * (not self.seconds))
        return StepTimes(side**2 / 1e6, 100, 0.0, 0, 0)


def test_larger_images_of_a_trained_network_are_not_measured(tmp_path: Path) -> None:
    """Their times follow from its MACs, and the largest that there is time for is taken."""
    photos, spec = pictures(tmp_path / "photos", {"a": 10, "b": 10}, 200), DataSpec(("x",), (160, 160), *HALF)
    save(create_student("resnet10t", spec), tmp_path / "net", spec)
    keys = {"student.init": str(tmp_path / "net"), "engine.precision": "32", "images.eval_views": "one"}
    sizes = []
    for seconds in (20, 13, 7):
        budget = TimeBudget(f"{seconds}s")
        request = BudgetRequest(str(photos), "default", 0, tmp_path / "run", keys, budget)
        (stage,) = make_plan(request, "test", lambda: 0.0, 0.0, Sized).stages
        sizes.append(stage.image_size)
    assert sizes == [160, 128, 96]
    assert set(Sized.measured) == {96}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"student.head": "probe"}, "add --init NETWORK"),
        ({"student.head": "probe", "student.init": "run", "method.name": "mae"}, "needs a class for every image"),
        ({"student.frozen_layers": 0.5}, "student.frozen_layers must lie in"),
        ({"student.frozen_layers": 1.0, "student.init": "run"}, "student.frozen_layers must lie in"),
    ],
)
def test_settings_of_a_start_need_one(keys: dict[str, Any], message: str) -> None:
    refused(message, lambda: check_parts(load_config("default/digits", keys)))


def test_fine_tuning_needs_a_network() -> None:
    refused("add --init NETWORK", check_parts, load_config("finetune/photos", {}))


@pytest.mark.parametrize("source", ["resnet18", "resnet18.a1_in1k", "resnet18=weights.safetensors"])
def test_a_network_in_place_of_a_run_is_sent_to_probe(source: str) -> None:
    refused(f"viticulture probe '?{source}'? DATA --out", RunFolder.open, source)
