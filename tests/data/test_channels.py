# SPDX-License-Identifier: Apache-2.0
"""Images of any number of channels and more than eight bits, from files and arrays to the network's input."""

import io
import pickle
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refused
from viticulture.data.dataset import ImageSettings, prepare
from viticulture.data.image_set import CachedImages, StreamedImages
from viticulture.data.images.decode import OtherValues, as_pixels, decode, image_size, numbers_of
from viticulture.data.images.format import ANY_FORMAT, RGB, PixelFormat, Unfit, as_picture, displayed
from viticulture.data.inspect import inspect
from viticulture.data.open import open_source
from viticulture.data.transforms.color import Blur, ColorJitter, Gray, Solarize
from viticulture.data.transforms.rand_augment import RandAugment
from viticulture.data.transforms.view import Augment
from viticulture.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITICULTURE_CACHE", str(tmp_path / "cache"))


def noise(*shape: int, seed: int = 0, top: int = 256) -> np.ndarray:
    kind = np.uint8 if top <= 256 else np.uint16
    return np.random.default_rng(seed).integers(0, top, shape).astype(kind)


def file_of(pixels: np.ndarray, kind: str = "PNG", **keywords: Any) -> BinaryIO:
    file = io.BytesIO()
    np.save(file, pixels) if kind == "npy" else Image.fromarray(pixels).save(file, kind, **keywords)
    file.seek(0)
    return file


def bands(pixels: np.ndarray, **keywords: Any) -> BinaryIO:
    file = io.BytesIO()
    pytest.importorskip("tifffile", reason="bands of a TIFF need the extra tiff").imwrite(file, pixels, **keywords)
    file.seek(0)
    return file


def folder_of(root: Path, images: dict[str, np.ndarray]) -> Path:
    for name, pixels in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / name, pixels) if name.endswith(".npy") else Image.fromarray(pixels).save(root / name)
    return root


def trained_on(data: Any, settings: ImageSettings) -> torch.Tensor:
    """Return the cached pixels of the training images."""
    train = prepare(open_source(data), image_settings=settings).train
    assert isinstance(train, CachedImages)
    return train.take(torch.arange(len(train)))


@pytest.mark.parametrize("mode", ["L", "RGB", "LA", "P", "1", "CMYK", "I;16", "I", "F", "RGBA"])
def test_one_channel_is_the_gray_value_of_the_color(mode: str) -> None:
    color = Image.fromarray(noise(8, 6, 3))
    deep = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    top = 256 if mode == "I" else 60_000  # of other whole numbers no range is known
    image = Image.fromarray(noise(8, 6, top=top).astype(deep[mode])) if mode in deep else color.convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.fromarray(noise(8, 6, seed=1)))
    file = io.BytesIO()
    image.save(file, "TIFF")
    three, one = (decode(io.BytesIO(file.getvalue()), "x", pixel_format=kept).pixels for kept in (RGB, PixelFormat(1)))
    np.testing.assert_array_equal(one[..., 0], np.asarray(Image.fromarray(three).convert("L")))
    assert one.shape == (8, 6, 1)


def test_four_channels_are_colors_and_opacity() -> None:
    pixels = noise(5, 7, 4)
    np.testing.assert_array_equal(decode(file_of(pixels), "x", pixel_format=PixelFormat(4)).pixels, pixels)
    opaque = decode(file_of(pixels[..., :3].copy()), "x", pixel_format=PixelFormat(4)).pixels
    assert (opaque[..., 3] == 255).all()
    with pytest.raises(OtherValues, match=r"holds 1 channel, and images.channels is 4"):
        decode(file_of(pixels[..., 0].copy()), "x", pixel_format=PixelFormat(4))


def test_a_16_bit_ramp_needs_its_range() -> None:
    """A ramp of 256 neighboring values is one or two levels of the whole range, and 256 of its range."""
    ramp = (np.arange(256, dtype=np.uint16) + 30_000).reshape(16, 16)
    for kind in ("PNG", "TIFF", "npy"):
        flat = decode(file_of(ramp, kind), "x", pixel_format=PixelFormat(1)).pixels
        told = decode(file_of(ramp, kind), "x", pixel_format=PixelFormat(1, ((30_000, 30_255),))).pixels
        assert len(np.unique(flat)) <= 2
        np.testing.assert_array_equal(told[..., 0].ravel(), np.arange(256))
    color = decode(file_of(ramp), "x", pixel_format=PixelFormat(3, ((30_000, 30_255),))).pixels
    np.testing.assert_array_equal(color, np.repeat(told, 3, axis=2))


