# SPDX-License-Identifier: Apache-2.0
"""Files inside zip and tar archives, read in place at any position: nothing is unpacked.

A member of a zip is inflated only as far as the size that the archive declares for it, and its checksum is verified;
members above `MAX_MEMBER_BYTES` are not read. `zipfile` and `tarfile` list the members; their readers seek in one
shared file, which threads and forked processes must not do.
"""

import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...errors import UserError
from .source import Reader

MAX_MEMBER_BYTES = 2**29  # largest file that is read out of an archive; a larger one is taken for a zip bomb
_UTF_8, _WINDOWS = 0x800, 0  # flag of a zip's member; system that made it


class Span(NamedTuple):
    """Position of a member."""

    name: str
    offset: int  # of its local header (zip) or of its bytes (tar)
    packed: int
    size: int
    checksum: int = 0  # CRC-32 of the file (zip), else 0
    deflated: bool = False


class Archive:
    """A file read at any position, from any thread or process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def read(self, offset: int, size: int) -> bytes:
        if self._handle is None:
            self._handle = os.open(self.path, os.O_RDONLY)
        data = os.pread(self._handle, size, offset)
        if len(data) != size:
            raise OSError(f"truncated archive {self.path.name}")
        return data

    def __reduce__(self) -> tuple[type["Archive"], tuple[Path]]:
        return Archive, (self.path,)

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


class ZipReader(Reader):
    """Reads images that are members of a zip."""

    def __init__(self, path: Path, spans: Sequence[Span]) -> None:
        self.archive, self.spans = Archive(path), spans

    def open(self, i: int) -> BinaryIO:
        span = self.spans[i]
        _check_size(span)
        # A local header has 30 bytes, the last four of which count the name and the extra field that follow.
        name, extra = struct.unpack("<HH", self.archive.read(span.offset + 26, 4))
        data = self.archive.read(span.offset + 30 + name + extra, span.packed)
        if span.deflated:
            try:
                data = zlib.decompressobj(-15).decompress(data, span.size + 1)
            except zlib.error as error:
                raise OSError(f"damaged in the zip: {error}") from error
        if len(data) != span.size or zlib.crc32(data) != span.checksum:
            raise OSError("damaged in the zip: checksum or size differs")
        return io.BytesIO(data)


class TarReader(Reader):
    """Reads images that are members of several tars; `spans` hold for each image its tar and its place there."""

    def __init__(self, paths: Sequence[Path], spans: Sequence[tuple[int, Span]]) -> None:
        self.archives, self.spans = [Archive(path) for path in paths], spans

    def open(self, i: int) -> BinaryIO:
        number, span = self.spans[i]
        _check_size(span)
        return io.BytesIO(self.archives[number].read(span.offset, span.size))


def _check_size(span: Span) -> None:
    if max(span.size, span.packed) > MAX_MEMBER_BYTES:
        raise OSError(f"unpacks to more than {MAX_MEMBER_BYTES:,} bytes")


def zip_spans(path: Path) -> tuple[list[Span], list[str]]:
    """Return the files of a zip, and its folders.

    Raises: UserError if it is damaged, encrypted or packed in a way other than stored or deflated.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
    except Exception as error:  # the library raises half a dozen types, and any other for damage
        raise UserError(f"{path} cannot be read as a zip: {error}") from error
    spans, folders = {}, []
    for member in members:
        whole = _path(member)
        name = "/".join(part for part in whole.split("/") if part not in ("", "."))
        if whole.endswith("/"):
            folders.append(name)
            continue
        if member.flag_bits & 1:
            raise UserError(f"{path} is encrypted; unpack it and name the folder")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"{path} is packed by method {member.compress_type}; unpack it and name the folder")
        deflated = member.compress_type == zipfile.ZIP_DEFLATED
        spans[name] = Span(name, member.header_offset, member.compress_size, member.file_size, member.CRC, deflated)
    return list(spans.values()), folders


def _path(member: zipfile.ZipInfo) -> str:
    """Return a member's path with slashes, also as Windows writes it, in UTF-8 also where a Mac does not declare
    that."""
    path = member.filename
    if not member.flag_bits & _UTF_8:
        with suppress(UnicodeError):
            path = path.encode("cp437").decode("utf-8")  # the library decoded it as cp437
    return path.replace("\\", "/") if member.create_system == _WINDOWS else path


def tar_spans(path: Path) -> Iterator[Span]:
    """Return the files of an uncompressed tar, hard links included, and its folders, whose names end with a slash.

    Raises: UserError if it is compressed, damaged, cut off, or still being written.
    """
    end, files = 0, dict[str, Span]()
    try:
        length = path.stat().st_size
        with tarfile.open(path, "r:") as file:
            for member in file:
                end = file.offset
                if member.size < 0 or member.offset_data + member.size > length:
                    raise OSError(f"the size of {member.name} is {member.size:,} bytes, the tar's {length:,}")
                if member.issparse():
                    raise OSError(f"{member.name} is stored as a sparse file; unpack the tar and name the folder")
                if member.isdir():
                    yield Span(f"{member.name}/", member.offset_data, 0, 0)
                elif member.isreg():
                    files[member.name] = Span(member.name, member.offset_data, member.size, member.size)
                    yield files[member.name]
                elif member.islnk() and member.linkname in files:
                    yield files[member.linkname]._replace(name=member.name)
        with path.open("rb") as raw:
            raw.seek(end)
            closed = raw.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except Exception as error:  # the library raises its own types, and any other for damage
        raise UserError(f"{path} cannot be read as an uncompressed tar: {error}") from error
    if not closed:  # tarfile stops there silently
        raise UserError(
            f"{path} has no end mark behind its last file: it is still being written, was cut off or is damaged; wait"
            " for it, or fetch it again"
        )
