# SPDX-License-Identifier: Apache-2.0
"""Parts of a recipe that do not go together, refused before any data is read."""

from ..data.transforms.placement import check_follows
from ..data.transforms.view import check_channels
from ..errors import UserError, comma_separated
from ..guides.guide import Capability
from .keys import VIEWS
from .resolve import Config
from .schema import METHODS, find_method, guide_class, of_class, transform_class, transforms


def check_parts(config: Config) -> None:
    """Raises: UserError for parts that do not go together: views that the method does not take or lacks, mixed labels
    where none are used, a guide without what it requires, SAM on a part of a batch, and so on."""
    method, name = config.method_class, config.method_name
    for guide, keywords in config.guides.items():
        if missing := guide_class(guide, keywords).requires - method.provides:
            words = " and ".join(each.value for each in Capability if each in missing)
            raise UserError(
                f"guide {guide} requires {words}, which method {name} does not provide; take guides.{guide} out, or "
                "take another method"
            )
    if (teacher_size := config.images.teacher_size) is not None and not config.guides:
        raise UserError(
            f"images.teacher_size {teacher_size} is for teachers of guides, and there are no guides; leave it out"
        )
    if teacher_size is not None and config.values["augment2"]:
        raise UserError(
            f"images.teacher_size {teacher_size} is for methods of one view, and method {name} takes two; leave it out"
        )
    if method.closed_form:
        _check_closed_form(config)
    if config.student.head is not None and config.student.init is None:
        raise UserError(
            f"student.head {config.student.head} trains the classifier on features of student.init, which is null; add "
            "--init NETWORK, or --student.head null"
        )
    if config.student.head is not None and not (method.batch_spec.labels and method.batch_spec.contents == "classes"):
        raise UserError(
            f"student.head {config.student.head} needs a class for every image, which method {name} does not use; add "
            "--student.head null"
        )
    accumulate, precision = config.train.accumulate, config.engine.precision
    if config.optim.sam_rho is not None and (accumulate > 1 or precision == "16-mixed"):
        raise UserError(
            "optim.sam_rho takes two gradients of a whole batch, unscaled: set train.accumulate to 1 and "
            f"engine.precision to 32 or bf16-mixed, got {accumulate} and {precision}"
        )
    if config.engine.cuda_graph and (reason := why_not_captured(config)):
        raise UserError(f"engine.cuda_graph captures the whole step, and {reason}; set one of the two off")
    side = config.images.image_size
    if isinstance(side, list) and (not method.takes_non_square or config.guides):
        also = f" and guides {', '.join(config.guides)}" if method.takes_non_square else ""
        takers = comma_separated(each for each in METHODS if find_method(each).takes_non_square)
        raise UserError(
            f"images.image_size {side} is not square, which only methods {takers} without guides take; method "
            f"{name}{also} trains on squares: name one side"
        )
    for view in VIEWS:
        check_channels(transforms(config.values[view] or {}), config.images.channels)
    check_balance(config)
    _check_without_labels(config)
    spec, views = method.batch_spec, [config.values["augment"], *filter(None, [config.values["augment2"]])]
    if len(views) < spec.views:
        raise UserError(f"method {name} compares two views of an image; define the second one by augment2")
    if len(views) > spec.views:
        raise UserError(f"method {name} takes one view of an image; take augment2 out")
    if spec.dense:
        check_follows({name: transform_class(name, entry) for name, entry in config.values["augment"].items()})
        if (chosen := config.images.eval_views) != "one":
            raise UserError(
                f"images.eval_views {chosen} is for classes of images, which method {name} does not predict; leave it "
                "out"
            )
        if (cut := config.images.eval_crop) < 1:
            raise UserError(
                f"images.eval_crop {cut:g} cuts edges off, and method {name} is evaluated on whole images; leave it out"
            )
    if spec.contents == "numbers" and any(of_class(view, "mix") for view in views):
        raise UserError(f"mix mixes classes, and method {name} predicts a number; take augment.mix out")
    if not spec.labels and any(of_class(view, "mix") for view in views):
        raise UserError(f"mix mixes labels, and method {name} uses none; take augment.mix out")


