# SPDX-License-Identifier: Apache-2.0
"""Run a training from its first or next step to its last; the only file that makes Lightning's Trainer."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from ..config.sections import Engine
from ..data.image_settings import CROP_MODES
from ..disk import FULL, unwritable
from ..errors import HELPER_LOST, Terminated, UserError, is_lost_helper, is_single_value
from ..methods.method import TrainingLength
from ..models.tta import TTA_KEY
from ..models.weights.files import save
from ..text import log, shell_word
from .cuda_graph import CapturedModule, is_captured
from .feed import Feed, validation_split
from .half_precision import CpuMixedPrecision
from .linear_head import fit_head
from .loggers import close, loggers, no_tensorboard_traceback
from .machine import keep_freed_memory
from .metrics import StepMetrics, cut
from .module import TrainingModule
from .processes import environment, lost_another, named
from .progress import EachEpoch, ProgressBar
from .replay import Replay
from .session import Session
from .state import Ema, Ended, KeepLast, RandomState, WholeCheckpointIO
from .watching import BestCheckpoint, Perfect, ValidateEvery

LOG_EVERY_STEPS = 50
BY_BLOCK_STEPS, WHOLE_STEPS = 2_500, 10_000
"""Steps from which a training on a GPU is compiled by default: by block, or as a whole, which makes fewer and larger
kernels, but takes a minute or two (benchmarks/log)."""
INDUCTOR = {"realize_opcount_threshold": 1000, "realize_reads_threshold": 8, "realize_acc_reads_threshold": 8}
"""Options of the compiler on a GPU: it computes intermediate values twice rather than storing them between two kernels,
which moves fewer bytes (`python -m benchmarks.step_bytes`)."""


class StopAfter(Callback):
    """Ends the training after so many epochs, those of earlier processes included."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch + 1 >= self.epochs:
            trainer.should_stop = True


def fit(
    session: Session,
    progress: Callback | None = None,
    after_epoch: Callable[[], object] | None = None,
    more: Sequence[Callback] = (),
    until: int | None = None,
) -> None:
    """Train to the last epoch, from `last.ckpt` where the run has one; save last, best and EMA weights in the run.

    Of several processes the first alone writes.

    Args:
        progress: runs at every step and may end the training early; by default a progress bar.
        after_epoch: called at epochs' ends, as often as it takes little time; such as drawing a page.
        more: the user's callbacks, after all others; they may end the training early, too.
        until: stop after so many epochs, as if killed between two.

    Raises: UserError for a loss that is not finite, a full disk, a removed run or a damaged checkpoint.
    """
    run, method = session.run, session.method
    if method.closed_form:
        fit_head(session, _weights_metadata(session))
        return
    train, engine = session.config.train, session.config.engine
    on_gpu = torch.cuda.is_available() and engine.device in ("auto", "cuda")
    method.length = TrainingLength(session.plan.steps_per_epoch, session.plan.epochs, train.validate)
    resumed = run.checkpoint if session.begun and run.checkpoint.exists() else None
    checkpoints = WholeCheckpointIO(session.fingerprint)
    if session.begun and session.leads:
        if resumed is None and run.metrics.exists():
            log(f"note     there is no checkpoint {run.checkpoint}: it begins anew, with its first epoch")
        cut(run.metrics, checkpoints.load_checkpoint(resumed)["global_step"] if resumed else 0)
    metadata = _weights_metadata(session)
    ema = Ema(method.student, train.ema_decay) if train.ema_decay else None
    replay = Replay(session, engine.replay_gb) if engine.replay_gb else None
    keep, perfect = KeepLast(run, engine.checkpoint_minutes), Perfect(train.stop_when_perfect)
    validation = len(session.dataset.val) if train.validate == "val" and session.dataset.val is not None else 0
    callbacks: list[Callback | None] = [
        RandomState(),
        StepMetrics(LOG_EVERY_STEPS if on_gpu else 1),
        keep,
        progress or ProgressBar(session.plan.batch_size),
        EachEpoch(after_epoch) if after_epoch else None,
        ema,
        replay,
        *([BestCheckpoint(run, metadata, validation, train.best_by), perfect] if validation else []),
        *more,
        ValidateEvery(train.validate_every),
        Ended(),
        StopAfter(until) if until else None,  # after Ended, for which this is no end
    ]
    if engine.compile or (engine.compile is None and on_gpu and method.length.steps >= BY_BLOCK_STEPS):
        options = {"options": INDUCTOR} if on_gpu else {}
        method.compile_networks(by_block=method.length.steps < WHOLE_STEPS, **options)
    module = CapturedModule if is_captured(session.config, on_gpu, more) else TrainingModule
    _quiet()
    keep_freed_memory()
    trainer = _trainer(session, [callback for callback in callbacks if callback], checkpoints, on_gpu)
    try:
        with _signals_restored(), no_tensorboard_traceback(), _tf32(on_gpu), named(run.path, engine):
            trainer.fit(
                module(method, session.config.train.clip_each),
                datamodule=Feed(session),
                ckpt_path=resumed,
                weights_only=True,
            )
    except SystemExit as stop:  # Lightning's for Ctrl-C, and for SIGTERM where the program has no handler
        raise (Terminated if isinstance(stop, SIGTERMException) else KeyboardInterrupt) from stop
    except BaseException as error:
        if trainer.strategy.launcher is not None:
            trainer.strategy.launcher.kill(signal.SIGKILL)  # processes begun here would wait for this one's next step
        if (user_error := _user_error(run.path, error)) is not None:
            raise user_error from error
        raise
    finally:
        close(trainer.loggers)
    if trainer.is_global_zero and not until:
        for name, student in {"last": method.student, **({"ema": ema.student} if ema else {})}.items():
            save(student, run.weights(name), method.data_spec, {**metadata, "epoch": trainer.current_epoch})
        seconds, core_seconds = round(keep.seconds_spent(), 1), round(keep.core_seconds_spent(), 1)
        run.update(seconds=seconds, core_seconds=core_seconds, steps=trainer.global_step)
        if replay:
            run.update(teacher_logits=replay.counts)
        if warning := perfect.warning(validation, trainer.current_epoch, train.epochs):
            run.update(ended=warning)
            log(f"note     {warning}")


