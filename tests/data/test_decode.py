# SPDX-License-Identifier: Apache-2.0
"""Files of every kind are decoded as they look, and broken ones raise one error."""

import io
import pickle
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from viticulture.data.images import pillow
from viticulture.data.images.decode import OtherValues, Unreadable, as_pixels, decode, image_size, orientation_of
from viticulture.data.images.format import RGB, PixelFormat


def stripes(height: int = 20, width: int = 30) -> np.ndarray:
    """Draw [H, W, 3], no two corners alike."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // (width - 1), y * 255 // (height - 1), (x + y) % 256], axis=-1).astype(np.uint8)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return file


def seen(file: io.BytesIO) -> np.ndarray:
    picture = decode(file, "x")
    file.seek(0)
    assert picture.image.mode == "RGB"
    assert image_size(file, "x") == (picture.height, picture.width) == picture.image.size[::-1]
    return np.asarray(picture.image)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_rgb_is_unchanged(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(seen(saved(Image.fromarray(stripes()), kind, **options)), stripes())


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright_by_exif(kind: str, orientation: int) -> None:
    """EXIF 2.3, tag 274: the position of row 0 and column 0 of the file."""
    upright = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: a.swapaxes(0, 1)[:, ::-1],
        7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
        8: lambda a: a.swapaxes(0, 1)[::-1],
    }[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    pixels = seen(saved(Image.fromarray(stripes(16, 24)), kind, exif=exif, **options))
    tolerance = 12 if kind == "JPEG" else 0  # JPEG loses some; a wrong turn is off by up to 255
    np.testing.assert_allclose(pixels.astype(int), upright(stripes(16, 24)).astype(int), atol=tolerance)


def test_gray_and_one_bit_become_equal_channels() -> None:
    gray = stripes()[..., 0]
    np.testing.assert_array_equal(seen(saved(Image.fromarray(gray))), np.stack([gray] * 3, axis=-1))
    bits = seen(saved(Image.fromarray(gray).convert("1", dither=Image.Dither.NONE)))
    np.testing.assert_array_equal(bits[..., 0], np.where(gray > 127, 255, 0))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_on_white(mode: str) -> None:
    """white * (1 - a) + color * a."""
    color = np.full((4, 6, 4), (200, 200, 200, 255), dtype=np.uint8)
    color[:, :2] = (0, 0, 0, 0)
    image = Image.fromarray(color)
    if mode == "P":
        image = Image.fromarray(np.where(color[..., 3] > 0, 1, 0).astype(np.uint8), "P")
        image.putpalette([0, 0, 0, 200, 200, 200])
        file = saved(image, "PNG", transparency=0)
    else:
        file = saved(image.convert(mode))
    pixels = seen(file)
    assert (pixels[:, :2] == 255).all()
    assert (pixels[:, 2:] == 200).all()


def test_half_transparent_is_half_white() -> None:
    pixels = seen(saved(Image.new("RGBA", (2, 2), (0, 100, 200, 128))))
    np.testing.assert_allclose(pixels[0, 0], [127, 177, 227], atol=1)  # rounding of 128 / 255


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    """255 / 65535."""
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    np.testing.assert_array_equal(seen(saved(Image.fromarray(values)))[0, :, 0], [0, 1, 128, 255])
    dark = np.array([[0, 257, 514]], dtype=np.uint16)
    np.testing.assert_array_equal(seen(saved(Image.fromarray(dark)))[0, :, 0], [0, 1, 2])
    np.testing.assert_array_equal(seen(saved(Image.fromarray(values), "TIFF"))[0, :, 0], [0, 1, 128, 255])
    swapped = Image.frombytes("I;16B", (4, 1), values.astype(">u2").tobytes())
    np.testing.assert_array_equal(seen(saved(swapped, "TIFF"))[0, :, 0], [0, 1, 128, 255])


def test_an_opened_tiff_of_deep_colors_is_no_picture_of_a_value_range(tmp_path: Path) -> None:
    """Pillow has read eight of its bits already."""
    values = np.arange(48, dtype=np.uint16).reshape(4, 4, 3) * 80
    pytest.importorskip("tifffile").imwrite(tmp_path / "a.tif", values, photometric="rgb")
    whole = PixelFormat(3, (0, 4095))
    with (tmp_path / "a.tif").open("rb") as file:
        assert decode(file, "a", pixel_format=whole).pixels.max() > 200
    with pytest.raises(OtherValues, match="16-bit colors as 8 bits"):
        decode(as_pixels(Image.open(tmp_path / "a.tif")), "a", pixel_format=whole)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([-1000.0, 0.0, 1000.0], [0, 128, 255]),
        ([0.0, float("nan"), 1.0], [0, 0, 255]),
        ([7.0, 7.0, 7.0], [7, 7, 7]),
        ([-3.0, -3.0, -3.0], [0, 0, 0]),
    ],
)
def test_float_images_follow_their_range(values: list[float], expected: list[int]) -> None:
    image = Image.fromarray(np.array([values], dtype=np.float32))
    np.testing.assert_array_equal(seen(saved(image, "TIFF"))[0, :, 0], expected)


def test_cmyk_is_converted() -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    np.testing.assert_allclose(seen(saved(image, "JPEG", quality=100))[4, 4], [255, 0, 0], atol=6)
    np.testing.assert_array_equal(seen(saved(image, "TIFF"))[4, 4], [255, 0, 0])


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_read(kind: str) -> None:
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "blue")]
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    pixels = seen(saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, **options))
    assert pixels.shape == (6, 8, 3)
    assert (pixels == [255, 0, 0]).all()


@pytest.mark.parametrize("shape", [(1, 1), (20, 10_000), (10_000, 20)])
def test_extreme_shapes_are_read(shape: tuple[int, int]) -> None:
    assert seen(saved(Image.new("RGB", shape[::-1]))).shape == (*shape, 3)


def test_large_jpegs_are_decoded_smaller_and_report_their_size() -> None:
    exif = Image.Exif()
    exif[274] = 6
    y, x = np.mgrid[:800, :1200]
    smooth = np.stack([x * 255 // 1199, y * 255 // 799, x * 0], axis=-1).astype(np.uint8)
    file = saved(Image.fromarray(smooth), "JPEG", quality=95, exif=exif)
    picture = decode(file, "x", shrink=64)
    assert (picture.height, picture.width) == (1200, 800)
    assert picture.image.size == (200, 300)  # 1/4; 1/8 would be narrower than 2 * 64
    whole = Image.fromarray(smooth).transpose(Image.Transpose.ROTATE_270).resize((200, 300), Image.Resampling.BOX)
    difference = np.abs(np.asarray(picture.image).astype(int) - np.asarray(whole).astype(int))
    assert difference.mean() < 2  # gray levels; JPEG noise
    file.seek(0)
    assert decode(file, "x", shrink=400).image.size == (800, 1200)


def with_chunks(png: bytes, *chunks: bytes, before: bytes = b"IDAT") -> bytes:
    """Add chunks to a PNG before its image data."""
    place = png.index(before) - 4
    return png[:place] + b"".join(chunks) + png[place:]


def chunk(kind: bytes, body: bytes, wrong: int = 0) -> bytes:
    """Encode a chunk of a PNG; `wrong` is added to its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", (zlib.crc32(kind + body) + wrong) % 2**32)


