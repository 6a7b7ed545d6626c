# SPDX-License-Identifier: Apache-2.0
"""Inputs of a run, read from its folder: its recipe, and its images in their splits."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.keys import flat
from ..config.load import saved_config
from ..config.references import where_they_lie
from ..config.resolve import Config
from ..data.dataset import Dataset
from ..data.image_set import StreamedImages
from ..data.open import annotation_format, is_there, open_source
from ..data.sources.several import as_numbers, separated
from ..data.sources.source import UNLABELED, Source
from ..data.sources.torchvision_sets import NAMES
from ..errors import UserError, some
from ..text import shell_word
from ..user_code import check_data
from .data import for_method, labeled_for, load_dataset, open_for
from .run_folder import RunFolder


def config_of(run: RunFolder, guides: bool = False) -> Config:
    """Return the recipe of a run from its recipe.yaml, with the current paths of its earlier stages. `guides`: whether
    guides of code that is not here are errors, as for training, or left out. Raises: UserError if a value in the file
    was changed since, or if it names code that the user has not named.
    """
    metadata, path = run.read("run.json"), run.path / "recipe.yaml"
    run.text("recipe.yaml")  # says how to restore it where it is missing
    config = saved_config(metadata["recipe"], path, run.path, guides)
    settings = metadata.get("settings", config.values)
    then = flat(saved_config(metadata["recipe"], settings, run.path, guides).values)
    now = flat(config.values)
    if changed := sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key)):
        changes = some([f"{key} from {then.get(key)!r} to {now.get(key)!r}" for key in changed], 5)
        raise UserError(
            f"{path} was changed after the run began: {changes}; put it back, or begin a new run by it: {run.anew()}"
        )
    return replace(config, values=where_they_lie(run.path, config.values), changes=metadata.get("changes", {}))


def dataset_of(run: RunFolder, config: Config, data: Any = "", unlabeled: bool = False) -> Dataset:
    """Load the images of a run in its splits. `unlabeled`: with those of data.unlabeled, as to train.

    Raises: UserError if they are gone, or images, labels or classes differ. Of streamed images file times stand for
        pixels, and copies have other times: they are compared by names and classes alone.
    """
    metadata, names = run.read("run.json"), run.image_names
    data = "" if data is None else data
    if metadata["data"].get("given") is not None:
        given = given_again(run, data)
        source = for_method(config, given) if unlabeled else labeled_for(config, given)
    else:
        source = open_for(config, own_data(run) if isinstance(data, str) and not data else data, unlabeled)
    dataset = load_dataset(source, config, metadata["seed"], names)
    named = [*metadata["data"]["classes"]] == [*dataset.classes]
    if not (named and (are_same(run, dataset) or isinstance(dataset.train, StreamedImages))):
        raise others(run)
    return dataset


def own_data(run: RunFolder) -> str:
    """Return the data that a run was trained on, by its path or its name."""
    about = run.read("run.json")["data"]
    check_data(run.path, about["folder"] or "", about["source"])
    return last_place(run.path, about["folder"]) or str(about["source"])


def last_place(run: Path, folder: str | None) -> str | None:
    """Return the path or pattern of a run's images. Raises: UserError if it is gone."""
    if folder is not None and not is_there(folder):
        raise UserError(
            f"the images of {run} lay in {folder}, which is not there; bring them back, or say where they are now, "
            f"which the run keeps, a finished one too: viticulture resume {shell_word(run)} DATA"
        )
    return folder


def keep_place(run: RunFolder, data: Any) -> None:
    """Record the new path of a run's images, once `dataset_of` has accepted them; nothing for a Python object or ""."""
    if isinstance(data, str) and data:
        run.update(data={**run.read("run.json")["data"], "source": data, "folder": folder_of(data)})


def folder_of(data: str) -> str | None:
    """Return the absolute path or pattern of data in files; None for other data."""
    if data.lower() in NAMES and not annotation_format(data)[0]:  # a set's name, which wins over a folder of classes
        return None
    return str(Path(data).absolute()) if is_there(data) else None


def are_same(run: RunFolder, dataset: Dataset) -> bool:
    """Return whether images, labels and classes are those that a run began with, unlabeled images perhaps left out."""
    data = run.read("run.json")["data"]
    if data["fingerprint"] == dataset.fingerprint or data.get("portable") == dataset.portable:
        return True
    contents = data.get("contents", {})
    return UNLABELED in contents and {**dataset.contents, UNLABELED: contents[UNLABELED]} == contents


def others(run: RunFolder, hint: str = "") -> UserError:
    """Return the error for images that differ from the run's."""
    return UserError(
        f"the images of {run.read('run.json')['data']['source']}, or their labels, are not those that {run.path} began "
        f"with; bring them back{hint}, measure these by `viticulture evaluate {shell_word(run.path)} DATA`, or train "
        f"anew: {run.anew()}"
    )


def given_again(run: RunFolder, data: Any) -> Source:
    """Return the source of a run on a Python object. Raises: UserError if `data` is no object, or another one."""
    name, way = run.read("run.json")["data"]["source"], f"viticulture.resume({str(run.path)!r}, data)"
    if isinstance(data, str):
        raise UserError(
            f"{run.path} was trained on a Python object ({name}), which its folder does not hold; pass it "
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
    """Return whether `data` is the run's: "", or the object that it was trained on."""
    return is_own(run, data) if isinstance(data, Source) else not data


def is_own(run: RunFolder, source: Source) -> bool:
    """Return whether this is the Python object that a run was trained on."""
    fingerprint = run.read("run.json")["data"].get("given")
    if fingerprint is None or fingerprint == source.fingerprint:
        return fingerprint is not None
    if fingerprint == separated(source).fingerprint:
        return True
    with suppress(UserError):  # labels that are no numbers
        return bool(fingerprint == as_numbers(source).fingerprint)
    return False
