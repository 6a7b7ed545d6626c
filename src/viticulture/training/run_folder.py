# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: its files, its lock, and atomic writing.

recipe.yaml        every setting, as resolved
budget.json        of a run within a budget: its stages, from before the first one on; stages/ holds their runs
run.json           versions, seed, command, commit, data, student, status, hardware, settings as in recipe.yaml
split.json         which image is in which split, and which held-out ones have near-duplicates among the training images
metrics.csv        step, epoch, name, value; a line a measurement
tensorboard/       the same for TensorBoard
checkpoints/       last.ckpt, from which the run resumes exactly
weights/           best, last and ema, each a folder with model.safetensors and config.json
evaluation.json    results by weights and split, and which of them counts
predictions.npz    predictions of every image
references.json    references without training
pictures.npz       images and maps of the page
explain.json, features.npz, robustness.json, corruptions.npz, localization.json, agreement.json, probe.json, report.html
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..config.keys import CELLS, STAGES
from ..disk import file_lock, read_json, read_text, sweep, unwritable, write_whole
from ..errors import UserError, as_named, unknown
from ..text import command_line, shell_word
from .metadata import CURE, METADATA, check_metadata

if TYPE_CHECKING:
    from filelock import BaseFileLock

FORMAT = 2  # version of the folder's layout and of what a resumed run assumes; raised when either changes

WEIGHTS = ("best", "last", "ema")  # weights that a run may hold, in order of preference

PLAN = "budget.json"  # plan of a run within a budget; a folder with it can be resumed

BEGUN = {"recipe.yaml", "split.json"}  # written before run.json, which makes the folder a run


