# SPDX-License-Identifier: Apache-2.0
"""Clips are predicted frame by frame at their own times, and what cannot be read of them is a line."""

import csv
import json
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import viticulture
from refusals import refused
from untrained import photo, untrained
from untrained_dense import CLASSES, object_results, untrained_dense
from viticulture.cli import main
from viticulture.data.images import video
from viticulture.data.images.decode import Unreadable
from viticulture.errors import UserError

av = pytest.importorskip("av")

VARIABLE = [0, 40, 80, 500, 980, 1020, 1100, 4000, 4040]
"""Times of frames, ms: an uneven rate, and none for three seconds."""


def clip(path: Path, times: Sequence[int] = VARIABLE, codec: str = "mpeg4", side: int = 64) -> Path:
    """Write a clip whose frame k is of gray 20 k, with a white upper left quarter."""
    path.parent.mkdir(exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=25)
        stream.width, stream.height = side, side // 2
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for k, ms in enumerate(times):
            pixels = np.full((side // 2, side, 3), 20 * k % 250, np.uint8)
            pixels[: side // 4, : side // 2] = 255
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = ms, Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def read(path: Path, every: float) -> dict[float | None, np.ndarray | str]:
    """Seconds -> the frame, or why there is none."""
    return {at: each.reason if isinstance(each, Unreadable) else each for at, each in video.frames(path, every)}


def test_a_time_step_takes_its_first_frame_at_its_own_time(tmp_path: Path) -> None:
    """Mistakes: counting frames by a rate, repeating a frame over a gap, drifting by the step's remainder."""
    path = clip(tmp_path / "a.mp4")
    frames = read(path, 1.0)
    assert list(frames) == pytest.approx([0, 1.02, 4])
    assert list(read(path, 0.5)) == pytest.approx([0, 0.5, 1.02, 4])
    assert list(read(path, 0)) == pytest.approx([ms / 1000 for ms in VARIABLE])
    for k, frame in zip((0, 5, 7), frames.values(), strict=True):
        assert isinstance(frame, np.ndarray)
        assert frame.shape == (32, 64, 3)
        assert np.median(frame[20:, 40:]) == pytest.approx(20 * k, abs=6), "levels pass through a lossy codec"


def test_a_phone_that_was_held_upright_films_upright_frames(tmp_path: Path) -> None:
    """The track's matrix (ISO/IEC 14496-12) turns by 90 degrees: right becomes down. Mistake: the other way."""
    path = clip(tmp_path / "a.mp4")
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 44
    one = 1 << 16
    assert struct.unpack(">9i", content[start : start + 36]) == (one, 0, 0, 0, one, 0, 0, 0, 1 << 30)
    content[start : start + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(content)
    first = read(path, 1.0)[0.0]
    assert isinstance(first, np.ndarray)
    assert first.shape == (64, 32, 3)
    corners = {(v, h): int(first[v * 60 + 2, h * 28 + 2].mean() > 128) for v in (0, 1) for h in (0, 1)}
    assert corners == {(0, 0): 0, (0, 1): 1, (1, 0): 0, (1, 1): 0}, "upper left goes to the upper right"


def test_what_cannot_be_read_of_a_clip_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clip(tmp_path / "a.avi", range(0, 4000, 40), "mjpeg")
    whole = path.read_bytes()
    places = [i for i in range(len(whole)) if whole[i : i + 4] == b"00dc" and whole[i + 8 : i + 10] == b"\xff\xd8"]
    damaged = bytearray(whole)
    for place in places[40:43]:
        damaged[place + 8 : place + 600] = b"\0" * 592
    path.write_bytes(damaged)
    frames = read(path, 0)
    reasons = [each for each in frames.values() if isinstance(each, str)]
    assert reasons == ["broken: Invalid data found when processing input"] * 3
    assert len(frames) == 100, "the frames around them are read"
    path.write_bytes(b"")
    assert "broken" in str(read(path, 1)[None])
    with av.open(str(tmp_path / "sound.mp4"), "w") as out:
        stream = out.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.sample_rate, sound.pts = 8000, 0
        out.mux(stream.encode(sound))
        out.mux(stream.encode())
    assert read(tmp_path / "sound.mp4", 1) == {None: "the clip holds no video"}
    monkeypatch.setattr(video, "_decoded", lambda _: iter(()))
    assert read(path, 1) == {None: "the clip holds no frames"}
    monkeypatch.undo()
    monkeypatch.setattr(video, "find_spec", lambda _: None)
    assert read(path, 1) == {None: video.NEEDS}
    with pytest.raises(UserError, match="time step"):
        video.time_step("1 frame")


def test_a_clip_that_was_not_copied_whole_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .mkv says its length at its start, and ends anywhere without an error."""
    whole, generator = tmp_path / "whole.mkv", np.random.default_rng(0)
    with av.open(str(whole), "w") as out:
        stream = out.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 128
        for _ in range(100):
            pixels = generator.integers(0, 255, (128, 128, 3), dtype=np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    assert len(read(whole, 1.0)) == 10
    assert capsys.readouterr().err == ""
    part = tmp_path / "part.mkv"
    part.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert 3 <= len(read(part, 1.0)) <= 6
    assert "of 10.0 s; was it copied whole?" in capsys.readouterr().err


def test_frames_have_seconds_beside_images_in_csv_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(untrained(tmp_path / "run").path)
    film, torn = clip(tmp_path / "film.mp4"), tmp_path / "torn.mp4"
    torn.write_bytes(b"no clip")
    picture = photo(tmp_path / "a.png", 0)
    named = [str(picture), str(film), str(torn)]
    assert main(["predict", run, *named, "--every", "0.5s", "--out", str(tmp_path / "p.csv")]) == 0
    assert "film.mp4 at 1.020 s" in capsys.readouterr().out
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["seconds"]) for row in rows] == [
        (str(picture), ""),
        *((str(film), at) for at in ("0.0", "0.5", "1.02", "4.0")),
        (str(torn), ""),
    ]
    assert [bool(row["error"]) for row in rows] == [False] * 5 + [True]
    assert main(["predict", run, str(film), "--out", str(tmp_path / "p.json")]) == 0
    answers = json.loads((tmp_path / "p.json").read_text("utf-8"))
    assert [(each["name"], each["seconds"]) for each in answers] == [(str(film), at) for at in (0, 1.02, 4)]
    capsys.readouterr()
    assert main(["predict", run, str(torn)]) == 2
    assert capsys.readouterr().err.startswith("error: no image could be read")
    frame = next(each for at, each in video.frames(film, 1.0) if at == pytest.approx(1.02))
    (alone,) = viticulture.open(run).predict(frame)
    assert alone.probability == pytest.approx(answers[1]["probability"], abs=1e-5), "float32, in batches of two sizes"


def test_clips_in_folders_are_predicted_at_the_time_step_in_python(tmp_path: Path) -> None:
    run = viticulture.Run(untrained(tmp_path / "run").path)
    film, picture = clip(tmp_path / "new" / "film.mp4"), photo(tmp_path / "new" / "a.png", 0)
    assert [each.name for each in run.predict(tmp_path / "new")] == [
        str(picture), *(f"{film} at {at} s" for at in ("0.000", "1.020", "4.000")),
    ]  # fmt: skip
    for every, count in ((0.0, 9), ("0.5s", 4)):
        assert len(run.predict(film, every=every)) == count
    refused("time step between frames", run.predict, film, every=-1)


def test_a_detector_lists_boxes_by_frame_and_draws_a_clip_with_the_same_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained_dense(tmp_path / "run", "detection")
    object_results(run)
    film = clip(tmp_path / "film.mp4", side=66)  # an odd height, which the codec does not take
    assert main(["predict", str(run.path), str(film), "--out", str(tmp_path / "boxes.csv")]) == 0
    with (tmp_path / "boxes.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {(row["name"], row["seconds"]) for row in rows} == {(str(film), at) for at in ("0.0", "1.02", "4.0")}
    assert {row["label"] for row in rows} <= {"", "'=cmd()", *CLASSES}
    assert any(row["score"] for row in rows)
    assert main(["predict", str(run.path), str(film), "--out", str(tmp_path / "pictures")]) == 0
    names = ["0001-film.mp4 at 0.000 s.png", "0002-film.mp4 at 1.020 s.png", "0003-film.mp4 at 4.000 s.png"]
    assert sorted(file.name for file in (tmp_path / "pictures").iterdir()) == names
    drawn = tmp_path / "drawn.mp4"
    assert main(["predict", str(run.path), str(film), "--every", "0s", "--out", str(drawn)]) == 0
    frames, plain = read(drawn, 0), read(film, 0)
    assert list(frames) == pytest.approx([ms / 1000 for ms in VARIABLE], abs=0.002)
    first, source = frames[0.0], plain[0.0]
    assert isinstance(first, np.ndarray)
    assert isinstance(source, np.ndarray)
    assert np.abs(first[: source.shape[0]].astype(int) - source).max() > 60, "boxes are drawn"
    capsys.readouterr()
    before = film.read_bytes()
    for images, out in (([str(film)], film), ([str(film)] * 2, drawn), ([str(photo(tmp_path / "a.png", 0))], drawn)):
        assert main(["predict", str(run.path), *images, "--out", str(out)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert film.read_bytes() == before
