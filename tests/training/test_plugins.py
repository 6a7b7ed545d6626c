# SPDX-License-Identifier: Apache-2.0
"""Guides, methods, students and augmentations from user code, named by a recipe."""

import pickle
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

import viticulture
from children import command
from refusals import refused
from resumed import check_same_bits, interrupt_fit
from trained import weights
from viticulture import methods
from viticulture.config.load import read
from viticulture.config.resolve import resolve
from viticulture.config.start import load_started
from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.image_set import Records, StreamedImages
from viticulture.data.open import open_source
from viticulture.data.transforms.view import Augment
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.layout import layout
from viticulture.models.students import create_student
from viticulture.models.taps import Taps
from viticulture.models.weights.files import load, save
from viticulture.training.assemble import build_guides
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of
from viticulture.training.session import begin, reopen

PLUGINS = Path(__file__).parents[1] / "plugins"
NAMES = ("attention_transfer", "my_source", "my_vineyard")
DIGITS = DataSpec(tuple(map(str, range(10))), (8, 8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}
SMALL: dict[str, Any] = {
    "student.name": "vit_nano", "student.patch_size": 2, "student.options": TINY, "data.per_class": 4,
    "data.val_fraction": 0, "train.epochs": 2, "train.batch_size": 20, "train.validate": "none",
    "schedule.warmup_epochs": 0, "engine.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a CNN and two ViTs with random weights."""
    folder = tmp_path_factory.mktemp("teachers")
    torch.manual_seed(0)
    save(create_student("resnet10", DIGITS, None, {"channels": [8] * 4, "stem_width": 8}), folder / "cnn", DIGITS)
    for name in ("old", "young"):
        save(create_student("vit_nano", DIGITS, 4, TINY), folder / name, DIGITS)
    return folder


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGINS)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget imported modules, as in a new process."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def recipe(**sections: Any) -> dict[str, Any]:
    return {**read("default/digits"), **sections}


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(("name", "options"), [("vit_nano", TINY), ("botnet14n", {}), ("hybrid_nano", {})])
def test_the_example_guide_trains_every_kind_of_student(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    data_spec = DataSpec(("a", "b"), (64, 64), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    save(
        create_student("resnet10", data_spec, None, {"channels": [8] * 4, "stem_width": 8}), tmp_path / "cnn", data_spec
    )
    student = create_student(name, data_spec, 8 if name == "vit_nano" else None, options)
    shown = import_module("attention_transfer").AttentionTransfer
    guide = shown(student, data_spec, teacher=str(tmp_path / "cnn"), weight=1.0)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    (term,) = guide.losses({"image": images}, Taps(student, needs=guide.needs)(images)).values()
    assert 0 < term.item() < 2
    term.backward()
    last = student.get_submodule(layout(student).blocks[-1])
    assert any(weight.grad is not None and weight.grad.any() for weight in last.parameters())
    with pytest.raises(UserError, match=r"student: .*ResNet attends to nothing"):
        shown(create_student("resnet10", data_spec), data_spec, teacher=str(tmp_path / "cnn"))


@pytest.mark.children
def test_a_guide_next_to_the_recipe_trains_resumes_and_is_evaluated(
    teachers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, log = tmp_path / "place", tmp_path / "log"
    place.mkdir()
    for module in ("attention_transfer.py", "my_source.py"):
        shutil.copy(PLUGINS / module, place)
    guide = {"class": "attention_transfer.AttentionTransfer", "teacher": str(teachers / "cnn"), "weight": 0.5}
    (place / "own.yaml").write_text(yaml.dump(recipe(guides={"energy": guide})))
    data, settings = "python:my_source.open_stripes", SMALL | {"data.per_class": 12, "train.batch_size": 12}
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    child = command(place, log, ["train", data, "--recipe", "own.yaml", "--out", "run", *words])
    child.join()
    assert child.exitcode == 0, log.read_text()
    assert "train/energy_transfer" in (place / "run" / "metrics.csv").read_text()

    run = tmp_path / "elsewhere"
    shutil.copytree(place / "run", run)
    shutil.copy(PLUGINS / "attention_transfer.py", run)
    monkeypatch.chdir(run)
    refused("there is no module attention_transfer; start where", reopen, str(run))
    assert not config_of(RunFolder.open(str(run))).guides, "a trained student works without its guide"
    photo = tmp_path / "photo.png"
    Image.new("RGB", (8, 8)).save(photo)
    assert len(viticulture.open(str(run)).predict(str(photo))) == 1
    assert "attention_transfer" not in sys.modules
    monkeypatch.syspath_prepend(PLUGINS)
    assert viticulture.evaluate(str(run)).keys() == {"last/test"}

    broken = begin(data, str(place / "own.yaml"), 0, str(tmp_path / "broken"), False, settings, "test")
    interrupt_fit(broken, calls=2)
    forget(monkeypatch)
    fit(reopen(str(tmp_path / "broken")))
    check_same_bits(weights(run), weights(tmp_path / "broken"))


def test_two_guides_of_one_class_have_separate_terms(teachers: Path, tmp_path: Path) -> None:
    guides = {
        name: {"class": "logits", "teacher": str(teachers / teacher)}
        for name, teacher in {"first": "old", "second": "young", "log": "old"}.items()
    }
    guides["logits"] = {"teacher": str(teachers / "young")}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.dump(recipe(guides=guides)))
    session = begin("digits", str(path), 0, str(tmp_path / "run"), False, SMALL | {"guides.first.weight": 0.25}, "test")
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    terms = session.method.eval().losses({"image": images, "label": torch.arange(4)})
    assert terms.keys() == {"label", "first_logits", "second_logits", "log_logits", "logits"}
    assert torch.equal(terms["log_logits"], 2 * terms["first_logits"])
    assert torch.equal(terms["logits"], terms["second_logits"])
    assert session.config.values["guides"]["first"]["class"] == "logits"
    session.run.unlock()


@pytest.mark.usefixtures("importable")
def test_a_custom_source_is_decoded_in_workers_alike() -> None:
    source = open_source("python:my_source.open_stripes:12")
    assert source.size_of(0) == (12, 12)
    assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint
    rows = torch.arange(8)
    records = Records(torch.from_numpy(source.labels[:8]), torch.full((8, 2), 12), source.names[:8])
    view, images = Augment([], (12, 12), DIGITS.mean, DIGITS.std, classes=2), StreamedImages(source, rows, records, 12)
    alone, helped = (Loader(images, (view,), 4, 0, shard=Shard(workers=workers)) for workers in (0, 1))
    for batch, same in zip(alone, helped, strict=True):
        assert all(torch.equal(batch[key], same[key]) for key in batch)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("my_source", "data 'my_source' is no dotted path"),
        ("nowhere.open_stripes", "there is no module nowhere; start where"),
        ("my_source.open_stripe", "unknown name in module my_source 'open_stripe'; did you mean open_stripes"),
        ("my_source.CLASSES", "must be a function that returns a Source, got"),
        ("my_source.open_nothing", r"must return a viticulture.data.sources.source.Source, got \[\]"),
        ("my_source.open_nothing:x", "cannot be called so: too many .*; python:my_source.open_nothing is all it takes"),
        ("my_source.open_stripes:wide", r"fails at .*my_source.py:\d+: ValueError: invalid literal"),
        ("my_source.Stripes", "missing a required argument: 'side'; write python:my_source.Stripes:ARGUMENT"),
    ],
)
def test_invalid_sources_are_refused_in_one_line(word: str, words: str) -> None:
    refused(words, open_source, f"python:{word}")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"class": "logits", "weight": -1.0},
            "guides.mine: weight must be positive, got -1.0; to switch the guide off, leave it out",
        ),
        ({"class": "bootstrap", "features": {"weight": -1.0}}, "guides.mine: features.weight must not be negative"),
        ({"class": "bootstrap", "features": {"blocks": [2]}}, "guides.mine: features.blocks must lie in 0 to 1, got 2"),
        ({"class": "attention_distillation", "blocks": [2]}, "guides.mine: blocks must lie in 0 to 1"),
        ({"class": "my_vineyard.Looking"}, "guides.mine: it reads attention, which ManyHeadedResNet lacks"),
    ],
)
@pytest.mark.usefixtures("importable")
def test_a_guides_mistake_names_its_entry(entry: dict[str, Any], words: str, teachers: Path) -> None:
    given = {"teacher": str(teachers / "old")} if entry["class"] in ("logits", "attention_distillation") else {}
    wanted = resolve("own", recipe(guides={"mine": {**entry, **given}}))
    name, options = ("resnet10", {"channels": [8] * 4}) if "Looking" in entry["class"] else ("vit_nano", TINY)
    with pytest.raises(UserError, match=f"^{words}"):
        build_guides(wanted, create_student(name, DIGITS, None if "resnet" in name else 4, options), DIGITS)


