# SPDX-License-Identifier: Apache-2.0
"""Another last epoch for a run that has begun: once its first epochs have shown how long they take, or when a person
asks for it.

The warm-up keeps its epochs, so up to its end a run whose method and guides do not ask for its length learns the same
whatever it is: one that is given another length there ends, bit for bit, as one that had it from the beginning. Later
on it ends as no other does, by the rates of the other length from there on.
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.resolve import Config, resolve
from ..errors import UserError, counted
from ..guides.guide import Guide
from ..models.weights.files import read_config
from ..text import comment
from ..user_code import of_a_file
from .assemble import assemble
from .processes import POLL_SECONDS, is_leader
from .run_folder import RunFolder
from .run_inputs import config_of
from .session import Session, fingerprint_of
from .state import WholeCheckpointIO, load_checkpoint
from .watching import BestCheckpoint


def may_change(session: Session) -> bool:
    """Whether a run learns the same within its warm-up, however long it is to be."""
    guides = session.method.guides.values()
    scheduled = any(isinstance(guide, Guide) and type(guide).start_epoch is not Guide.start_epoch for guide in guides)
    return not session.method.depends_on_length and not scheduled


def change_length(path: Path, epochs: int | None = None) -> None:
    """Give a stopped run the length that a person asks for. Of several processes the first does so, and the others wait
    for it.

    Args:
        path: the run's folder.
        epochs: of the whole training; None makes good what a kill has left half done.

    Raises: UserError if it is in use, or as `asked_length`.
    """
    run = RunFolder.open(path)
    half_set = run.read("run.json").get("length")
    wanted = half_set if epochs is None else epochs
    if wanted is None:
        return
    if not is_leader(_recipe(run).engine):
        asked_length(run, wanted)  # what the first refuses, the others do
        while not _has_length(run, wanted):
            time.sleep(POLL_SECONDS)
        return
    for length in (half_set, wanted):  # files of two lengths become one's before they are another's
        if length is None or not (warning := asked_length(run, length)):
            continue
        run.lock()
        try:
            run.update(length=length)
            set_length(run, length, warning)
        finally:
            run.unlock()


def _recipe(run: RunFolder) -> Config:
    """Return the recipe in run.json. Raises: UserError if it names code that the user has not."""
    facts = run.read("run.json")
    with of_a_file(run.path):
        return resolve(facts["recipe"], facts["settings"])


def _has_length(run: RunFolder, epochs: int) -> bool:
    """Whether a run's files are of so many epochs, and nothing is left half done: run.json is the last to say so."""
    facts = run.read("run.json")
    return facts.get("length") in (None, epochs) and facts["settings"]["train"]["epochs"] == epochs


def asked_length(run: RunFolder, epochs: int) -> str:
    """What to warn about for a stopped run whose length a person changes; empty where it has that already.

    Raises: UserError if more epochs have begun, its recipe cannot have so few, or the run is finished or without a
        checkpoint.
    """
    facts, recipe = run.read("run.json"), _recipe(run)
    own = recipe.train.epochs
    if epochs == own:
        return ""
    if facts["status"] == "finished":
        raise UserError(f"{run.path} is finished, after {counted(own, 'epoch')}; train anew for others: {run.anew()}")
    begun = load_checkpoint(run.checkpoint)["epoch"] + 1
    if epochs < begun:
        raise UserError(f"{run.path} has come to epoch {begun}, so it cannot end sooner; got {epochs} epochs")
    _of_length(recipe, epochs)  # refused before anything says that it is wanted
    return (
        f"trained for {counted(epochs, 'epoch')} in place of {own} by `resume --epochs`, once {begun} had begun: the "
        "rate falls by that length from there on, so the same from the start would learn otherwise"
    )


def set_length(run: RunFolder, epochs: int, warning: str = "") -> None:
    """Give a run another length in its files. After a kill the same call makes good what it left half done.

    Args:
        run: that has begun.
        epochs: of the whole training.
        warning: for its page.

    Raises: UserError for a checkpoint that is not the run's.
    """
    facts, recipe = run.read("run.json"), _recipe(run)
    own = recipe.train.epochs
    if own == epochs:
        return
    longer = _of_length(recipe, epochs)
    seed, images = facts["seed"], facts["data"]["fingerprint"]
    before, after = (fingerprint_of(settings, seed, images) for settings in (facts["settings"], longer.values))
    content = load_checkpoint(run.checkpoint)
    if content.get("mark") not in (before, after):
        raise UserError(f"checkpoint {run.checkpoint} is not of this run; bring back the run's own")
    if lost := _best_is_lost(run, content):
        content["callbacks"].pop(BestCheckpoint.__qualname__, None)
    WholeCheckpointIO(after).save_checkpoint(content, run.checkpoint)
    if lost:
        shutil.rmtree(run.weights("best"))
    run.write("recipe.yaml", f"{comment(facts['command'])}{comment(f'recipe: {recipe.name}')}{longer.to_yaml()}")
    warnings = [*facts["warnings"], *([warning] if warning else [])]
    run.update(settings=longer.values, warnings=warnings)  # last: until then the run is one whose length is not set


def _best_is_lost(run: RunFolder, checkpoint: dict[str, Any]) -> bool:
    """Whether the best weights are those of an epoch after the checkpoint, which is not trained as it was then."""
    kept = run.weights("best")
    known = checkpoint["callbacks"].get(BestCheckpoint.__qualname__, {"best_epoch": -1})
    return (kept / "config.json").exists() and read_config(kept)["epoch"] != known["best_epoch"] + 1


def _of_length(config: Config, epochs: int) -> Config:
    """The recipe with other epochs, and the warm-up that it has. Raises: UserError where that is longer."""
    warmup = config.schedule.warmup(config.train.epochs)
    return resolve(config.name, config.values, {"train.epochs": epochs, "schedule.warmup_epochs": warmup})


def gone_on(session: Session) -> Session:
    """The session that goes on from its run's checkpoint, by the recipe as it is there now."""
    config = config_of(session.run)
    method, _ = assemble(config, session.dataset, session.seed)
    facts = session.run.read("run.json")
    fingerprint = fingerprint_of(facts["settings"], session.seed, facts["data"]["fingerprint"])
    return replace(session, config=config, method=method, fingerprint=fingerprint, begun=True)
