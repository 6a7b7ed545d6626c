# SPDX-License-Identifier: Apache-2.0
"""A watched folder: every image is recorded once, when it is complete, over restarts and damage."""

import csv
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from untrained import photo, untrained
from untrained_dense import object_results, untrained_dense
from viticulture.cli import main
from viticulture.deploy.watch import PATIENCE, Watch
from viticulture.disk import file_lock
from viticulture.errors import UserError
from viticulture.tasks.task import Task, task_of


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "in").mkdir()
    return task_of(untrained(tmp_path / "run"))


def names(out: Path) -> list[str]:
    """The images of the record, by their file names."""
    with out.open(newline="", encoding="utf-8") as file:
        return [Path(row["name"]).name for row in csv.DictReader(file)]


def polled(watched: Watch, times: int = 2) -> list[str]:
    return [Path(each.name).name for _ in range(times) for each in watched.poll()]


def test_each_image_is_recorded_once_over_restarts(task: Task, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "p.csv"
    out.touch()  # by `mktemp`, say
    first = Watch(task, folder, out)
    photo(folder / "a.png", 0)
    photo(folder / "below" / "b.png", 1)
    assert polled(first, 4) == ["a.png", "b.png"]
    photo(folder / "c.png", 2)
    again = Watch(task, Path(os.path.relpath(folder)), out)
    assert polled(again, 4) == ["b.png", "c.png"], "the last one of a watch that may have been killed, and the new one"
    assert Counter(names(out)) == Counter(["a.png", "b.png", "c.png"])
    (folder / "c.png").unlink()
    with out.open("a") as file:
        file.write("\n\n")  # edited
    assert polled(Watch(task, folder, out), 3) == []
    assert sorted(names(out)) == ["a.png", "b.png", "c.png"], "moved away, and still recorded"


def test_a_growing_file_is_awaited_and_a_broken_one_recorded_in_the_end(task: Task, tmp_path: Path) -> None:
    """Mistakes: reading what is half written; waiting forever; recording an error that the next scan would fix."""
    folder, out = tmp_path / "in", tmp_path / "p.csv"
    whole = photo(tmp_path / "whole.png", 0).read_bytes()
    watched, slow = Watch(task, folder, out), folder / "slow.png"
    for part in range(1, 4):
        slow.write_bytes(whole[: part * len(whole) // 4])
        assert watched.poll() == []
    assert polled(watched, PATIENCE - 2) == [], "it stalls, half written"
    slow.write_bytes(whole)
    assert polled(watched) == ["slow.png"]
    (folder / "torn.png").write_bytes(whole[:100])
    assert polled(watched, PATIENCE) == []
    (torn,) = watched.poll()
    assert torn.error
    assert polled(watched, 3) == []
    assert names(out) == ["slow.png", "torn.png"]


def test_rows_of_a_killed_writer_are_written_again(tmp_path: Path) -> None:
    """Every beginning of the record is completed to the same rows. Mistake: an image with some of its boxes."""
    run = untrained_dense(tmp_path / "run", "detection")
    object_results(run)
    task, folder, out = task_of(run), tmp_path / "in", tmp_path / "p.csv"
    for k in range(3):
        photo(folder / f"{k}.png", k, (64, 64))
    polled(Watch(task, folder, out))
    whole = out.read_bytes()
    rows = [row[:2] for row in csv.reader(whole.decode().splitlines())]
    assert len(rows) > 4, "some image has several boxes"
    heading = whole.index(b"\n") + 1
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for length in (heading, heading + 7, *ends[1:5], ends[2] + 3, len(whole) - 1):
        out.write_bytes(whole[:length])
        polled(Watch(task, folder, out))
        again = [row[:2] for row in csv.reader(out.read_text("utf-8").splitlines())]
        assert sorted(again) == sorted(rows)


def test_what_cannot_be_watched_is_one_line(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder, other = str(task.run.path), str(tmp_path / "in"), tmp_path / "other.csv"
    other.write_text("name,label\n", "utf-8")
    picture = str(photo(tmp_path / "a.png", 0))
    for words in (
        [picture, "--out", str(tmp_path / "p.csv")],
        [folder, folder],
        [folder, "--top", "2"],
        [folder, "--out", str(other)],
        [folder, "--out", str(tmp_path / "p.json")],
    ):
        assert main(["predict", run, "--watch", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1, words
    assert other.read_text("utf-8") == "name,label\n"
    assert main(["predict", run, "--watch", picture, "--every", "0.2s"]) == 2
    assert "--every 0.2s is for clips" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    with file_lock(tmp_path / ".predictions.csv.lock"):
        assert main(["predict", run, "--watch", folder]) == 2
    assert "another process" in capsys.readouterr().err
    assert not (tmp_path / "predictions.csv").exists()
    with pytest.raises(UserError, match="takes a folder"):
        Watch(task, tmp_path / "absent", tmp_path / "p.csv")


def test_a_folder_that_is_gone_for_a_while_is_awaited(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = Watch(task, tmp_path / "in", tmp_path / "p.csv")
    (tmp_path / "in").rmdir()
    assert polled(watched, 3) == []
    assert capsys.readouterr().err.count("cannot read the folder") == 1
    photo(tmp_path / "in" / "a.png", 0)
    assert polled(watched) == ["a.png"]


def test_the_command_watches_until_it_is_interrupted(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter(range(3))

    def sleep(_: float) -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "in" / "a.png", 0)
    assert main(["predict", str(task.run.path), "--watch", "in"]) == 130
    assert names(tmp_path / "predictions.csv") == ["a.png"]
    assert f"{tmp_path / 'in' / 'a.png'}  label " in capsys.readouterr().err
