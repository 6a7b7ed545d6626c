# SPDX-License-Identifier: Apache-2.0
"""Images are decoded once, exactly; the cache is shared by processes and never incomplete."""

import contextlib
import errno
import fcntl
import importlib
import io
import json
import os
import resource
import shutil
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from children import start
from noise import noise
from refusals import refused
from viticulture import parallel
from viticulture.data import decoded_cache
from viticulture.data.images.decode import Unreadable
from viticulture.data.open import open_source
from viticulture.data.sources.arrays import from_arrays
from viticulture.data.sources.objects import from_object
from viticulture.data.sources.source import Source
from viticulture.errors import UserError

cache = importlib.import_module("viticulture.cache")  # to mypy `viticulture.cache` is the verb


def in_memory(pixels: np.ndarray) -> Source:
    return from_arrays("noise", ["a", "b"], {"train": (pixels, np.arange(len(pixels)) % 2)})


def folder(root: Path, pixels: np.ndarray, suffix: str = ".png") -> Path:
    for i, image in enumerate(pixels):
        path = root / f"class {i % 2}" / f"{i:04d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return root


def stores() -> list[str]:
    return sorted(path.name for path in (cache.cache_folder() / "decoded").iterdir() if path.suffix != ".lock")


def test_images_of_the_cache_s_size_are_unchanged(tmp_path: Path) -> None:
    """[H, W, 3] -> [3, H, W]."""
    pixels = noise(70, 9, 9)
    source = open_source(folder(tmp_path / "data", pixels))
    held = decoded_cache.build(source, 9)
    expected = pixels[[int(Path(name).stem) for name in source.names]].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(held.pixels.numpy(), expected)
    assert held.pixels.dtype == torch.uint8
    assert (held.sizes == 9).all()
    assert held.unreadable == {}


def test_other_sizes_are_resized_by_pillow_s_bicubic_filter(tmp_path: Path) -> None:
    """Within one level in few places: torch's weights of 16 bits may tip a rounding."""
    pixels = noise(3, 30, 50)
    held = decoded_cache.build(in_memory(pixels), 16)
    for image, row in zip(pixels, held.pixels, strict=True):
        expected = Image.fromarray(image).resize((16, 16), Image.Resampling.BICUBIC)
        difference = np.abs(row.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected))
        assert difference.max() <= 1
        assert difference.mean() < 0.05
    assert held.sizes.tolist() == [[30, 50]] * 3


