# SPDX-License-Identifier: Apache-2.0
"""Parameter groups with or without weight decay, learning rates by layer and over time.

Two sections of a recipe: `optim` is `Optim`, `schedule` is `Schedule`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Literal

import torch
from timm.layers.norm import LayerNorm2d
from timm.models import group_parameters
from timm.optim.lars import Lars
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import UserError
from ..keywords import check_fields
from .muon import Muon

Group = dict[str, Any]  # parameters that share settings: `params` [(name, parameter)], `lr`, `weight_decay`

DECAYED_WHOLE = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, LayerNorm2d)
"""Layers of which `decay_biases` decays everything; detectron2 takes its norm of maps for no norm."""
TIED_TO_LAST_BLOCK = (99999,)  # timm's mark for what shares the last block's layer


@dataclass(frozen=True)
class Optim:
    """Optimizer and its parameter groups.

    Args:
        name: adamw, sgd, nesterov (sgd with Nesterov momentum), lars (sgd at a rate in proportion to each matrix's norm
            over its gradient's, times 0.001, for very large batches), or muon (orthogonalized momentum for the matrices
            and kernels between stem and head; adamw for the rest). `auto`, in a recipe, is muon at tuned rates for
            hybrid ViTs that train on classes, and adamw otherwise.
        lr: highest learning rate, for the batch size in use; nothing scales it.
        kernel_lr: of muon's convolution kernels, which allow larger steps before a batch norm; null is `lr`.
        weight_decay: pulls weights to zero; decoupled from the gradient in adamw and muon, added to it in sgd.
        weight_decay_end: weight decay after the last step, reached along half a cosine (DINO); null keeps weight_decay.
        betas: decay of adamw's two running means.
        momentum: of sgd, nesterov, lars and muon; 0 is plain gradient descent.
        layer_decay: factor on the rate from one layer to the one below; null treats all alike.
        decay_tokens: decay tokens and positions as well.
        decay_biases: decay the biases of linear layers and convolutions, and norms of maps, not those of tokens
            (Detectron2).
        decay_everything: decay biases and norms as well as tokens and positions.
        sam_rho: sharpness-aware minimization: take each step's gradient after moving all weights uphill by this
            Euclidean distance; doubles the time of a step. Batches must be whole and gradients unscaled. null turns it
            off.
    """

    name: Literal["adamw", "sgd", "nesterov", "lars", "muon", "auto"] = "adamw"
    lr: float = 1e-3
    kernel_lr: float | None = None
    weight_decay: float = 0.05
    weight_decay_end: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    layer_decay: float | None = None
    decay_tokens: bool = False
    decay_biases: bool = False
    decay_everything: bool = False
    sam_rho: float | None = None

    def __post_init__(self) -> None:
        check_fields("optim", self)
        if self.name == "auto":
            raise UserError("optim.name auto follows the student of a recipe, and there is none; name an optimizer")
        if self.lr <= 0:
            raise UserError(f"optim.lr must be positive, got {self.lr}")
        if self.kernel_lr is not None:
            if self.name != "muon":
                raise UserError(f"optim.kernel_lr is a rate of muon's, and optim.name is {self.name}; leave it out")
            if self.kernel_lr <= 0:
                raise UserError(f"optim.kernel_lr must be positive, got {self.kernel_lr}; null is optim.lr")
        if self.weight_decay < 0:
            raise UserError(f"optim.weight_decay must not be negative, got {self.weight_decay}")
        if self.weight_decay_end is not None and (self.weight_decay == 0 or self.weight_decay_end < 0):
            raise UserError(
                "optim.weight_decay_end needs a positive optim.weight_decay and must not be negative, "
                f"got {self.weight_decay_end} and {self.weight_decay}"
            )
        if not all(0 <= share < 1 for share in (*self.betas, self.momentum)):
            raise UserError(f"optim.betas and optim.momentum must lie in [0, 1), got {self.betas} and {self.momentum}")
        if self.name == "nesterov" and not self.momentum:
            raise UserError("nesterov needs a momentum, got optim.momentum=0; take 0.9, or optim.name=sgd")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise UserError(f"optim.layer_decay must lie in (0, 1], got {self.layer_decay}")
        if self.sam_rho is not None and self.sam_rho <= 0:
            raise UserError(f"optim.sam_rho must be positive, got {self.sam_rho}; null goes without")

    def groups(self, student: nn.Module, guides: nn.Module | None = None) -> list[Group]:
        """Group the student's parameters and the guides' trainable ones, in their order.

        Not decayed are 1-D parameters, biases and, unless `decay_tokens`, the parameters that the network lists in
        timm's `no_weight_decay()`: tokens and the position table in a ViT.

        Guides' parameters on the student's storage are left out: the student's are stepped. With muon, AdamW steps
        stem and heads of a classifier among the guides as well.
        """
        scales = {} if self.layer_decay is None else layer_scales(student, self.layer_decay)
        shared = {parameter.untyped_storage().data_ptr() for parameter in student.parameters()}
        trainable = [(n, p, scales.get(n, 1.0), flat, listed) for n, p, flat, listed in _trainable(student)]
        if guides is not None:
            others = ((f"guides.{name}", p, 1.0, flat, listed) for name, p, flat, listed in _trainable(guides))
            trainable += [other for other in others if other[1].untyped_storage().data_ptr() not in shared]
        networks = [student, *([guides] if guides is not None else [])]
        layers = (layer for network in networks for layer in network.modules())
        whole = (layer for layer in layers if self.decay_biases and isinstance(layer, DECAYED_WHOLE))
        decayed = {id(parameter) for layer in whole for parameter in layer.parameters(recurse=False)}
        outer = outer_parameters(student) if self.name == "muon" else frozenset()
        if guides is not None and self.name == "muon":
            classifiers = ((place, net) for place, net in guides.named_modules() if hasattr(net, "get_classifier"))
            outer |= {f"guides.{place}.{name}" for place, net in classifiers for name in outer_parameters(net)}
        groups: dict[tuple[float, bool, bool], Group] = {}
        for name, parameter, scale, flat, listed in trainable:
            undecayed = flat and id(parameter) not in decayed
            decays = self.decay_everything or not (undecayed or (listed and not self.decay_tokens))
            decay = self.weight_decay if decays else 0.0
            matrix = not (flat or listed) and min(parameter.shape[:2]) > 1
            inner = (self.name == "muon" and matrix and name not in outer) or (self.name == "lars" and not flat)
            rate = self.lr if self.kernel_lr is None or not inner or parameter.ndim < 3 else self.kernel_lr
            new = {"params": [], "lr": rate * scale, "weight_decay": decay}
            if self.name in ("muon", "lars"):
                new["use_muon" if self.name == "muon" else "always_adapt"] = inner
            groups.setdefault((rate * scale, decay > 0, inner), new)["params"].append((name, parameter))
        return list(groups.values())

    def set_decay(self, optimizer: Optimizer, part: float) -> None:
        """Set the weight decay of the groups that have one, for a step after `part` of the training, in [0, 1]."""
        if self.weight_decay_end is not None:
            for group in optimizer.param_groups:
                if group["weight_decay"]:
                    group["weight_decay"] = cosine(part, self.weight_decay, self.weight_decay_end)

    def build(self, groups: list[Group]) -> Optimizer:
        """Build the optimizer over `groups`, in one fused kernel: on a CPU three times faster than torch's default.

        AdamW's epsilon is torch's, 1e-8, as in all the papers.
        """
        if not groups:
            raise UserError("there is nothing to train: every parameter of the student and its guides is frozen")
        optimizer: Optimizer
        if self.name == "adamw":
            optimizer = AdamW(groups, betas=(self.betas[0], self.betas[1]), fused=True)
        elif self.name == "muon":
            optimizer = Muon(groups, self.lr, (self.betas[0], self.betas[1]), self.momentum)
        elif self.name == "lars":
            optimizer = Lars(groups, self.lr, self.momentum)
        else:
            nesterov = self.name == "nesterov"
            optimizer = SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=nesterov, fused=True)
            # torch's lazy initialization fails where some weights, as DINO's prototypes, get their first gradient later
            for group in optimizer.param_groups if self.momentum else ():
                for weight in group["params"]:
                    optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        # Fused kernels could unscale float16's gradients themselves; Lightning then refuses to clip, in bfloat16 too.
        vars(optimizer)["_step_supports_amp_scaling"] = False
        return optimizer


def outer_parameters(network: nn.Module) -> frozenset[str]:
    """Return the names of the first kernel and of the heads' weights, which Muon leaves to AdamW."""
    # A table of positions, [1, D, H, W] as of a PiT, has one row.
    first = next((name for name, p in network.named_parameters() if p.ndim == 4 and len(p) > 1), None)
    heads: Any = getattr(network, "get_classifier", tuple)()
    owned = {id(p) for head in (heads if isinstance(heads, tuple) else (heads,)) for p in head.parameters()}
    return frozenset({name for name, p in network.named_parameters() if id(p) in owned or name == first})


