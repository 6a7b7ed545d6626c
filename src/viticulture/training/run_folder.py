# SPDX-License-Identifier: Apache-2.0
"""A run as a folder on disk: what it holds, who may write, and how nothing half-written is taken for whole.

recipe.yaml        every setting, as resolved
budget.json        of a run within a budget: its stages, from before the first one on; stages/ holds their runs
run.json           versions, seed, command, commit, data, student, status, hardware, settings as in recipe.yaml
split.json         which image is in which split, and which held-out ones have near-duplicates among the training images
metrics.csv        step, epoch, name, value; a line a measurement
tensorboard/       the same for TensorBoard
checkpoints/       last.ckpt, from which the run resumes exactly
weights/           best, last and ema, each a folder with model.safetensors and config.json
evaluation.json    results by weights and split, and which of them counts
predictions.npz    what the student said of every image
multilabel.json, multilabel.npz, dense.json, found.json    the same of several labels, of objects and of pixels
references.json    what takes no learning, beside it
pictures.npz       what the page shows of images
explain.json, features.npz, robustness.json, corruptions.npz, localization.json, agreement.json, probe.json, report.html
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..config.keys import CELLS, STAGES
from ..disk import file_lock, read_json, read_text, sweep, unwritable, write_whole
from ..errors import UserError, as_named, unknown
from ..text import command_line, shell_word
from .facts import CURE, FACTS, check_facts

if TYPE_CHECKING:
    from filelock import BaseFileLock

FORMAT = 1
"""Version of the folder's layout and of what a resumed run assumes; raised when either changes."""

WEIGHTS = ("best", "last", "ema")
"""What a run may keep, those that count first."""

PLAN = "budget.json"
"""What a run is to be made of, where it is made within a budget; from then on the folder is one that can be resumed."""

BEGUN = {"recipe.yaml", "split.json"}  # written before run.json, which makes the folder a run


