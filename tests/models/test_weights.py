# SPDX-License-Identifier: Apache-2.0
"""Saved weights load here and in bare timm; what is not loaded is reported."""

import importlib
import json
import logging
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from timm.models._registry import _model_pretrained_cfgs
from torch import Tensor, nn

from refusals import file_limit, refused
from viticulture.errors import UserError
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import blueprint, create_student
from viticulture.models.weights.files import identity, load, read_weights, save
from viticulture.models.weights.load_matching import resample_positions
from viticulture.models.weights.sources import fetch, find_weights, initialize

TINY = {"embed_dim": 16, "depth": 2, "num_heads": 2}


def data_spec(*classes: str, size: tuple[int, int] = (16, 16)) -> DataSpec:
    return DataSpec(classes or ("Äpfel & <b>", "birnen", "中"), size, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def student(
    name: str = "vit_nano", seed: int = 0, of: DataSpec | None = None, patch: int | None = 4, **options: Any
) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {} if "resnet" in name else TINY
    return create_student(name, of or data_spec(), None if "resnet" in name else patch, {**sizes, **options}).eval()


def pixels(size: int = 16) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))


BARE = """
import json, sys, timm, torch
from safetensors.torch import load_file, save_file
inputs = load_file(sys.argv[1])["pixels"]
logits = {}
for number, folder in enumerate(sys.argv[3:]):
    model = timm.create_model("local-dir:" + folder, pretrained=True).eval()
    logits[str(number)] = model(inputs).detach()
    config = json.load(open(folder + "/config.json"))
    again = timm.create_model(config["architecture"], **config["model_args"]).eval()
    again.load_state_dict(load_file(folder + "/model.safetensors"))
    torch.testing.assert_close(again(inputs).detach(), logits[str(number)], rtol=1e-5, atol=1e-6)
    data = timm.data.resolve_model_data_config(model)
    found = [*data["input_size"], *data["mean"], data["crop_pct"]]
    assert found == [3, 16, 16, 0.1, 0.2, 0.3, 0.9], data
    assert model.pretrained_cfg["label_names"][2] == chr(0x4E2D)
assert not any(name.startswith("viticulture") for name in sys.modules)
save_file(logits, sys.argv[2])
"""


