# SPDX-License-Identifier: Apache-2.0
"""`train` from Python: objects as data, callbacks, short keywords; resumed with the same objects."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image
from torch.utils.data import TensorDataset

import viticulture
from viticulture.command import COMMANDS, Parser, parse_command
from viticulture.data.open import open_source
from viticulture.training.run import fit
from viticulture.training.session import begin, reopen

FEW: dict[str, Any] = {"data.per_class": 4, "train.batch_size": 20, "schedule.warmup_epochs": 0}


def digits(most: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, 8, 8] and labels of scikit-learn's digits."""
    source = open_source("digits")
    rows = range(most)
    return np.stack([np.asarray(source.reader.open(i)) for i in rows]), source.labels[:most]


class Watch(Callback):
    """Counts epochs and ends the training after `most` of them, or by an `error`."""

    def __init__(self, most: int, error: type[BaseException] | None = None) -> None:
        self.most, self.error, self.epochs = most, error, 0

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs += 1
        if self.epochs == self.most and self.error:
            raise self.error
        trainer.should_stop = self.epochs == self.most

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


def test_a_recipe_may_be_a_path_and_other_types_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("student: no_such_network\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"recipe": file}, "no_such_network"),
        ({"recipe": {"train.epochs": 1}}, "recipe must be a word, got {'train.epochs': 1}"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"overwrite": "no"}, "overwrite must be true or false, got 'no'"),
        ({"like": 5}, "like must be a word, got 5"),
        ({"budget": []}, r"budget must be a word or a number, got \[\]"),
        ({"budget": 3.5}, "cannot be used with a budget, which trains in several processes"),
        ({"budget": np.float32(0)}, "a budget is a time such as .*, got '0'"),
        ({"budget": -1}, "a budget is a time such as .*, got '-1'"),
        ({"method_search": []}, "unknown method search"),
        ({"callbacks": 5}, "callbacks must be a list of them, got 5"),
        ({"overrides": ["train.epochs"]}, "overrides must be a group of keys or null, got"),
    ]
    for keywords, said in wrong:
        with pytest.raises(viticulture.UserError, match=said):
            viticulture.train(digits(), out=str(tmp_path / "run"), epochs=1, **keywords)
    with pytest.raises(viticulture.UserError, match="subsets must be a group of keys"):
        viticulture.compare("digits", subsets=5)  # type: ignore[arg-type]
    with pytest.raises(viticulture.UserError, match="out must be a word, got 5"):
        viticulture.train(digits(), out=5)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("verb", "keyword", "words"),
    [
        (viticulture.compare, "budget", r"compare: .* 'budget'; write terms=Terms\(budget=\.\.\.\)"),
        (viticulture.compare, "folds", r"write subsets=Subsets\(folds=\.\.\.\)"),
        (viticulture.train, "epoch", r"train: .* 'epoch'; did you mean epochs\?"),
        (viticulture.train, "zzz", "train: .* 'zzz'$"),
    ],
)
def test_an_unknown_keyword_names_the_right_one(verb: Any, keyword: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        verb("digits", **{keyword: 5})


def test_a_program_trains_and_evaluates_silently(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, watch = digits(), Watch(2)
    run = viticulture.train(
        data, "default/digits", out=str(tmp_path / "run"), overrides=FEW,
        epochs=5, student="vit_nano", callbacks=[watch], progress=False,
    )  # fmt: skip
    assert capfd.readouterr().err == ""
    assert (watch.epochs, run.metadata["status"], list(run.folder.read("split.json")["names"])) == (
        2, "finished", ["train", "test"],
    )  # fmt: skip
    assert run.recipe["train"]["epochs"] == 5
    assert (run.metadata["data"]["source"], run.metadata["data"]["given"]) == ("arrays", open_source(data).fingerprint)
    assert '"epoch": 2' in (run.path / "weights" / "last" / "config.json").read_text()
    before = run.accuracy
    own = viticulture.evaluate(run, data)
    assert own["last/test"].top1 == before
    others = viticulture.evaluate(run, {"test": (data[0][:30], data[1][:30])})
    assert [(key, result.images) for key, result in others.items()] == [("last/arrays", 30)]
    assert run.folder.anew().startswith("viticulture.train(data, ")
    with pytest.raises(viticulture.UserError, match=r"Python object \(arrays\).*viticulture\.resume\("):
        viticulture.evaluate(run)


class InAnotherThread(Callback):
    """Trains a second time while the first training is running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error: BaseException | None = None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            self.error = pool.submit(train_digits, self.folder).exception()


def train_digits(out: Path, **keywords: Any) -> viticulture.Run:
    """Train for a few seconds."""
    few = {"data.per_class": 4, "schedule.warmup_epochs": 0}
    return viticulture.train("digits", "default/digits", out=str(out), epochs=1, overrides=few, **keywords)


def variables() -> dict[str, str]:
    """Return the environment, without variables set by importing scikit-learn."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KMP_")}


def test_a_training_leaves_global_state_and_refuses_a_second_one(tmp_path: Path) -> None:
    torch.manual_seed(7)
    numbers, others = torch.get_rng_state(), (random.getstate(), str(np.random.get_state()), variables())
    second = InAnotherThread(tmp_path / "second")
    train_digits(tmp_path / "first", progress=False, callbacks=[second])
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (random.getstate(), str(np.random.get_state()), variables()) == others
    assert isinstance(second.error, viticulture.UserError)
    assert "another thread of this program trains" in str(second.error)
    assert not (tmp_path / "second").exists()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train_digits, tmp_path / "second", progress=False).result()
    alone, later = (tmp_path / name / "weights/last/model.safetensors" for name in ("first", "second"))
    assert alone.read_bytes() == later.read_bytes()