def why_not_captured(config: Config) -> str:
    """Return why steps cannot be captured in a CUDA graph (training/cuda_graph.py); "" if they can."""
    optim, engine, train = config.optim, config.engine, config.train
    parts: dict[str, type] = {f"guide {name}": guide_class(name, keys) for name, keys in config.guides.items()}
    parts[f"method {config.method_name}"] = config.method_class
    reasons = {
        f"optim.sam_rho {optim.sam_rho} takes two gradients in it": optim.sam_rho is not None,
        f"optim.weight_decay_end {optim.weight_decay_end} is another number in each": optim.weight_decay_end
        is not None,
        f"optim.name {optim.name} reads its rate on the CPU": optim.name == "lars",
        f"train.accumulate {train.accumulate} divides it": train.accumulate > 1,
        f"{engine.processes} processes exchange gradients in it": engine.processes > 1,
        f"engine.precision {engine.precision} reads on the CPU if gradients are finite": engine.precision == "16-mixed",
        f"engine.replay_gb {engine.replay_gb} reads teachers' outputs from disk": engine.replay_gb is not None,
        **{
            f"{part} does not state `capturable`, that its work is the same in each": not vars(made).get("capturable")
            for part, made in parts.items()  # not inherited: a subclass may add what is not the same
        },
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _check_closed_form(config: Config) -> None:
    """Raises: UserError where a method without steps gets no trained network, or parts that only steps use."""
    name = config.method_name
    if config.student.init is None:
        raise UserError(f"method {name} keeps a trained network, and student.init is null; name one: --init NETWORK")
    if parts := [f"{section}.{entry}" for section in ("guides", "augment") for entry in config.values[section]]:
        raise UserError(f"method {name} sees images as in evaluation and takes no steps; take {parts[0]} out")
    if config.data.sampling == "balanced":
        raise UserError(f"method {name} sees every training image once, and data.sampling is balanced; leave it out")
    if config.train.best_by is not None:
        raise UserError(f"method {name} has one set of weights, and train.best_by selects among epochs'; leave it out")
    if config.engine.processes > 1:
        raise UserError(f"method {name} runs in one process, got {config.engine.processes}; leave engine.devices out")


def check_learns_unlabeled(config: Config) -> None:
    """Raises: UserError where a training has no use for images without labels."""
    method, name = config.method_class, config.method_name
    if config.data.unlabeled is None or not method.batch_spec.labels or method.closed_form:
        return
    if name != "supervised":
        raise UserError(f"data.unlabeled is for classes under a teacher, not for method {name}; leave it out")
    if not config.guides:
        raise UserError("data.unlabeled needs a teacher of its images; add --teacher NETWORK, or leave it out")


def _check_without_labels(config: Config) -> None:
    """Raises: UserError for parts that need the labels that images of data.unlabeled lack."""
    if config.data.unlabeled is None or not config.method_class.batch_spec.labels:
        return
    needing = [f"guides.{guide}" for guide, entry in config.guides.items() if guide_class(guide, entry).uses_labels]
    needing += [f"{view}.mix" for view in VIEWS if of_class(config.values[view] or {}, "mix")]
    needing += ["data.sampling"] if config.data.sampling == "balanced" else []
    needing += ["data.class_weights"] if config.data.class_weights is not None else []
    if needing:
        raise UserError(
            f"{needing[0]} needs a label of every image, and data.unlabeled has none; leave one of them out"
        )


def check_rates(config: Config) -> None:
    """Raises: UserError where a schedule begins or ends at a rate above the highest one."""
    lr, schedule = config.optim.lr, config.schedule
    warms_up, falls = schedule.warmup_epochs != 0, schedule.rule in ("cosine", "timm", "mmcv")
    for name, rate, counts in (("warmup_lr", schedule.warmup_lr, warms_up), ("min_lr", schedule.min_lr, falls)):
        if counts and rate > lr:
            raise UserError(
                f"schedule.{name} must not exceed optim.lr, the highest rate, got {rate} and {lr}; lower it, or take 0"
            )


def check_balance(config: Config) -> None:
    """Raises: UserError where classes are to be weighted or balanced, and the method or a guide cannot."""
    method, name, data = config.method_class, config.method_name, config.data
    of_classes = method.batch_spec.labels and method.batch_spec.contents == "classes"
    if config.train.best_by is not None and not of_classes:
        raise UserError(f"train.best_by weights classes of images alike, and method {name} has none; leave it out")
    if data.sampling == "balanced" and not of_classes:
        several = method.batch_spec.contents == "labels"
        why = "an image may have several" if several else f"method {name} uses none"
        raise UserError(f"data.sampling balances classes of images, and {why}; take it out")
    if data.class_weights is None:
        return
    if not method.takes_class_weights:
        raise UserError(
            f"data.class_weights weights the loss term of the labels, which method {name} lacks; take it out"
        )
    for guide, keywords in config.guides.items():
        if guide_class(guide, keywords).uses_labels:
            raise UserError(
                f"data.class_weights would leave the labels unweighted that guide {guide} uses itself; data.sampling "
                "balanced reaches both"
            )
