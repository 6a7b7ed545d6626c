# SPDX-License-Identifier: Apache-2.0
"""Everything a training needs before its first step, checked in the order in which a person wants to hear of it."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..config.checks import check_parts, check_rates
from ..config.load import load_config
from ..config.references import check_alone, check_outlast, from_anywhere
from ..config.resolve import Config
from ..data.batches.loader import Shard
from ..data.dataset import Dataset
from ..data.open import start_of
from ..data.sources.source import Source
from ..errors import UserError, counted, is_single_value
from ..keywords import BITS
from ..methods.method import Method
from ..models.students import count
from ..models.teachers.frozen import Frozen
from ..models.weights.files import weights_digest
from ..text import comment
from ..user_code import keep_known_code
from ..version import VERSION, same_release
from .assemble import assemble, batch_size, has_single_image_norms
from .data import for_method, load_dataset, open_by_default, open_for, resolve_default
from .leakage import check_leakage
from .loggers import check_logger
from .processes import RUN_FOLDER, check_devices, is_leader, launched
from .run_folder import RunFolder, claimed, fresh
from .run_inputs import are_same, config_of, dataset_of, folder_of, keep_place, others
from .surroundings import hardware, surroundings

RUNS = "runs"
"""Folder of the runs for which nobody names one."""


@dataclass(frozen=True)
class Session:
    """A training that is ready to begin or to go on.

    Args:
        run: its folder, locked by this process.
        config: every setting.
        dataset: the images, decoded or ready to be.
        method: student, guides and losses.
        seed: what all randomness follows from.
        warnings: what a person should know, such as images that stand in two splits.
        fingerprint: digest of settings, seed and images; a checkpoint of another is not this run's.
        begun: whether it goes on, from its checkpoint where it has one.
    """

    run: RunFolder
    config: Config
    dataset: Dataset
    method: Method
    seed: int
    warnings: list[str]
    fingerprint: str = ""
    begun: bool = False

    @property
    def leads(self) -> bool:
        """Return whether this process writes the run, of several that train it."""
        return is_leader(self.config.engine)


def begin(
    data: Any,
    recipe: str | Config,
    seed: int,
    out: str | RunFolder,
    overwrite: bool,
    overrides: dict[str, Any],
    command: str,
) -> Session:
    """Check everything, then make the run's folder.

    Args:
        data: as for `viticulture.train`.
        recipe: its name, or a resolved one, which is taken as it is.
        seed: as for `viticulture.train`.
        out: path of the folder; or one of the caller's, where other files than a run's may lie already.
        overwrite: replace the run in that folder.
        overrides: of a named recipe.
        command: that asked for the training.

    Raises: UserError for any mistake, before anything is written.
    """
    check_seed(seed)
    checked = recipe if isinstance(recipe, Config) else None
    if isinstance(recipe, str) and recipe != "default":
        checked = load_config(recipe, overrides)
    if not isinstance(out, RunFolder) and (is_leader(checked.engine) if checked else launched() is None):
        RunFolder.check_free(run_path(out, data), overwrite)  # again once it is made: other processes may be quicker
    given = not isinstance(data, str)
    if checked is None:
        source, default, chosen = open_by_default(data)
        checked = resolve_default(default, overrides)
        checked = replace(checked, warnings=(*chosen, *checked.warnings))
        learnt = for_method(checked, source) if isinstance(source, Source) else source
    else:
        learnt = source = open_for(checked, data)
    check_alone(checked.values)
    check_devices(checked.engine)
    leads = is_leader(checked.engine)
    path = out.path if isinstance(out, RunFolder) else run_path(out, data, leads)
    if overwrite:
        check_outlast(checked.values, path)
    check_parts(checked)
    check_rates(checked)
    check_logger(checked.engine)
    dataset = load_dataset(learnt, checked, seed)
    checked = checked.changed(
        {f"images.{key}": value for key, value in vars(dataset.image_settings).items()}, by="images"
    )
    about = {
        "source": dataset.name if given else data,
        "folder": None if given else folder_of(data),
        **({"given": source.fingerprint} if given and isinstance(source, Source) else {}),
        "name": dataset.name,
    }
    known = check_leakage(checked, dataset, about)
    method, warnings = assemble(checked, dataset, seed)
    checked = replace(checked, values=from_anywhere(checked.values))
    size = batch_size(checked, len(dataset.train))
    few = method.warnings(size // checked.train.accumulate)
    if has_single_image_norms(method, checked, size):
        _try_single_image(Session(RunFolder(path), checked, dataset, method, seed, []))
        method, _ = assemble(checked, dataset, seed)  # as it was before it saw an image
    warnings = [*checked.warnings, *dataset.warnings, *known, *warnings, *few]
    if dataset.val is None:
        nothing = "without validation images nothing can choose"
        if checked.images.eval_views == "best":
            warnings.append(f"images.eval_views best: {nothing}, so images are asked once")
        if (measure := checked.train.best_by) is not None:
            warnings.append(f"train.best_by {measure}: {nothing}, so the last weights count")
        if checked.train.stop_when_perfect is not None:
            warnings.append("train.stop_when_perfect: without validation images nothing ends the training early")
    if isinstance(out, RunFolder):
        run = out
    else:
        with new_path(out, data, leads) as path:
            run = RunFolder.create(path, overwrite) if leads else RunFolder(path)
    fingerprint = fingerprint_of(checked.values, seed, dataset.fingerprint)
    session = Session(run, checked, dataset, method, seed, warnings, fingerprint)
    if leads:
        _record(session, command, about)
    return session


def _try_single_image(session: Session) -> None:
    """Pass the first image through the losses. Raises: UserError where a norm then has one value of a channel, whose
    mean is the value itself."""
    from .feed import MicroBatches, training_loader  # which needs a session

    engine, accumulate = session.config.engine, session.config.train.accumulate
    processes = engine.devices * engine.nodes
    loader = training_loader(session, Shard(0, processes, workers=0))
    session.method.train()
    session.method.start_epoch()
    try:
        with torch.no_grad():
            session.method.losses(next(iter(MicroBatches(loader, accumulate))))
    except ValueError as error:
        if not is_single_value(error):
            raise
        least, many = 2 * accumulate * processes, f"train.accumulate is {accumulate}, there are {processes} process(es)"
        raise UserError(
            f"BatchNorm meets maps of one pixel at this size, and the mean over one image is the image: {many}, so "
            f"train.batch_size must be at least {least}, got {least // 2}; add --batch-size {least}, or larger images"
        ) from error


def _record(session: Session, command: str, about: dict[str, Any]) -> None:
    """Write into a new run's folder what it is: its recipe, its split and run.json.

    Args:
        session: what is to be trained.
        command: that asked for it.
        about: where its images come from.
    """
    run, config, dataset, method = session.run, session.config, session.dataset, session.method
    run.lock()
    keep_known_code()
    run.write("recipe.yaml", f"{comment(command)}{comment(f'recipe: {config.name}')}{config.to_yaml()}")
    run.write("split.json", {"names": dataset.split_names, "near_duplicates": dataset.near_duplicates})
    parameters = sum(parameter.numel() for parameter in method.student.parameters())
    _, macs = count(method.counted_network, method.data_spec.image_size, method.data_spec.channels)
    run.update(
        **surroundings(),
        status="running",
        command=command,
        recipe=config.name,
        seed=session.seed,
        data={
            **about,
            "fingerprint": dataset.fingerprint,
            "portable": dataset.portable,
            "classes": list(dataset.classes),
            "images": {split: len(names) for split, names in dataset.split_names.items()},
            "skipped": dataset.skipped,
        },
        student={"name": config.student.name, "parameters": parameters, "macs": macs},
        batch_size=batch_size(config, len(dataset.train)),
        warnings=session.warnings,
        teachers=teachers_of(method),
        start=method.start,
        settings=config.values,
        changes=config.changes,
    )


def check_seed(seed: int) -> None:
    """Raises: UserError for a seed that torch does not take."""
    if not 0 <= seed < 2**BITS:
        raise UserError(f"the seed must not be negative nor beyond {BITS} bits, got {seed}")


def reopen(path: str, data: Any = "") -> Session:
    """The session of a stopped run. Raises: UserError if its images, version or checkpoint do not allow to go on."""
    run = RunFolder.open(path)
    facts = run.read("run.json")
    made_by = facts["versions"]["viticulture"]
    if not same_release(made_by):
        raise UserError(f"{path} was begun by viticulture {made_by}; this is {VERSION}: install that version to go on")
    config = config_of(run)
    check_devices(config.engine)
    leads = is_leader(config.engine)
    if leads:
        run.lock()
    check_logger(config.engine)
    dataset = dataset_of(run, config, data)
    if not are_same(run, dataset):
        raise others(run, " with the times of their files (cp -a), which stand for pixels that are streamed")
    method, _ = assemble(config, dataset, facts["seed"])
    if "teachers" in facts and facts["teachers"] != teachers_of(method):
        raise UserError(
            f"the teachers of {path} are not those that it began with; bring them back, or train anew: {run.anew()}"
        )
    if "start" in facts and facts["start"] != method.start and not run.checkpoint.exists():
        init = config.student.init
        raise UserError(
            f"the weights of {init}, from which {path} starts, are not those that it began with, and it has no "
            f"checkpoint yet; bring them back, or train anew: {run.anew()}"
        )
    size = batch_size(config, len(dataset.train))
    if facts.get("batch_size", size) != size:
        raise UserError(
            f"{path} was begun in batches of {facts['batch_size']}, where this version of viticulture chooses {size}; "
            f"install the one that its run.json names, or train anew: {run.anew()}"
        )
    if leads:
        keep_place(run, data)
    fingerprint = fingerprint_of(facts.get("settings", config.values), facts["seed"], facts["data"]["fingerprint"])
    warnings = [*facts["warnings"], *other_machine(facts["hardware"], hardware(), config.engine.device)]
    return Session(run, config, dataset, method, facts["seed"], warnings, fingerprint, begun=True)


def teachers_of(method: Method) -> list[str]:
    """Digests of the frozen teachers' weights; no checkpoint holds them."""
    return [weights_digest(module.net) for module in method.modules() if isinstance(module, Frozen)]