def _trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool, bool]]:
    """Yield name, parameter, whether it is 1-D or a bias, and whether the network excludes it from decay."""
    rules: Iterable[str] = getattr(module, "no_weight_decay", tuple)()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            flat, listed = parameter.ndim <= 1 or name.endswith(".bias"), any(fnmatch(name, rule) for rule in rules)
            yield name, parameter, flat, listed


def layer_scales(student: nn.Module, decay: float) -> dict[str, float]:
    """Return a factor on the learning rate of every parameter, decay^(L + 1 - layer) for L blocks.

    Layer 0 is what comes before the blocks (patches, tokens, positions), layer i the i-th block, and everything after
    the last block is layer L + 1 and keeps the full rate. Layers are read from timm's `group_matcher`.
    Source: BEiT's rule as in MAE's `lr_decay.py`. Deviation from timm, which puts a final norm with the last block.
    """
    layers = layers_of(student, "optim.layer_decay")
    last = max(layers.values())
    return {name: decay ** (last - layer) for name, layer in layers.items()}


def freeze_layers(student: nn.Module, share: float) -> None:
    """Stop gradients of the first layers, in place: those whose number is below `share` of the last one's, see
    `layer_scales`. Statistics of their batch norms still follow the images."""
    layers = layers_of(student, "student.frozen_layers")
    for name, parameter in student.named_parameters():
        if layers[name] < share * max(layers.values()):
            parameter.requires_grad_(False)