def test_a_large_jpeg_decoded_small_is_close_to_the_whole(tmp_path: Path) -> None:
    y, x = np.mgrid[:512, :640]
    image = np.stack([x % 256, y % 256, (x + y) // 5], axis=-1).astype(np.uint8)
    (tmp_path / "data" / "a").mkdir(parents=True)
    Image.fromarray(image).save(tmp_path / "data" / "a" / "x.jpg", quality=95)
    source = open_source(tmp_path / "data")
    held = decoded_cache.build(source, 64)
    whole = np.asarray(source.read(0).resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
    difference = np.abs(held.pixels[0].permute(1, 2, 0).numpy() - whole)
    assert difference.mean() < 2
    assert held.sizes.tolist() == [[512, 640]]


def test_some_rows_equal_those_of_the_whole() -> None:
    source = in_memory(noise(80, 6, 6))
    whole = decoded_cache.build(source, 6)
    for rows in (np.array([70, 3, 41, 3]), np.array([0, 1])):
        part = decoded_cache.build(source, 6, rows=rows)
        np.testing.assert_array_equal(part.rows, np.unique(rows))
        torch.testing.assert_close(part.pixels, whole.pixels[np.unique(rows)], rtol=0, atol=0)
        np.testing.assert_array_equal(part.digests, whole.digests[np.unique(rows)])


def test_digests_are_those_of_pixels_and_shape(tmp_path: Path) -> None:
    image = noise(1, 12, 8)[0]
    other = image.copy()
    other[3, 3, 0] ^= 1
    (tmp_path / "data" / "a").mkdir(parents=True)
    files = {"1.png": image, "2.bmp": image, "3.png": other, "4.png": image.reshape(8, 12, 3)}
    for name, pixels in files.items():
        Image.fromarray(pixels).save(tmp_path / "data" / "a" / name)
    marks = [mark.tobytes() for mark in decoded_cache.build(open_source(tmp_path / "data"), 4).digests]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 3


def test_a_second_build_reads_nothing_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", noise(40, 5, 5))
    calls: list[tuple[int, int]] = []
    decoded_cache.build(open_source(data), 5, progress=lambda *at: calls.append(at))
    assert calls[-1] == (40, 40)
    calls.clear()
    decoded_cache.build(open_source(data), 5, progress=lambda *at: calls.append(at))
    assert calls == []
    path = data / "class 0" / "0000.png"
    Image.fromarray(noise(1, 5, 5, seed=9)[0]).save(path)
    os.utime(path, ns=(0, 10**18))
    held = decoded_cache.build(open_source(data), 5)
    np.testing.assert_array_equal(held.pixels[0].permute(1, 2, 0).numpy(), noise(1, 5, 5, seed=9)[0])
    decoded_cache.build(open_source(data), 4)
    assert len(stores()) == 3


def test_equal_names_sizes_and_times_in_another_folder_are_another_cache(tmp_path: Path) -> None:
    for seed in (0, 1):
        data = folder(tmp_path / str(seed), noise(2, 5, 5, seed), suffix=".bmp")
        for path in data.rglob("*.bmp"):
            os.utime(path, ns=(0, 10**18))
        held = decoded_cache.build(open_source(data), 5)
        np.testing.assert_array_equal(held.pixels.permute(0, 2, 3, 1).numpy(), noise(2, 5, 5, seed))


def exchange_files(data: Path) -> None:
    """Swap the files of one class with those of the other."""
    for path in sorted((data / "class 0").iterdir()):
        other = data / "class 1" / f"{int(path.stem) + 1:04d}{path.suffix}"
        path.rename(data / "x")
        other.rename(path)
        (data / "x").rename(other)


def exchange_folders(data: Path) -> None:
    """Swap the folders of two classes, with the names of their files."""
    for old, new in (("0", "x"), ("1", "0"), ("x", "1")):
        (data / f"class {old}").rename(data / f"class {new}")
    for path in sorted(data.rglob("*.bmp")):
        path.rename(path.with_name(f"{int(path.stem) ^ 1:04d}{path.suffix}"))


def rewrite(data: Path) -> None:
    """Overwrite every file in place by the bytes of one of the other class."""
    files = sorted(data.rglob("*.bmp"), key=lambda path: path.stem)
    held = [path.read_bytes() for path in files]
    for i, path in enumerate(files):
        path.write_bytes(held[i ^ 1])


@pytest.mark.parametrize("change", [exchange_files, exchange_folders, rewrite])
@pytest.mark.parametrize("kind", ["folder", "list", "link"])
def test_files_are_identified_by_more_than_name_size_and_time(change: Any, kind: str, tmp_path: Path) -> None:
    data, when = folder(tmp_path / "data", noise(6, 5, 5), suffix=".bmp"), 315532800 * 10**9
    for path in data.rglob("*.bmp"):
        os.utime(path, ns=(when, when))
    (tmp_path / "link").mkdir()
    for name in ("class 0", "class 1"):
        (tmp_path / "link" / name).symlink_to(data / name)
    rows = [f"data/class {i % 2}/{i:04d}.bmp,{i % 2}\n" for i in range(6)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(rows))
    opened = {"folder": data, "list": tmp_path / "list.csv", "link": tmp_path / "link"}[kind]

    def pixels() -> dict[str, np.ndarray]:
        source = open_source(opened)
        held = decoded_cache.build(source, 5)
        return {Path(source.names[i]).stem: held.pixels[i].permute(1, 2, 0).numpy() for i in range(6)}

    before = pixels()
    change(data)
    for path in data.rglob("*.bmp"):
        os.utime(path, ns=(when, when))
    after = pixels()
    for i in range(6):
        np.testing.assert_array_equal(after[f"{i:04d}"], before[f"{i ^ 1:04d}"])


@pytest.mark.parametrize("ending", [".tar", ".parquet", ".zip"])
def test_archives_are_identified_by_more_than_size_and_time(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    path, held = tmp_path / f"train{ending}", list[tuple[int, np.ndarray]]()
    for seed in (0, 1):
        write_archive(path, noise(4, 5, 5, seed))
        os.utime(path, ns=(10**18, 10**18))
        held.append((path.stat().st_size, decoded_cache.build(open_source(path), 5).pixels.permute(0, 2, 3, 1).numpy()))
    assert held[0][0] == held[1][0]
    for seed, (_, pixels) in enumerate(held):
        np.testing.assert_array_equal(pixels, noise(4, 5, 5, seed))


def write_archive(path: Path, images: np.ndarray) -> None:
    """Write BMPs of two classes in the format of the ending."""
    files = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "BMP")
        files.append(file.getvalue())
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for i, raw in enumerate(files):
                packed.writestr(f"{i // 2}/{i}.bmp", raw)
    elif path.suffix == ".tar":
        with tarfile.open(path, "w") as shard:
            for i, raw in enumerate(files):
                for name, content in ((f"{i}.bmp", raw), (f"{i}.cls", b"%d" % (i % 2))):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    else:
        from pyarrow import parquet, table

        columns = {"image": [{"bytes": raw, "path": None} for raw in files], "label": ["a", "b"] * (len(files) // 2)}
        parquet.write_table(table(columns), path, compression="none", use_dictionary=False)


def test_caches_of_an_older_decoding_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = noise(4, 6, 6)
    png, tiff = folder(tmp_path / "png", pixels), folder(tmp_path / "tiff", pixels)
    Image.fromarray(pixels[0]).save(tiff / "class 0" / "scan.TIF")
    for data in (png, tiff):
        decoded_cache.build(open_source(data), 6)
    assert len(stores()) == 2
    monkeypatch.setitem(decoded_cache._KINDS, (".tif", ".tiff"), "another")
    decoded_cache.build(open_source(png), 6)
    assert len(stores()) == 2
    decoded_cache.build(open_source(tiff), 6)
    assert len(stores()) == 3
    monkeypatch.setitem(decoded_cache._KINDS, (".png",), "another")
    decoded_cache.build(open_source(png), 6)
    assert len(stores()) == 4
    levels = np.arange(36, dtype=np.int32).reshape(6, 6)
    given: list[Any] = [([image] * 2, [0, 1]) for image in (levels, Image.fromarray(levels))]
    array, picture = (from_object(pair).fingerprints[0] for pair in given)
    assert array != picture


def test_unreadable_images_stop_the_build_or_are_skipped_and_recorded(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", noise(20, 5, 5))
    for i in range(12):
        (data / "class 0" / f"bad {i:02d}.jpg").write_bytes(b"" if i else b"just text")
    source = open_source(data)
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"12 of 32 images cannot be read: .*and 2 more.*--skip-unreadable"
        ) as caught:
            decoded_cache.build(source, 5)
        assert "class 0/bad 00.jpg (not an image" in str(caught.value)
        assert str(caught.value).count("bad ") == 10
    for _ in range(2):
        held = decoded_cache.build(source, 5, skip_unreadable=True)
        assert {source.names[i] for i in held.unreadable} == {f"class 0/bad {i:02d}.jpg" for i in range(12)}
        assert held.sizes[list(held.unreadable)].tolist() == [[0, 0]] * 12
        good = [i for i in range(32) if i not in held.unreadable]
        names = [int(Path(source.names[i]).stem) for i in good]
        np.testing.assert_array_equal(held.pixels[good].permute(0, 2, 3, 1).numpy(), noise(20, 5, 5)[names])


def test_an_image_that_becomes_readable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(folder(tmp_path / "a", noise(3, 8, 8)))
    whole, lost = Source.picture, source.names[1]

    def kept_back(self: Source, i: int, shrink: int | None = None) -> Any:
        if self.names[i] == lost:
            raise Unreadable(lost, "no permission to read it")
        return whole(self, i, shrink)

    rows = np.arange(3)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "picture", kept_back)
        assert list(decoded_cache.build(source, 8, skip_unreadable=True).unreadable) == [1]
        assert list(decoded_cache.survey(source, rows).unreadable) == [1]
        refused("no permission", decoded_cache.build, source, 8)
    assert not decoded_cache.build(source, 8).unreadable
    assert not decoded_cache.survey(source, rows).unreadable


def test_a_survey_finds_undecodable_images(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", noise(5, 60, 90), suffix=".jpg")
    (data / "class 0" / "x.jpg").write_bytes(b"text")
    (data / "class 0" / "0000.jpg").write_bytes((data / "class 0" / "0002.jpg").read_bytes()[:-3000])
    source = open_source(data)
    for _ in range(2):
        survey = decoded_cache.survey(source, np.arange(6))
        assert {source.names[i]: why for i, why in survey.unreadable.items() if "trunc" in why}.keys() == {
            "class 0/0000.jpg"
        }
        assert {source.names[i] for i in survey.unreadable} == {"class 0/0000.jpg", "class 0/x.jpg"}
        assert sorted(survey.sizes.tolist()) == [*[[0, 0]] * 2, *[[60, 90]] * 4]


def test_the_limit_is_checked_first() -> None:
    """M * 3 * S * S bytes."""
    source = in_memory(noise(10, 4, 4))
    assert len(decoded_cache.build(source, 4, budget=480).rows) == 10
    refused(r"more than images\.max_cache_gb", decoded_cache.build, source, 4, rows=np.arange(10), budget=479)
    assert len(decoded_cache.build(source, 4, rows=np.arange(9), budget=479).rows) == 9


def test_insufficient_disk_space_is_reported_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 479})())
    calls: list[Any] = []
    with pytest.raises(UserError, match="are free"):
        decoded_cache.build(in_memory(noise(10, 4, 4)), 4, progress=lambda *at: calls.append(at))
    assert calls == []
    assert stores() == []


def build_with_little_room(says: Connection) -> None:
    """In a child process whose files may not grow beyond 50,000 bytes."""
    black = np.zeros((200, 16, 16, 3), dtype=np.uint8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        decoded_cache.build(from_arrays("noise", ["a"], {"train": (black, np.zeros(200))}), 16)
    except UserError as error:
        says.send(str(error))


@pytest.mark.children
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """By RLIMIT_FSIZE."""
    child, (said,) = ended(build_with_little_room)
    assert child.exitcode == 0
    assert "no room left" in said
    assert "VITICULTURE_CACHE" in said
    assert stores() == []
    black = from_arrays("noise", ["a"], {"train": (np.zeros((200, 16, 16, 3), dtype=np.uint8), np.zeros(200))})
    assert len(decoded_cache.build(black, 16).rows) == 200


def ended(function: Any, *args: Any) -> tuple[Any, list[Any]]:
    """Return a finished child and its output."""
    child, hears = started(function, *args)
    said = []
    with contextlib.suppress(EOFError):
        while True:
            said.append(hears.recv())
    child.join()
    return child, said


def started(function: Any, *args: Any) -> tuple[Any, Connection]:
    """Start a child with a pipe for its output."""
    hears, says = Pipe(duplex=False)
    child = start(function, says, *args)
    says.close()
    return child, hears


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_every_disk_error_names_a_fix(code: int, tmp_path: Path) -> None:
    def make(partial: Path) -> None:
        (partial / "half").write_bytes(b"x")
        raise OSError(code, os.strerror(code))

    refused("VITICULTURE_CACHE", cache.publish, tmp_path / "cache" / "decoded" / "k", make)
    assert stores() == []


def test_an_unwritable_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "file"))
    refused("cannot write", lambda: decoded_cache.build(in_memory(noise(2, 4, 4)), 4))


def build(says: Connection, waits: Connection | None = None) -> None:
    """In a child: report progress, wait once if requested, print the sum of all pixels."""

    def progress(done: int, total: int) -> None:
        nonlocal waits
        says.send(done)
        if waits is not None:
            assert waits.recv() == "go on"
            waits = None

    says.send("begins")
    pixels = noise(400, 8, 8)
    held = decoded_cache.build(from_arrays("noise", ["a"], {"train": (pixels, np.zeros(400))}), 8, progress=progress)
    says.send(int(held.pixels.long().sum()))


@pytest.mark.children
def test_two_processes_build_once() -> None:
    waits, word = Pipe(duplex=False)
    first, hears = started(build, waits)
    assert [hears.recv(), hears.recv()] == ["begins", 32]
    second, other = started(build)
    assert other.recv() == "begins"
    assert not other.poll(0.2)  # nothing to say while the first one builds; a busy machine only sees less of a mistake
    word.send("go on")
    said = [hears.recv() for _ in range(13)]
    assert said[-1] == other.recv() == noise(400, 8, 8).sum()  # the second one was ended of no progress
    for child in (first, second):
        child.join()
        assert child.exitcode == 0
    assert len(stores()) == 1


@pytest.mark.children
def test_a_killed_builder_leaves_nothing_that_counts() -> None:
    """kill -9 in the middle."""
    waits, _word = Pipe(duplex=False)
    builder, hears = started(build, waits)
    assert [hears.recv(), hears.recv()] == ["begins", 32]
    leftover = stores()
    builder.kill()
    builder.join()
    assert [name.endswith(".partial") for name in leftover] == [True]
    assert stores() == leftover
    decoded_cache.build(in_memory(noise(2, 4, 4)), 4)  # another cache: its builder tidies up
    assert len(stores()) == 1
    assert not stores()[0].endswith(".partial")
    _, said = ended(build)
    assert said[-1] == noise(400, 8, 8).sum()


def test_a_working_builder_is_not_cleaned_up(tmp_path: Path) -> None:
    root = tmp_path / "cache" / "decoded"
    (root / "other.partial").mkdir(parents=True)
    handle = os.open(root / "other.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    decoded_cache.build(in_memory(noise(2, 4, 4)), 4)
    cache.clear_cache()
    assert stores() == ["other.partial"]
    os.close(handle)
    cache.clear_cache()
    assert stores() == []


def test_an_interrupted_build_leaves_nothing() -> None:
    source = in_memory(noise(400, 4, 4))

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded_cache.build(source, 4, progress=interrupt)
    assert stores() == []


@pytest.mark.parametrize("what", ["", "decoded", "decoded/*.partial", "decoded/*.partial/pixels.npy"])
def test_a_cache_removed_during_its_build_is_built_again(what: str) -> None:
    def clean(done: int, total: int) -> None:
        for path in cache.cache_folder().parent.glob(f"cache/{what}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    with pytest.raises(UserError, match="was removed while it was in use; run the command again"):
        decoded_cache.build(in_memory(noise(100, 4, 4)), 4, progress=clean)
    np.testing.assert_array_equal(
        decoded_cache.build(in_memory(noise(100, 4, 4)), 4).pixels.permute(0, 2, 3, 1).numpy(), noise(100, 4, 4)
    )
    (made,) = stores()
    (cache.cache_folder() / "decoded" / made / ".nfs0001").write_bytes(b"")  # left by the system, and no damage
    called: list[int] = []
    decoded_cache.build(in_memory(noise(100, 4, 4)), 4, progress=lambda done, total: called.append(done))
    assert not called


def test_near_duplicates_with_a_removed_index_end_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(folder: Path, *rest: Any) -> Path:
        shutil.rmtree(made := cache.publish(folder, *rest))
        return made

    monkeypatch.setattr(decoded_cache, "publish", publish)
    with pytest.raises(UserError, match="was removed while it was in use; run the command again"):
        decoded_cache.find_near_duplicates(in_memory(noise(4, 4, 4)))


@pytest.mark.parametrize("name", ["pixels.npy", "sizes.npy", "digests.npy", "unreadable.json", cache.SEAL])
def test_a_flipped_bit_rebuilds_the_cache(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = in_memory(noise(10, 4, 4))
    whole = decoded_cache.build(source, 4)
    (path,) = (tmp_path / "cache" / "decoded").glob(f"*/{name}")
    raw = path.read_bytes()
    middle = max(len(raw) - 5, 0)
    for damaged in (
        raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :],
        raw[:middle],
        b"[]",
        b"[" * 10**5,
        None,
    ):
        caplog.clear()
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        again = decoded_cache.build(source, 4)
        assert len(caplog.messages) == 1
        assert "it is made again" in caplog.messages[0]
        torch.testing.assert_close(again.pixels, whole.pixels, rtol=0, atol=0)
        np.testing.assert_array_equal(again.sizes, whole.sizes)
        assert again.unreadable == {}
        assert path.read_bytes() == raw
        caplog.clear()
        decoded_cache.build(source, 4)
        assert caplog.messages == []


def test_damage_in_any_block_of_a_long_file_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_BLOCK", 64)
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_bytes(bytes(range(200)))

    target = tmp_path / "cache" / "decoded" / "k"
    for place in (0, 63, 64, 130, 199):
        raw = bytearray((cache.publish(target, make) / "file").read_bytes())
        raw[place] ^= 0x80
        (target / "file").write_bytes(raw)
    raw = (cache.publish(target, make) / "file").read_bytes()
    (target / "file").write_bytes(raw[64:128] + raw[:64] + raw[128:])
    cache.publish(target, make)
    assert len(made) == 7


def test_pickled_arrays_are_never_unpickled(tmp_path: Path) -> None:
    source = in_memory(noise(10, 4, 4))
    decoded_cache.build(source, 4)
    (path,) = (tmp_path / "cache" / "decoded").glob("*/sizes.npy")

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "owned",)

    np.save(path, np.array([Evil()], dtype=object), allow_pickle=True)
    (path.parent / cache.SEAL).write_text(json.dumps(cache._checksums(path.parent)))
    with pytest.raises(ValueError, match="pickle"):
        decoded_cache.build(source, 4)
    assert not (tmp_path / "owned").exists()


def test_the_cache_is_measured_and_cleared(tmp_path: Path) -> None:
    held = decoded_cache.build(in_memory(noise(10, 4, 4)), 4)
    (tmp_path / "cache" / "data").mkdir()
    (tmp_path / "cache" / "data" / "download").write_text("keep")
    sizes = cache.cached()
    assert len(sizes) == 1
    assert sum(sizes.values()) >= 480
    assert cache.clear_cache() == sum(sizes.values())
    assert cache.cached() == {}
    assert (tmp_path / "cache" / "data" / "download").exists()
    np.testing.assert_array_equal(held.pixels.permute(0, 2, 3, 1).numpy(), noise(10, 4, 4))


@pytest.mark.parametrize(("side", "most"), [(32, 1), (160, 2)])
def test_small_images_are_decoded_by_one_thread(side: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []

    def pool(threads: int) -> ThreadPoolExecutor:
        pools.append(threads)
        return ThreadPoolExecutor(threads)

    monkeypatch.setattr(parallel, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    images = in_memory(noise(3, side, side))
    decoded_cache.build(images, 8)
    decoded_cache.survey(images, np.arange(3))
    assert pools == [most] * 2


def test_a_small_image_among_large_ones_keeps_threads(tmp_path: Path) -> None:
    for number, side in enumerate((160, 32, 160)):
        folder(tmp_path / str(number), noise(2, side, side))
    assert decoded_cache._threads(open_source(str(tmp_path)), np.arange(6)) is None
    assert decoded_cache._threads(open_source(str(tmp_path)), np.arange(2, 4)) == 1
    assert decoded_cache._threads(open_source(str(tmp_path)), np.arange(0)) is None
