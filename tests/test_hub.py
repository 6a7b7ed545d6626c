# SPDX-License-Identifier: Apache-2.0
"""A run on the Hub is used by name as it was here, and reveals nothing of its machine."""

import json
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from huggingface_hub import constants

import viticulture
from fake_hub import FakeHub, check_anonymous
from made_results import classified
from refusals import refused
from untrained import photo, untrained
from viticulture.api import predict
from viticulture.cli import main
from viticulture.command import parse_command
from viticulture.config.load import shipped
from viticulture.deploy.hub.fetch import named_code, shareable_facts, without_folders
from viticulture.deploy.hub.push import CardNetwork, contents, push
from viticulture.evaluation.outputs import Predictions
from viticulture.models.weights.files import load, note
from viticulture.models.weights.sources import fetch, initialize
from viticulture.report.run_page import costs_of
from viticulture.tasks.classification import Classification
from viticulture.tasks.classification_metrics import evaluate_predictions
from viticulture.text import read_yaml
from viticulture.training.run_folder import RunFolder

CLASSES = ("cabernet", "mer|lot", "<b>pinot</b>, red")
SECRET = "/home/somebody/vineyard"
NAME = "somebody/vines"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Train on images in a folder, with results."""
    run = untrained(tmp_path_factory.mktemp("runs") / "run", CLASSES)
    facts = run.read("run.json")
    run.update(
        command=f"viticulture train {SECRET}/photos",
        warnings=[f"{SECRET}/photos/a.jpg is in two splits"],
        data={**facts["data"], "source": f"{SECRET}/photos", "folder": f"{SECRET}/photos", "images": {"train": 90}},
    )
    labels = torch.arange(30) % 3
    said = torch.eye(3)[labels.where(torch.arange(30) > 3, (labels + 1) % 3)] * 0.8 + 0.2 / 3
    result = evaluate_predictions(Predictions(said, labels, [str(i) for i in range(30)]), CLASSES)
    run.write("evaluation.json", classified("last/test", {"last/test": result}).to_dict())
    return run


@pytest.mark.parametrize(
    ("described", "why"),
    [
        ({"model_args": {"embed_dim": 16_384}}, "RuntimeError: Error"),
        ({"model_args": {"depth": 10**8}}, "ValueError: config.json describes a network by 100000000"),
        ({"architecture": "resnet18", "model_args": {"layers": [2, 2, 10**8, 2]}}, "ValueError: config.json describes"),
        ({"model_args": {"depth": 10**6}}, "UserError: option depth of a student must be at most 1000"),
    ],
)
def test_a_network_of_the_hub_is_built_where_it_fits_its_weights(
    described: dict[str, Any], why: str, online: FakeHub, tmp_path: Path
) -> None:
    folder = untrained(tmp_path / "run", CLASSES).weights("last")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = (folder / "model.safetensors").read_bytes()
    config |= {**described, "model_args": {**config["model_args"], **described["model_args"]}}
    online.repositories["stranger/vines"] = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(rf"could not be fetched \({why}", fetch, "hf-hub:stranger/vines")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


@pytest.mark.parametrize("network", [None, "no_such", "a:b", ["vit_nano"], {"class_path": "a.B"}])
def test_an_unknown_architecture_is_one_line(network: Any, run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    path = other.weights("last") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "architecture": network}))
    refused(r"run is damaged: no network of timm is the architecture .* of config.json$", contents, other, NAME)


def test_a_pushed_run_is_used_by_its_name(
    run: RunFolder, online: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(run.path), NAME]) == 0
    assert f"{online.address}/{NAME}" in capsys.readouterr().out
    assert len(online.stored) == 1, "equal files are kept once"
    image = photo(tmp_path / "a.png", 3)
    assert predict(f"hf-hub:{NAME}", str(image)) == predict(str(run.path), str(image))  # type: ignore[arg-type]
    assert [name for name in online.fetched if name.endswith(".safetensors")] == ["weights/last/model.safetensors"]
    opened = viticulture.open(f"hf-hub:{NAME}")
    assert opened.classes == CLASSES
    assert opened.accuracy == pytest.approx(26 / 30)
    note(opened.folder.weights("last"), {"min_similarity": 0.5})
    classification = Classification(opened.folder)
    results = classification.read_results()
    assert results is not None
    page = classification.page(results, {}, own=False)
    assert "is below 0.50. A" in str(page.after)
    assert not len(opened.history)
    refused("which no repository holds", opened.export, tmp_path / "a.onnx", int8=True)
    student = load(run.weights("last"))[0]
    theirs = timm.create_model(f"hf-hub:{NAME}", pretrained=True, cache_dir=str(tmp_path / "timm")).eval()
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.equal(theirs(pixels), student(pixels))
    begun = load(run.weights("last"))[0]
    weight, sent = (net.get_parameter("blocks.0.attn.qkv.weight") for net in (begun, student))
    torch.nn.init.zeros_(weight)
    initialize(begun, f"hf-hub:{NAME}")
    assert torch.equal(weight, sent)


def test_files_of_an_earlier_run_are_removed(run: RunFolder, online: FakeHub) -> None:
    left = dict.fromkeys(("weights/best/model.safetensors", "weights/best/config.json", "evaluation.json"), b"older")
    online.repositories[NAME] = {**left, "notes.txt": b"mine", ".gitattributes": b""}
    push(run, NAME)
    there = online.repositories[NAME]
    assert there.keys() == {*contents(run, NAME), "notes.txt", ".gitattributes"}
    assert viticulture.open(f"hf-hub:{NAME}").folder.which()[0] == "last"


def test_a_private_push_to_a_public_repository_is_refused(run: RunFolder, online: FakeHub) -> None:
    push(run, NAME, private=True)
    push(run, NAME, private=True)
    assert online.private == {NAME}
    online.repositories["somebody/public"] = {}
    refused("is public", push, run, "somebody/public", private=True)
    assert online.repositories["somebody/public"] == {}
    push(run, "somebody/public")


def test_nothing_that_is_pushed_names_a_local_path(run: RunFolder) -> None:
    sent = contents(run, NAME)
    check_anonymous(sent, run.path.parent)
    assert json.loads(sent["run.json"])["data"]["source"] == "photos"  # type: ignore[arg-type]


def test_the_costs_of_the_student_are_pushed() -> None:
    student = {"parameters": 5, "macs": 7}
    data: dict[str, Any] = {"source": "digits", "folder": None, "name": "digits", "skipped": {}}
    facts = {"data": data, "recipe": "r", "student": student, "seconds": 2.0, "steps": 3, "batch_size": 4, "views": 6}
    costs = costs_of(shareable_facts(facts))
    assert (costs.images_per_second, costs.views) == (6.0, 6)
    former = {key: value for key, value in facts.items() if key not in ("batch_size", "views")}
    assert costs_of(shareable_facts(former)).images_per_second is None


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        (f"python:my_module.open_scans:{SECRET}/scans", "photos"),
        (f"{SECRET}/shards/*.tar", "photos"),
        ("vineyard/*", "photos"),
        ("hf:somebody/vines", "hf:somebody/vines"),
        ("cifar100", "cifar100"),
    ],
)
def test_names_of_data_reveal_no_path(source: str, kept: str, tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", CLASSES)
    run.update(data={**run.read("run.json")["data"], "source": source, "images": {"train": 90}})
    assert json.loads(contents(run, NAME)["run.json"])["data"]["source"] == kept  # type: ignore[arg-type]


def test_results_and_metadata_are_those_of_the_pushed_weights(run: RunFolder, tmp_path: Path) -> None:
    other = untrained(tmp_path / "run", CLASSES)
    other.update(data={**other.read("run.json")["data"], "images": {"train": 90}})
    for name in ("best", "ema"):
        shutil.copytree(other.weights("last"), other.weights(name))
    facts = json.loads((other.weights("last") / "config.json").read_text("utf-8"))
    (other.weights("last") / "config.json").write_text(json.dumps({**facts, "recipe": f"{SECRET}/mine.yaml"}))
    kept = viticulture.Run(run.path).results["last/test"]
    best = {"best/test": replace(kept, top1=0.99), "last/test": kept, "last/val": kept}
    other.write("evaluation.json", classified("best/test", best).to_dict())
    sent = contents(other, NAME, "last")
    assert "classifies 86.7 % (95 % interval" in bytes(sent["README.md"]).decode()
    results = json.loads(bytes(sent["evaluation.json"]))
    assert (results["counts"], set(results["results"])) == ("last/test", {"last/test", "last/val"})
    assert json.loads(bytes(sent["config.json"]))["recipe"] == "mine.yaml"
    assert sent["config.json"] == sent["weights/last/config.json"]
    unmeasured = contents(other, NAME, "ema")
    assert "It has not been evaluated" in bytes(unmeasured["README.md"]).decode()
    assert "evaluation.json" not in unmeasured


def test_a_foreign_recipe_that_names_code_is_not_loaded(
    online: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = {
        "student: {name: shutil.rmtree}": "shutil.rmtree",
        "student: antigravity.fly": "antigravity.fly",
        "method: {name: my_module.Mine}": "my_module.Mine",
        "guides: {old: {class: my_module.Guide, weight: 0.1}}": "my_module.Guide",
        "augment: {my_module.Shift: {most: 8}}": "my_module.Shift",
    }
    image = str(photo(tmp_path / "a.png", 3))
    for number, (recipe, code) in enumerate(recipes.items()):
        online.repositories[f"some/body{number}"] = {"run.json": b"{}", "recipe.yaml": recipe.encode()}
        assert main(["predict", f"hf-hub:some/body{number}", image]) == 2
        assert f"names code of its author, {code}" in capsys.readouterr().err
    elsewhere: tuple[dict[str, object], ...] = (
        {"settings": {"guides": {"old": {"class": "my_module.Guide"}}}},
        {"data": {"folder": None, "source": "python:os.system:true"}},
        {"data": {"folder": "python:my_module.open_scans", "source": "photos"}},
    )
    for number, facts in enumerate(elsewhere):  # run.json repeats the recipe, and says where the images were
        held = {"run.json": json.dumps(facts).encode(), "recipe.yaml": b"student: vit_nano"}
        online.repositories[f"other/body{number}"] = held
        assert main(["export", f"hf-hub:other/body{number}", "--out", str(tmp_path / "a.onnx")]) == 2
        assert "names code of its author" in capsys.readouterr().err
    for path in shipped().values():
        assert list(named_code(read_yaml(path.read_text("utf-8"), path.name))) == []
    assert list(named_code({"method": {"name": "resnet18.Evil"}})) == ["resnet18.Evil"]  # a module may be called so
    tagged = "student: {name: vit_tiny_patch16_224.augreg_in21k}\noptim: {lr: 0.1}\ntrain: {validate: val}"
    assert list(named_code(read_yaml(tagged, "x"))) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/x.pth", "x.pth"),
        ("mae_base=/home/me/x.pth", "mae_base=x.pth"),
        ("~/runs/teacher", "teacher"),
        ("../runs/teacher", "teacher"),
        ("runs/teacher", "runs/teacher"),
        ("/home/Jane Doe, 1/x y.pth", "x y.pth"),
        ("base=/home/Jane Doe/x.pth", "base=x.pth"),
        ("~jane/x.pth", "x.pth"),
        ("row: /home/me/x.pth", "row: x.pth"),
        ("hf-hub:timm/vit", "hf-hub:timm/vit"),
        ({"a": ["/x/y", 1, None]}, {"a": ["y", 1, None]}),
    ],
)
def test_a_path_keeps_its_name_alone(given: Any, kept: Any) -> None:
    assert without_folders(given) == kept


def test_the_card_agrees_with_the_files(run: RunFolder) -> None:
    card = bytes(contents(run, NAME)["README.md"]).decode()
    _, head, body = card.split("---\n", 2)
    about = yaml.safe_load(head)
    (result,) = about["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == round(26 / 30, 4)
    assert about["library_name"] == "timm"
    assert "of 30 test images correctly" in body
    low, high = viticulture.Run(run.path).results["last/test"].top1_interval
    assert f"classifies 86.7 % (95 % interval {100 * low:.1f} to {100 * high:.1f})" in body
    assert "| mer\\|lot | 0 | 9 | 1 |" in body
    assert "<b>pinot" not in body
    assert "| outputs | cabernet, mer\\|lot, '\\<b\\>pinot\\</b\\>, red' |" in body
    assert "other thing" not in body
    lines = re.findall(r"^viticulture .*?(?=\s+#|$)", body, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        parse_command(line.split()[1:])
    assert "\n\n\n" not in body
    assert not re.search(r"[^\n]\n#+ ", body), "a heading within a table"


def test_a_run_without_labels_is_pushed_as_features(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", ())
    run.update(data={**run.read("run.json")["data"], "images": {"train": 90}})
    card = bytes(contents(run, NAME)["README.md"]).decode()
    assert "without labels" in card
    assert "viticulture predict" not in card


def test_a_mistake_is_one_line(
    run: RunFolder, online: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        assert main(list(words)) == 2
        (error,) = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" ...")]
        return error

    image = str(photo(tmp_path / "a.png", 3))
    assert "it does not exist" in said("predict", "hf-hub:no/body", image)
    assert "USER/NAME" in said("predict", "hf-hub:nobody", image)
    assert "USER/NAME" in said("push", str(run.path), "nobody")
    assert "hf download somebody/vines --local-dir vines" in said("push", f"hf-hub:{NAME}@v1", "no/body")
    assert "name the images" in said("evaluate", f"hf-hub:{NAME}")
    online.repositories["some/weights"] = {"config.json": b"{}"}
    assert "is not a run of viticulture" in said("predict", "hf-hub:some/weights", image)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "log in by `hf auth login`" in said("push", str(run.path), NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in said("predict", "hf-hub:some/body", image)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in said("predict", "hf-hub:some/body", image)


def test_what_is_not_finished_is_not_sent(run: RunFolder, tmp_path: Path) -> None:
    other = untrained(tmp_path / "run", CLASSES)
    other.update(status="running")
    with pytest.raises(viticulture.UserError, match="is not finished"):
        contents(other, NAME)


def test_the_card_of_a_recipe_with_user_code_describes_its_use(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "plugins")
    shift = {"class": "my_vineyard.Shift", "most": 8}
    own = untrained(tmp_path / "run", CLASSES, **{"augment.brighter": shift})
    own.update(data={**own.read("run.json")["data"], "images": {"train": 90}})
    card = bytes(contents(own, NAME)["README.md"]).decode()
    assert "names code of its author (`my_vineyard.Shift`)" in card
    assert f"hf download {NAME}" in card
    assert "\n\n\n" not in card
    assert "code of its author" not in bytes(contents(run, NAME)["README.md"]).decode()
    import my_vineyard  # type: ignore[import-not-found]

    monkeypatch.setattr(timm, "model_entrypoint", lambda _: my_vineyard.small_vit)
    assert CardNetwork("small_vit", CLASSES).home == "my_vineyard"
    assert "import my_vineyard  # must register" in bytes(contents(own, NAME)["README.md"]).decode()
