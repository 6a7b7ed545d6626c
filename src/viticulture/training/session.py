# SPDX-License-Identifier: Apache-2.0
"""Everything that a training needs before its first step, checked."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config.checks import check_learns_unlabeled, check_parts, check_rates
from ..config.references import check_alone, check_outlast, from_anywhere
from ..config.resolve import Config, Plan, plan_of
from ..config.start import load_started
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
from .assemble import assemble
from .data import for_method, load_dataset, open_by_default, open_for, resolve_default
from .leakage import check_leakage
from .loggers import check_logger
from .machine import environment_metadata, hardware
from .processes import RUN_FOLDER, check_devices, is_leader, launched
from .run_folder import RunFolder, claimed, fresh
from .run_inputs import are_same, config_of, dataset_of, folder_of, keep_place, others

RUNS = "runs"  # folder of runs whose path is not named
IMAGE_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)
"""Layers that average over images, or over a map, which may hold a single value."""


@dataclass(frozen=True)
class Session:
    """A training that is ready to begin or to resume."""

    run: RunFolder
    config: Config
    dataset: Dataset
    method: Method
    seed: int
    warnings: list[str]
    fingerprint: str = ""  # digest of settings, seed and images; only a checkpoint with the same belongs to this run
    begun: bool = False  # true for a run that resumes, from its checkpoint where it has one
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", plan_of(self.config, len(self.dataset.trained_on)))

    @property
    def leads(self) -> bool:
        """True for the process that writes the run, of several that train it."""
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
    """Check everything, the most likely mistakes first, then create the run's folder.

    Args:
        recipe: its name; or a config, whose overrides are applied.
        out: path of the folder; or an existing one, which may hold other files than a run's.

    Raises: UserError for any mistake, before anything is written.
    """
    check_seed(seed)
    config = recipe if isinstance(recipe, Config) else None
    if isinstance(recipe, str) and recipe != "default":
        config = load_started(recipe, overrides)
    if not isinstance(out, RunFolder) and (is_leader(config.engine) if config else launched() is None):
        RunFolder.check_free(run_path(out, data), overwrite)  # again once it is created: another process may be faster
    in_memory = not isinstance(data, str)
    if config is None:
        source, default, chosen = open_by_default(data)
        config = resolve_default(default, overrides)
        config = replace(config, warnings=(*chosen, *config.warnings))
        labeled = for_method(config, source) if isinstance(source, Source) else source
    else:
        labeled = source = open_for(config, data)
    check_alone(config.values)
    check_devices(config.engine)
    leads = is_leader(config.engine)
    path = out.path if isinstance(out, RunFolder) else run_path(out, data, leads)
    if overwrite:
        check_outlast(config.values, path)
    check_parts(config)
    check_learns_unlabeled(config)
    check_rates(config)
    check_logger(config.engine)
    dataset = load_dataset(labeled, config, seed)
    config = of_images(config, dataset)
    about = {
        "source": dataset.name if in_memory else data,
        "folder": None if in_memory else folder_of(data),
        **({"given": source.fingerprint} if in_memory and isinstance(source, Source) else {}),
        "name": dataset.name,
    }
    leaks = check_leakage(config, dataset, about)
    method, about_weights = assemble(config, dataset, seed)
    config = replace(config, values=from_anywhere(config.values))
    fingerprint = fingerprint_of(config.values, seed, dataset.fingerprint)
    session = Session(RunFolder(path), config, dataset, method, seed, [], fingerprint)
    few = method.warnings(session.plan.batch_size // config.train.accumulate)
    if has_single_image_norms(session):
        _try_single_image(session)
        session = replace(session, method=assemble(config, dataset, seed)[0])  # as before it saw an image
    session.warnings.extend([*config.warnings, *dataset.warnings, *leaks, *about_weights, *few])
    session.warnings.extend(_without_validation(config) if dataset.val is None else [])
    if isinstance(out, RunFolder):
        session = replace(session, run=out)
    elif leads:
        with new_path(out, data, leads) as path:
            session = replace(session, run=RunFolder.create(path, overwrite))
    else:
        session = replace(session, run=RunFolder(run_path(out, data, leads)))
    if leads:
        _record(session, command, about)
    return session


def of_images(config: Config, dataset: Dataset) -> Config:
    """Return the config with the image settings that were chosen from the images."""
    return config.changed({f"images.{key}": value for key, value in vars(dataset.image_settings).items()}, by="images")


def _without_validation(config: Config) -> list[str]:
    """Return a warning for each setting that selects by validation images, of which there are none."""
    nothing, warnings = "without validation images nothing can select", list[str]()
    if config.images.eval_views == "best":
        warnings.append(f"images.eval_views best: {nothing}, so images are evaluated once")
    if (measure := config.train.best_by) is not None:
        warnings.append(f"train.best_by {measure}: {nothing}, so the last weights count")
    if config.student.head is not None and not config.method_class.closed_form:
        warnings.append(
            f"student.head {config.student.head}: {nothing} between the frozen and the fine-tuned network, "
            "so the fine-tuned one stays; `viticulture probe` keeps the frozen one"
        )
    if config.train.stop_when_perfect is not None:
        warnings.append("train.stop_when_perfect: without validation images nothing ends the training early")
    return warnings


def has_single_image_norms(session: Session) -> bool:
    """True if norms over images get a single image at a time."""
    engine = session.config.engine
    single = session.plan.batch_size == session.config.train.accumulate * engine.processes
    shared = engine.sync_batchnorm and engine.processes > 1
    return single and not shared and any(isinstance(layer, IMAGE_NORMS) for layer in session.method.modules())


def _try_single_image(session: Session) -> None:
    """Pass the first image through the losses. Raises: UserError where a norm then has one value of a channel, whose
    mean is the value itself."""
    from .feed import MicroBatches, training_loader  # which needs a session

    engine, accumulate = session.config.engine, session.config.train.accumulate
    loader = training_loader(session, Shard(0, engine.processes, workers=0))
    session.method.train()
    session.method.start_epoch()
    try:
        with torch.no_grad():
            session.method.losses(next(iter(MicroBatches(loader, accumulate))))
    except ValueError as error:
        if not is_single_value(error):
            raise
        minimum = 2 * accumulate * engine.processes
        raise UserError(
            "BatchNorm gets maps of one pixel at this size, and the mean over one image is the image: train.accumulate "
            f"is {accumulate}, there are {engine.processes} process(es), so train.batch_size must be at least "
            f"{minimum}, got {minimum // 2}; add --batch-size {minimum}, or larger images"
        ) from error


def _record(session: Session, command: str, about: dict[str, Any]) -> None:
    """Write into a new run's folder its recipe, its split and run.json."""
    run, config, dataset, method = session.run, session.config, session.dataset, session.method
    run.lock()
    keep_known_code()
    run.write("recipe.yaml", f"{comment(command)}{comment(f'recipe: {config.name}')}{config.to_yaml()}")
    run.write("split.json", {"names": dataset.split_names, "near_duplicates": dataset.near_duplicates})
    parameters = sum(parameter.numel() for parameter in method.student.parameters())
    _, macs = count(method.counted_network, method.data_spec.image_size, method.data_spec.channels)
    run.update(
        **environment_metadata(),
        status="running",
        command=command,
        recipe=config.name,
        seed=session.seed,
        data={
            **about,
            "fingerprint": dataset.fingerprint,
            "portable": dataset.portable,
            "contents": dataset.contents,
            "classes": list(dataset.classes),
            "images": {split: len(names) for split, names in dataset.split_names.items()},
            "skipped": dataset.skipped,
        },
        student={"name": config.student.name, "parameters": parameters, "macs": macs},
        batch_size=session.plan.batch_size,
        warnings=session.warnings,
        loaded=list(method.loaded),
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
    """Return the session of a stopped run.

    Raises: UserError if its images, weights, version or batch size are not those that it began with.
    """
    run = RunFolder.open(path)
    metadata = run.read("run.json")
    made_by = metadata["versions"]["viticulture"]
    if not same_release(made_by):
        raise UserError(f"{path} was begun by viticulture {made_by}; this is {VERSION}: install that version to resume")
    config = config_of(run, guides=True)
    check_devices(config.engine)
    leads = is_leader(config.engine)
    if leads:
        run.lock()
    check_logger(config.engine)
    dataset = dataset_of(run, config, data, unlabeled=True)
    if not are_same(run, dataset):
        raise others(run, " with the times of their files (cp -a), which stand for pixels that are streamed")
    method, _ = assemble(config, dataset, metadata["seed"])
    if metadata.get("teachers") != teachers_of(method):
        raise UserError(
            f"the teachers of {path} are not those that it began with; bring them back, or train anew: {run.anew()}"
        )
    if metadata.get("start") != method.start and not run.checkpoint.exists():
        raise UserError(
            f"the weights of {config.student.init}, from which {path} starts, are not those that it began with, and it "
            f"has no checkpoint yet; bring them back, or train anew: {run.anew()}"
        )
    fingerprint = fingerprint_of(metadata["settings"], metadata["seed"], metadata["data"]["fingerprint"])
    warnings = [*metadata["warnings"], *other_machine(metadata["hardware"], hardware(), config.engine.device)]
    session = Session(run, config, dataset, method, metadata["seed"], warnings, fingerprint, begun=True)
    if metadata.get("batch_size") != session.plan.batch_size:
        raise UserError(
            f"{path} was begun in batches of {metadata.get('batch_size')}, where this version of viticulture chooses "
            f"{session.plan.batch_size}; install the one that its run.json names, or train anew: {run.anew()}"
        )
    if leads:
        keep_place(run, data)
    return session


def teachers_of(method: Method) -> list[str]:
    """Return digests of the frozen teachers' weights, which no checkpoint holds."""
    return [weights_digest(module.net) for module in method.modules() if isinstance(module, Frozen)]


def other_machine(before: dict[str, Any], now: dict[str, Any], device: str) -> list[str]:
    """Return a warning where a run resumes on another GPU or CPU, or on a CPU with another number of threads, since
    the order of sums depends on them.
    """
    on_gpu = device in ("auto", "cuda")
    began, resumes = (((on_gpu and machine.get("gpus")) or [machine.get("cpu")])[0] for machine in (before, now))
    if None not in (began, resumes) and began != resumes:
        return [
            f"the run began on {began} and resumes on {resumes}, which sums in another order or precision: close to "
            "the uninterrupted run, but not to the bit"
        ]
    threads, threads_now = before.get("threads"), now["threads"]
    if threads in (None, threads_now) or (on_gpu and before.get("gpus")):
        return []
    return [
        f"the run began with {counted(threads, 'thread')} and resumes with {threads_now}, which sum in another order: "
        f"close to the uninterrupted run, but not to the bit; OMP_NUM_THREADS={threads} resumes exactly"
    ]


def fingerprint_of(settings: dict[str, Any], seed: int, images: str) -> str:
    """Return a digest of everything that decides the trained weights."""
    return hashlib.sha256(json.dumps([settings, seed, images], sort_keys=True).encode()).hexdigest()[:32]


def run_path(out: str, data: Any, leads: bool = True) -> Path:
    """Return a run's folder: the named one, else a new one under runs/, or the one that the leading process chose.

    Raises: UserError if several processes would each choose another.
    """
    if out:
        return Path(out)
    if not leads:
        if RUN_FOLDER not in os.environ:
            raise UserError("several processes need one run folder: name it by --out")
        return Path(os.environ[RUN_FOLDER])
    return fresh(RUNS, _stem(data))


@contextmanager
def new_path(out: str, data: Any, leads: bool = True) -> Iterator[Path]:
    """Yield `run_path`, to be filled in the block: a folder that is not named is created, for this process alone."""
    if out or not leads:
        yield run_path(out, data, leads)
        return
    with claimed(RUNS, _stem(data)) as path:
        yield path


def _stem(data: Any) -> str:
    """Return the beginning of a run's name, from its data."""
    kind = "arrays" if isinstance(data, tuple | list | dict) else type(data).__name__.lower()
    word = start_of(data).stem if isinstance(data, str) else kind
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in word) or "run"