def layers_of(student: nn.Module, key: str) -> dict[str, int]:
    """Return the layer of every parameter, see `layer_scales`. Raises: UserError naming the recipe's key."""
    read: Callable[..., dict[str, Any]] | None = getattr(student, "group_matcher", None)
    if read is None:
        raise UserError(f"{key} needs a student with timm's group_matcher; {type(student).__name__} has none")
    matcher = {
        part: [rule for rule in rules if rule[1] != TIED_TO_LAST_BLOCK] if isinstance(rules, (list, tuple)) else rules
        for part, rules in read(coarse=False).items()
    }
    layers: dict[str, int] = group_parameters(student, matcher, reverse=True)
    return layers


DROPS = (24, 26)  # 27ths of a training after which the rate drops to a tenth


@dataclass(frozen=True)
class Schedule:
    """Learning rate over time. Time t counts updates or epochs, W of them warm up, E are all of them.

        cosine    t < W: warmup_lr + (lr - warmup_lr) t / W,   then min_lr + (lr - min_lr) (1 + cos(pi u)) / 2
                  with u = (t - W) / (E - W), so that the cosine begins where the warm-up ends (MAE)
        timm      the same with u = t / E: the cosine has run since the start, so the rate steps down when the warm-up
                  ends; and all of it one t late, so that the first two share a value (timm's scheduler as DeiT, Swin
                  and their descendants call it: after an epoch or update, with the number of the one that ended)
        constant  the warm-up, then lr
        drops     the warm-up, then lr, a tenth of it from t = 24/27 E on, a hundredth from 26/27 E on (Detectron2's
                  long trainings)
        mmcv      the cosine by epochs with u = t / E, times a factor from warmup_lr / lr to 1 that rises with every
                  update of the warm-up (mmcv's hook, as MMClassification's recipes call it)

    Args:
        rule: cosine, timm, constant, drops or mmcv, as above.
        interval: whether the rate changes every step (update) or every epoch.
        warmup_epochs: W in epochs, whatever the interval; 0 starts at the highest rate, null is a twentieth of all.
        warmup_lr: learning rate at t = 0 of a warm-up; 0 is lr / (W + 1) for the interval epoch, whose first epoch
            would have a rate of zero.
        min_lr: learning rate at the end of the cosine.
    """

    rule: Literal["cosine", "timm", "constant", "drops", "mmcv"] = "cosine"
    interval: Literal["step", "epoch"] = "step"
    warmup_epochs: float | None = None
    warmup_lr: float = 0.0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        check_fields("schedule", self)
        if min(self.warmup_epochs or 0.0, self.warmup_lr, self.min_lr) < 0:
            raise UserError(
                "schedule.warmup_epochs, schedule.warmup_lr and schedule.min_lr must not be negative, "
                f"got {self.warmup_epochs}, {self.warmup_lr} and {self.min_lr}"
            )
        if self.rule == "mmcv" and self.interval != "epoch":
            raise UserError("schedule.rule mmcv changes the cosine by epochs; add --schedule.interval epoch")

    def warmup(self, epochs: int) -> float:
        """W in epochs. Raises: UserError unless the warm-up ends before the training does."""
        if self.warmup_epochs is None:
            return epochs / 20
        if self.warmup_epochs >= epochs:
            raise UserError(
                f"schedule.warmup_epochs must be fewer than train.epochs, got {self.warmup_epochs:g} and {epochs}"
            )
        return self.warmup_epochs

    def rate(self, update: int, steps_per_epoch: int, epochs: int, lr: float) -> float:
        """Return the learning rate of one update.

        Args:
            update: its number, 0 for the first of the training.
            steps_per_epoch: updates in an epoch.
            lr: the highest rate.
        """
        if self.rule == "mmcv":
            warmup, first = self.warmup(epochs) * steps_per_epoch, self.warmup_lr / lr
            rise = min(update / warmup, 1.0) if warmup else 1.0
            return cosine(update // steps_per_epoch / epochs, lr, self.min_lr) * (first + (1 - first) * rise)
        unit = steps_per_epoch if self.interval == "step" else 1
        time = update if self.interval == "step" else update // steps_per_epoch
        warmup, end = self.warmup(epochs) * unit, epochs * unit
        if self.rule == "timm":
            time = max(time - 1, 0)
        if time < warmup:
            first = lr / (warmup + 1) if self.interval == "epoch" and not self.warmup_lr else self.warmup_lr
            return first + (lr - first) * time / warmup
        if self.rule == "constant":
            return lr
        if self.rule == "drops":
            return lr * 0.1 ** sum(27 * time >= share * end for share in DROPS)
        part = time / end if self.rule == "timm" else (time - warmup) / (end - warmup)
        return cosine(part, lr, self.min_lr)

    def attach(self, optimizer: Optimizer, steps_per_epoch: int, epochs: int, lr: float) -> LambdaLR:
        """Return a scheduler to step after every update (Lightning's interval `step`); it keeps the groups' ratios.

        Args:
            optimizer: built at its highest rates.
            steps_per_epoch: updates in an epoch, after gradient accumulation.
            lr: `optim.lr`; groups of another rate follow in proportion.
        """
        self.warmup(epochs)
        return LambdaLR(optimizer, lambda update: self.rate(update, steps_per_epoch, epochs, lr) / lr)


def shortened_warmup(warmup: float, length: int, epochs: int) -> float:
    """Scale the warm-up of a training of `length` epochs to one of `epochs`, to at most half of them."""
    return min(warmup * epochs / length, epochs / 2)


def cosine(part: float, high: float, low: float) -> float:
    """Interpolate from high to low along half a cosine, for part in [0, 1]."""
    return low + (high - low) * (1 + math.cos(math.pi * part)) / 2
