# SPDX-License-Identifier: Apache-2.0
"""Mistakes and malicious input: each is refused in one line. Add a line to MISTAKES, and its file to FILES."""

import os
import shlex
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from timm.models import register_model
from torch import nn

from refusals import refused
from viticulture.api import say
from viticulture.cli import main
from viticulture.command import parse_command, split_overrides
from viticulture.config.checks import check_rates
from viticulture.config.load import parse
from viticulture.config.load import read as read_recipe
from viticulture.config.resolve import resolve
from viticulture.errors import counted
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.study.folder import StudyFolder
from viticulture.study.grid import Candidate, Grid
from viticulture.table import Column, Table, print_table
from viticulture.text import command_line, comment, read_yaml, write_yaml
from viticulture.training.run_folder import RunFolder
from viticulture.training.run_inputs import config_of
from viticulture.training.session import begin

FILES: dict[str, bytes] = {
    "latin.yaml": "student: vit_nano  # f\xfcr Anf\xe4nger\n".encode("latin-1"),
    "number.yaml": b"5: 3\n",
    "deep.yaml": b"student: " + b"[" * 5000,
    "deep-blocks.yaml": b"student:\n" + b"".join(b" " * i + b"a:\n" for i in range(1, 200)),
    "long.yaml": b"# " + b"x" * 10**6,
    "billions.yaml": b"a: &a [x, x]\n"
    + b"".join(b"b%d: &b%d [*b%d, *b%d]\n" % (i, i, i - 1, i - 1) for i in range(1, 40)),
    "itself.yaml": b"student: &a {options: *a}\n",
    "twice.yaml": b"train:\n  epochs: 3\n  epochs: 4\n",
    "tag.yaml": b"student: !!python/object/apply:os.system ['touch pwned']\n",
    "day.yaml": b"train: {epochs: 2026-99-99}\n",
    "list-key.yaml": b"train:\n  [epochs, repeats]: 3\n",
    "null-key.yaml": b"train: {null: 3}\n",
    "inner-number.yaml": b"student: {options: {5: 3}}\n",
    "null.yaml": b"train: {epochs: null}\n",
    "list.yaml": b"- train\n",
    "rows.yaml": b"rows: 5\ntitle: x\n",
    "row.yaml": b"title: x\ndata: digits\nrecipe: default/digits\nrows: [{name: x, overrides: 5}]\n",
    "\x1b[31mred.yaml": b"optim: {lr: -1}\n",
}
FILES["billions.yaml"] = FILES["billions.yaml"].replace(b"*b0", b"*a")

