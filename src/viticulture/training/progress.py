# SPDX-License-Identifier: Apache-2.0
"""Progress of a training or another work: a bar on a terminal, elsewhere a line now and then."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..waiting import STDERR, is_silent
from .metrics import StepMetrics
from .module import TrainingModule

QUIET = 30.0  # seconds between two lines without a terminal

BAR = 20  # columns of a training's bar

FORECAST_STEPS, FORECAST_SECONDS = 20, 3.0
"""Part of a training, whichever is shorter, from which the remaining time is estimated."""


@contextmanager
def showing(title: str, every: float = QUIET) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of work that calls the function with (done, total); nothing for work that is over at once."""
    console = Console(file=STDERR, highlight=False, quiet=is_silent())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    printed_at = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task: TaskID | None = None

        def progress(done: int, total: int) -> None:
            nonlocal task, printed_at
            if task is None:
                task = bar.add_task(title, total=total)
            bar.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - printed_at >= every:
                printed_at = time.monotonic()
                console.print(f"{title}: {done:,} of {total:,}", soft_wrap=True)

        yield progress


class ProgressBar(Callback):
    """Shows the epoch, means of loss terms and accuracy over it, images per second and the time left.

    Args:
        console: shows a bar on a terminal; elsewhere a line now and then, and one at the end.
        forecast: called once with the estimated seconds of the whole training; returns a message, or "" for none.
    """

    def __init__(
        self,
        batch_size: int,
        console: Console | None = None,
        every: float = QUIET,
        forecast: Callable[[float], str] | None = None,
    ) -> None:
        self.batch_size, self.every, self.forecast = batch_size, every, forecast
        self.console = console or Console(file=STDERR, highlight=False, quiet=is_silent())
        self.bar: Progress | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self.total = int(trainer.num_training_batches) // trainer.accumulate_grad_batches * (trainer.max_epochs or 1)
        self.began_at, self.began_step = time.monotonic(), trainer.global_step
        self.shown_at, self.warm_at = -math.inf, 0.0
        if self.console.is_terminal:
            text = (
                TextColumn("{task.description}"),
                BarColumn(BAR),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self.bar = Progress(*text, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=self.total, completed=trainer.global_step, text="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero:
            return
        if self.forecast is not None:
            self._estimate(trainer.global_step - self.began_step)
        if time.monotonic() - self.shown_at < (0.2 if self.bar else self.every):
            return
        if self.bar is not None:
            self.shown_at = time.monotonic()
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            taken = len(epoch) + BAR + 2 * len(f"{self.total}") + 4  # and the spaces between columns
            text = self._text(trainer, max(self.console.width - taken, 0))
            self.bar.update(self.task, completed=trainer.global_step, description=epoch, text=text)
        elif batch_idx + 1 < trainer.num_training_batches:  # the epoch's end has more metrics
            self._print_line(trainer, f", step {trainer.global_step:,} of {self.total:,}")

    def _estimate(self, steps: int) -> None:
        """Print the forecast once, by the steps after the first one, which includes one-time costs."""
        now = time.monotonic()
        self.warm_at = self.warm_at or (now if steps else 0.0)
        if self.forecast is None or steps < 2 or (steps < FORECAST_STEPS and now - self.warm_at < FORECAST_SECONDS):
            return
        forecast, self.forecast = self.forecast, None
        if message := forecast((self.total - self.began_step) * (now - self.warm_at) / (steps - 1)):
            (self.bar.console if self.bar else self.console).print(message, highlight=False, soft_wrap=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or self.bar is not None:
            return
        if trainer.should_stop or trainer.global_step >= self.total or time.monotonic() - self.shown_at >= self.every:
            self._print_line(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _print_line(self, trainer: Trainer, where: str = "") -> None:
        self.shown_at = time.monotonic()
        line = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}{where}  {self._text(trainer)}"
        self.console.print(line, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        """Give the terminal its cursor back."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _text(self, trainer: Trainer, columns: int | None = None) -> str:
        """Describe a step; in so many columns, as much as fits of the loss, the time left, accuracies on held-out
        images, and the rest."""
        module = trainer.lightning_module
        assert isinstance(module, TrainingModule)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        means = next((callback.means for callback in callbacks if isinstance(callback, StepMetrics)), {})
        terms = module.terms if len(module.terms) > 1 else ()  # a single one is the loss
        losses = [f"{name} {means[name]:.3f}" for name in ("loss", *terms) if name in means]
        train = [f"train/{name} {value:.1%}" for name, value in means.items() if name.endswith("accuracy")]
        held_out = [
            f"{name} {float(value):.1%}"
            for name, value in trainer.callback_metrics.items()
            if name.endswith("accuracy") and not name.startswith("train/")
        ]
        times = list[str]()
        spent, steps = time.monotonic() - self.began_at, trainer.global_step - self.began_step
        if steps:
            times.append(f"{steps * self.batch_size / spent:,.0f} images/s")
            left = timedelta(seconds=round((self.total - trainer.global_step) * spent / steps))
            times.append(f"{left} left")
        parts = [*losses, *train, *held_out, *times]
        for part in (*reversed(losses[1:]), *times[:1], *train, *held_out, *times[1:]):
            if columns is None or len("  ".join(parts)) <= columns:
                break
            parts.remove(part)
        return "  ".join(parts)


class EachEpoch(Callback):
    """Calls a function at epochs' ends, in the first process, as often as it takes a small share of the time."""

    def __init__(self, work: Callable[[], object], share: float = 0.02) -> None:
        self.work, self.share = work, share
        self.next_at = -math.inf

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began = time.monotonic()
        if trainer.is_global_zero and began >= self.next_at:
            self.work()
            ended = time.monotonic()
            self.next_at = ended + (ended - began) / self.share