def _trainer(session: Session, callbacks: list[Callback], checkpoints: WholeCheckpointIO, on_gpu: bool) -> Trainer:
    train, engine = session.config.train, session.config.engine
    cluster = environment(engine)  # before the loggers, which use its numbers
    together = "ddp_find_unused_parameters_true" if session.method.has_unread_weights else "ddp"
    return Trainer(
        accelerator={"cuda": "gpu"}.get(engine.device, engine.device),
        devices=engine.devices,
        num_nodes=engine.nodes,
        strategy="auto" if engine.devices * engine.nodes == 1 else together,
        precision=None if engine.mixed_on_cpu else precision(engine, on_gpu),
        sync_batchnorm=engine.sync_batchnorm,
        max_epochs=train.epochs,
        accumulate_grad_batches=train.accumulate,
        gradient_clip_val=train.clip_norm,
        log_every_n_steps=min(LOG_EVERY_STEPS, session.method.length.steps_per_epoch),
        logger=loggers(session.run, session.config),
        callbacks=callbacks,
        plugins=[checkpoints, cluster, *([CpuMixedPrecision("bf16-mixed", "cpu")] if engine.mixed_on_cpu else [])],
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0 if validation_split(session) is None else None,
        num_sanity_val_steps=-1 if validates_start(session) else 0,
        use_distributed_sampler=False,
        default_root_dir=session.run.path,
    )


def validates_start(session: Session) -> bool:
    """True if the weights before the first step are among those of which the best are chosen."""
    config = session.config
    return config.student.head is not None and config.train.validate == "val" and session.dataset.val is not None


@contextmanager
def _tf32(on_gpu: bool) -> Iterator[None]:
    """Multiply in TF32 on a GPU what autocast leaves in float32; after the block in float32 again."""
    before = torch.get_float32_matmul_precision()
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if on_gpu:
            torch.set_float32_matmul_precision(before)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the handlers of Ctrl-C and SIGTERM after the block: a training that is stopped before its first step, or
    by an error while it stops, would leave a program that ignores them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # no other thread may set them, nor has it
            for number, handler in before.items():
                if handler is not None:  # one of a program in C, unknown to Python
                    signal.signal(number, handler)


def _weights_metadata(session: Session) -> dict[str, Any]:
    """Return what config.json of saved weights holds besides the network: their training and their input."""
    images = session.config.images
    run = {"run": session.run.path.name, "seed": session.seed, "recipe": session.config.name}
    metadata: dict[str, Any] = {**run, **session.method.extra_config}
    if images.fit != "crop":
        metadata["pretrained_cfg"] = {"crop_mode": CROP_MODES[images.fit]}
    if images.range is not None:
        metadata["range"] = images.range
    if images.eval_views not in ("one", "best") and session.method.data_spec.classes:
        metadata[TTA_KEY] = images.eval_views
    return metadata


def _user_error(run: Path, error: BaseException) -> UserError | None:
    """Return the message for an error that is not a bug of the program; None for any other."""
    if isinstance(error, OSError):
        name = error.filename and Path(os.fsdecode(error.filename))
        if error.errno in FULL or (name and name.is_relative_to(run)):  # TensorBoard's thread may give no name
            return unwritable(name or run, error)
    if is_lost_helper(error):
        return UserError(f"{HELPER_LOST} and go on: viticulture resume {shell_word(run)}")
    if is_single_value(error):
        return UserError(
            f"a norm has a single value of a channel, whose mean is the value itself: {error}; take a larger "
            "train.batch_size, or train.accumulate 1"
        )
    if lost_another(error):
        return UserError(
            "another process of this training has ended; if it gave no reason it was killed, most likely for lack of "
            f"memory; free some and go on: viticulture resume {shell_word(run)}"
        )
    return None


def precision(engine: Engine, on_gpu: bool) -> Any:
    """Return Lightning's name of the precision."""
    half = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)  # a T4 or V100 emulates it, slowly
    return {"auto": "bf16-mixed" if half else "32-true", "32": "32-true"}.get(engine.precision, engine.precision)


def _quiet() -> None:
    """Silence Lightning's advice about workers, log folders and resuming, which does not concern our loader."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for text in (
        "does not have many workers",
        "exists and is not empty",
        "is smaller than the logging",
        "dataloader is not resumable",
        "treespec, LeafSpec",
        "`srun` command is available",
    ):
        warnings.filterwarnings("ignore", f".*{text}")
