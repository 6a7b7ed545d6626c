# SPDX-License-Identifier: Apache-2.0
"""Benchmarks refuse counts that leave nothing to measure, and mark figures of a busy machine."""

import csv
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from viticulture.study.paper_tables import read_table

ROOT = Path(__file__).parents[1]
COUNTED = {
    "agent_step": ["--steps", "0"],
    "attention_link_methods": ["--steps", "0"],
    "attention_link_step": ["--batch", "0"],
    "bootstrap_step": ["--threads", "0"],
    "co_advise_step": ["--rounds", "-1"],
    "dense": ["--steps", "0"],
    "dense_contest": ["--seeds", "0", "nowhere"],
    "dhvt_step": ["--steps", "0"],
    "loader": ["--epochs", "0", "nowhere"],
    "mae_step": ["--threads", "0"],
    "record": ["nowhere", "run", "--epochs", "0"],
    "rednet_forward": ["--pixels", "0"],
    "step": ["3"],
    "throughput": ["--rounds", "0"],
    "vit_small_step": ["--steps", "0"],
}


UNTESTED = ["--data.test_on", "none"]


@pytest.mark.parametrize("name", COUNTED)
def test_a_benchmark_refuses_counts_without_measurement(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *COUNTED[name]])
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main()
    assert stopped.value.code == 2
    assert "must be at least" in capsys.readouterr().err