class RunFolder:
    """The folder of one run; opening it writes nothing.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: BaseFileLock | None = None

    @property
    def checkpoint(self) -> Path:
        """The state from which the run resumes."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def metrics(self) -> Path:
        """Every measurement taken while training."""
        return self.path / "metrics.csv"

    def weights(self, which: str) -> Path:
        """Folder of the best, last or ema weights. Raises: UserError for others."""
        if which not in WEIGHTS:
            raise unknown("weights", which, WEIGHTS)
        return self.path / "weights" / which

    def which(self) -> list[str]:
        """The weights that the run holds, those that count first: best on validation, else last, then EMA."""
        kept = [name for name in WEIGHTS if (self.weights(name) / "config.json").exists()]
        if not kept and self.read("run.json")["status"] == "finished":
            raise UserError(f"{self.path} is finished, but its folder weights is gone or empty{CURE}: {self.anew()}")
        if not kept:
            raise UserError(
                f"{self.path} holds no weights yet; let it finish: viticulture resume {shell_word(self.whole)} "
                "(--epochs N ends it sooner)"
            )
        return kept

    @staticmethod
    def check_free(path: str | Path, overwrite: bool = False) -> None:
        """Raises: UserError if something is at the path, unless told to overwrite a run."""
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
        if not overwrite:
            raise UserError(
                f"{path} exists already; choose another --out, add --overwrite, "
                f"or go on with it by `viticulture resume {shell_word(path)}`"
            )
        if not ((path / "run.json").exists() or (path / PLAN).exists()):
            raise UserError(f"--overwrite replaces runs only, and {path} holds no run.json")

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> "RunFolder":
        """A new, empty, locked folder. Raises: UserError if that is not to be had."""
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
        """An existing run. Raises: UserError if the folder is none, or of another version."""
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
            what = "is no run folder (it holds no run.json)" if run.path.exists() else "does not exist"
            raise UserError(
                f"{as_named(run.path)} {what}; runs are made by `viticulture train`, studies by `viticulture compare`"
            )
        facts = run.read("run.json")
        layout = facts.get("format")
        if layout != FORMAT:
            raise UserError(
                f"{run.path} was made by another version of viticulture (layout {layout}, this one reads {FORMAT}); "
                "install the version named in its run.json"
            )
        check_facts(run.path / "run.json", facts, FACTS)
        return run

    def check_there(self) -> None:
        """Raises: UserError if somebody removed the run, which would arise again torn when the next file is written."""
        if not (self.path / "run.json").exists():
            raise UserError(f"{self.path} was removed while it was trained; train anew")

    def anew(self) -> str:
        """The command that trains by this run's recipe.yaml from the start."""
        facts, recipe = self.read("run.json"), str(self.path / "recipe.yaml")
        if "given" in facts["data"]:
            return f"viticulture.train(data, {recipe!r}, {facts['seed']})"
        words = ["viticulture", "train", facts["data"]["folder"] or facts["data"]["source"]]
        return command_line([*words, "--recipe", recipe, "--seed", str(facts["seed"])])

    def lock(self) -> None:
        """Be the one writer, until `unlock` or the process's end; sweeps what killed writers left half-written.

        Raises: UserError if another process is.
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
        """The folder by which it goes on: of the run within a budget whose stage it is, else its own."""
        around = self.path.parent.parent
        return around if self.path.parent.name == STAGES and (around / PLAN).is_file() else self.path

    @property
    def in_use(self) -> bool:
        """Whether a process writes, or nobody can tell."""
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
        """A JSON or text file, whole or not at all."""
        return write_whole(self.path / name, content)

    def text(self, name: str) -> str:
        """A text file of the run. Raises: UserError if it is missing or no text."""
        path = self._kept(name)
        try:
            return read_text(path, "file")
        except UserError as error:
            raise UserError(f"{error}{CURE}") from error

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run. Raises: UserError if it is missing or damaged, run.json also if a fact is of another
        type than `FACTS` say."""
        content = read_json(self._kept(name), CURE)
        if name == "run.json":
            check_facts(self.path / name, content, FACTS, whole=False)
        return content

    @property
    def image_names(self) -> dict[str, list[str]]:
        """Split -> the images in it, in their order. Raises: UserError if the file is missing or damaged."""
        return self._names_by_split(self.read("split.json").get("names"))

    @property
    def near_duplicates(self) -> dict[str, list[str]]:
        """Split -> names of its images with near-duplicates among the training images; empty where none are known."""
        known = self.read("split.json").get("near_duplicates", {}) if (self.path / "split.json").exists() else {}
        return self._names_by_split(known)

    def _names_by_split(self, names: Any) -> dict[str, list[str]]:
        lists = names.values() if isinstance(names, dict) else [None]
        if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in lists):
            raise UserError(f"{self.path / 'split.json'} is damaged: it must hold names of images by split")
        return cast("dict[str, list[str]]", names)

    def _kept(self, name: str) -> Path:
        if not (self.path / name).exists():
            raise UserError(f"{self.path} holds no {name}")
        return self.path / name

    def update(self, **facts: Any) -> None:
        """Add or replace facts in run.json."""
        known = self.read("run.json") if (self.path / "run.json").exists() else {"format": FORMAT}
        self.write("run.json", {**known, **facts})


def _unborn(path: Path) -> bool:
    """Whether a folder holds no more than a run that was killed while it was made."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    whole = {name for name in names if not name.endswith(".part")}
    return bool(names) and (not whole or ("run.lock" in whole and whole - BEGUN == {"run.lock"}))


def fresh(root: str | Path, stem: str) -> Path:
    """The first unused folder name under root: stem, stem-2, stem-3, ..."""
    number = 1
    while os.path.lexists(path := Path(root) / (stem if number == 1 else f"{stem}-{number}")):
        number += 1
    return path


@contextmanager
def claimed(root: str | Path, stem: str) -> Iterator[Path]:
    """A new folder under root that no other process has made, of the first unused name, for the block to fill. Where
    the block fails and leaves nothing in it, the folder goes, and root with it if that is new.

    Raises: UserError if it cannot be made.
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
