# SPDX-License-Identifier: Apache-2.0
"""What a person sees while a run trains: one bar, or plain lines when nobody is watching a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..errors import UserError
from ..methods.method import Method

FORECAST_STEPS, FORECAST_SECONDS = 20, 3.0
"""Whichever comes first, of a training's beginning, tells how long the rest will take."""


@contextmanager
def showing(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that is counted by calls of (done, total); nothing appears for work that is over at once."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task: TaskID | None = None

        def progress(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(what, total=total)
            bar.update(task, completed=done)

        yield progress


class ProgressBar(Callback):
    """Epoch, loss terms, accuracy, images per second and time left.

    Args:
        batch_size: images per optimizer step over all devices.
        console: where to show it; a bar on a terminal, else a line per epoch (at most one every few seconds).
        forecast: seconds that the whole training will take -> what a person should hear of that, "" for nothing; asked
            once, when a few steps have shown it.
    """

    def __init__(
        self, batch_size: int, console: Console | None = None, forecast: Callable[[float], str] | None = None
    ) -> None:
        self.batch_size, self.forecast = batch_size, forecast
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self.per_epoch = int(trainer.num_training_batches) // trainer.accumulate_grad_batches
        self.total = self.per_epoch * (trainer.max_epochs or 1)
        self.began_at, self.began_step = time.monotonic(), trainer.global_step
        self.shown_at, self.warm_at = 0.0, 0.0
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=self.total, completed=trainer.global_step, facts="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is not None and time.monotonic() - self.shown_at > 0.2:
            self.shown_at = time.monotonic()
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self.bar.update(
                self.task, completed=trainer.global_step, description=epoch, facts=f"{self._facts(trainer)}"
            )
        if self.forecast is not None and trainer.is_global_zero:
            self._foretell(trainer.global_step - self.began_step)

    def _foretell(self, steps: int) -> None:
        """Tell once how long it will take, by the steps after the first one, which pays for what happens once."""
        now = time.monotonic()
        self.warm_at = self.warm_at or (now if steps else 0.0)
        if self.forecast is None or steps < 2 or (steps < FORECAST_STEPS and now - self.warm_at < FORECAST_SECONDS):
            return
        words = self.forecast((self.total - self.began_step) * (now - self.warm_at) / (steps - 1))
        self.forecast = None
        if words:
            (self.bar.console if self.bar else self.console).print(words, highlight=False, soft_wrap=True)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self.bar is None:
            last = trainer.global_step >= self.total
            if last or time.monotonic() - self.shown_at > 5:
                self.shown_at = time.monotonic()
                words = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {self._facts(trainer)}"
                self.console.print(words, highlight=False, soft_wrap=True)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        """Give the terminal its cursor back."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _facts(self, trainer: Trainer) -> str:
        values = {**trainer.logged_metrics, **trainer.callback_metrics}
        method = trainer.lightning_module
        assert isinstance(method, Method)
        shown = [f"train/{term}" for term in ("loss", *method.seen_terms)]
        words = [f"{name.removeprefix('train/')} {float(values[name]):.3f}" for name in shown if name in values]
        words += [f"{name} {float(value):.1%}" for name, value in values.items() if name.endswith("accuracy")]
        spent, steps = time.monotonic() - self.began_at, trainer.global_step - self.began_step
        if steps:
            words.append(f"{steps * self.batch_size / spent:,.0f} images/s")
            left = timedelta(seconds=round((self.total - trainer.global_step) * spent / steps))
            words.append(f"{left} left")
        return "  ".join(words)


class StopOnNonFinite(Callback):
    """Stop at the first loss that is no number, before it reaches a checkpoint.

    Args:
        every_steps: how often to look; looking waits for the device, so a GPU is asked rarely. The step reported is
            exact all the same.
    """

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self.bad: torch.Tensor | None = None
        self.terms: torch.Tensor | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        seen: dict[str, torch.Tensor] = pl_module.seen_terms  # type: ignore[assignment]
        terms = torch.stack([term.float() for term in seen.values()])
        step = torch.where(terms.isfinite().all(), -1, trainer.global_step)
        if self.bad is None or self.terms is None:
            self.bad, self.terms = step, terms
        else:
            first = self.bad < 0
            self.bad, self.terms = torch.where(first, step, self.bad), torch.where(first, terms, self.terms)
        last = batch_idx + 1 == trainer.num_training_batches
        if batch_idx % self.every_steps == 0 or last:
            self._look(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._look(pl_module)  # between two looks, too, nothing broken is kept

    def _look(self, pl_module: LightningModule) -> None:
        if self.bad is not None and self.terms is not None and int(self.bad) >= 0:
            names: dict[str, torch.Tensor] = pl_module.seen_terms  # type: ignore[assignment]
            shown = ", ".join(f"{name} {value:.4g}" for name, value in zip(names, self.terms.tolist(), strict=True))
            raise UserError(
                f"the loss is no finite number at step {int(self.bad)} ({shown}); "
                "try a lower --lr, a longer --schedule.warmup_epochs, --train.clip_norm 1 or --engine.precision 32"
            )