def test_steps_are_measured_on_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    session = importlib.import_module("benchmarks.step").vit_on_noise(2, str(tmp_path / "run"))
    assert (session.dataset.name, len(session.dataset.train)) == ("noise", 128)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("x=./photos", ["./photos", *UNTESTED]),
        ("x=./photos:64", ["./photos", *UNTESTED, "--image-size", "64"]),
        ("x=hf:someone/set:64@50", ["hf:someone/set", *UNTESTED, "--image-size", "64", "--per-class", "50"]),
        ("x=./a@b:c", ["./a@b:c", *UNTESTED]),
    ],
)
def test_a_contest_reads_its_sets(words: str, options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    contest = importlib.import_module("benchmarks.contest")
    images = contest.Images(words)
    assert images.options()[: len(options)] == options
    assert images.options(3)[len(options) :] == (["--data.subset_seed", "3"] if "--per-class" in options else [])


def test_a_contest_is_drawn_over_time_and_over_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    contest, page = importlib.import_module("benchmarks.contest"), importlib.import_module("benchmarks.contest_page")
    assert contest.Images("tiny=./tiny:64@15").name == "tiny@15"
    results = [
        contest.Result(budget, images, row, seed, per_class, 50.0, test + seed, core_s, 0.0)
        for row, test in (("ours", 60.0), ("vit", 30.0))
        for seed in (0, 1)
        for budget, images, per_class, core_s in (
            ("1core-m", "tiny", 225.0, 60.0), ("5core-m", "tiny", 225.0, 300.0), ("1core-m", "tiny@15", 13.5, 60.0),
        )
    ]  # fmt: skip
    whole, rows = [one for one in results if one.images == "tiny"], page.rows_of(results)
    ours, vit = page.lines(whole, rows, lambda one: (one.budget, one.core_s / 60))
    assert (ours.style, vit.style) == (0, 1)  # so that colors, of which there are few, do not meet
    assert (ours.points, vit.points) == ([(1.0, 60.5), (5.0, 60.5)], [(1.0, 30.5), (5.0, 30.5)])
    assert ours.bands[0] == pytest.approx((60.5 - 0.5**0.5, 60.5 + 0.5**0.5))
    assert len(page.against_time(results)) == 1
    assert [("tiny, 1core-m" in chart) for chart in page.against_images(results)] == [True]


def test_a_contest_is_saved_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    contest = importlib.import_module("benchmarks.contest")
    results = [contest.Result("5core-m", "tiny, 20 classes@15", "ours", 1, 13.5, 50.1, 60.25, 300.5, 1.0)]
    contest.write_table(tmp_path / "contest.csv", results)
    assert contest.read_table(tmp_path / "contest.csv") == results


def test_a_contest_reads_rows_of_fastai(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    names = ["ImageDataLoaders", "Resize", "accuracy", "aug_transforms", "resnet18", "set_seed", "vision_learner"]
    monkeypatch.setitem(sys.modules, "fastai.vision.all", SimpleNamespace(**dict.fromkeys(names)))
    rival = importlib.import_module("benchmarks.fastai_rival")
    contest, page = importlib.import_module("benchmarks.contest"), importlib.import_module("benchmarks.contest_page")
    split = {"train": ["train/a/0.png", "train/b/0.png", "train/b/1.png"], "val": ["val/a/0.png"]}
    row = tmp_path / "contest" / "15core-m" / "tiny" / "ours" / "1"
    row.mkdir(parents=True)
    (row / "split.json").write_text(json.dumps({"names": split}))
    for name in ("test/a/0.png", "test/b/0.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    calls: list[str] = []
    learn = SimpleNamespace(
        dls=SimpleNamespace(vocab=["a", "b"], test_dl=list),
        no_bar=nullcontext,
        unfreeze=lambda: calls.append("unfreeze"),
        fit_one_cycle=lambda epochs, rate: calls.append("fit_one_cycle"),
        fine_tune=lambda epochs: calls.append("fine_tune"),
        validate=lambda: (0.7, 0.25),
        get_preds=lambda dl: (torch.tensor([[0.9, 0.1]] * len(dl)), None),
    )
    monkeypatch.setattr(rival, "learner", lambda *words: learn)
    monkeypatch.setattr(rival, "epoch_time", lambda learn: 0.01)
    arguments = ["fastai_rival", str(row), str(tmp_path), "--pixels", "8", "--core-s", "900"]
    monkeypatch.setattr(sys, "argv", arguments)
    rival.main()
    assert calls == ["unfreeze", "unfreeze", "fit_one_cycle"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--init", "resnet26=weights.safetensors"])
    rival.main()
    assert calls[3:] == ["unfreeze", "fine_tune"]
    results = contest.read(tmp_path / "contest")
    assert [(one.row, one.seed, one.per_class) for one in results] == [
        ("fastai-resnet18", 1, 1.5),
        ("fastai-resnet26", 1, 1.5),
    ]
    assert {(one.val, one.test) for one in results} == {(25.0, 50.0)}
    assert page.rows_of(results[:1]) == ["fastai-resnet18"]


def test_contests_of_the_readme_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    contest = importlib.import_module("benchmarks.contest")
    kept: dict[str, dict[str, list[float]]] = {}
    for one in contest.read_table(ROOT / "benchmarks" / "contest.csv"):
        if one.budget == "15core-m":
            kept.setdefault(one.images, {}).setdefault(one.row, []).append(one.test)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| `train --budget 15core-m` |")[2].partition("\n\n")[0]
    lines = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    assert len(lines) == len(kept)
    for name, *cells in lines:
        rows = next(rows for images, rows in kept.items() if name.strip().startswith(images))
        for row, cell in zip(("ours", "resnet10t-views", "fastai-resnet18"), cells, strict=True):
            tests = rows.get(row, [])
            follows = [mean(tests), stdev(tests)] if len(tests) > 1 else [*tests, *[1.0 for _ in tests]]
            assert [float(number) for number in re.findall(r"[\d.]+", cell)] == pytest.approx(follows, abs=0.06), name


def test_few_images_all_train_and_each_seed_draws_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    few = importlib.import_module("benchmarks.few_images")
    commands: list[list[str]] = []
    monkeypatch.setattr(few, "check_images", lambda parser, images: None)
    monkeypatch.setattr(few, "read_plan", lambda folder: SimpleNamespace(spent=60.0))
    monkeypatch.setattr(few, "tested", lambda folder, data: 50.0 + 2 * int(folder.name))

    def run(words: list[str], folder: Path) -> None:
        commands.append(words)
        folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(few, "on_one_thread", run)
    interrupted = tmp_path / "1core-m" / "x@50" / "1"
    interrupted.mkdir(parents=True)
    (interrupted / "budget.json").touch()
    words = ["few", "--out", str(tmp_path), "--budget", "1core-m", "x=./set@50", "--seeds", "0", "1", "2"]
    monkeypatch.setattr(sys, "argv", [*words, "--more", "--train.batch_size 32"])
    few.main()
    few.main()
    assert [words[0] for words in commands] == ["train", "resume", "train"]
    for seed in (0, 2):
        told = " ".join(commands[seed])
        assert f"--per-class 50 --data.subset_seed {seed} --data.val_fraction 0 " in told
        assert f"--train.batch_size 32 --seed {seed} --budget 1core-m " in told
    assert "| 1core-m | x@50 | 3 | 52.0 +- 2.0 | 60 |" in capsys.readouterr().out
    commands.clear()
    monkeypatch.setattr(sys, "argv", [*words[:-4], "--seeds", "2", "--taught", "--jobs", "2"])
    few.main()
    assert {words[-1].rpartition("/")[2] for words in commands[:-1]} == {"2-larger", "2-wider", "2-varied"}
    assert commands[-1][-1].endswith("/2")  # taught by those, so after them


def test_a_student_of_three_networks_shares_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    few = importlib.import_module("benchmarks.few_images")
    folder = Path("few/2core-h-taught/x@50/1")
    assert few.stages(folder, "2core-h", False) == {folder: ["--budget", "2core-h"]}
    runs = few.stages(folder, "2core-h", True)
    assert [run.name for run in runs] == ["1-larger", "1-wider", "1-varied", "1"]
    minutes = [float(words[words.index("--budget") + 1].removesuffix("core-m")) for words in runs.values()]
    assert sum(minutes) == pytest.approx(120)
    teachers = runs[folder][runs[folder].index("--guides.co_advise.teachers") + 1]
    assert all(f"{name}: {run.absolute()}" in teachers for name, run in zip(few.TEACHERS, runs, strict=False))


def test_a_contest_counts_processor_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", ["contest", "--budget", "5m", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        importlib.import_module("benchmarks.contest").main()
    assert "such as 15core-m, got 5m" in capsys.readouterr().err


def test_load_of_others_is_separate_from_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    clock = importlib.import_module("benchmarks.clock")
    assert clock.foreign(machine=1210, own=1200, wall=600) < clock.OTHERS
    assert clock.foreign(machine=2400, own=1200, wall=600) == 2


def test_a_busy_machine_is_reported_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    clock = importlib.import_module("benchmarks.clock")
    comparisons: list[object] = []
    monkeypatch.setattr(clock.atexit, "register", comparisons.append)
    monkeypatch.setattr(sys, "argv", ["any"])
    for others, words in ((3e5, "busy: do not quote"), (0.0, "quiet"), (None, "do not quote unless")):
        counts = iter([None, None] if others is None else [0.0, others])
        monkeypatch.setattr(clock, "machine_seconds", lambda counts=counts: next(counts))
        clock.begin(clock.argparse.ArgumentParser())
        assert clock.processor() in capsys.readouterr().out
        comparisons.pop()()  # type: ignore[operator]
        assert words in capsys.readouterr().out


STOPPING = """
import os, runpy, signal, sys
from simulated_gpu import simulated_gpu
from viticulture.training.module import TrainingModule

begin = TrainingModule.on_train_epoch_start
def begin_or_stop(self):
    begin(self)
    if self.current_epoch == 2:
        os.killpg(0, signal.SIGTERM)

TrainingModule.on_train_epoch_start = begin_or_stop
sys.argv = sys.argv[2:]
with simulated_gpu():
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A program on the simulated GPU that stops the whole script before its training's third epoch."""


@pytest.mark.slow
def test_the_gpu_script_goes_on_after_failures_and_continues_what_was_cut(tmp_path: Path) -> None:
    """On the simulated GPU. Mistakes it would catch: a failed row ends the script; a row that is done runs again; a cut
    training begins anew; its row is lost."""
    for name in ("train/a/0", "train/a/1", "train/b/0", "train/b/1", "test/a/0", "test/b/0"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((32, 32), 50).convert("RGB").save(tmp_path / "data" / f"{name}.png")
    (tmp_path / "stopping.py").write_text(STOPPING)
    of_dhvt = "--student.options.depth 1 --student.options.patch_embed linear"
    keys = f"{of_dhvt} --train.batch_size 4 --train.repeats 1 --train.epochs 3 --schedule.warmup_epochs 0"
    more = "--train.validate_every 1 --engine.checkpoint_minutes 1.0e-9"
    tests = ROOT / "tests"
    environment = {
        **os.environ,
        "ROWS": "(dhvt|mae)-eager|dhvt-vit-4-heads",
        "KEYS": f"{keys} {more}",
        "STEP_SECONDS": "36000",
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    for program in (tmp_path / "stopping.py", tests / "simulated_gpu.py"):
        environment["PYTHON"] = f"{sys.executable} {program}"
        words = ["bash", f"{ROOT}/benchmarks/gpu.sh", f"{tmp_path}/data", f"{tmp_path}/out", "600"]
        subprocess.run(words, env=environment, start_new_session=True, check=True)
    with (tmp_path / "out" / "results.csv").open() as file:
        eager, failed, cut, done = csv.DictReader(file)
    assert [row["name"] for row in (eager, failed, cut, done)] == ["dhvt-eager", "mae-eager", *["dhvt-vit-4-heads"] * 2]
    assert [row["state"] for row in (eager, failed, cut, done)] == ["done", "failed", "cut", "done"]
    assert eager["resume"] == "same"
    assert float(eager["ms_a_step"]) > 0
    assert "patch_embed" in (tmp_path / "out" / "mae-eager.log").read_text()
    assert [(row["published"], row["epochs"], row["seed"]) for row in (cut, done)] == [("67.59", n, "0") for n in "23"]
    with (tmp_path / "out" / "dhvt-vit-4-heads" / "metrics.csv").open() as file:
        values = [100 * float(row["value"]) for row in csv.DictReader(file) if row["name"] == "test/accuracy"]
    assert len(values) == 3
    assert (float(done["best"]), float(done["last"])) == (max(values), values[-1])


def test_numbers_of_the_gpu_script_are_the_tables() -> None:
    lines = (ROOT / "benchmarks" / "gpu.sh").read_text().splitlines()
    rows = [shlex.split(line)[1:] for line in lines if line.startswith("train ")]
    assert len(rows) == 6
    for _, published, table, row in rows:
        assert read_table(table).row(row).published == float(published)
