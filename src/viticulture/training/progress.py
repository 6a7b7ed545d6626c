# SPDX-License-Identifier: Apache-2.0
"""What a person sees while a run trains: one bar, or plain lines when nobody is watching a terminal."""

import math
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
from ..waiting import STDERR, is_silent
from .metrics import EpochMeans
from .module import TrainingModule

QUIET = 30.0
"""Seconds between two lines where nobody is watching a terminal."""

BAR = 20
"""Columns of a terminal that a training's bar takes."""

FORECAST_STEPS, FORECAST_SECONDS = 20, 3.0
"""Whichever comes first, of a training's beginning, tells how long the rest will take."""


@contextmanager
def showing(what: str, every: float = QUIET) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that is counted by calls of (done, total), or a line every 30 s where nobody watches a terminal;
    nothing appears for work that is over at once."""
    console = Console(file=STDERR, highlight=False, quiet=is_silent())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    said_at = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task: TaskID | None = None

        def progress(done: int, total: int) -> None:
            nonlocal task, said_at
            if task is None:
                task = bar.add_task(what, total=total)
            bar.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - said_at >= every:
                said_at = time.monotonic()
                console.print(f"{what}: {done:,} of {total:,}", soft_wrap=True)

        yield progress


class ProgressBar(Callback):
    """Epoch, means of loss terms and accuracy over it, images per second and time left.

    Args:
        batch_size: images per optimizer step over all devices.
        console: where to show it: a bar on a terminal; elsewhere a line now and then, and one at the end.
        every: seconds between two lines.
        forecast: seconds that the whole training will take -> what a person should hear of that, "" for nothing; asked
            once, when a few steps have shown it.
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
            columns = (
                TextColumn("{task.description}"),
                BarColumn(BAR),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=self.total, completed=trainer.global_step, facts="")
            self.bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero:
            return
        if self.forecast is not None:
            self._foretell(trainer.global_step - self.began_step)
        if time.monotonic() - self.shown_at < (0.2 if self.bar else self.every):
            return
        if self.bar is not None:
            self.shown_at = time.monotonic()
            epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            taken = len(epoch) + BAR + 2 * len(f"{self.total}") + 4  # and the spaces between columns
            facts = self._facts(trainer, max(self.console.width - taken, 0))
            self.bar.update(self.task, completed=trainer.global_step, description=epoch, facts=facts)
        elif batch_idx + 1 < trainer.num_training_batches:  # an epoch's end has measured more
            self._line(trainer, f", step {trainer.global_step:,} of {self.total:,}")

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
        late = time.monotonic() - self.shown_at >= self.every if trainer.is_global_zero else False
        if (
            trainer.is_global_zero
            and self.bar is None
            and (late or trainer.should_stop or trainer.global_step >= self.total)
        ):
            self._line(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def _line(self, trainer: Trainer, where: str = "") -> None:
        self.shown_at = time.monotonic()
        words = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}{where}  {self._facts(trainer)}"
        self.console.print(words, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        """Give the terminal its cursor back."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _facts(self, trainer: Trainer, room: int | None = None) -> str:
        """Describe a step; in `room` columns, as much as fits of the loss, the time that is left, accuracies on
        held-out images, and the rest."""
        module = trainer.lightning_module
        assert isinstance(module, TrainingModule)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        means = next((callback.means for callback in callbacks if isinstance(callback, EpochMeans)), {})
        terms = module.terms if len(module.terms) > 1 else ()  # one alone is the loss
        losses = [f"{name} {means[name]:.3f}" for name in ("loss", *terms) if name in means]
        held_out = {name: value for name, value in trainer.callback_metrics.items() if not name.startswith("train/")}
        known = [f"train/{name} {value:.1%}" for name, value in means.items() if name.endswith("accuracy")]
        measured = [f"{name} {float(value):.1%}" for name, value in held_out.items() if name.endswith("accuracy")]
        times = list[str]()
        spent, steps = time.monotonic() - self.began_at, trainer.global_step - self.began_step
        if steps:
            times.append(f"{steps * self.batch_size / spent:,.0f} images/s")
            left = timedelta(seconds=round((self.total - trainer.global_step) * spent / steps))
            times.append(f"{left} left")
        words = [*losses, *known, *measured, *times]
        for least in (*reversed(losses[1:]), *times[:1], *known, *measured, *times[1:]):
            if room is None or len("  ".join(words)) <= room:
                break
            words.remove(least)
        return "  ".join(words)


class EachEpoch(Callback):
    """Calls something at epochs' ends, in the first process, so rarely that it takes a small part of the time.

    Args:
        work: is called.
        share: of the training's time that it may take.
    """

    def __init__(self, work: Callable[[], object], share: float = 0.02) -> None:
        self.work, self.share = work, share
        self.next_at = -math.inf

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began = time.monotonic()
        if trainer.is_global_zero and began >= self.next_at:
            self.work()
            ended = time.monotonic()
            self.next_at = ended + (ended - began) / self.share


ADVICE = "try a lower --lr, a longer --schedule.warmup_epochs, --train.clip_norm 1 or --engine.precision 32"


class StopOnNonFinite(Callback):
    """Stop at the first loss that is no number, and at weights that are none, before they reach a checkpoint or are
    judged: what an epoch's last step spoils, no loss of it shows.

    Args:
        every_steps: how often to look; looking waits for the device, so a GPU is asked rarely. The step reported is
            exact all the same.
    """

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self.names: tuple[str, ...] = ()
        self.bad: torch.Tensor | None = None
        self.terms: torch.Tensor | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        seen = {name: pl_module.method.logs[name] for name in pl_module.terms}
        if tuple(seen) != self.names:  # a term has come or gone
            self._look()
            self.names, self.bad, self.terms = tuple(seen), None, None
        terms = torch.stack([term.float() for term in seen.values()])
        step = torch.where(terms.isfinite().all(), -1, trainer.global_step)
        if self.bad is None or self.terms is None:
            self.bad, self.terms = step, terms
        else:
            first = self.bad < 0
            self.bad, self.terms = torch.where(first, step, self.bad), torch.where(first, terms, self.terms)
        last = batch_idx + 1 == trainer.num_training_batches
        if batch_idx % self.every_steps == 0 or last:
            self._look()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look()
        _check_weights(pl_module, trainer.global_step)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._look()  # between two looks, too, nothing broken is kept
        _check_weights(pl_module, trainer.global_step)

    def _look(self) -> None:
        if self.bad is not None and self.terms is not None and int(self.bad) >= 0:
            values = zip(self.names, self.terms.tolist(), strict=True)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values)
            raise UserError(f"the loss is no finite number at step {int(self.bad)} ({shown}); {ADVICE}")


def _check_weights(module: LightningModule, step: int) -> None:
    """Raises: UserError where a learnt weight is no finite number."""
    learnt = [weight for weight in module.parameters() if weight.requires_grad]
    if learnt and not bool(torch.stack([weight.isfinite().all() for weight in learnt]).all()):
        raise UserError(f"weights are no finite numbers after step {step}; {ADVICE}")
