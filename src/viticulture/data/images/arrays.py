# SPDX-License-Identifier: Apache-2.0
"""Files of numbers rather than pictures: NumPy's .npy, and TIFF with any number of bands (extra `tiff`).

.npy    [H, W] or [H, W, C] of any numbers; nothing is ever unpickled
.tif    samples of a pixel or pages of one size, as tifffile reads them; inverted where zero is white
"""

from collections.abc import Callable, Collection
from importlib.util import find_spec
from io import SEEK_END
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from .format import Unfit, value_range

MAX_VALUES = 3 * 178_956_970  # of one file: as many as the largest picture has (`pillow.MAX_PIXELS`)
MAX_INFLATION = 1100  # times by which deflate makes anything smaller, at most
START = 8  # bytes that tell the kind of a file
WHITE_IS_ZERO = 0
_NO_LEVELS = {3: "numbers of a palette", 8: "CIELAB colors", 9: "ICCLab colors", 10: "ITULab colors"}
"""TIFF's tag 262 where numbers are neither gray nor shares of red, green and blue."""
NPY_START, TIFF_STARTS = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how the files begin


class ArrayReader(NamedTuple):
    """Reads a kind of file, open at its start: its numbers, [H, W] or [H, W, C], or its shape from the header alone.

    Both raise Unfit for what is no image, too large or needs a library, and ValueError for a damaged file.
    """

    values: Callable[[BinaryIO], NDArray[Any]]
    shape: Callable[[BinaryIO], tuple[int, ...]]


def npy_header(file: BinaryIO, length: int | None = None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read shape and type of an open .npy. `length`: bytes of the file, to check that it holds as many numbers as the
    header says; None checks nothing. Raises: ValueError for a damaged header, and one of more numbers than follow.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    need = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (length is not None and need > length - file.tell()):
        raise ValueError(f"its header promises {' x '.join(map(str, shape))} numbers, which do not follow")
    return shape, dtype


def check_npz(path: Path | BinaryIO, names: Collection[str] = ()) -> list[str]:
    """List the arrays in a .npz, and check that the headers of `names` (of all, if empty) promise no more than follows.

    Raises: any error of reading the file.
    """
    with ZipFile(path) as file:
        members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
        for name, member in members.items():
            if not names or name in names:
                if member.file_size > MAX_INFLATION * (1 + member.compress_size):
                    raise ValueError(f"{member.filename} cannot unpack to {member.file_size:,} bytes")
                with file.open(member) as opened:
                    npy_header(cast(BinaryIO, opened), member.file_size)
    return list(members)


def npy_shape(file: BinaryIO) -> tuple[int, ...]:
    """Read the shape of a .npy. Raises: Unfit for objects; else as `ArrayReader`."""
    shape, dtype = npy_header(file)
    if dtype.hasobject or dtype.kind not in "buif":
        raise Unfit(f"holds {dtype}, not numbers")
    return _checked(shape)


def npy_values(file: BinaryIO) -> NDArray[Any]:
    """Read the numbers of a .npy."""
    length = file.seek(0, SEEK_END)
    file.seek(0)
    npy_shape(file)
    file.seek(0)
    npy_header(file, length)
    file.seek(0)
    values: NDArray[Any] = np.load(file, allow_pickle=False)
    return values


def tiff_shape(file: BinaryIO) -> tuple[int, ...]:
    """Read the shape of a TIFF, [H, W, C]."""
    with _opened(file) as tiff:
        return _shape(tiff.series[0])


def tiff_values(file: BinaryIO) -> NDArray[Any]:
    """Read the numbers of a TIFF, [H, W, C], zero as black. Raises: Unfit for numbers that are no levels; else as
    `ArrayReader` and `zero_as_black`."""
    with _opened(file) as tiff:
        series = tiff.series[0]
        shape = _shape(series)
        if (kind := _NO_LEVELS.get(series.keyframe.photometric)) is not None:
            raise Unfit(f"holds {kind} that are not read here; save it as gray or RGB")
        values = zero_as_black(series.asarray(), series.keyframe.photometric, series.keyframe.bitspersample)
        order = [series.axes.index("Y"), series.axes.index("X")]
        rest = [axis for axis in range(values.ndim) if axis not in order]
        return values.transpose(*order, *rest).reshape(shape)


NPY, TIFF = ArrayReader(npy_values, npy_shape), ArrayReader(tiff_values, tiff_shape)


def zero_as_black(values: NDArray[Any], photometric: int | None, bits: int) -> NDArray[Any]:
    """Invert a TIFF's numbers, 2^bits - 1 - value, where its tag 262 is 0 (WhiteIsZero); floats to 1 - value.

    Raises: Unfit for signed numbers and floats beyond 0 to 1, of which the file does not say which are black.
    """
    if photometric != WHITE_IS_ZERO:
        return values
    kind, (low, high) = values.dtype.kind, value_range(values)
    if kind != "u" and not (kind == "f" and low >= 0 and high <= 1):
        raise Unfit(
            f"says that zero is white (WhiteIsZero) and holds {values.dtype} from {low:.6g} to {high:.6g}, so that the "
            "value of black is unknown; save it with zero as black"
        )
    inverted: NDArray[Any] = values.dtype.type(1 if kind == "f" else 2**bits - 1) - values
    return inverted


def _opened(file: BinaryIO) -> Any:
    if find_spec("tifffile") is None:
        raise Unfit("bands of a TIFF need tifffile (pip install 'viticulture[tiff]'), or save them as .npy")
    from tifffile import TiffFile

    file.seek(0)
    return TiffFile(file, name="image")  # without a name it reads the file's, and an upload has none


def _shape(series: Any) -> tuple[int, ...]:
    if not {"Y", "X"} <= set(series.axes):
        raise Unfit(f"holds no image, but axes {series.axes} of {list(series.shape)}")
    sides = [series.shape[series.axes.index(axis)] for axis in "YX"]
    return _checked((*sides, prod(series.shape) // max(prod(sides), 1)))


def _checked(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) not in (2, 3) or not prod(shape):
        raise Unfit(f"an image is [H, W] or [H, W, channels], got {list(shape)}")
    if prod(shape) > MAX_VALUES:
        raise Unfit(f"{' x '.join(map(str, shape))} is more than {MAX_VALUES:,} values")
    return shape
