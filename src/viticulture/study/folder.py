# SPDX-License-Identifier: Apache-2.0
"""A study as a folder on disk.

study.yaml         the grid, which the user may extend by candidates, subsets and seeds
study.json         versions, digests of the recipes, the plan, warnings, candidates' names in file names
recipes/NAME.yaml  every candidate's recipe, complete, as it was when the study began
cells/NAME/        run folder of a cell
failures/NAME.json error of a cell that failed
splits.json, contents.json    digests of the names of held-out images, and of the contents of all images
locks/             the process that trains a cell; a lock ends with its process
table.csv          one row per cell, updated after each
report.html, summary.md, summary.csv, summary.tex
"""

import os
import shutil
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..config.keys import CELLS
from ..config.load import load_config, saved_config
from ..config.references import GIVEN, from_anywhere
from ..config.resolve import Config
from ..disk import file_lock, read_json, read_text, write_whole
from ..errors import UserError
from ..tasks.task import Task, task_class
from ..text import comment, shell_word
from ..training.metadata import CURE, check_metadata
from ..training.processes import check_devices
from ..training.run_folder import RunFolder
from ..training.run_inputs import folder_of
from ..user_code import check_data, keep_known_code, of_a_file
from ..version import VERSION, same_release
from .grid import Candidate, Cell, Grid, digest

FORMAT = 3  # version of the folder's layout; raised when it changes
FACTS: dict[str, Any] = {  # keys of study.json; those with a question mark may be missing
    "format": int,
    "version": str,
    "command?": str,
    "began?": str,
    "folder?": str | None,
    "terms": str,
    "candidates": dict[str, str],
    "folders?": dict[str, str],
    "recipes": dict[str, str],
    "plan?": dict[str, Any],
    "warnings?": list[str],
    "interim_analyses?": dict[str, list[str]],
    "decisions?": list[str],
    "importance?": dict[str, float],
}