@pytest.mark.usefixtures("importable")
def test_custom_method_student_and_augmentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = recipe(
        method="my_vineyard.Rotation",
        student="my_vineyard.small_vit",
        augment={"flip": {}, "brighter": {"class": "my_vineyard.Shift", "most": 20}},
    )
    (tmp_path / "own.yaml").write_text(yaml.dump(sections))
    changes = {key: value for key, value in SMALL.items() if not key.startswith("student")}
    run = viticulture.train("digits", str(tmp_path / "own.yaml"), out=str(tmp_path / "run"), overrides=changes)
    text = (run.path / "recipe.yaml").read_text()
    assert {"my_vineyard.Rotation", "my_vineyard.small_vit", "my_vineyard.Shift"} <= set(text.split())
    assert resolve("again", yaml.safe_load(text)).values["augment"]["brighter"]["most"] == 20
    forget(monkeypatch)
    with pytest.raises(UserError, match="is code from outside, which loading weights does not import"):
        load(RunFolder(run.path).weights("last"))
    assert "my_vineyard" not in sys.modules
    assert sum(p.numel() for p in run.student().parameters()) > 0

    file = run.path / "weights/last/model.safetensors"
    started = load_started("default/digits", {"student": "my_vineyard.small_vit", "student.init": str(file)})
    assert started.student.name == "my_vineyard.small_vit"


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"guides": {"a": {"class": "nowhere.Guide"}}}, "guide nowhere.Guide: there is no module nowhere; start where"),
        ({"guides": {"a": {"class": "my_vineyard.Alon"}}}, "unknown name in module my_vineyard 'Alon'; did you mean"),
        ({"guides": {"a": {"class": "my_vineyard.Shift"}}}, "must be a subclass of viticulture.guides.guide.Guide"),
        ({"guides": {"a": {"class": "my_vineyard.Unfinished"}}}, "Unfinished must define losses"),
        ({"guides": {"a": {"class": "my_vineyard.Alone"}}}, "must take student, data_spec first, got weight: float"),
        ({"guides": {"a": {"class": "my_vineyard.Untyped"}}}, "a type for each keyword; weight has none"),
        ({"guides": {"a": {"class": "broken.Guide"}}}, r"broken fails at .*broken.py:2: ZeroDivisionError"),
        ({"guides": {"a": {"class": "needy.Guide"}}}, "module needy needs not_there, which is not installed"),
        ({"guides": {"a": {"class": "guide"}}}, "unknown guide 'guide'"),
        ({"guides": {"my.Own": {}}}, r"name without dots next to its class: guides: \{own: \{class: my.Own\}\}"),
        ({"guides": {"keys": {"class": "logits"}}}, "'keys' cannot be the name of an entry of guides"),
        ({"guides": {"a": {"class": "logits", "teachr": "x"}}}, "unknown recipe key 'guides.a.teachr'"),
        ({"augment": {"a": {"class": "my_vineyard.Alone"}}}, "augmentation my_vineyard.Alone must be a subclass of"),
        ({"method": "my_vineyard.Alone"}, "method my_vineyard.Alone must be a subclass of"),
        ({"method": "helper"}, "unknown method 'helper'"),
        ({"student": "my_vineyard.vit_tiny"}, "timm has a network 'vit_tiny' already"),
        ({"student": "my_vineyard.Shift"}, "must be a function that timm can register"),
        ({"student": "nowhere.vit"}, "student nowhere.vit: there is no module nowhere"),
    ],
)
def test_invalid_plugins_are_refused_in_one_line(
    sections: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    (tmp_path / "needy.py").write_text("import not_there\n")
    (tmp_path / "helper.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(UserError, match=words) as refusal:
        resolve("own", recipe(**sections))
    assert "\n" not in str(refusal.value)