def test_values_beyond_a_range_are_clipped_by_channel() -> None:
    values = np.array([[[-5.0, 10, np.nan], [100, 20, 5], [51, 15.1, 7.55]]], dtype=np.float32)
    kept = PixelFormat(3, ((0, 100), (10, 20), (5, 10)))(values)
    assert kept.tolist() == [[[0, 0, 0], [255, 255, 0], [130, 130, 130]]]


def test_a_gray_value_becomes_three_by_three_ranges(tmp_path: Path) -> None:
    kept = PixelFormat(3, ((0, 10), (0, 20), (10, 30)))(np.array([[0, 10, 20]], dtype=np.int32))
    assert kept.tolist() == [[[0, 0, 0], [255, 128, 0], [255, 255, 128]]]
    flat = {
        f"{name}/{i}.npy": np.full((6, 6), 40 * i + 20 * k, np.float32) for i in range(3) for k, name in enumerate("ab")
    }
    settings = ImageSettings(image_size=6, cache_size=6, range=[[0, 255], [0, 255], [0, 510]])
    source = open_source(str(folder_of(tmp_path / "data", flat)))
    train = prepare(source, image_settings=settings).train
    assert isinstance(train, CachedImages)
    for number, name in enumerate(train.records.names):
        value = int(flat[name].flat[0])
        assert train.take(torch.tensor([number]))[0, :, 0, 0].tolist() == [value, value, value // 2]


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_nan_is_refused_until_a_range_is_named(strange: float) -> None:
    """Among floats from 0 to 1; by a range, nan is black."""
    values = np.array([[0, 0.5, 1, strange]], dtype=np.float32)
    with pytest.raises(Unfit, match="float32 from 0 to 1, nan or infinity among them"):
        RGB(values)
    expected = [0, 128, 255, 255 if strange == np.inf else 0]
    assert PixelFormat(1, ((0, 1),))(values)[0, :, 0].tolist() == expected


@pytest.mark.parametrize("kind", ["npy", "samples", "planes", "pages"])
def test_bands_keep_their_order(kind: str) -> None:
    pixels = noise(6, 9, 5)
    first = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    file = {
        "npy": lambda: file_of(pixels, "npy"),
        "samples": lambda: bands(pixels, photometric="minisblack", planarconfig="contig"),
        "planes": lambda: bands(first, photometric="minisblack", planarconfig="separate"),
        "pages": lambda: bands(first, photometric="minisblack"),
    }[kind]()
    decoded = decode(file, "x", pixel_format=PixelFormat(5))
    np.testing.assert_array_equal(decoded.pixels, pixels)
    assert decoded.mode == "5 x uint8"
    file.seek(0)
    assert image_size(file, "x") == (6, 9)


def test_bands_are_read_from_memory() -> None:
    pixels = noise(6, 9, 5)
    with tempfile.SpooledTemporaryFile() as upload:
        upload.write(bands(pixels, photometric="minisblack", planarconfig="contig").read())
        upload.seek(0)
        np.testing.assert_array_equal(decode(upload, "x", pixel_format=PixelFormat(5)).pixels, pixels)  # type: ignore[arg-type]
        upload.seek(0)
        assert image_size(upload, "x") == (6, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_tiff_whose_zero_is_white_is_inverted(kind: type, order: str) -> None:
    """By tag 262."""
    m = int(np.iinfo(kind).max)
    values: np.ndarray = np.linspace(0, m, 48).astype(kind).reshape(6, 8)
    whole, four = PixelFormat(1, ((0, m),)), PixelFormat(4, ((0, m),))
    formats = [whole, PixelFormat(1), RGB] if kind is not np.uint32 else [whole]
    for kept, held in [*((kept, values) for kept in formats), (four, np.stack([values] * 4))]:
        files = [
            bands(content, photometric=photometric, byteorder=order)
            for content, photometric in ((held, "minisblack"), (m - held, "miniswhite"))
        ]
        black, white = (decode(file, "x", pixel_format=kept) for file in files)
        np.testing.assert_array_equal(black.pixels, white.pixels)
        assert black.value_range == white.value_range
    if order == "<" and kind is np.uint16:
        opened = Image.open(bands(m - values, photometric="miniswhite"))
        np.testing.assert_array_equal(decode(opened, "x", pixel_format=whole).pixels[..., 0], np.rint(values / 257))
        np.testing.assert_array_equal(numbers_of(opened), values)


@pytest.mark.parametrize("kept", [RGB, PixelFormat(1), PixelFormat(1, ((0, 0.5),)), PixelFormat(4), ANY_FORMAT])
def test_floats_of_a_tiff_whose_zero_is_white_are_inverted(kept: PixelFormat) -> None:
    values = np.linspace(0, 1, 48, dtype=np.float32).reshape(6, 8)
    held = np.stack([values] * 4) if kept.channels == 4 else values
    files = [bands(content, photometric=way) for content, way in ((held, "minisblack"), (1 - held, "miniswhite"))]
    black, white = (decode(file, "x", pixel_format=kept) for file in files)
    assert np.abs(black.pixels.astype(int) - white.pixels).max() <= 1  # 1 - (1 - v) is not v to the last bit
    for other in (held * 2, (held * 100).astype(np.int16)):
        with pytest.raises(OtherValues, match=r"zero is white .* from 0 to \d+.*; save it with zero as black"):
            decode(bands(other, photometric="miniswhite"), "x", pixel_format=kept)
    with pytest.raises(UserError, match=r"^image 0: says that zero is white"):
        open_source(([Image.open(bands(values * 2, photometric="miniswhite"))], [0]))


@pytest.mark.parametrize("way", ["palette", "cielab", "icclab"])
def test_tiffs_of_palettes_and_lab_are_refused(way: str) -> None:
    values = noise(6, 8, top=65536) if way == "palette" else noise(6, 8, 3)
    values = values.astype(np.uint16) if way == "cielab" else values
    table = {"colormap": noise(3, 65536, top=65536)} if way == "palette" else {}
    with pytest.raises(OtherValues, match=r"holds .* that are not read here; save it as gray or RGB"):
        decode(bands(values, photometric=way, **table), "x")


@pytest.mark.parametrize("way", [{}, {"compression": "zlib"}, {"tile": (16, 16)}])
def test_planar_16_bit_color_equals_interleaved(way: dict[str, Any]) -> None:
    color = noise(32, 48, 3, top=65536)
    file = bands(np.ascontiguousarray(color.transpose(2, 0, 1)), photometric="rgb", planarconfig="separate", **way)
    assert image_size(file, "x") == (32, 48)
    file.seek(0)
    assert np.abs(decode(file, "x").pixels.astype(int) - (color >> 8)).max() <= 1


def test_planar_16_bit_color_without_its_reader_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    planes = noise(3, 8, 8, top=65536)
    file = bands(planes, photometric="rgb", planarconfig="separate")
    monkeypatch.setattr("viticulture.data.images.arrays.find_spec", lambda name: None)
    with pytest.raises(OtherValues, match=r"pip install 'viticulture\[tiff\]'"):
        decode(file, "x")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, 7, 255], np.int32, [0, 7, 255]),
        ([0, 1, 1], np.int32, [0, 255, 255]),
        ([0, 7, 255], np.uint32, [0, 7, 255]),
        ([0, 7, 255], np.int16, [0, 7, 255]),
        ([0, 257, 65535], np.int32, "int32 from 0 to 65535"),
        ([-1, 0, 1], np.int16, "int16 from -1 to 1"),
        ([-1, 0, 1], np.int8, "int8 from -1 to 1"),
        ([0, 7, 127], np.int8, [0, 7, 127]),
        ([0, 2**31, 2**32 - 1], np.uint32, r"uint32 from 0 to 4.29497e\+09"),
    ],
)
def test_integers_of_a_tiff_are_levels_or_need_a_range(values: list[int], kind: type, expected: Any) -> None:
    file = bands(np.array([values], dtype=kind), photometric="minisblack")
    if isinstance(expected, str):
        with pytest.raises(OtherValues, match=f"{expected}.* images.range"):
            decode(file, "x")
    else:
        assert decode(file, "x").pixels[0, :, 0].tolist() == expected
    file.seek(0)
    low, high = min(values), max(values)
    named = decode(file, "x", pixel_format=PixelFormat(1, ((low, high),))).pixels[0, :, 0]
    assert named.tolist() == [round(255 * (value - low) / (high - low)) for value in values]
    file.seek(0)
    assert decode(file, "x", pixel_format=ANY_FORMAT).value_range == (low, high)