class StudyFolder:
    """The folder of one study. `data`: where the images are now; by default where they were."""

    def __init__(self, path: str | Path, grid: Grid, data: str = "") -> None:
        self.path, self.grid, self.data = Path(path), grid, data
        self.slugs = grid.slugs
        self._tasks: dict[str, type[Task]] = {}
        self._metadata: tuple[tuple[int, int, int] | None, dict[str, Any]] | None = None

    @staticmethod
    def create(path: str | Path, grid: Grid, command: str) -> "StudyFolder":
        """Create a study. Raises: UserError if the folder is in use or a recipe is wrong; then nothing is written."""
        study = StudyFolder(path, grid)
        texts = {candidate.name: study._resolved(candidate).to_yaml() for candidate in grid.candidates}
        declared = f"{comment(command)}{grid.to_yaml()}"
        if study.path.exists() and not (study.path.is_dir() and _begun(study.path, declared)):
            begun = (study.path / "study.json").is_file()
            more = f", or continue it by `viticulture compare resume {shell_word(path)}`" if begun else ""
            raise UserError(f"{path} exists already; choose another --out{more}")
        try:
            study.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write the study folder {path}: {error.strerror}; choose another --out") from error
        keep_known_code(*study.sources)
        study.write("study.yaml", declared)  # first: it says whose the recipes are
        for name, text in texts.items():
            study.write(f"recipes/{study.slugs[name]}.yaml", text)
        study.write(
            "study.json",
            {
                "format": FORMAT,
                "version": VERSION,
                "command": command,
                "began": _now(),
                "folder": folder_of(grid.data),
                "terms": study.terms,
                "candidates": {candidate.name: entry(candidate) for candidate in grid.candidates},
                "folders": study.slugs,
                "recipes": {study.slugs[name]: digest(text) for name, text in texts.items()},
            },
        )
        return study

    @staticmethod
    def open(path: str | Path, data: str = "") -> "StudyFolder":
        """Open an existing study. Raises: UserError if the folder is none, or of another version."""
        path = Path(path)
        if not (path / "study.json").is_file() or not (path / "study.yaml").is_file():
            if (path / "run.json").is_file():
                raise UserError(
                    f"{path} is a run, not a study; to continue it: viticulture resume {shell_word(path)}; to train "
                    f"again by its recipe: --recipe {shell_word(path / 'recipe.yaml')}"
                )
            what = "is not a study folder (it has no study.json)" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}; studies are made by `viticulture compare`")
        text = read_text(path / "study.yaml", "study")
        grid = Grid.from_yaml(text, str(path / "study.yaml"))
        layout = read_json(path / "study.json").get("format")
        if layout != FORMAT:
            raise UserError(
                f"{path} was made by another version of viticulture (layout {layout}, this one reads {FORMAT})"
            )
        folders = StudyFolder(path, grid).metadata.get("folders", {})
        if outside := [name for name in folders.values() if Path(name).name != name]:
            raise UserError(f"{path / 'study.json'} is damaged: {outside[0]!r} is not the name of a folder{CURE}")
        study = StudyFolder(path, replace(grid, folders=folders), data)
        check_data(path, *study.sources, str(study.metadata.get("folder")))
        return study

    @property
    def sources(self) -> list[str]:
        """The data sets of the study and of its candidates."""
        return [self.grid.data, *(candidate.data for candidate in self.grid.candidates)]

    def discard(self) -> None:
        """Remove the folder if nothing was trained in it."""
        if not (self.path / CELLS).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def metadata(self) -> dict[str, Any]:
        """Contents of study.json; read again only after it was replaced, because every cell needs it."""
        path = self.path / "study.json"
        file = path.stat() if path.exists() else None
        mark = (file.st_ino, file.st_mtime_ns, file.st_size) if file else None
        if self._metadata is None or self._metadata[0] != mark:
            content = read_json(path)
            check_metadata(path, content, FACTS)
            self._metadata = mark, content
        return dict(self._metadata[1])

    @property
    def terms(self) -> str:
        """Digest of the settings that may not change during the study."""
        grid = self.grid
        folds = [grid.subsets.folds] if grid.subsets.folds else []
        searched = [grid.search] if grid.search else []
        return digest([grid.conditions, asdict(grid.terms), grid.epochs, *folds, *searched])

    def update(self, **metadata: Any) -> None:
        """Add or replace keys of study.json."""
        with self.locked("study"):
            self.write("study.json", {**self.metadata, **metadata})

    def extend(self) -> list[str]:
        """Add candidates that were added to study.yaml, and check that nothing else changed.

        Returns: warnings of the recipes, and about recipes that were edited after the study copied them.
        Raises: UserError if the study's copy of a recipe was edited, or the study is of another version.
        """
        metadata = self.metadata
        if not same_release(metadata["version"]):
            raise UserError(
                f"{self.path} was begun by viticulture {metadata['version']}; this is {VERSION}: install that version "
                "to continue, or begin a new study"
            )
        if metadata["terms"] != self.terms:
            raise UserError(
                f"the conditions, terms, folds or epochs of {self.path / 'study.yaml'} were changed after cells were "
                "trained by them; put them back, or begin a new study (candidates, subsets and seeds may be added)"
            )
        copies, entries, warnings = dict(metadata["recipes"]), dict(metadata["candidates"]), []
        unnamed = {name for name in copies if self._lacks_weights(name)}
        for candidate in self.grid.candidates:
            name = self.slugs[candidate.name]
            # It could not begin without weights, which are named now.
            if name in unnamed and entries.get(candidate.name) != entry(candidate):
                entries.pop(candidate.name, None)
                copies.pop(name, None)
            if entries.setdefault(candidate.name, entry(candidate)) != entry(candidate):
                raise UserError(
                    f"{candidate.name} was changed in {self.path / 'study.yaml'} after the study began; put it back, "
                    "or add the changed one under another name"
                )
            if name in copies:
                self.recipe_file(candidate)
            try:
                with of_a_file(self.path):
                    recipe = self._resolved(candidate)
            except UserError:
                if name not in copies:
                    raise
                continue  # a study may move to a machine without the recipe's file
            warnings += [f"{candidate.name}: {warning}" for warning in recipe.warnings]
            text = recipe.to_yaml()
            if name not in copies:
                self.write(f"recipes/{name}.yaml", text)
                copies[name] = digest(text)
            elif digest(text) != copies[name]:
                warnings.append(
                    f"{candidate.recipe} was edited after the study began; {candidate.name} continues with the study's "
                    f"copy, recipes/{name}.yaml. To compare the edited recipe, add it under another name, or begin a "
                    "new study"
                )
        folders = {**self.grid.folders, **self.slugs}
        if (copies, entries, folders) != (metadata["recipes"], metadata["candidates"], metadata.get("folders")):
            self.update(recipes=copies, candidates=entries, folders=folders)
        return warnings

    def _resolved(self, candidate: Candidate) -> Config:
        """Read a candidate's complete recipe from its source, with the study's conditions."""
        overrides = {**candidate.overrides, **self.grid.conditions}
        config = load_config(candidate.recipe, overrides)
        engine = config.engine
        if engine.devices * engine.nodes > 1:
            raise UserError(
                f"a study trains every cell on one device, and {candidate.recipe} sets "
                f"{engine.devices * engine.nodes}; add --engine.devices 1 (--workers uses several devices)"
            )
        check_devices(engine)
        if self.grid.terms.halving and not config.method_class.batch_spec.labels:
            raise UserError(
                f"halving keeps the best candidates by held-out labels, and {candidate.recipe} trains without labels; "
                "leave --halving or that recipe out"
            )
        return replace(config, values=from_anywhere(config.values))

    def _lacks_weights(self, name: str) -> bool:
        """Return whether a recipe of the study needs weights that the user has not named."""
        path = self.path / "recipes" / f"{name}.yaml"
        return path.exists() and GIVEN in path.read_text(encoding="utf-8")

    def recipe_file(self, candidate: Candidate) -> Path:
        """Return the study's copy of a candidate's recipe. Raises: UserError if it was edited."""
        name = self.slugs[candidate.name]
        path = self.path / "recipes" / f"{name}.yaml"
        if digest(read_text(path, "recipe")) != self.metadata["recipes"].get(name):
            raise UserError(
                f"{path} was edited after cells were trained by it; put it back, or add the edited one to study.yaml "
                "under another name"
            )
        return path

    def recipe(self, candidate: Candidate) -> Config:
        """Load the recipe that all cells of a candidate start from."""
        return saved_config(candidate.recipe, self.recipe_file(candidate), self.path)

    def run(self, cell: Cell) -> RunFolder:
        """Return a cell's run folder, which may not exist yet."""
        return RunFolder(self.path / CELLS / cell.name)

    def task(self, cell: Cell) -> Task:
        """Return the task of a cell's run, which reads its results."""
        name = self.slugs[cell.candidate.name]
        if name not in self._tasks:
            path = self.path / "recipes" / f"{name}.yaml"
            config = saved_config(cell.candidate.recipe, path, self.path)
            self._tasks[name] = task_class(config.method_class)
        return self._tasks[name](self.run(cell))

    def finished(self, cell: Cell) -> bool:
        """Return whether a cell is trained and evaluated; one with a damaged run.json is trained again."""
        try:
            return self.run(cell).read("run.json").get("status") == "finished"
        except UserError:
            return False

    def failure(self, cell: Cell) -> dict[str, Any] | None:
        """Return the error of a cell that failed."""
        path = self.path / "failures" / f"{cell.name}.json"
        return read_json(path) if path.exists() else None

    def record_failure(self, cell: Cell, error: BaseException | str) -> None:
        """Write a cell's error for the table and the user."""
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}".replace("UserError: ", "")
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))
        metadata = {"error": reason, "when": _now(), "host": socket.gethostname(), "traceback": trace}
        self.write(f"failures/{cell.name}.json", metadata)

    def forget_failure(self, cell: Cell) -> None:
        """Remove the error of a cell that has finished since."""
        (self.path / "failures" / f"{cell.name}.json").unlink(missing_ok=True)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold a lock of the study; wait while another process holds it."""
        path = self.path / "locks" / name
        path.parent.mkdir(exist_ok=True)
        with file_lock(path):
            yield

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Claim a cell for this process; False if another process trains it. The claim ends with the process."""
        path = self.path / "locks" / cell.name
        path.parent.mkdir(exist_ok=True)
        try:
            held = file_lock(path, wait=False).acquire()
        except TimeoutError:
            yield False
            return
        with held:
            path.write_text(f"{socket.gethostname()} {os.getpid()}\n", encoding="utf-8")
            try:
                yield True
            finally:
                path.write_text("", encoding="utf-8")  # if this process dies later, it is not because of this cell

    def clear(self, cell: Cell) -> None:
        """Remove a cell's run folder."""
        shutil.rmtree(self.run(cell).path, ignore_errors=True)

    def write(self, name: str, content: str | dict[str, Any]) -> Path:
        """Write a text or JSON file atomically."""
        return write_whole(self.path / name, content)


def _begun(folder: Path, declared: str) -> bool:
    """Return whether a folder holds no more than a kill before study.json leaves: this study.yaml, which is first."""
    names = {entry.name for entry in folder.iterdir() if not entry.name.endswith(".part")}
    if names not in ({"study.yaml"}, {"study.yaml", "recipes"}):
        return not names
    return (folder / "study.yaml").read_bytes() == declared.encode(errors="backslashreplace")


def entry(candidate: Candidate) -> str:
    """Return a digest of a candidate's training."""
    return digest(candidate.training)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
