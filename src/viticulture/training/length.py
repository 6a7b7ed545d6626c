# SPDX-License-Identifier: Apache-2.0
"""Another last epoch for a run that has begun, once its first epochs have shown how long they take.

The warm-up keeps its epochs, so up to its end a run whose method and guides do not ask for its length learns the same
whatever it is: one that is given another length there ends, bit for bit, as one that had it from the beginning.
"""

from dataclasses import replace

from ..errors import UserError
from ..guides.guide import Guide
from ..text import comment
from .assemble import assemble
from .recipe import resolve
from .rundir import RunDir
from .session import Session, mark, recipe_of
from .state import WholeCheckpointIO, load_checkpoint


def may_change(session: Session) -> bool:
    """Whether a run learns the same within its warm-up, however long it is to be."""
    guides = session.method.guides.values()
    scheduled = any(isinstance(guide, Guide) and type(guide).start_epoch is not Guide.start_epoch for guide in guides)
    return not session.method.asks_length and not scheduled


def set_length(run: RunDir, epochs: int) -> None:
    """Give a run another length in its files. After a kill the same call makes good what it left half done.

    Raises: UserError for a checkpoint that is not the run's.
    """
    facts = run.read("run.json")
    recipe = resolve(facts["recipe"], facts["settings"])
    own = recipe.section("train").epochs
    if own == epochs:
        return
    keys = {"train.epochs": epochs, "schedule.warmup_epochs": recipe.section("schedule").warmup(own)}
    longer = resolve(recipe.name, recipe.values, keys)
    before, after = (
        mark(settings, facts["seed"], facts["data"]["fingerprint"]) for settings in (facts["settings"], longer.values)
    )
    content = load_checkpoint(run.checkpoint)
    if content.get("mark") not in (before, after):
        raise UserError(f"checkpoint {run.checkpoint} is not of this run; bring back the run's own")
    WholeCheckpointIO(after).save_checkpoint(content, run.checkpoint)
    run.write("recipe.yaml", f"{comment(facts['command'])}{comment(f'recipe: {recipe.name}')}{longer.to_yaml()}")
    run.update(settings=longer.values)  # last: until then a kill leaves the run as one whose length is not set


def gone_on(session: Session) -> Session:
    """The session that goes on from its run's checkpoint, by the recipe as it is there now."""
    recipe = recipe_of(session.run)
    method, _ = assemble(recipe, session.dataset, session.seed)
    facts = session.run.read("run.json")
    marked = mark(facts["settings"], session.seed, facts["data"]["fingerprint"])
    return replace(session, recipe=recipe, method=method, mark=marked, begun=True)
