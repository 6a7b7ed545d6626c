# SPDX-License-Identifier: Apache-2.0
"""Change the length of a run that has begun: after a budget's calibration, or on the user's request.

The warm-up keeps its epochs, so that until its end a run trains the same for any length, if its method and guides do
not depend on it: a run that changes its length there equals, bit for bit, one that had it from the beginning. After the
warm-up it uses the rates of the new length from there on.
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.load import saved_config
from ..config.resolve import Config
from ..errors import UserError, counted
from ..guides.guide import Guide
from ..models.weights.files import read_config
from ..text import comment
from .assemble import assemble
from .processes import POLL_SECONDS, is_leader
from .run_folder import RunFolder
from .run_inputs import config_of
from .session import Session, fingerprint_of
from .state import WholeCheckpointIO, load_checkpoint
from .watching import BestCheckpoint


def may_change(session: Session) -> bool:
    """True if a run trains the same within its warm-up for any length."""
    guides = session.method.guides.values()
    scheduled = any(isinstance(guide, Guide) and type(guide).start_epoch is not Guide.start_epoch for guide in guides)
    optim, schedule = session.config.optim, session.config.schedule
    falls = optim.weight_decay_end is not None or schedule.rule == "mmcv"  # from the first step on
    return not (session.method.depends_on_length or scheduled or falls)


def change_length(path: Path, epochs: int | None = None) -> None:
    """Change the length of a stopped run. The first of several processes does so, and the others wait for it. `epochs`:
    of the whole training; None completes what a kill has left half done. Raises: UserError if it is in use, or as
    `check_length`.
    """
    run = RunFolder.open(path)
    half_set = run.read("run.json").get("length")
    target = half_set if epochs is None else epochs
    if target is None:
        return
    if not is_leader(_config(run).engine):
        check_length(run, target)  # what the first refuses, the others do
        while not _has_length(run, target):
            time.sleep(POLL_SECONDS)
        return
    for length in (half_set, target):  # files of two lengths become one's before they are another's
        if length is None or not (warning := check_length(run, length)):
            continue
        run.lock()
        try:
            run.update(length=length)
            set_length(run, length, warning)
        finally:
            run.unlock()


def _config(run: RunFolder) -> Config:
    """Return the config in run.json."""
    metadata = run.read("run.json")
    config = saved_config(metadata["recipe"], metadata["settings"], run.path)
    return replace(config, changes=metadata.get("changes", {}))


def _has_length(run: RunFolder, epochs: int) -> bool:
    """True if a run's files have this length, and nothing is left half done: run.json is written last."""
    metadata = run.read("run.json")
    return metadata.get("length") in (None, epochs) and metadata["settings"]["train"]["epochs"] == epochs


def check_length(run: RunFolder, epochs: int) -> str:
    """Return a warning for a stopped run whose length is changed; empty where it has that length already.

    Raises: UserError if more epochs have begun, its recipe cannot have so few, or the run is finished or without a
        checkpoint.
    """
    metadata, config = run.read("run.json"), _config(run)
    current = config.train.epochs
    if epochs == current:
        return ""
    if metadata["status"] == "finished":
        raise UserError(
            f"{run.path} is finished, after {counted(current, 'epoch')}; train anew for others: {run.anew()}"
        )
    begun = load_checkpoint(run.checkpoint)["epoch"] + 1
    if epochs < begun:
        raise UserError(f"{run.path} has come to epoch {begun}, so it cannot end sooner; got {epochs} epochs")
    _of_length(config, epochs, "resume")  # refused before anything is written
    return (
        f"trained for {counted(epochs, 'epoch')} in place of {current} by `resume --epochs`, once {begun} had begun: "
        "the rate falls by that length from there on, so the same length from the start would train differently"
    )


def set_length(run: RunFolder, epochs: int, warning: str = "") -> None:
    """Write another length into a run's files. After a kill the same call completes what it left half done.

    Raises: UserError for a checkpoint that is not the run's.
    """
    metadata, config = run.read("run.json"), _config(run)
    if config.train.epochs == epochs:
        return
    longer = _of_length(config, epochs, "resume" if warning else "budget")
    seed, images = metadata["seed"], metadata["data"]["fingerprint"]
    before, after = (fingerprint_of(settings, seed, images) for settings in (metadata["settings"], longer.values))
    content = load_checkpoint(run.checkpoint)
    if content.get("mark") not in (before, after):
        raise UserError(f"checkpoint {run.checkpoint} is not of this run; bring back the run's checkpoint")
    if lost := _best_is_lost(run, content):
        content["callbacks"].pop(BestCheckpoint.__qualname__, None)
    WholeCheckpointIO(after).save_checkpoint(content, run.checkpoint)
    if lost:
        shutil.rmtree(run.weights("best"))
    run.write("recipe.yaml", f"{comment(metadata['command'])}{comment(f'recipe: {config.name}')}{longer.to_yaml()}")
    warnings = [*metadata["warnings"], *([warning] if warning else [])]
    run.update(settings=longer.values, changes=longer.changes, warnings=warnings)  # last: now it has its length


def _best_is_lost(run: RunFolder, checkpoint: dict[str, Any]) -> bool:
    """True if the best weights are of an epoch after the checkpoint, which will not be trained as before."""
    saved = run.weights("best")
    best = checkpoint["callbacks"].get(BestCheckpoint.__qualname__, {"best_epoch": -1})
    return (saved / "config.json").exists() and read_config(saved)["epoch"] != best["best_epoch"] + 1


def _of_length(config: Config, epochs: int, by: str) -> Config:
    """Return the config with other epochs and the same warm-up."""
    warmup = config.schedule.warmup(config.train.epochs)
    return config.changed({"train.epochs": epochs, "schedule.warmup_epochs": warmup}, by=by)


def resumed_session(session: Session) -> Session:
    """Return the session that resumes from its run's checkpoint, with the config in its folder."""
    config = config_of(session.run, guides=True)
    method, _ = assemble(config, session.dataset, session.seed)
    metadata = session.run.read("run.json")
    fingerprint = fingerprint_of(metadata["settings"], session.seed, metadata["data"]["fingerprint"])
    return replace(session, config=config, method=method, fingerprint=fingerprint, begun=True)
