# SPDX-License-Identifier: Apache-2.0
"""Where measurements go beside metrics.csv and TensorBoard, which every run writes: MLflow, Weights & Biases, Trackio.

All get the same names, those of the run's history (`train/loss`, `val/accuracy`), and the recipe's settings. What a
resumed run measures goes on in the same place, whose name run.json keeps; steps since the last checkpoint stand there
twice where the service keeps both. Where a service lies is said as its own documentation has it (MLFLOW_TRACKING_URI,
`wandb login`, WANDB_MODE, TRACKIO_SPACE_ID, ...).
"""

import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from ..config.keys import flat
from ..config.resolve import Config
from ..config.sections import Engine
from ..errors import UserError
from .metrics import MetricsFile
from .processes import is_leader
from .run_folder import RunFolder

PROJECT = "viticulture"
"""MLflow's experiment, and the others' project."""

NEEDS = {"mlflow": ("mlflow", "mlflow_skinny"), "wandb": ("wandb",), "trackio": ("trackio",)}
"""Logger -> modules of which one must be there."""


class Trackio(Logger):
    """Measurements for Trackio, which Lightning has no logger for.

    Args:
        name: of the run; one that exists goes on.
        settings: what it is trained by.
    """

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self._name, self.settings, self.begun = name, settings, None

    @property
    def name(self) -> str:
        return PROJECT

    @property
    def version(self) -> str:
        return self._name

    @property
    def experiment(self) -> Any:
        """Trackio's run, begun when first asked for."""
        if self.begun is None:
            import trackio

            self.begun = trackio.init(project=PROJECT, name=self._name, resume="allow", config=self.settings)
        return self.begun

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """They are given when the run begins."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.begun is not None:
            self.begun.finish()
            self.begun = None


def check_logger(engine: Engine) -> None:
    """Raises: UserError if the package of a run's logger is not there."""
    modules = NEEDS.get(engine.logger, ())
    if modules and not any(map(find_spec, modules)):
        raise UserError(f"--logger {engine.logger} needs {modules[0]}, not installed; run: pip install {modules[0]}")


def loggers(run: RunFolder, config: Config) -> list[Logger]:
    """All that a run's measurements go to."""
    always: list[Logger] = [
        MetricsFile(run.metrics),
        TensorBoardLogger(run.path, name="tensorboard", version=""),
    ]
    engine = config.engine
    has_service = engine.logger in NEEDS and is_leader(engine)
    return [*always, *([_service(engine.logger, run, config)] if has_service else [])]


def _service(which: str, run: RunFolder, config: Config) -> Logger:
    """A service's logger, with the settings told, going on where this run's earlier part stands."""
    facts = run.read("run.json")
    known, name = facts.get("logged", {}).get(which), run.path.name
    settings = {**flat(config.values), "seed": facts["seed"], "data": facts["data"]["name"]}
    made: Logger
    if which == "mlflow":
        made = MLFlowLogger(PROJECT, run_name=name, run_id=known)
        known = made.run_id
    else:
        known = known or f"{name}-{secrets.token_hex(4)}"
        if which == "wandb":
            made = WandbLogger(name, save_dir=run.path, project=PROJECT, id=known, resume="allow")
        else:
            made = Trackio(known, settings)
    if "logged" not in facts:
        run.update(logged={which: known})
        made.log_hyperparams(settings)
    return made


def close(made: Iterable[Logger]) -> None:
    """Let the next training of this process begin a run of its own; Weights & Biases would go on with the last one."""
    for logger in made:
        if isinstance(logger, WandbLogger):  # the first process alone has one
            logger.experiment.finish()


@contextmanager
def told_once() -> Iterator[None]:
    """In the block no traceback of TensorBoard's thread is printed: what stops it, such as a full disk, is
    raised in the training's own thread, too."""
    before = threading.excepthook

    def hook(stopped: threading.ExceptHookArgs) -> None:
        if not _of_tensorboard(stopped.thread):
            before(stopped)

    threading.excepthook = hook
    try:
        yield
    finally:
        for thread in filter(_of_tensorboard, threading.enumerate()):
            if getattr(thread, "exception", None) is not None:
                thread.join()  # it has been raised here, and there it is about to end the thread
        threading.excepthook = before


def _of_tensorboard(thread: threading.Thread | None) -> bool:
    return type(thread).__module__.startswith("tensorboard.")