ONE_PIXEL = "train digits --recipe default/digits --student resnet10t --student.patch_size null --per-class 4"
NULL = "needs a value, got null"
FINITE = "must be a finite number"
MISTAKES: list[tuple[str, str]] = [
    # null, where a value is needed
    ("train digits --lr ''", "--lr needs a value"),
    ("train digits --optim.lr null", f"optim.lr {NULL}"),
    ("train digits --optim.betas null", f"optim.betas {NULL}"),
    ("train digits --student ''", "--student needs a value"),
    ("train digits --student.options null", f"student.options {NULL}"),
    ("train digits --train.epochs null", f"train.epochs {NULL}"),
    ("train digits --train.accumulate null", f"train.accumulate {NULL}"),
    ("train digits --engine.device null", f"engine.device {NULL}"),
    ("train digits --engine.devices null", f"engine.devices {NULL}"),
    ("train digits --data.val_fraction null", f"data.val_fraction {NULL}"),
    ("train digits --images.max_cache_gb null", f"images.max_cache_gb {NULL}"),
    ("train digits --method.name null", "unknown method None"),
    ("train digits --method.name '[1]'", "unknown method [1]"),
    ("train digits --augment.flip.probability null", f"augment.flip.probability {NULL}"),
    ("train digits --guides.logits.teacher null", "required: guides.logits.teacher"),
    ("train digits --recipe null.yaml", f"train.epochs {NULL}"),
    # numbers that are none, or that no machine holds
    ("train digits --train.clip_norm .nan", FINITE),
    ("train digits --images.max_cache_gb .nan", FINITE),
    ("train digits --optim.weight_decay .nan", FINITE),
    ("train digits --optim.betas '[.nan, 0.9]'", FINITE),
    ("train digits --engine.checkpoint_minutes .inf", FINITE),
    ("train digits --schedule.min_lr -.inf", FINITE),
    ("train digits --student.options.drop_path_rate .nan", FINITE),
    ("train digits --augment.flip.probability .nan", FINITE),
    ("train digits --guides.logits.weight .nan --guides.logits.teacher x", FINITE),
    ("links x --threshold nan", "--threshold: must be a number, got 'nan'"),
    ("compare digits --fractions nan", "--fractions: must be a number, got 'nan'"),
    ("compare digits --per-class 20-50", "--per-class: must be a whole number, got '20-50'"),
    ("compare digits --per-class 20 50", "unrecognized arguments: 50; --per-class takes values separated by commas"),
    ("serve x --port http", "--port: must be a whole number, got 'http'"),
    ("train digits --seed 18446744073709551616", "beyond 63 bits"),
    ("train digits --epochs 99999999999999999999", "beyond 63 bits"),
    ("train digits --epochs 999999999999", "train.epochs must be at most"),
    ("train digits --train.repeats 999999999999", "train.repeats must be at most"),
    ("train digits --engine.devices 999999999999", "engine.devices and engine.nodes"),
    ("train digits --epochs " + "9" * 5000, "not valid YAML"),
    # rates that would rise where they are to fall
    ("train digits --optim.lr 1e-6 --schedule.min_lr 1e-5", "schedule.min_lr must not exceed optim.lr"),
    (
        "train digits --optim.lr 1e-6 --schedule.min_lr 1e-5 --schedule.rule mmcv --schedule.interval epoch",
        "schedule.min_lr must not exceed optim.lr",
    ),
    ("train digits --optim.lr 1e-6 --schedule.warmup_lr 1e-5", "schedule.warmup_lr must not exceed optim.lr"),
    ("train digits --budget 5m --optim.lr 1e-6 --schedule.min_lr 1e-5", "schedule.min_lr must not exceed optim.lr"),
    ("compare digits --recipes default/digits,dhvt/digits --epochs 1 --schedule.min_lr 1", "min_lr must not exceed"),
    # split_arguments that are no choice
    ("train digits --train.validate tset", "validate"),
    ("train digits --engine.precision 8", "precision"),
    ("train digits --images.normalize '[[0.5, 0.5, 120], [0.5, 0.5, 0.5]]'", "means in [0, 1]"),
    ("train digits --images.normalize '[[0.5, 0.5], [0.5, 0.5]]'", "deviations of 3 channels"),
    # a student's options
    (
        "train digits --student vit_mini_local --student.patch_size 8 "
        "--student.options '{class_token: false, global_pool: avg}'",
        "an image is a single one",
    ),
    ("train digits --student vit_nano --student.options.drop_path_rate 5", "must lie in [0, 1), got 5"),
    ("train digits --student vit_nano --student.options.depth abc", "cannot be built with {'depth': 'abc'}"),
    ("train digits --student vit_nano --student.options.depth 100000", "at most 1000"),
    ("train digits --student vit_nano --student.options.embed_dim 8000000", "parameters"),
    ("""train digits --student vit_nano --student.options='{"attn_layer":"linear"}'""", "vit_nano decides attn_layer"),
    ("""train digits --student vit_nano --student.options='{"mlp_layer":"x"}'""", "cannot be built with"),
    ("train digits --student vit_nano --student.options.weight 1", "unknown option of vit_nano 'weight'"),
    ("train digits --student vit_nano --student.options '{5: 3}'", "unknown option of vit_nano '5'"),
    ("train digits --student '[1]'", "student"),
    ("train digits --student.init 007", "must be a word or null, got 7; a name that YAML reads as a number"),
    ("train digits --student.init no", "got False; a name that YAML reads as a number or as true or false needs"),
    # augmentations are built before the run's folder is made
    ("train digits --augment.erase.probability 2", "erase.probability"),
    ("train digits --augment.padded_crop.padding -5", "padding"),
    ("train digits --augment.resized_crop.scale '[0.5, 1]' --augment.padded_crop.padding 2", "at most one crop"),
    # recipes and tables as files
    ("train digits --recipe latin.yaml", "is not UTF-8 text"),
    ("train --table latin.yaml --row x", "is not UTF-8 text"),
    ("train digits --recipe number.yaml", "unknown recipe section '5'"),
    ("train digits --recipe inner-number.yaml", "unknown option of vit_tiny '5'"),
    ("train digits --recipe list-key.yaml", "a key must be text, not a list or section (line 2)"),
    ("train digits --recipe null-key.yaml", "unknown recipe key 'train.null'"),
    ("train digits --recipe deep.yaml", "levels"),
    ("train digits --recipe deep-blocks.yaml", "levels"),
    ("train digits --student " + "[" * 5000, "levels"),
    ("train digits --recipe long.yaml", "too long"),
    ("train digits --recipe billions.yaml", "values"),
    ("train digits --recipe itself.yaml", "values"),
    ("train digits --recipe twice.yaml", "'epochs' appears twice"),
    ("train digits --recipe tag.yaml", "not valid YAML"),
    ("train digits --recipe day.yaml", "train.epochs"),
    ("train digits --recipe list.yaml", "must hold sections"),
    ("train digits --recipe .", "unknown recipe '.'"),
    ("train digits --recipe folder.yaml", "is not a file"),
    ("train digits --recipe nowhere.yaml", "No such file"),
    ("train --table rows.yaml --row x", "malformed"),
    ("train --table row.yaml --row x", "overrides"),
    ("compare --table deep.yaml", "levels"),
    # means over one image
    (f"{ONE_PIXEL} --batch-size 1", "must be at least 2, got 1"),
    (f"{ONE_PIXEL} --batch-size 4 --train.accumulate 4", "must be at least 8, got 4; add --batch-size 8"),
    (f"{ONE_PIXEL} --batch-size 2 --devices 2 --device cpu", "must be at least 4, got 2"),
    (f"{ONE_PIXEL} --train.accumulate 20", "must be at least 40, got 20"),
    # the command itself
    ("compare digits --recipes ,", "--recipes: takes values separated by commas, got ','"),
    ("compare digits --per-class ,", "--per-class: takes values separated by commas, got ','"),
    ("compare digits --recipes default/digits --seeds 99999999999", "at most 1000"),
    ("train digits --recipe " + "x" * 5000, "unknown recipe"),
    ("train digits --recipe " + "x" * 5000 + ".yaml", "File name too long"),
    ("train digits --lr " + "x" * 5000, "optim.lr"),
    ("train digits --" + "x" * 5000 + ".y 1", "unknown recipe section"),
    ("resume " + "x" * 5000, "file name too long"),
    ("x" * 5000, "unknown command"),
    ("train digits --recipe $'\\e[31mx.yaml'", "cannot read recipe"),
    ("train digits --recipe $'\\e[31mred.yaml'", "optim.lr must be positive"),
    ("train digits --lr $'\\e[31m'", "not valid YAML"),
    ("resume $'\\e[31mx'", "does not exist"),
    ("export run", "--out"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write FILES."""
    folder = tmp_path_factory.mktemp("misuse")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "folder.yaml").mkdir()
    return folder


def split_arguments(command: str) -> list[str]:
    """Split a command as bash does, as far as these need it."""
    return [word.removeprefix("$").replace("\\e", "\x1b") for word in shlex.split(command)]


@pytest.mark.parametrize(("command", "phrase"), MISTAKES, ids=[command[:70] for command, _ in MISTAKES])
def test_a_mistake_is_one_line_before_anything_is_written(
    command: str, phrase: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = {entry.name for entry in place.iterdir()}
    assert main(split_arguments(command)) == 2
    shown = capsys.readouterr()
    assert phrase in shown.err
    assert len(shown.err) < 2100
    assert shown.err.count("\n") <= 2
    assert not [letter for letter in shown.err if unicodedata.category(letter) == "Cc" and letter != "\n"]
    assert {entry.name for entry in place.iterdir()} == before


@pytest.mark.parametrize("keys", [{"rule": "constant", "min_lr": 1.0}, {"warmup_epochs": 0, "warmup_lr": 1.0}])
def test_a_rate_below_an_unused_end_is_no_mistake(keys: dict[str, Any]) -> None:
    """A constant rate below the end of the recipe's cosine."""
    overrides = {"optim.lr": 1e-6, "schedule.min_lr": 0, **{f"schedule.{key}": value for key, value in keys.items()}}
    check_rates(resolve("default/digits", read_recipe("default/digits"), overrides))


NASTY = [
    "two\nlines",
    "\x1b[31mred",
    "a # b",
    "n/x\ntrain: {epochs: 7}\n#",
    'it\'s \\ $HOME `id` "x"',
    "\u202eturned",
    "no\x85break\u2028here",
    "\t",
    "",
    "dünn 葡萄 🍇",
    os.fsdecode(b"caf\xe9\x9b"),
]


def test_a_printed_command_is_one_line_for_bash() -> None:
    line = command_line(["printf", "%s\\0", *NASTY])
    assert line.isprintable()
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in NASTY)
    for word in NASTY:
        assert comment(word).count("\n") == 1
        assert read_yaml(comment(word), "x") is None


def test_arguments_of_a_command_never_become_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine\ntrain: {epochs: 9}\n#.yaml"
    file.write_text("student: vit_nano\ntrain: {epochs: 2}\n", encoding="utf-8")
    nasty = "viticulture train digits --out 'n\ntrain: {epochs: 7}\n#' \x1b[31m"
    session = begin("digits", str(file), 0, str(tmp_path / "n\ntrain: {epochs: 7}\n#"), False, {}, nasty)
    session.run.unlock()
    assert config_of(RunFolder.open(session.run.path)).values == session.config.values
    assert session.config.train.epochs == 2

    grid = Grid("digits", (Candidate("x", str(file)),), epochs=2)
    StudyFolder.create(tmp_path / "study", grid, "viticulture compare digits\nepochs: 7\n#")
    assert StudyFolder.open(tmp_path / "study").grid == grid


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say(Path("\x1b[31mrun"))
    say("one\ntwo \x1b[31m")
    print_table(Table("\x1b[31m", [Column("\x1b]0;x\x07"), Column("n", "count")], [("\x1b[2J", 1)], "\x1b[31m"))
    shown = capsys.readouterr().out
    assert "one\ntwo" in shown
    assert not [letter for letter in shown if unicodedata.category(letter) == "Cc" and letter != "\n"]


def test_yaml_is_read_back_as_it_was_written() -> None:
    shared = {"probability": 0.5}
    plain = {
        "init": "2026-01-31",
        "a": shared,
        "b": shared,
        "text": "\x1b: # \n",
        "none": None,
        "list": [1, 1e-05, True],
    }
    assert "&" not in write_yaml(plain)
    assert read_yaml(write_yaml(plain), "x") == plain
    assert read_yaml("{init: 2026-01-31, rate: 1e-3}", "x") == {"init": "2026-01-31", "rate": "1e-3"}
    merged = read_yaml("a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\n", "x")
    assert merged == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 3, "y": 4}}