LONG = b"x" * 3_000_000
EXTRAS = {
    "profile of 3 MB": chunk(b"iCCP", b"name\0\0" + zlib.compress(LONG)),
    "profile packed in another way": chunk(b"iCCP", b"name\0\1"),
    "profile without an end": chunk(b"iCCP", b"name"),
    "packed text of 3 MB": chunk(b"zTXt", b"prompt\0\0" + zlib.compress(LONG)),
    "international text of 3 MB": chunk(b"iTXt", b"prompt\0\1\0\0\0" + zlib.compress(LONG)),
    "texts of 66 MB": chunk(b"tEXt", b"prompt\0" + LONG) * 22,
    "checksum of a text": chunk(b"tEXt", b"Author\0me", wrong=1),
    "checksum of a time": chunk(b"tIME", bytes(7), wrong=1),
}


@pytest.mark.parametrize("before", [b"IDAT", b"IEND"])
@pytest.mark.parametrize("case", EXTRAS)
def test_metadata_of_a_png_does_not_hinder_it(case: str, before: bytes) -> None:
    exif = Image.Exif()
    exif[274] = 6
    plain = saved(Image.fromarray(stripes()), exif=exif).getvalue()
    np.testing.assert_array_equal(
        seen(io.BytesIO(with_chunks(plain, EXTRAS[case], before=before))), seen(io.BytesIO(plain))
    )
    file = io.BytesIO(with_chunks(plain, EXTRAS[case], before=before))
    assert orientation_of(file, "x", RGB) == 6
    deep = saved(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)).getvalue()
    np.testing.assert_array_equal(
        seen(io.BytesIO(with_chunks(deep, EXTRAS[case], before=before))), seen(io.BytesIO(deep))
    )


