# SPDX-License-Identifier: Apache-2.0
"""Files of numbers rather than pictures: NumPy's .npy, and TIFF with any number of bands (extra `tiff`).

.npy    [H, W] or [H, W, C] of any numbers; nothing is ever unpickled
.tif    samples of a pixel or pages of one size, as tifffile reads them; where zero is white, turned round
"""

from collections.abc import Collection
from importlib.util import find_spec
from io import SEEK_END
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from .channels import Unfit, spread

MOST_VALUES = 3 * 178_956_970
"""Of one file: as many as the largest picture has (`decode.MAX_PIXELS`)."""
MOST_INFLATED = 1100
"""Times by which deflate makes anything smaller, at most."""
START = 8
"""Bytes that tell what a file is."""
WHITE_IS_ZERO = 0
_NO_LEVELS = {3: "numbers of a palette", 8: "CIELAB colors", 9: "ICCLab colors", 10: "ITULab colors"}
"""TIFF's tag 262 where numbers are neither gray nor shares of red, green and blue."""
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_npy(start: bytes) -> bool:
    """Whether a file that begins so is one of NumPy's."""
    return start.startswith(b"\x93NUMPY")


def is_tiff(start: bytes) -> bool:
    """Whether a file that begins so is a TIFF."""
    return start.startswith(_TIFF)


def npy_header(file: BinaryIO, length: int | None = None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the numbers that an open .npy holds.

    Args:
        file: at its start.
        length: bytes of the file, of which the numbers need as many as the header says; None leaves that unchecked.

    Raises: ValueError for a damaged header, and one of more numbers than follow.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    need = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or (length is not None and need > length - file.tell()):
        raise ValueError(f"its header promises {' x '.join(map(str, shape))} numbers, which do not follow")
    return shape, dtype


def check_npz(path: Path | BinaryIO, names: Collection[str] = ()) -> list[str]:
    """Names of the arrays in a .npz whose headers promise no more than follows; these alone are checked, or all.

    Raises: whatever is wrong with the file.
    """
    with ZipFile(path) as file:
        members = {member.filename.removesuffix(".npy"): member for member in file.infolist()}
        for name, member in members.items():
            if not names or name in names:
                if member.file_size > MOST_INFLATED * (1 + member.compress_size):
                    raise ValueError(f"{member.filename} cannot unpack to {member.file_size:,} bytes")
                with file.open(member) as opened:
                    npy_header(cast(BinaryIO, opened), member.file_size)
    return list(members)


def npy_shape(file: BinaryIO) -> tuple[int, ...]:
    """What a .npy holds, by its header. Raises: Unfit for objects, no image, or too large a one; ValueError if it is
    damaged."""
    shape, dtype = npy_header(file)
    if dtype.hasobject or dtype.kind not in "buif":
        raise Unfit(f"holds {dtype}, not numbers")
    _check(shape)
    return shape


def npy_values(file: BinaryIO) -> NDArray[Any]:
    """[H, W] or [H, W, C]; errors as those of `npy_shape`."""
    length = file.seek(0, SEEK_END)
    file.seek(0)
    npy_shape(file)
    file.seek(0)
    npy_header(file, length)
    file.seek(0)
    values: NDArray[Any] = np.load(file, allow_pickle=False)
    return values


def tiff_shape(file: BinaryIO) -> tuple[int, ...]:
    """What a TIFF holds, [H, W, C]. Raises: Unfit where it is no such image or tifffile is not installed."""
    with _opened(file) as tiff:
        return _shape(tiff.series[0])


def tiff_values(file: BinaryIO) -> NDArray[Any]:
    """[H, W, C] of the file's own numbers, zero as black; errors as those of `tiff_shape` and `zero_as_black`, and
    Unfit for numbers that are no levels."""
    with _opened(file) as tiff:
        series = tiff.series[0]
        shape = _shape(series)
        if (kind := _NO_LEVELS.get(series.keyframe.photometric)) is not None:
            raise Unfit(f"holds {kind} that are not read here; save it as gray or RGB")
        values = zero_as_black(series.asarray(), series.keyframe.photometric, series.keyframe.bitspersample)
        order = [series.axes.index("Y"), series.axes.index("X")]
        rest = [axis for axis in range(values.ndim) if axis not in order]
        return values.transpose(*order, *rest).reshape(shape)


def zero_as_black(values: NDArray[Any], photometric: int | None, bits: int) -> NDArray[Any]:
    """A TIFF's numbers turned round, 2^bits - 1 - value, where its tag 262 (0, WhiteIsZero) says that zero is white;
    1 - value of floats. Raises: Unfit for signed numbers and floats beyond 0 to 1: which is black nobody knows."""
    if photometric != WHITE_IS_ZERO:
        return values
    kind, (low, high) = values.dtype.kind, spread(values)
    if kind != "u" and not (kind == "f" and low >= 0 and high <= 1):
        raise Unfit(
            f"says that zero is white (WhiteIsZero) and holds {values.dtype} from {low:.6g} to {high:.6g}, of which "
            "nobody knows what is black; save it with zero as black"
        )
    turned: NDArray[Any] = values.dtype.type(1 if kind == "f" else 2**bits - 1) - values
    return turned


def _opened(file: BinaryIO) -> Any:
    if find_spec("tifffile") is None:
        raise Unfit("bands of a TIFF need tifffile (pip install 'viticulture[tiff]'), or save them as .npy")
    from tifffile import TiffFile

    file.seek(0)
    return TiffFile(file, name="image")  # by itself it asks the file, and an upload has no name


def _shape(series: Any) -> tuple[int, ...]:
    if not {"Y", "X"} <= set(series.axes):
        raise Unfit(f"holds no image, but axes {series.axes} of {list(series.shape)}")
    sides = [series.shape[series.axes.index(axis)] for axis in "YX"]
    shape = (*sides, prod(series.shape) // max(prod(sides), 1))
    _check(shape)
    return shape


def _check(shape: tuple[int, ...]) -> None:
    if len(shape) not in (2, 3) or not prod(shape):
        raise Unfit(f"an image is [H, W] or [H, W, channels], got {list(shape)}")
    if prod(shape) > MOST_VALUES:
        raise Unfit(f"{' x '.join(map(str, shape))} is more than {MOST_VALUES:,} values")