class RunFolder:
    """The folder of one run; opening it writes nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: BaseFileLock | None = None

    @property
    def checkpoint(self) -> Path:
        """The state from which the run resumes."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def metrics(self) -> Path:
        """All metrics of the training."""
        return self.path / "metrics.csv"

    def weights(self, which: str) -> Path:
        """Return the folder of the best, last or ema weights. Raises: UserError for others."""
        if which not in WEIGHTS:
            raise unknown("weights", which, WEIGHTS)
        return self.path / "weights" / which

    def which(self) -> list[str]:
        """Return the weights that the run holds, in order of preference: best on validation, last, EMA."""
        names = [name for name in WEIGHTS if (self.weights(name) / "config.json").exists()]
        if not names and self.read("run.json")["status"] == "finished":
            raise UserError(f"{self.path} is finished, but its folder weights is gone or empty{CURE}: {self.anew()}")
        if not names:
            raise UserError(
                f"{self.path} holds no weights yet; let it finish: viticulture resume {shell_word(self.whole)} "
                "(--epochs N ends it sooner)"
            )
        return names

    @staticmethod
    def check_free(path: str | Path, overwrite: bool = False) -> None:
        """Raises: UserError if something is at the path, unless `overwrite` and it is a run."""
        path = Path(path)
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the name {os.fsencode(path)!r} is no text; choose another --out") from error
        try:
            if not path.exists():
                parent = next(folder for folder in path.absolute().parents if folder.exists())
                if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                    raise UserError(f"{parent} is no folder that may be written; choose another --out than {path}")
                return
            if not path.is_dir():
                raise UserError(f"{path} is a file, and a run is a folder; choose another --out")
            if not any(path.iterdir()) or _unborn(path):
                return
        except OSError as error:
            raise UserError(f"cannot use {path} as run folder: {error.strerror}; choose another --out") from error
        if not ((path / "run.json").exists() or (path / PLAN).exists()):
            raise UserError(f"{path} exists already and holds no run; choose another --out")
        if not overwrite:
            raise UserError(
                f"{path} exists already; choose another --out, add --overwrite, "
                f"or go on with it by `viticulture resume {shell_word(path)}`"
            )

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> "RunFolder":
        """Make a new, empty, locked folder. Raises: UserError if that is impossible."""
        cls.check_free(path, overwrite)
        run = cls(path)
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            run.lock()
            if (run.path / STAGES).is_dir():
                stages = cls(run.path / STAGES)
                stages.lock()
                stages.unlock()
            # run.json and the plan go last: until then a kill leaves what --overwrite takes for a run
            for entry in sorted(run.path.iterdir(), key=lambda entry: entry.name in ("run.json", PLAN)):
                if entry.name != "run.lock":
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        except OSError as error:
            raise UserError(
                f"cannot write the run folder {run.path}: {error.strerror}; choose another --out"
            ) from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Open an existing run. Raises: UserError if the folder is none, or of another version."""
        run = cls(path)
        if not (run.path / "run.json").is_file():
            if _unborn(run.path):
                raise UserError(
                    f"{run.path} was stopped before its first step, so there is nothing to go on with; begin it again: "
                    f"viticulture train ... --out {shell_word(run.path)}"
                )
            if (run.path / PLAN).is_file():
                raise UserError(
                    f"{run.path} has not come to its last stage yet: viticulture resume {shell_word(run.path)}"
                )
            if (run.path / "study.json").is_file():
                raise UserError(
                    f"{run.path} is a study, no run; to go on with it: viticulture compare resume "
                    f"{shell_word(run.path)}; its runs lie in {run.path / CELLS}"
                )
            if str(path).startswith("hf-hub:"):
                repository = str(path).removeprefix("hf-hub:").partition("@")[0]
                raise UserError(
                    f"{path} is on the Hub, and this takes a run's folder; fetch it first, and name that: "
                    f"hf download {repository} --local-dir {repository.rpartition('/')[2]}"
                )
            if not run.path.exists() and _is_network(str(path)):
                raise UserError(
                    f"{path} is a network, and this takes a run; train its classifier on your images, and name that: "
                    f"viticulture probe {shell_word(path)} DATA --out runs/probe"
                )
            what = "is no run folder (it holds no run.json)" if run.path.exists() else "does not exist"
            raise UserError(
                f"{as_named(run.path)} {what}; runs are made by `viticulture train`, studies by `viticulture compare`"
            )
        metadata = run.read("run.json")
        if (layout := metadata.get("format")) != FORMAT:
            again = run.anew() if {"data", "seed"} <= metadata.keys() else "viticulture train DATA"
            raise UserError(
                f"{run.path} was made by another version of viticulture (layout {layout}, this one reads {FORMAT}); "
                f"train anew: {again}"
            )
        check_metadata(run.path / "run.json", metadata, METADATA)
        return run

    def check_there(self) -> None:
        """Raises: UserError if the run was removed: writing its next file would make a torn one."""
        if not (self.path / "run.json").exists():
            raise UserError(f"{self.path} was removed while it was trained; train anew")

    def anew(self) -> str:
        """Return the command that trains by this run's recipe.yaml from the start."""
        metadata, recipe = self.read("run.json"), str(self.path / "recipe.yaml")
        data, seed = metadata["data"], metadata["seed"]
        if "given" in data:
            return f"viticulture.train(data, {recipe!r}, {seed})"
        command = ["viticulture", "train", data["folder"] or data["source"], "--recipe", recipe, "--seed", str(seed)]
        return command_line(command)

    def lock(self) -> None:
        """Lock the run for writing until `unlock` or the process's end; remove half-written files of killed writers.

        Raises: UserError if another process writes.
        """
        if self._lock is not None:
            return
        lock = file_lock(self.path / "run.lock", wait=False)
        try:
            lock.acquire()
        except TimeoutError as error:
            raise UserError(f"{self.path} is in use by another process; wait for it or choose another --out") from error
        except OSError as error:
            raise unwritable(self.path / "run.lock", error) from error
        self._lock = lock
        sweep(self.path, idle=0)

    @property
    def whole(self) -> Path:
        """The folder to resume by: of the run within a budget whose stage this is, else this one."""
        around = self.path.parent.parent
        return around if self.path.parent.name == STAGES and (around / PLAN).is_file() else self.path

    @property
    def in_use(self) -> bool:
        """A process writes, or the lock cannot be read."""
        if not (self.path / "run.lock").exists():
            return False
        try:
            with file_lock(self.path / "run.lock", wait=False):
                return False
        except (OSError, UserError):
            return True

    def unlock(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, name: str, content: dict[str, Any] | str) -> Path:
        """Write a JSON or text file atomically."""
        return write_whole(self.path / name, content)

    def text(self, name: str) -> str:
        """Read a text file of the run. Raises: UserError if it is missing or no text."""
        path = self._existing(name)
        try:
            return read_text(path, "file")
        except UserError as error:
            raise UserError(f"{error}{CURE}") from error

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run. Raises: UserError if it is missing or damaged; of run.json also if a type is not
        that of `METADATA`."""
        content = read_json(self._existing(name), CURE)
        if name == "run.json":
            check_metadata(self.path / name, content, METADATA, whole=False)
        return content

    @property
    def image_names(self) -> dict[str, list[str]]:
        """Split -> names of its images, in order."""
        return self._names_by_split(self.read("split.json").get("names"))

    @property
    def near_duplicates(self) -> dict[str, list[str]]:
        """Split -> names of its images with near-duplicates among the training images; empty where none are known."""
        pairs = self.read("split.json").get("near_duplicates", {}) if (self.path / "split.json").exists() else {}
        return self._names_by_split(pairs)

    def _names_by_split(self, names: Any) -> dict[str, list[str]]:
        lists = names.values() if isinstance(names, dict) else [None]
        if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in lists):
            raise UserError(f"{self.path / 'split.json'} is damaged: it must hold names of images by split")
        return cast("dict[str, list[str]]", names)

    def _existing(self, name: str) -> Path:
        if not (self.path / name).exists():
            raise UserError(f"{self.path} holds no {name}")
        return self.path / name

    def update(self, **metadata: Any) -> None:
        """Add or replace metadata in run.json."""
        current = self.read("run.json") if (self.path / "run.json").exists() else {"format": FORMAT}
        self.write("run.json", {**current, **metadata})


def _unborn(path: Path) -> bool:
    """Return whether a folder holds no more than a run that was killed while it began."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    whole = {name for name in names if not name.endswith(".part")}
    return bool(names) and (not whole or ("run.lock" in whole and whole - BEGUN == {"run.lock"}))


def fresh(root: str | Path, stem: str) -> Path:
    """Return the first unused folder name under root: stem, stem-2, stem-3, ..."""
    number = 1
    while os.path.lexists(path := Path(root) / (stem if number == 1 else f"{stem}-{number}")):
        number += 1
    return path


@contextmanager
def claimed(root: str | Path, stem: str) -> Iterator[Path]:
    """Create a folder of the first unused name under root for the block to fill, safe against other processes.

    If the block fails and leaves it empty, it is removed, and root with it if that is new.

    Raises: UserError if it cannot be created.
    """
    root = Path(root)
    new = not root.exists()
    while True:
        path = fresh(root, stem)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            if os.path.lexists(path):
                continue  # another process was quicker
            raise UserError(f"cannot make the folder {path}: {error.strerror}; choose another --out") from error
        break
    try:
        yield path
    except BaseException:
        with suppress(OSError):  # what holds anything stays
            if path.exists():
                path.rmdir()
            if new:
                root.rmdir()
        raise


def _is_network(source: str) -> bool:
    """True for a model of timm, with or without a tag, and for ARCHITECTURE=FILE."""
    name = re.split("[=.]", source, maxsplit=1)[0]
    if not name.isidentifier():
        return False
    import timm

    return timm.is_model(name)