NAMES = [
    "02146",
    "yes",
    "no",
    "on",
    "off",
    "true",
    "007",
    "1:30",
    "1_000",
    "0x1F",
    "1.10",
    "1e3",
    "null",
    "~",
    ".5",
    "+1",
]
NAMES += ["2026-01-31", ".inf", "=", "<<"]


def test_names_in_yaml_stay_text() -> None:
    """02146, no, 1:30, null."""
    assert read_yaml(f"names: [{', '.join(NAMES)}]\nval:\n", "x", as_text=True) == {"names": NAMES, "val": ""}
    keys = [name for name in NAMES if name != "<<"]  # a merge of sections
    weights = f"{{{', '.join(f'{key}: 1.10' for key in keys)}, '<<': 2}}"
    expected = {**dict.fromkeys(keys, 1.1), "<<": 2}
    raw = parse(f"data: {{class_weights: {weights}}}\ntrain: {{epochs: 100}}\noptim: {{lr: 1e-3}}\n", "mine.yaml")
    config = resolve("mine.yaml", raw)
    assert config.values["data"]["class_weights"] == expected
    assert resolve("x", parse(config.to_yaml(), "x")).values == config.values
    assert (config.values["train"]["epochs"], config.values["optim"]["lr"]) == (100, 1e-3)
    assert split_overrides(["--data.class_weights", weights], ()) == ({"data.class_weights": expected}, [])
    study = (
        f"data: d\ncandidates: [{{name: a, recipe: default/digits}}]\nconditions: {{data.class_weights: {weights}}}\n"
    )
    assert Grid.from_yaml(study, "study.yaml").conditions == {"data.class_weights": expected}
    for bad in ("a: !!python/name:os.system x", "!!python/object/apply:os.getcwd []: 3", "[!other 3]"):
        refused("not valid YAML", read_yaml, bad, "x", as_text=True)


def test_an_error_inside_a_network_is_no_user_error() -> None:
    @register_model
    def broken_student(**options: Any) -> nn.Module:
        return nn.Linear(2, 2, weight=options)  # type: ignore[call-arg]

    data_spec = DataSpec(("a", "b"), (8, 8), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    for options in ({}, {"drop_rate": 0.1}):
        with pytest.raises(TypeError, match="unexpected keyword argument 'weight'"):
            create_student("broken_student", data_spec, None, options)


def test_export_takes_its_file_with_or_without_the_option() -> None:
    short, long = parse_command(["export", "run", "x.onnx"]), parse_command(["export", "run", "--out", "x.onnx"])
    expected = {"run": "run", "out": "x.onnx", "weights": "", "int8": False, "from_pixels": False}
    assert short.keywords == long.keywords == expected


def test_one_thing_is_in_the_singular() -> None:
    said = [counted(1, "epoch"), counted(2, "epoch"), counted(1, "class"), counted(1000, "class"), counted(0, "file")]
    assert said == ["1 epoch", "2 epochs", "1 class", "1,000 classes", "0 files"]
