# SPDX-License-Identifier: Apache-2.0
"""What a run was made of, read back from its folder: its recipe, and its images in their splits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.keys import flat
from ..config.load import parse
from ..config.references import where_they_lie
from ..config.resolve import Config, resolve
from ..data.dataset import Dataset
from ..data.open import is_there, open_source
from ..data.open_dense import recognized
from ..data.sources.annotated import DenseSource
from ..data.sources.several import separated
from ..data.sources.source import Source
from ..data.sources.torchvision_sets import NAMES
from ..data.stream import StreamImages
from ..errors import UserError, some
from ..text import shell_word
from ..user_code import check_data, of_a_file
from .data import for_method, load_dataset, open_for
from .run_folder import RunFolder


def config_of(run: RunFolder) -> Config:
    """The recipe that a run began with, from its recipe.yaml; its own earlier stages are named by where they lie now.

    Raises: UserError if a value in the file was changed since: a run is one training, by one recipe; or if it names
        code that the user has not.
    """
    facts, path = run.read("run.json"), run.path / "recipe.yaml"
    with of_a_file(run.path):
        config = resolve(facts["recipe"], parse(run.text("recipe.yaml"), str(path)))
        now, then = flat(config.values), flat(resolve(facts["recipe"], facts.get("settings", config.values)).values)
    if changed := sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key)):
        shown = some([f"{key} from {then.get(key)!r} to {now.get(key)!r}" for key in changed], 5)
        raise UserError(
            f"{path} was changed after the run began: {shown}; put it back, or begin a new run by it: {run.anew()}"
        )
    return replace(config, values=where_they_lie(run.path, config.values), changes=facts.get("changes", {}))


def dataset_of(run: RunFolder, config: Config, data: Any = "") -> Dataset:
    """The images of a run with its very splits; `data` says where they are now if they have moved, and is the very
    object where the run learnt from one of a Python program.

    Raises: UserError where they are not there any more, or images, labels or classes are others than the run had. Of
        streamed images the times of their files stand for pixels, and a copy has others: these are told by names and
        classes alone.
    """
    facts, names = run.read("run.json"), run.image_names
    data = "" if data is None else data
    source: Source | DenseSource
    if facts["data"].get("given") is not None:
        source = for_method(config, given_again(run, data))
    else:
        source = open_for(config, own_data(run) if isinstance(data, str) and not data else data)
    dataset = load_dataset(source, config, facts["seed"], names)
    named = [*facts["data"].get("classes", dataset.classes)] == [*dataset.classes]
    if not (named and (are_same(run, dataset) or isinstance(dataset.train, StreamImages))):
        raise others(run)
    return dataset


def own_data(run: RunFolder) -> str:
    """Return the data that a run trained on, by its place or its name.

    Raises: UserError if it is not there any more, or code opens it that the user has not named.
    """
    about = run.read("run.json")["data"]
    check_data(run.path, about["folder"] or "", about["source"])
    return last_place(run.path, about["folder"]) or str(about["source"])


def last_place(run: Path, folder: str | None) -> str | None:
    """The path or pattern under which a run's images lay. Raises: UserError if it is not there any more."""
    if folder is not None and not is_there(folder):
        raise UserError(
            f"the images of {run} lay in {folder}, which is not there; bring them back, or say where they are now, "
            f"which the run keeps, a finished one too: viticulture resume {shell_word(run)} DATA"
        )
    return folder


def keep_place(run: RunFolder, data: Any) -> None:
    """Write down where a run's images are now, once `dataset_of` has taken them for its own; nothing of an object of a
    Python program, or where no place is named."""
    if isinstance(data, str) and data:
        run.update(data={**run.read("run.json")["data"], "source": data, "folder": folder_of(data)})


def folder_of(data: str) -> str | None:
    """The path of data in files, or its pattern, in any working folder; None for what is named otherwise."""
    if data.lower() in NAMES and not recognized(data):  # a set's name, which wins over a folder of classes
        return None
    return str(Path(data).absolute()) if is_there(data) else None


def are_same(run: RunFolder, dataset: Dataset) -> bool:
    """Whether these images, labels and classes are those that a run began with."""
    known = run.read("run.json")["data"]
    return (
        known.get("fingerprint", dataset.fingerprint) == dataset.fingerprint
        or known.get("portable") == dataset.portable
    )


def others(run: RunFolder, hint: str = "") -> UserError:
    """What is said where they are not."""
    return UserError(
        f"the images of {run.read('run.json')['data']['source']}, or their labels, are not those that {run.path} began "
        f"with; bring them back{hint}, measure these by `viticulture evaluate {shell_word(run.path)} DATA`, or train "
        f"anew: {run.anew()}"
    )


def given_again(run: RunFolder, data: Any) -> Source:
    """The object that a run learnt from. Raises: UserError where it is not there, or another one is."""
    name, way = run.read("run.json")["data"]["source"], f"viticulture.resume({str(run.path)!r}, data)"
    if isinstance(data, str):
        raise UserError(
            f"{run.path} learnt from an object of a Python program ({name}), which its folder does not hold; give it "
            f"again in Python, as in {way}; evaluate, explain, probe and robustness take it as data, too"
        )
    source = open_source(data)
    if not is_own(run, source):
        raise UserError(
            f"this {source.name} is not what {run.path} began with: images, labels, their order or the splits differ; "
            f"give the same, or train anew: {run.anew()}"
        )
    return source


def stands_for_own(run: RunFolder, data: str | Source) -> bool:
    """Whether a run's own images are meant: by nothing, or by the very object that it learnt from."""
    return is_own(run, data) if isinstance(data, Source) else not data


def is_own(run: RunFolder, source: Source) -> bool:
    """Whether this is the object of a Python program that a run learnt from."""
    known = run.read("run.json")["data"].get("given")
    if known is None or known == source.fingerprint:
        return known is not None
    return bool(known == separated(source).fingerprint)