def other_machine(before: dict[str, Any], now: dict[str, Any], device: str) -> list[str]:
    """A warning where a run goes on on another GPU or CPU than it began on, or on a CPU with other than its number of
    threads: sums depend on them.

    Args:
        before: the hardware that it began on, as run.json has it.
        now: that of this process.
        device: `engine.device`.
    """
    on_gpu = device in ("auto", "cuda")
    began, goes_on = (((on_gpu and machine.get("gpus")) or [machine.get("cpu")])[0] for machine in (before, now))
    if None not in (began, goes_on) and began != goes_on:
        return [
            f"the run began on {began} and goes on on {goes_on}, which sums in another order or precision: close to "
            "what it would have been, but not to the bit"
        ]
    threads, threads_now = before.get("threads"), now["threads"]
    if threads in (None, threads_now) or (on_gpu and before.get("gpus")):
        return []
    return [
        f"the run began with {counted(threads, 'thread')} and goes on with {threads_now}, which sum in another order: "
        f"close to what it would have been, but not to the bit; OMP_NUM_THREADS={threads} goes on exactly"
    ]


def fingerprint_of(settings: dict[str, Any], seed: int, images: str) -> str:
    """Digest of all that decides what a run learns."""
    return hashlib.sha256(json.dumps([settings, seed, images], sort_keys=True).encode()).hexdigest()[:32]


def run_path(out: str, data: Any, leads: bool = True) -> Path:
    """A run's folder: the one that is named, else a new one under runs/, or the one that the process that leads has
    named to the others. Raises: UserError if several processes would each find their own."""
    if out:
        return Path(out)
    if not leads:
        if RUN_FOLDER not in os.environ:
            raise UserError("several processes need one run folder: name it by --out")
        return Path(os.environ[RUN_FOLDER])
    return fresh(RUNS, _stem(data))


@contextmanager
def new_path(out: str, data: Any, leads: bool = True) -> Iterator[Path]:
    """As `run_path`, for who fills the folder in the block: where none is named, it is made and nobody else's."""
    if out or not leads:
        yield run_path(out, data, leads)
        return
    with claimed(RUNS, _stem(data)) as path:
        yield path


def _stem(data: Any) -> str:
    """What a run on some data is called."""
    made = "arrays" if isinstance(data, tuple | list | dict) else type(data).__name__.lower()
    word = start_of(data).stem if isinstance(data, str) else made
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in word) or "run"