def test_a_damaged_image_is_reported_as_damaged() -> None:
    png = saved(Image.fromarray(stripes()).quantize(8)).getvalue()
    place = png.index(b"PLTE") + 5
    for data in (
        png[:20] + b"\xff" + png[21:],  # of the header
        png[:place] + bytes([png[place] ^ 255]) + png[place + 1 :],  # a color
        with_chunks(png, chunk(b"tRNS", bytes(8), wrong=1)),
        saved(Image.fromarray(stripes()), "BMP").getvalue()[:14] + bytes(40),
        saved(Image.fromarray(stripes()), "JPEG").getvalue()[:12],
    ):
        for read in (decode, image_size):
            with pytest.raises(Unreadable, match=r"x: (broken|truncated)"):
                read(io.BytesIO(data), "x")


BROKEN = {
    "zero bytes": (b"", "empty"),
    "text": (b"hello, I am no image at all", "not an image"),
    "html": (b"<html>404</html>", "not an image"),
    "heic": (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", "(?i)hei[cf]|broken"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_image_is_unreadable(case: str) -> None:
    data, reason = BROKEN[case]
    for read in (decode, image_size):
        with pytest.raises(Unreadable, match=reason) as caught:
            read(io.BytesIO(data), "a/b.jpg")
        assert caught.value.name == "a/b.jpg"


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_truncated_and_damaged_files_raise_one_error(kind: str) -> None:
    rng = np.random.default_rng(0)
    data = saved(Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)), kind).getvalue()
    with pytest.raises(Unreadable):
        decode(io.BytesIO(data[: len(data) * 2 // 3]), "cut")
    for _ in range(100):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 8):
            damaged[place] = rng.integers(0, 256)
        for read in (decode, image_size):
            with suppress(Unreadable):
                read(io.BytesIO(bytes(damaged)), "damaged")


def bomb(width: int, height: int) -> bytes:
    """Write a PNG whose header declares many pixels; decoded, it would fill the memory."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


@pytest.mark.parametrize("size", [(100_000, 100_000), (13_400, 13_400)])
def test_decompression_bombs_are_refused_by_their_header(size: tuple[int, int]) -> None:
    for read in (decode, image_size):
        with pytest.raises(Unreadable, match="pixels"):
            read(io.BytesIO(bomb(*size)), "bomb.png")


def test_the_pixel_limit_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow, "MAX_PIXELS", 30 * 20)
    assert seen(saved(Image.fromarray(stripes()))).shape == (20, 30, 3)
    with pytest.raises(Unreadable, match="more than 600 pixels"):
        decode(saved(Image.fromarray(stripes(21))), "x")


def test_errors_survive_a_worker_process() -> None:
    error = pickle.loads(pickle.dumps(Unreadable("a.jpg", "truncated")))
    assert (error.name, error.reason, str(error)) == ("a.jpg", "truncated", "a.jpg: truncated")


def test_a_file_is_read_like_bytes(tmp_path: Path) -> None:
    Image.fromarray(stripes()).save(tmp_path / "a.png")
    with (tmp_path / "a.png").open("rb") as file:
        np.testing.assert_array_equal(np.asarray(decode(file, "a").image), stripes())


def test_heic_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In HEIC a property of the file rotates the image, and EXIF's tag only repeats it."""
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra `heic`")
    pillow_heif.register_heif_opener()
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :32] = (200, 30, 30)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # a quarter turn clockwise
    for name, turned in (("plain.heic", False), ("turned.heic", True)):
        Image.fromarray(pixels).save(tmp_path / name, quality=90, **({"exif": exif} if turned else {}))
        seen = decode((tmp_path / name).open("rb"), name)
        assert image_size((tmp_path / name).open("rb"), name) == (seen.height, seen.width) == (48, 64)
        assert np.abs(np.asarray(seen.image).astype(int) - pixels).mean() < 8, "lossy"
    pillow._formats.cache_clear()
    monkeypatch.setattr(pillow, "find_spec", lambda name: None)
    monkeypatch.delitem(Image.OPEN, "HEIF")
    with pytest.raises(Unreadable, match=r"viticulture\[heic\]"):
        decode((tmp_path / "plain.heic").open("rb"), "plain.heic")
    pillow._formats.cache_clear()
