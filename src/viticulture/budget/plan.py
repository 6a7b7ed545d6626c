# SPDX-License-Identifier: Apache-2.0
"""Plan of a budget, written before the first stage: budget.json in the run's folder.

runs/x/             the run of the last stage, whose student is the result
runs/x/budget.json  the plan
runs/x/stages/      1-mae, 2-teacher: a run folder each
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..config.keys import STAGES
from ..config.references import where_they_lie
from ..config.resolve import Config, resolve
from ..errors import UserError
from ..keywords import rebuilt
from ..study.step_times import StepTimes
from ..training.metadata import CURE
from ..training.run_folder import PLAN, RunFolder
from ..user_code import check_data, keep_known_code, of_a_file
from ..version import VERSION, same_release
from .budget import TimeBudget
from .choices import Kind
from .recipes import length_keys

FORMAT = 3  # version of the file's layout


@dataclass(frozen=True)
class Stage:
    """One training of the plan."""

    name: str
    kind: Kind
    recipe: str
    values: dict[str, Any]  # its config, complete except for the length
    step_times: StepTimes
    epochs: int
    seconds: float  # planned, everything included
    begun: bool = False
    spent: float | None = None  # actual seconds; None until it is finished
    warnings: tuple[str, ...] = ()
    changes: dict[str, str] = field(default_factory=dict)

    @property
    def student(self) -> str:
        """Name of its network."""
        return str(self.values["student"]["name"])

    @property
    def image_size(self) -> int:
        """Side of its images, pixels."""
        return int(self.values["images"]["image_size"])

    @property
    def config(self) -> Config:
        """Its config, with its length."""
        with of_a_file(PLAN):
            config = replace(resolve(self.recipe, self.values), warnings=self.warnings, changes=self.changes)
            return config.changed(length_keys(config, self.epochs, config.train.epochs), by="budget")


@dataclass(frozen=True)
class BudgetPlan:
    """Stages within a budget."""

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
        """Actual seconds so far; those lost by a kill are not counted."""
        return self.prepared + sum(stage.spent or 0 for stage in self.stages)

    @property
    def planned(self) -> float:
        """Planned seconds of everything."""
        return self.prepared + sum(stage.seconds for stage in self.stages)

    def with_stage(self, number: int, stage: Stage) -> "BudgetPlan":
        """Return the plan with one stage replaced."""
        return replace(self, stages=(*self.stages[:number], stage, *self.stages[number + 1 :]))

    def place(self, run: Path, number: int) -> Path:
        """Return the run folder of a stage."""
        return run if number == len(self.stages) - 1 else run / STAGES / self.stages[number].name

    def write(self, run: Path) -> None:
        """Write the plan into a run's folder."""
        keep_known_code()
        RunFolder(run).write(PLAN, {"format": FORMAT, **asdict(self), "seconds": TimeBudget(self.budget).seconds})


def is_planned(run: str | Path) -> bool:
    """True if a folder is a run on a budget."""
    return (Path(run) / PLAN).is_file()


def read_plan(run: str | Path) -> BudgetPlan:
    """Return the plan in a run's folder; references to earlier stages are updated to where they are now.

    Raises: UserError if it is damaged, or of another layout.
    """
    folder = RunFolder(run)
    path, content = folder.path / PLAN, folder.read(PLAN)
    if (layout := content.get("format")) != FORMAT:
        raise UserError(
            f"{path} was written by another version of viticulture (layout {layout}, this one reads {FORMAT}); install "
            "the one that wrote it"
        )
    try:
        with of_a_file(path):
            plan = _checked(content)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}{CURE}") from error
    check_data(path, plan.data, plan.folder or "")
    _ = TimeBudget(plan.budget)
    stages = (replace(stage, values=where_they_lie(folder.path, stage.values)) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def check_version(run: Path, plan: BudgetPlan) -> None:
    """Raises: UserError if a stage that has not begun might train differently here than where the plan was made."""
    if not same_release(plan.version):
        raise UserError(
            f"{run} was planned by viticulture {plan.version}; this is {VERSION}: install that version to resume"
        )


def _checked(content: Mapping[str, Any]) -> BudgetPlan:
    """Return the plan in a file. Raises: ValueError, TypeError or UserError for any other content."""
    plan: BudgetPlan = rebuilt(BudgetPlan, {k: value for k, value in content.items() if k not in ("format", "seconds")})
    if not plan.stages:
        raise TypeError("it has no stages")
    if outside := [stage.name for stage in plan.stages if Path(stage.name).name != stage.name]:
        raise ValueError(f"{outside[0]!r} is no name of a folder")
    whole = (replace(stage, values=resolve(stage.recipe, stage.values).values) for stage in plan.stages)
    plan = replace(plan, stages=tuple(whole))
    if not all(isinstance(stage.values["images"]["image_size"], int) for stage in plan.stages):
        raise TypeError("a stage has no image size")
    return plan
