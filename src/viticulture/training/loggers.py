# SPDX-License-Identifier: Apache-2.0
"""Loggers of a run: metrics.csv and TensorBoard always, and MLflow, Weights & Biases or Trackio on request.

All get the names of the run's history (`train/loss`, `val/accuracy`) and the recipe's settings. A resumed run continues
in the same place, whose name run.json holds; steps since the last checkpoint are there twice where the service stores
both. Each service's documentation says where it runs (MLFLOW_TRACKING_URI, `wandb login`, WANDB_MODE,
TRACKIO_SPACE_ID, ...).
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

PROJECT = "viticulture"  # MLflow's experiment, and the others' project

NEEDS = {"mlflow": ("mlflow", "mlflow_skinny"), "wandb": ("wandb",), "trackio": ("trackio",)}
"""Logger -> modules of which one must be installed."""


class Trackio(Logger):
    """Metrics for Trackio, which Lightning has no logger for; a run that exists is continued."""

    name, version = PROJECT, ""

    def __init__(self, run: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.run_name, self.settings = run, settings
        self.run: Any = None

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: settings are passed when the run begins."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.run is None:
            import trackio

            self.run = trackio.init(project=PROJECT, name=self.run_name, resume="allow", config=self.settings)
        self.run.log(dict(metrics), step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None


def check_logger(engine: Engine) -> None:
    """Raises: UserError if the package of a run's logger is not installed."""
    modules = NEEDS.get(engine.logger, ())
    if modules and not any(map(find_spec, modules)):
        raise UserError(f"--logger {engine.logger} needs {modules[0]}, not installed; run: pip install {modules[0]}")


def loggers(run: RunFolder, config: Config) -> list[Logger]:
    """Return the loggers of a run; the service's in the first process alone."""
    local = [MetricsFile(run.metrics), TensorBoardLogger(run.path, name="tensorboard", version="")]
    engine = config.engine
    return [*local, *([_service(engine.logger, run, config)] if engine.logger in NEEDS and is_leader(engine) else [])]


def _service(which: str, run: RunFolder, config: Config) -> Logger:
    """Return a service's logger, which continues the run's earlier part."""
    metadata = run.read("run.json")
    known, name = metadata.get("logged", {}).get(which), run.path.name
    settings = {**flat(config.values), "seed": metadata["seed"], "data": metadata["data"]["name"]}
    logger: Logger
    if which == "mlflow":
        logger = MLFlowLogger(PROJECT, run_name=name, run_id=known)
        known = logger.run_id
    else:
        known = known or f"{name}-{secrets.token_hex(4)}"
        if which == "wandb":
            logger = WandbLogger(name, save_dir=run.path, project=PROJECT, id=known, resume="allow")
        else:
            logger = Trackio(known, settings)
    if "logged" not in metadata:
        run.update(logged={which: known})
        logger.log_hyperparams(settings)
    return logger


def close(loggers: Iterable[Logger]) -> None:
    """Finish Weights & Biases' run, which the next training of this process would continue otherwise."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):  # in the first process alone
            logger.experiment.finish()


@contextmanager
def no_tensorboard_traceback() -> Iterator[None]:
    """Suppress tracebacks of TensorBoard's thread in the block: its errors, such as a full disk, are raised in the
    training's thread, too."""
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
                thread.join()  # its error has been raised here and is about to end the thread
        threading.excepthook = before


def _of_tensorboard(thread: threading.Thread | None) -> bool:
    return type(thread).__module__.startswith("tensorboard.")