def test_a_dark_pgm_of_16_bits_is_dark() -> None:
    file = io.BytesIO(b"P5 3 1 65535\n" + np.array([0, 128, 255], ">u2").tobytes())
    assert decode(file, "x").pixels[0, :, 0].tolist() == [0, 0, 1]


def deep_png(values: np.ndarray, hidden: tuple[int, ...] = ()) -> BinaryIO:
    """Encode a 16-bit PNG, [H, W, C] uint16, which Pillow cannot write; `hidden` is its transparent value."""
    height, width, channels = values.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, data in (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)),
        *([(b"tRNS", struct.pack(f">{channels}H", *hidden))] if hidden else []),
        (b"IDAT", zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))),
        (b"IEND", b""),
    ):
        parts.append(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
    return io.BytesIO(b"".join(parts))


@pytest.mark.parametrize("channels", [1, 3])
def test_transparency_compares_all_16_bits(channels: int) -> None:
    """PNG, chunk tRNS: a gray value or a color, of 16 bits."""
    hidden = (0x1234, 0x5678, 0x9ABC)[:channels]
    others = [(0x3400, 0x7800, 0xBC00), (0x1200, 0x5600, 0x9A00), (0x1234, 0x5678, 0x9ABD), (0x4321, 0x5678, 0x9ABC)]
    values = np.array([hidden, *(other[:channels] for other in others if other[:channels] != hidden)], np.uint16)[None]
    decoded = decode(deep_png(values, hidden), "x")
    assert decoded.pixels[0, 0].tolist() == [255, 255, 255]
    assert (decoded.pixels[0, 1:] == RGB(values)[0, 1:]).all()
    assert decoded.value_range == (values[0, 1:].min(), values[0, 1:].max())


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_colors_of_a_png_keep_16_bits(channels: int) -> None:
    values = noise(6, 5, channels, top=4096)
    opacity = np.full((6, 5), 65535, np.uint16)
    if channels == 4:
        opacity = values[..., 3] = noise(6, 5, seed=1, top=65536)
    white = values[..., :3] * (opacity / 65535)[..., None] + 65535 - opacity[..., None]
    for kept in (RGB, PixelFormat(3, ((0, 4095),))):
        pixels = decode(deep_png(values), "x", pixel_format=kept).pixels
        np.testing.assert_array_equal(pixels, kept(white.round().astype(np.uint16)))
    if channels > 1:
        four = decode(deep_png(values), "x", pixel_format=PixelFormat(4)).pixels
        np.testing.assert_array_equal(four, PixelFormat(4)(np.dstack([values[..., :3], opacity])))


@pytest.mark.parametrize("kept", [RGB, PixelFormat(3, ((0, 4095),)), PixelFormat(4)])
@pytest.mark.parametrize("hidden", [(), (1000, 2000, 3000)])
def test_an_opened_png_of_16_bits_equals_its_file(hidden: tuple[int, ...], kept: PixelFormat) -> None:
    values = noise(6, 5, 3, top=4096)
    values[0, 0] = 1000, 2000, 3000
    expected = decode(deep_png(values, hidden), "x", pixel_format=kept)
    source = open_source(([Image.open(deep_png(values, hidden)) for _ in "ab"], [0, 1]))
    for reader in (source.reader, source.reader, pickle.loads(pickle.dumps(source.reader))):
        decoded = decode(reader.open(0), "x", pixel_format=kept)
        np.testing.assert_array_equal(decoded.pixels, expected.pixels)
        assert decoded[1:] == expected[1:]
    values[3, 2, 1] ^= 1
    assert open_source(([Image.open(deep_png(values, hidden))], [0])).fingerprints != source.fingerprints[:1]


def test_a_resized_png_of_16_bits_is_read_as_it_is() -> None:
    """Pillow's `thumbnail` changes a picture in place."""
    picture = as_pixels(Image.open(deep_png(noise(8, 8, 3))))
    assert isinstance(picture, Image.Image)
    picture.thumbnail((4, 4))
    assert decode(picture, "x").pixels.shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("file", "kept", "words"),
    [
        (
            lambda: file_of(noise(4, 4, 5), "npy"),
            RGB,
            "holds 5 channels, and images.channels is 3: --images.channels 5",
        ),
        (lambda: file_of(noise(5, 8, 9), "npy"), PixelFormat(5), r"may be \[channels, H, W\], got \[5, 8, 9\]"),
        (lambda: file_of(noise(4, 4, 3)), PixelFormat(5), "bands|not a|holds 3 channels"),
        (
            lambda: file_of(noise(4, 4).astype(np.int16) - 9, "npy"),
            PixelFormat(1),
            r"int16 from -\d to .* images.range, such as \[-\d, ",
        ),
        (lambda: file_of(noise(4, 4).astype(np.float32), "npy"), RGB, r"float32 from .*images.range"),
        (lambda: file_of(noise(4), "npy"), RGB, r"an image is \[H, W\] or \[H, W, channels\], got \[4\]"),
        (lambda: file_of(np.array([["a"]]), "npy"), RGB, "not numbers"),
        (lambda: deep_png(noise(4, 4, 2)), PixelFormat(3, ((0, 4095),)), "16-bit gray as 8"),
    ],
)
def test_what_is_not_to_be_had_is_refused_with_the_way_out(file: Any, kept: PixelFormat, words: str) -> None:
    with pytest.raises(OtherValues, match=words):
        decode(file(), "x", pixel_format=kept)


