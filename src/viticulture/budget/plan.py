# SPDX-License-Identifier: Apache-2.0
"""What a budget is to be spent on, written down before the first stage: budget.json in the run's folder.

runs/x/             the run of the last stage, whose student is kept
runs/x/budget.json  the plan
runs/x/stages/      1-mae, 2-teacher: a run folder each
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config.keys import STAGES
from ..config.references import where_they_lie
from ..config.resolve import Config, resolve
from ..errors import UserError
from ..keywords import rebuilt
from ..study.step_times import StepTimes
from ..training.facts import CURE
from ..training.run_folder import PLAN, RunFolder
from ..user_code import check_data, keep_known_code, of_a_file
from ..version import VERSION, same_release
from .budget import Budget
from .choices import Kind
from .recipes import of_length

FORMAT = 1
"""Version of the file's layout."""


@dataclass(frozen=True)
class Stage:
    """One training of the plan.

    Args:
        name: of its folder; the last one's is the run itself.
        kind: of stage.
        recipe: its base recipe's name.
        values: its recipe, complete but for the length.
        pace: as it was measured.
        epochs: that it trains.
        seconds: that it was to take, all in all.
        begun: whether its length is settled.
        spent: seconds that it took; None until it is done.
        warnings: those of its recipe.
    """

    name: str
    kind: Kind
    recipe: str
    values: dict[str, Any]
    pace: StepTimes
    epochs: int
    seconds: float
    begun: bool = False
    spent: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def student(self) -> str:
        """Its network."""
        return str(self.values["student"]["name"])

    @property
    def image_size(self) -> int:
        """Side of its images, pixels."""
        return int(self.values["images"]["image_size"])

    @property
    def resolved(self) -> Config:
        """Its recipe, with its length."""
        with of_a_file(PLAN):
            config = replace(resolve(self.recipe, self.values), warnings=self.warnings)
            return of_length(config, self.epochs, self.values["train"]["epochs"])


@dataclass(frozen=True)
class Plan:
    """Stages within a budget.

    Args:
        budget: as a person gave it.
        data: as for `train`.
        folder: where it is; None for data that has no folder.
        seed: of every stage.
        command: that asked for all this.
        prepared: seconds until the plan was made.
        stages: in their order.
        version: of this package.
    """

    budget: str
    data: str
    folder: str | None
    seed: int
    command: str
    prepared: float
    stages: tuple[Stage, ...]
    version: str = VERSION

    @property
    def spent(self) -> float:
        """Seconds so far; those that a kill made void are not counted."""
        return self.prepared + sum(stage.spent or 0 for stage in self.stages)

    @property
    def planned(self) -> float:
        """Seconds that all was to take."""
        return self.prepared + sum(stage.seconds for stage in self.stages)

    def with_stage(self, number: int, stage: Stage) -> "Plan":
        """The plan with another stage in a place."""
        return replace(self, stages=(*self.stages[:number], stage, *self.stages[number + 1 :]))

    def place(self, run: Path, number: int) -> Path:
        """The run folder of a stage."""
        return run if number == len(self.stages) - 1 else run / STAGES / self.stages[number].name

    def write(self, run: Path) -> None:
        """Into a run's folder."""
        keep_known_code()
        RunFolder(run).write(PLAN, {"format": FORMAT, **asdict(self), "seconds": Budget(self.budget).seconds})


def is_planned(run: str | Path) -> bool:
    """Whether a folder is a run within a budget."""
    return (Path(run) / PLAN).is_file()


def read_plan(run: str | Path) -> Plan:
    """What `write` wrote; stages that a later one learns from are named by where they lie now.

    Raises: UserError if it is damaged, or of another layout.
    """
    folder = RunFolder(run)
    content = folder.read(PLAN)
    if (layout := content.get("format")) != FORMAT:
        raise UserError(
            f"{folder.path / PLAN} was written by another version of viticulture (layout {layout}, this one reads "
            f"{FORMAT}); install the one that wrote it"
        )
    try:
        with of_a_file(folder.path / PLAN):
            plan = _plan(content)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder.path / PLAN} is damaged: {error}{CURE}") from error
    check_data(folder.path / PLAN, plan.data, plan.folder or "")
    _ = Budget(plan.budget)
    stages = (replace(stage, values=where_they_lie(folder.path, stage.values)) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def check_version(run: Path, plan: Plan) -> None:
    """Raises: UserError if a stage that has not begun might learn otherwise here than where the plan was made."""
    if not same_release(plan.version):
        raise UserError(
            f"{run} was planned by viticulture {plan.version}; this is {VERSION}: install that version to go on"
        )


def _plan(content: Mapping[str, Any]) -> Plan:
    """Raises: ValueError, TypeError or UserError for anything but a plan; UserError for code as `of_a_file`."""
    plan: Plan = rebuilt(Plan, {key: value for key, value in content.items() if key not in ("format", "seconds")})
    if not plan.stages:
        raise TypeError("it has no stages")
    if outside := [stage.name for stage in plan.stages if Path(stage.name).name != stage.name]:
        raise ValueError(f"{outside[0]!r} is no name of a folder")
    whole = (replace(stage, values=resolve(stage.recipe, stage.values).values) for stage in plan.stages)
    plan = replace(plan, stages=tuple(whole))
    if not all(isinstance(stage.values["images"]["image_size"], int) for stage in plan.stages):
        raise TypeError("a stage has no image size")
    return plan