@pytest.mark.slow
def test_saved_students_load_in_a_process_with_timm_alone(tmp_path: Path) -> None:
    """The tolerance: a convolution's order of summation varies from process to process."""
    students = [
        student("vit_nano", position_std=0.3, global_pool="avg", class_token=False, drop_path_rate=0.1),
        student("deit_tiny_distilled_patch16_224"),
        student("resnet10t"),
    ]
    folders = [tmp_path / f"süß {number}" for number in range(len(students))]
    for net, folder in zip(students, folders, strict=True):
        save(net, folder, data_spec(), {"pretrained_cfg": {"crop_pct": 0.9}, "epoch": 3})
    safetensors.torch.save_file({"pixels": pixels()}, tmp_path / "in.safetensors")
    files = [str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors"), *map(str, folders)]
    done = subprocess.run([sys.executable, "-c", BARE, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs = safetensors.torch.load_file(tmp_path / "out.safetensors")
    for number, net in enumerate(students):
        torch.testing.assert_close(net(pixels()).detach(), theirs[str(number)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vit_nano", "deit_tiny_distilled_patch16_224", "resnet10t"])
def test_a_saved_student_loads(tmp_path: Path, name: str) -> None:
    net = student(name)
    save(net, tmp_path / "a", data_spec(), {"epoch": 3})
    again, its_task, config = load(tmp_path / "a")
    assert torch.equal(again(pixels()), net(pixels()))
    assert (its_task, config["epoch"], blueprint(again).name) == (data_spec(), 3, name)
    save(again, tmp_path / "b", its_task, {"epoch": 3})
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cit_tiny", {"tokens": 3}),
        ("dhvt_nano", {"distilled": True}),
        ("resnet10", {"heads": 2, "channels": [8, 8, 8, 8], "stem_width": 8}),
    ],
)
def test_timm_initializes_every_head_for_other_classes(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    net = student(name, **options)
    save(net, tmp_path, data_spec())
    others = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=7)
    first = next(iter(net.state_dict()))
    assert torch.equal(others.state_dict()[first], net.state_dict()[first])
    assert others.eval()(pixels()).shape == (2, 7)


def test_names_of_a_network_in_user_code_are_kept(tmp_path: Path) -> None:
    net = student()
    net.add_module("model", nn.Linear(2, 2))
    save(net, tmp_path, data_spec())
    assert read_weights(tmp_path / "model.safetensors").keys() == net.state_dict().keys()


def test_layers_that_share_weights_are_saved(tmp_path: Path) -> None:
    net = student()
    net.add_module("again", net.get_submodule("head"))
    save(net, tmp_path, data_spec())
    stored = read_weights(tmp_path / "model.safetensors")
    assert torch.equal(stored["again.weight"], net.get_parameter("head.weight"))
    assert torch.equal(stored["head.weight"], stored["again.weight"])


def test_a_full_disk_keeps_the_previous_weights(tmp_path: Path) -> None:
    save(student(seed=0), tmp_path, data_spec())
    before, net = (tmp_path / "model.safetensors").read_bytes(), student(seed=1)
    with file_limit(5000):
        refused("cannot write", lambda: save(net, tmp_path, data_spec()))
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def spoil(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('ran')",))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "w"

    def damaged(words: str) -> None:
        refused(words, load, folder)
        save(student(), folder, data_spec())

    damaged("is no folder of weights")
    (folder / "config.json").write_text("{")
    damaged("config.json is damaged")
    (folder / "config.json").write_text("[]")
    damaged("expected a JSON object")
    spoil(folder / "config.json", lambda config: config.pop("pretrained_cfg"))
    damaged("damaged or not written by viticulture: KeyError")
    spoil(folder / "config.json", lambda config: config.update(num_classes=7))
    damaged("7 classes but 3 names")
    spoil(folder / "config.json", lambda config: config.update(student="vit_nanno"))
    damaged("unknown student 'vit_nanno'")
    spoil(folder / "config.json", lambda config: config["model_args"].update(checkpoint_path="evil.pth"))
    damaged("leave checkpoint_path alone")
    spoil(folder / "config.json", lambda config: config["model_args"].update(depth=3))
    damaged("does not fit its config.json")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    damaged("is damaged or no safetensors file")
    flipped = bytearray(content)
    flipped[-1000] ^= 1
    (folder / "model.safetensors").write_bytes(flipped)
    damaged("checksum")
    for size in ([3, 16], [1, 16, 16], [3, "a", "b"], [3, 0, 16], [3, 10**6, 10**6], 16):
        spoil(folder / "config.json", lambda config, size=size: config["pretrained_cfg"].update(input_size=size))
        damaged("damaged or not written by viticulture")
    for key, colors in (("mean", [0.5]), ("mean", "abc"), ("mean", [0, 0, float("nan")]), ("std", [1, 1, 0])):
        spoil(folder / "config.json", lambda config, key=key, to=colors: config["pretrained_cfg"].update({key: to}))
        damaged("damaged or not written by viticulture")
    nonsensical: list[Any] = [
        {"depth": 100_000},
        {"depth": "abc"},
        {"num_heads": []},
        {"mlp_ratio": {}},
        7,
        {"dim": None},
    ]
    for nonsense in nonsensical:
        spoil(folder / "config.json", lambda config, to=nonsense: config.update(model_args=to))
        damaged("damaged|does not work|option")
    spoil(folder / "config.json", lambda config: config.update(num_classes=10**12))
    damaged("damaged or not written by viticulture")
    (folder / "config.json").write_text('{"a":' * 100_000)
    damaged("config.json is damaged")
    (folder / "model.safetensors").unlink()
    damaged("there is no weights file")

    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"model": Evil()}))
    torch.save({"model": Evil()}, tmp_path / "evil2.pth")
    (tmp_path / "text.pth").write_text("weights")
    (tmp_path / "evil4.pth").write_bytes(pickle.dumps({"model": Evil()}, protocol=4))
    for name in ("evil.pth", "evil2.pth", "evil4.pth", "text.pth"):
        message = refused(f"{name} cannot be read as weights alone", read_weights, tmp_path / name)
        assert "weights_only" not in message  # torch's advice to run the file's code
    torch.save({"epoch": 3}, tmp_path / "empty.pth")
    refused("holds no weights by name", read_weights, tmp_path / "empty.pth")


@pytest.mark.parametrize("form", ["folder", "run", "safetensors", "pth"])
def test_a_student_starts_from_weights_in_any_form(tmp_path: Path, form: str) -> None:
    theirs, ours = student(seed=1), student(seed=2)
    path = tmp_path / {"safetensors": "w.safetensors", "pth": "w.pth"}.get(form, "w")
    if form == "pth":
        state = {f"module.{key}": value for key, value in theirs.state_dict().items()}
        state["module.blocks.0.mlp.fc1.weight"] = state["module.blocks.0.mlp.fc1.weight"][..., None, None]
        torch.save({"model": state, "epoch": 3}, path)
    elif form == "safetensors":
        safetensors.torch.save_file(theirs.state_dict(), path)
    else:
        save(theirs, path / "weights/best" if form == "run" else path, data_spec())
    assert initialize(ours, str(path)) == [f"started from {path}", "32 of 32 tensors loaded"]
    assert torch.equal(ours(pixels()), theirs(pixels()))


def test_what_does_not_fit_is_resampled_or_reported(tmp_path: Path) -> None:
    theirs = student("vit_tiny_patch16_224", 1, data_spec(size=(16, 24)))
    ours = student("deit_tiny_distilled_patch16_224", 2, data_spec("a", "b"), 8, depth=3)
    before = {key: value.clone() for key, value in ours.state_dict().items()}
    save(theirs, tmp_path / "w", data_spec(size=(16, 24)))
    warnings = "\n".join(initialize(ours, str(tmp_path / "w")))
    for words in (
        "30 of 47 tensors loaded",
        "positions resampled from 4x6 to 2x2 patches",
        "patch embedding resampled from 4x4 to 8x8 pixels",
        "the head is new: head.weight, head.bias, head_dist.weight, head_dist.bias",
        "not there, random here: dist_token, blocks.2.norm1.weight",
    ):
        assert words in warnings, warnings
    now, source = ours.state_dict(), theirs.state_dict()
    assert torch.equal(now["blocks.1.mlp.fc1.weight"], source["blocks.1.mlp.fc1.weight"])
    assert torch.equal(now["head.weight"], before["head.weight"])
    assert torch.equal(now["pos_embed"][:, 0], source["pos_embed"][:, 0])  # class row
    assert torch.equal(now["pos_embed"][:, 1], before["pos_embed"][:, 1])  # distillation row


def test_resampled_positions_keep_their_place() -> None:
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 12), indexing="ij")
    theirs = torch.cat([torch.full((1, 1, 2), 9.0), torch.stack([rows, columns], -1).flatten(0, 1)[None]], 1)
    found = resample_positions(theirs, torch.zeros(1, 1 + 16 * 6, 2), (8, 12), (16, 6))
    assert torch.equal(found[:, 0], theirs[:, 0])
    down = -1 + 2 / 7 * ((torch.arange(16) + 0.5) / 2 - 0.5)  # where the center of new row i lies among the old rows
    right = -1 + 2 / 11 * ((torch.arange(6) + 0.5) * 2 - 0.5)
    expected = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1)
    inner = found[0, 1:].unflatten(0, (16, 6))[4:-4, 2:-2]
    torch.testing.assert_close(inner, expected[4:-4, 2:-2], rtol=0, atol=1e-2)