def test_a_file_of_numbers_runs_no_code_and_is_checked_by_its_header() -> None:
    file = io.BytesIO()
    np.save(file, np.array([[{}]], dtype=object), allow_pickle=True)
    file.seek(0)
    with pytest.raises(OtherValues, match="not numbers"):
        decode(file, "x")
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "|u1", "fortran_order": False, "shape": (1 << 20, 1 << 20)})
    huge.seek(0)
    with pytest.raises(OtherValues, match="is more than"):
        decode(huge, "x", pixel_format=PixelFormat(1))


def test_a_tiff_of_bands_without_its_reader_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viticulture.data.images.arrays.find_spec", lambda name: None)
    with pytest.raises(OtherValues, match=r"viticulture\[tiff\]"):
        decode(file_of(noise(4, 4, 3), "TIFF"), "x", pixel_format=PixelFormat(5))


@pytest.mark.parametrize("channels", [1, 5])
def test_a_cache_and_a_stream_give_the_same_views_of_any_channels(tmp_path: Path, channels: int) -> None:
    images = {f"{name}/{i}.npy": noise(12, 10, channels, seed=i + 6 * (name == "b")) for i in range(6) for name in "ab"}
    root = folder_of(tmp_path / "data", images)
    settings = ImageSettings(image_size=8, cache_size=12, normalize="dataset", channels=channels, fit="pad")
    stored = prepare(str(root), image_settings=settings)
    streamed = prepare(str(root), image_settings=ImageSettings(**{**vars(settings), "stream": True}))
    assert isinstance(stored.train, CachedImages)
    assert isinstance(streamed.train, StreamedImages)
    numbers = torch.arange(len(stored.train))
    augment = Augment(
        [ColorJitter(hue=0.0), Blur(1.0), Gray(0.5), Solarize(0.5), RandAugment(probability=1.0)],
        (8, 8),
        stored.mean,
        stored.std,
        2,
    )
    u = torch.rand(len(numbers), augment.columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (expected,) = streamed.train.cut(numbers, [augment], [u])
    cut = augment.cut(stored.train.take(numbers), stored.train.records.sizes, u)
    assert torch.equal(cut, expected)
    assert len(stored.mean) == len(stored.std) == channels
    values = stored.train.take(numbers).double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(torch.tensor(stored.mean).double(), values.mean(1), rtol=0, atol=1e-6)  # float32 sums
    changed = augment.normalize(augment.change(cut, u))
    assert changed.shape == (len(numbers), channels, 8, 8)
    assert changed.isfinite().all()
    assert stored.train.original(0).shape[2] == streamed.train.original(0).shape[2] == 3


def test_augmentation_of_equal_channels_is_that_of_one() -> None:
    gray = torch.from_numpy(noise(64, 1, 16, 16))
    changes = [ColorJitter(hue=0.0), Blur(1.0), Gray(0.5), Solarize(0.5), RandAugment(probability=1.0)]
    one, three = (Augment(changes, (16, 16), (0.5,) * c, (0.5,) * c, 2) for c in (1, 3))
    u = torch.rand(64, one.columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, expected = one.change(gray.clone(), u), three.change(gray.repeat(1, 3, 1, 1), u)
    apart = (found.int() - expected.int()).abs()
    # a level on the other side of a threshold of solarize, or in another bin of equalize, lies further away
    assert (apart <= 1).float().mean() > 0.98
    assert not torch.equal(found, gray)


def test_a_hue_is_refused_where_there_are_no_three_colors() -> None:
    with pytest.raises(UserError, match=r"color_jitter.hue turns colors, and images have 1 channel: set it to 0"):
        Augment([ColorJitter(hue=0.1)], (8, 8), (0.5,), (0.5,), 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"channels": 1},
            "normalize imagenet is for three colors, and images.channels is 1: --images.normalize dataset",
        ),
        ({"channels": 0}, "channels must lie in 1 to"),
        ({"range": [5, 5]}, r"images.range is \[low, high\], low below high"),
        ({"range": [5]}, "images.range"),
        ({"range": []}, "images.range has one pair or one for each of the 3 channels, got 0"),
        ({"range": [[0, 1], [0, 2]]}, "one pair or one for each of the 3 channels, got 2"),
        ({"range": [[0, "a"]]}, "images.range"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    refused(words, ImageSettings, **settings)


@pytest.mark.parametrize(("kind", "scale", "shift"), [(np.int64, 1, 0), (np.float64, 1 / 127.5, -1)])
def test_arrays_of_unknown_range_are_refused_until_it_is_named(kind: type, scale: float, shift: float) -> None:
    levels = noise(8, 6, 8, 3)
    levels[0, 0, 0], levels[0, 0, 1] = 0, 255
    given: Any = ((levels * scale + shift).astype(kind), [0, 1] * 4)
    refused(r"images.normalize\).* images.range, such as \[(0, 255|-1, 1)\]", lambda: prepare(open_source(given)))
    named = ImageSettings(image_size=8, cache_size=8, range=[shift, 255 * scale + shift])
    plain = ImageSettings(image_size=8, cache_size=8)
    assert torch.equal(trained_on(given, named), trained_on((levels, given[1]), plain))


def test_images_of_other_channels_are_refused_before_any_is_cached(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "data", {f"{name}/{i}.npy": noise(8, 8, 5) for i in range(2) for name in "ab"})
    refused(r"a/0.npy: holds 5 channels, and images.channels is 3: --images.channels 5", prepare, str(root))
    assert not (tmp_path / "cache" / "decoded").exists()


@pytest.mark.parametrize("kind", ["npy", "tif"])
def test_numbers_of_other_channels_are_refused_by_their_header(kind: str) -> None:
    pixels = noise(40, 40, 9)
    whole = file_of(pixels, "npy") if kind == "npy" else bands(pixels, photometric="minisblack", planarconfig="contig")
    with pytest.raises(OtherValues, match=r"holds 9 channels, and images\.channels is 5"):
        decode(io.BytesIO(whole.read()[:2000]), "x", pixel_format=PixelFormat(5))


def test_arrays_next_to_pictures_are_no_images(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "data", {"a/0.png": noise(8, 8, 3), "b/0.png": noise(8, 8, 3), "a/0.npy": noise(8, 8)})
    source = open_source(str(root))
    assert source.names == ["a/0.png", "b/0.png"]
    assert source.ignored == ("a/0.npy",)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_keep_their_channels_and_bits(library: str) -> None:
    """[N, H, W, 5] of numpy, [N, 5, H, W] of torch, both of 16 bits."""
    values = noise(8, 9, 10, 5, top=4000)
    images = values if library == "numpy" else torch.from_numpy(values).permute(0, 3, 1, 2)
    settings = ImageSettings(image_size=8, cache_size=10, normalize="half", channels=5, range=[0, 3999])
    expected = np.rint(values[3].astype(np.float32) * np.float32(255 / 3999)).astype(np.uint8)
    np.testing.assert_array_equal(settings.pixel_format(open_source((images, [0, 1] * 4)).reader.open(3)), expected)
    assert trained_on((images, [0, 1] * 4), settings).shape[1:] == (5, 10, 10)


def test_data_describes_channels_and_bits(tmp_path: Path) -> None:
    ramp = np.arange(64, dtype=np.uint16).reshape(8, 8) + 1000
    root = folder_of(tmp_path / "deep", {f"{name}/{i}.png": ramp + i for i in range(3) for name in "ab"})
    found = inspect(str(root))
    assert found.values == (
        "values of more than 8 bits lie in 1000 to 1065, of which 8 bits of the"
        ' whole range leave 1 level; --images.range "[1000, 1065]" spreads them over all 256'
    )
    for i, file in enumerate(sorted(root.glob("*/*.png"))):
        file.write_bytes(deep_png(np.dstack([ramp + i] * 3)).read())
    assert inspect(str(root)).values.startswith("values of more than 8 bits lie in 1000 to 1068, of which 8 bits")
    root = folder_of(tmp_path / "many", {f"{name}/{i}.npy": noise(8, 8, 7, seed=i) for i in range(3) for name in "ab"})
    assert inspect(str(root)).values == "7 channels, read by --images.channels 7"
    assert inspect("digits").values == ""


@pytest.mark.parametrize(("bits", "kind"), [(12, "png"), (12, "npy"), (10, "png"), (16, "png"), (8, "png")])
def test_values_far_below_16_bits_are_reported(bits: int, kind: str, tmp_path: Path) -> None:
    images = {f"{n}/{i}.{kind}": noise(8, 8, seed=i, top=2**bits) for i in range(9) for n in "ab"}
    source = open_source(folder_of(tmp_path / "scans", images))
    told = [words for words in prepare(source).warnings if "values of 16 bits" in words]
    assert len(told) == (bits in (10, 12))
    if told:
        assert f'{1 + round(2**bits / 257)} levels; --images.range "[0, {2**bits - 1}]"' in told[0]
        settings = ImageSettings(range=[0, 2**bits - 1])
        assert not any("values of 16 bits" in words for words in prepare(source, image_settings=settings).warnings)


def test_16_bits_in_the_other_byte_order_are_reported() -> None:
    images = np.stack([noise(8, 8, seed=i, top=4096) for i in range(8)]).astype(">u2")
    assert any("values of 16 bits" in words for words in prepare(open_source((images, [0, 1] * 4))).warnings)


def test_only_the_first_page_or_frame_is_read_and_reported(tmp_path: Path) -> None:
    for number, kind in enumerate(("tif", "gif", "webp", "tif")):
        for name in "ab":
            pages = [Image.fromarray(noise(8, 8, 3, seed=seed)) for seed in range(1 if number == 3 else 3)]
            (tmp_path / "scans" / name).mkdir(parents=True, exist_ok=True)
            pages[0].save(tmp_path / "scans" / name / f"{number}.{kind}", save_all=True, append_images=pages[1:])
    source = open_source(tmp_path / "scans")
    told = "of several pages or frames in a file the first is read: 6 of 8 images"
    assert told in inspect(source).warnings
    (words,) = [words for words in prepare(source).warnings if "several pages" in words]
    assert words.startswith(told[: told.index(":")])
    assert not any("several pages" in words for words in inspect("digits").warnings)
    with Image.open(tmp_path / "scans" / "a" / "1.gif") as opened:
        once, again = (decode(opened, "a").pixels for _ in range(2))
    assert np.array_equal(once, again)


def test_pictures_have_gray_the_mean_of_two_or_the_first_three_channels() -> None:
    pixels = noise(3, 4, 6)
    np.testing.assert_array_equal(as_picture(pixels), pixels[..., :3])
    np.testing.assert_array_equal(as_picture(pixels[..., :1]), pixels[..., [0, 0, 0]])
    mean = as_picture(pixels[..., :2])
    assert np.abs(mean[..., 0] - pixels[..., :2].mean(-1)).max() <= 0.5
    assert [bool(displayed(channels)) for channels in (1, 2, 3, 4)] == [False, True, False, True]