def test_commands_on_a_run_take_the_object_again(tmp_path: Path) -> None:
    data = digits()
    run = viticulture.train(data, "default/digits", out=str(tmp_path / "run"), overrides=FEW, epochs=1, progress=False)
    tested = len(run.folder.read("split.json")["names"]["test"])
    for verb in (viticulture.explain, viticulture.probe, viticulture.robustness):
        with pytest.raises(viticulture.UserError, match=r"which its folder does not hold.*explain, probe and robust"):
            verb(str(run.path))
    assert viticulture.explain(run, data, images=32).name == "explain.html"
    assert run.folder.read("explain.json")["split"] == "test"
    viticulture.probe(run, data)
    (found,) = run.folder.read("probe.json").values()
    assert found["images"]["test"] == tested
    viticulture.robustness(run, data, limit=2)
    assert list(run.folder.read("robustness.json")) == ["test"]
    other = digits(120)
    viticulture.probe(run, {"train": (other[0][:100], other[1][:100]), "test": (other[0][100:], other[1][100:])})
    counts = [probe["images"]["test"] for probe in run.folder.read("probe.json").values()]
    assert sorted(counts) == [20, tested]


def test_a_stopped_training_resumes_with_the_same_object_alone(tmp_path: Path) -> None:
    images, labels = digits()
    dataset = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    overrides = {**FEW, "train.epochs": 3}

    def weights(name: str) -> dict[str, torch.Tensor]:
        return viticulture.Run(tmp_path / name).student().state_dict()

    whole = begin(dataset, "default/digits", 0, str(tmp_path / "whole"), False, overrides, "test")
    fit(whole)
    stopped = begin(dataset, "default/digits", 0, str(tmp_path / "stopped"), False, overrides, "test")
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, more=[Watch(2, KeyboardInterrupt)])
    stopped.run.unlock()
    path = str(tmp_path / "stopped")
    with pytest.raises(viticulture.UserError, match="pass it again in Python"):
        reopen(path)
    with pytest.raises(viticulture.UserError, match=r"not what .* began with.*viticulture\.train\(data"):
        reopen(path, (images, labels[::-1]))
    watch = Watch(9)
    again = reopen(path, TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)))
    fit(again, more=[watch])
    assert watch.epochs == 3
    for name, value in weights("whole").items():
        assert torch.equal(value, weights("stopped")[name]), name


def test_files_of_a_table_are_identified_by_their_pixels(tmp_path: Path) -> None:
    pandas, paths = pytest.importorskip("pandas"), [tmp_path / f"{i}.bmp" for i in range(60)]
    for i, path in enumerate(paths):
        Image.fromarray(np.full((8, 8, 3), 4 * i, np.uint8)).save(path)
        os.utime(path, (10**9, 10**9))
    frame = pandas.DataFrame({"path": map(str, paths), "label": ["a", "b"] * 30})
    run = viticulture.train(
        frame,
        "default/digits",
        out=str(tmp_path / "run"),
        overrides={**FEW, "data.per_class": 20, "train.batch_size": 20},
        epochs=1,
        progress=False,
    )
    for path in paths:
        path.chmod(0o600)
    viticulture.evaluate(run, frame)
    for old, new in ((paths[0], tmp_path / "x"), (paths[1], paths[0]), (tmp_path / "x", paths[1])):
        old.rename(new)
    with pytest.raises(viticulture.UserError, match=r"are not those that .* began with"):
        viticulture.evaluate(run, frame)


class Interrupted(Callback):
    """Presses Ctrl-C before the first step; `error` is raised when that is handled, None for nothing."""

    def __init__(self, error: type[Exception] | None) -> None:
        self.error = error

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        signal.raise_signal(signal.SIGINT)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.error:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_ctrl_c_works_after_a_training_that_it_stopped(error: type[Exception] | None, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(error or KeyboardInterrupt):
            viticulture.train("digits", out=str(tmp_path / "run"), overrides=FEW, callbacks=[Interrupted(error)])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"epochs": 3, "overrides": {"train.epochs": 4}}, "train.epochs is given twice, as 3 and .* as 4"),
        ({"callbacks": [print]}, r"lightning.pytorch.Callback objects, got builtins"),
        ({"budget": "1m"}, "cannot be used with a budget, which trains in several processes"),
        ({"method_search": False}, "belongs to --budget"),
        ({"epochs": 0}, "train.epochs must be at least 1"),
        ({"recipe": "detection/photos"}, "are read from files; name a folder"),
    ],
)
def test_a_mistake_is_reported_before_a_folder_is_made(keywords: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(viticulture.UserError, match=said):
        viticulture.train(digits(20), out=str(tmp_path / "run"), **keywords)
    assert not (tmp_path / "run").exists()


def test_a_path_is_no_name_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(viticulture.UserError, match=r"no such file or folder: '\./digits'"):
        viticulture.train(Path("digits"))


def test_keywords_for_python_are_no_options_of_the_command() -> None:
    assert not {"--callbacks", "--progress", "--student", "--epochs"} & Parser("train", COMMANDS["train"]).options
    assert parse_command(["train", "digits", "--epochs", "3"]).keywords["overrides"] == {"train.epochs": 3}