def test_a_start_from_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = student()
    save(student(embed_dim=8), tmp_path / "narrow", data_spec())
    with pytest.raises(UserError, match="fit no layer of this VisionTransformer"):  # the head's bias alone would fit
        initialize(ours, str(tmp_path / "narrow"))
    refused("holds no weights", find_weights, str(tmp_path))
    refused(r"unknown pretrained model .* 'vit_nanno'", initialize, ours, "vit_nanno")
    (tmp_path / "w.pkl").touch()
    refused(r"w\.pkl has no ending of weights: \.safetensors, \.pth", initialize, ours, str(tmp_path / "w.pkl"))
    refused("there is no weights file", initialize, ours, str(tmp_path / "w.safetensors"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub = logging.getLogger("huggingface_hub")
    hub.setLevel(logging.INFO)
    refused(r"resnet10t.c3_in1k could not be fetched .* check the connection", fetch, "resnet10t.c3_in1k")
    assert hub.level == logging.ERROR  # else it tells of every try


def test_pretrained_weights_start_a_student_through_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = timm.create_model("resnet10t", num_classes=1000)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    described = _model_pretrained_cfgs["resnet10t.c3_in1k"]
    monkeypatch.setattr(described, "file", str(tmp_path / "w.safetensors"))
    ours = student("resnet10t")
    warnings = initialize(ours, "resnet10t.c3_in1k")
    assert "the head is new: fc.weight, fc.bias" in warnings
    assert torch.equal(ours.state_dict()["layer2.0.conv1.weight"], theirs.state_dict()["layer2.0.conv1.weight"])


@pytest.mark.parametrize(
    "described",
    [
        {"student": "vit_nano", "model_args": {"embed_dim": 32_768, "depth": 4, "num_heads": 2, "patch_size": 4}},
        {"student": "resnet18", "model_args": {"layers": [10**9, 2, 2, 2]}},
        {"student": "vit_nano", "model_args": {"embed_dim": 16, "depth": 2, "mlp_ratio": 10**6, "patch_size": 4}},
    ],
)
def test_no_network_is_built_that_its_weights_do_not_fit(tmp_path: Path, described: dict[str, Any]) -> None:
    save(student(), tmp_path, data_spec())
    spoil(tmp_path / "config.json", lambda config: config.update(described))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(r"config\.json", load, tmp_path)
    with suppress(UserError):  # it takes what fits
        initialize(student(), str(tmp_path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


@pytest.mark.parametrize(
    "odd",
    [
        lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (10**6, 10**6)),
        lambda: torch.zeros(1).expand(10**6, 10**6),
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
        lambda: torch.empty(10**6, 10**6, device="meta"),
    ],
    ids=["sparse", "expanded", "quantized", "meta"],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant", "ignore:torch.quantize_per_tensor", "ignore:TypedStorage")
def test_tensors_with_overlapping_storage_are_refused(tmp_path: Path, odd: Callable[[], Tensor]) -> None:
    torch.save({"blocks.0.norm1.weight": odd()}, tmp_path / "odd.pth")
    for use in (read_weights, lambda path: initialize(student(), str(path))):
        refused(r"blocks.0.norm1.weight; save them dense|as weights alone", use, tmp_path / "odd.pth")


def test_a_network_is_identified_by_weights_settings_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {rule: student("cit_tiny", tokens=2, inference=rule) for rule in ("class", "mean")}
    made["mean"].load_state_dict(made["class"].state_dict())
    assert identity(made["class"]) != identity(made["mean"])
    before, body = identity(made["class"]), identity(made["class"], without=("head",))
    assert before == identity(made["class"])
    with torch.no_grad():
        made["class"].get_submodule("head").bias += 1  # type: ignore[operator]
    assert before != identity(made["class"])
    assert body == identity(made["class"], without=("head",))
    with torch.no_grad():
        next(made["class"].parameters())[..., 0] += 1e-3
    assert body != identity(made["class"], without=("head",))

    monkeypatch.syspath_prepend(tmp_path)
    marks = []
    for result in ("x", "2 * x", "2 * x"):
        file = tmp_path / "own_network.py"
        file.write_text(f"from torch import nn\nclass Own(nn.Module):\n    def forward(self, x): return {result}\n")
        monkeypatch.delitem(sys.modules, "own_network", raising=False)
        marks.append(identity(importlib.import_module("own_network").Own()))
    assert marks[0] != marks[1] == marks[2]
    heir = type("Heir", (importlib.import_module("own_network").Own,), {"__module__": "viticulture.heir"})
    assert identity(heir()) != identity(type("Heir", (nn.Module,), {"__module__": "viticulture.heir"})())
    unfiled = type("Unfiled", (nn.Module,), {"__module__": "typed_in_a_notebook"})()
    assert identity(unfiled) != identity(unfiled)
