# SPDX-License-Identifier: Apache-2.0
"""Find the images that a list names, for every format.

An image that is not at its path is looked for below the list's folder, never elsewhere, by the longest end of the path
that some image has: other systems write backslashes and drive letters, labeling tools addresses (https://...,
/data/upload/1/8d27eb28-a.jpg, /data/local-files/?d=photos/a.jpg), `../`, and parent folders of the images. Case and
composition of letters count only where two files differ by nothing else.
"""

import os
import re
import unicodedata
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from ...errors import UserError, shortened, some
from ...text import on_disk
from .files import is_image
from .labels import split_of

_UPLOADED = re.compile(r"[0-9a-f]{8}-(.+)")  # name of a file that was uploaded to Label Studio
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/+[^/]*/|/data/(?=upload/)", re.IGNORECASE)
_FOREIGN = re.compile(r"[A-Za-z]:|(?=//)")  # a Windows drive or network machine


def is_inside(path: str) -> bool:
    """Return whether a relative path stays below its folder."""
    return not path.startswith("/") and os.path.normpath(path).partition("/")[0] != ".."


def _without_links(root: Path, paths: list[str]) -> list[str]:
    """Return the first of several paths below a folder where links make them one file, else all of them."""
    one = len(paths) > 1 and all((root / paths[0]).samefile(root / path) for path in paths[1:])
    return paths[:1] if one else paths


class Places:
    """Images below a folder `root`, by their names in a list `what`, whose folder, relative to the root, is `near`."""

    def __init__(self, root: Path, what: str, near: str = "") -> None:
        self.root, self.what, self.near = root, what, near
        self._moved: dict[str, str] = {}  # path -> its name in the list, where that has other folders

    @cached_property
    def _below(self) -> dict[str, list[str]]:
        """Paths of images by their names, with and without ending (but with the point)."""
        from .folders import holds_image, scan  # here, as folders may hold Parquet files, which list images, too

        paths: dict[str, list[str]] = {}
        try:
            files = sorted(file.path for file in scan(self.root)[0] if holds_image(file.path))
        except UserError:  # the folder may not be read
            files = []
        for path in files:
            name = _plain(path.rpartition("/")[2])
            for called in (name, name[: name.rfind(".") + 1]):
                paths.setdefault(called, []).append(path)
        return paths

    def find(self, named: str, hint: str = "") -> str | None:
        """Return the path below the folder, with slashes, of the image of that name in the list; None where there is
        none. Of several images those with `hint` in their path are preferred.

        Raises: UserError where several images may be meant, or one by two names.
        """
        whole, text = self._read(named)
        if whole and os.path.exists(on_disk(text)):  # noqa: PTH110  (a Path raises for too long a name)
            return None
        if not whole and (parts := _parts(named)) and (fits := self._fits(parts, [])):
            return self._chosen(fits, named, "/".join(parts), hint, moved=False)
        for spelling in dict.fromkeys((text, unquote(text))):
            parts = _parts(spelling)
            for start in range(len(parts) - whole):  # a whole path's name alone says too little
                if fits := self._fits(parts[start:], parts[:start]):
                    return self._chosen(fits, named, "/".join(parts[start:]), hint, moved=start > 0)
        return None

    def required(self, named: str, hint: str = "") -> str:
        """Do the same as `find`. Raises: UserError also for a missing image."""
        if (path := self.find(named, hint)) is None:
            name = self._read(named)[1].rpartition("/")[2]
            alike = self._below.get(_plain(name), [])
            if not alike:
                raise UserError(f"{self._says(named)} there is none of that name below {self.root}")
            raise UserError(
                f"{self._says(named)} below {self.root} its name alone fits {some(alike, 3)}; correct the path"
            )
        return path

    def warnings(self) -> list[str]:
        """Return a warning about images that are in other folders than the list says."""
        examples = [f"{path} for {shortened(named)}" for path, named in self._moved.items()]
        return [f"found by the ends of their paths: {some(examples, 3)}"] if examples else []

    def _says(self, named: str) -> str:
        return f"{self.what} lists the image {shortened(named)!r}, and"

    def _read(self, named: str) -> tuple[bool, str]:
        """Return whether a path is an absolute one of this system that leads elsewhere; and the path with slashes,
        relative to the folder where it leads there."""
        text = named.strip().rpartition("?d=")[2]
        if match := _ADDRESS.match(text):
            return False, unquote(re.split("[?#]", text[match.end() :])[0])
        text = text.replace("\\", "/")
        if match := _FOREIGN.match(text):
            return False, text[match.end() :]
        if not text.startswith("/"):
            return False, text
        path = Path(os.path.normpath(text))
        bases = [base for base in (self.root.absolute(), self.root.resolve()) if path.is_relative_to(base)]
        return not bases, path.relative_to(bases[0]).as_posix() if bases else text

    def _fits(self, end: list[str], left: list[str]) -> list[str]:
        """Images whose path has this end, but for those of another split than the folders say that are left out."""
        uploaded, kinds = _UPLOADED.fullmatch(end[-1]), _splits(left)
        names = [end[-1], *([uploaded[1]] if uploaded else []), *([] if is_image(end[-1]) else [f"{end[-1]}."])]
        paths = next((paths for name in names if (paths := self._below.get(_plain(name)))), [])
        folders = "/".join(["", *map(_plain, end[:-1]), ""])
        paths = [path for path in paths if f"/{_plain(path)}".rpartition("/")[0].endswith(folders[:-1])]
        return [path for path in paths if not (kinds and (held := _splits(path.split("/")[:-1])) and not held & kinds)]

    def _chosen(self, fits: list[str], named: str, end: str, hint: str, moved: bool) -> str:
        near = os.path.normpath(f"{self.near}/{end}").lstrip("/")
        best = (
            [path for path in fits if path in (near, end)]
            or [path for path in fits if hint and hint in path.lower()]
            or [path for path in fits if f"/{path}".endswith(f"/{end}")]
            or fits
        )
        if len(best := _without_links(self.root, best)) > 1:
            raise UserError(f"{self._says(named)} there are several: {some(best, 3)}; name it by its path")
        if moved and self._moved.setdefault(best[0], named) != named:
            raise UserError(f"{self._says(named)} {self._moved[best[0]]!r}, and of both there is {best[0]} alone")
        return best[0]


def _parts(path: str) -> list[str]:
    return [part for part in path.strip().split("/") if part not in ("", ".", "..")]


def _splits(folders: list[str]) -> set[str]:
    return {kind for folder in folders if (kind := split_of(folder))}


def _plain(name: str) -> str:
    """Return a name in the form in which names are compared."""
    return unicodedata.normalize("NFC", on_disk(name)).casefold()
