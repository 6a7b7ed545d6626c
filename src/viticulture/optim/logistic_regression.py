# SPDX-License-Identifier: Apache-2.0
"""Multinomial logistic regression, for a whole grid of weight decays in one pass.

    minimize over W, b:  mean over images of CE(W z + b, label) + decay / 2 ||W||^2,    z = (x - mean) / std

Features are standardized over the training images, like the batch norm without scale before MAE's linear probe [1].
All decays are solved at once by L-BFGS [2], in the eigenbasis of the features' covariance. There the Hessian of every
class lies below diag(eigenvalue / 2 + decay) [3], whose root scales the coordinates. No random numbers are involved.

Memory: the features in their type, and once more in float32, or in float16 from `HALF_FROM` values on; scores in parts.

[1] He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377, Appendix A.1.
[2] Nocedal and Wright, "Numerical Optimization", 2006, Algorithms 7.4 and 7.5, with step halving for a line search.
[3] Boehning, "Multinomial Logistic Regression Algorithm", Ann. Inst. Statist. Math. 44, 1992.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 2**22  # scores in memory at once
HISTORY = 10  # steps in L-BFGS's memory
CHECK_EVERY = 5  # steps between two checks for convergence
ARMIJO = 1e-4  # required share of the decrease that the slope predicts
HALF_FROM = 2**28  # values of standardized features, a gigabyte in float32, from which they are kept in float16
ROWS = 2**12  # features that are standardized at once


@dataclass(frozen=True)
class LinearClassifiers:
    """G linear classifiers of D features into C classes."""

    weight: Tensor  # [G, C, D]
    bias: Tensor  # [G, C]
    mean: Tensor
    std: Tensor

    def predict(self, features: Tensor) -> Tensor:
        """Predict the class of N vectors by every classifier, [N, D] -> [G, N]."""
        G, C = self.bias.shape
        predicted = []
        for some in torch.split(features, max(1, CHUNK // (G * C))):
            z = (some.to(self.mean.dtype) - self.mean) / self.std
            scores = torch.addmm(self.bias.flatten(), z, self.weight.flatten(0, 1).T)
            predicted.append(torch.unflatten(scores, 1, (G, C)).argmax(-1))
        return torch.cat(predicted).T

    def on_features(self, number: int) -> tuple[Tensor, Tensor]:
        """Return one classifier for features that are not standardized: weight [C, D] and bias [C]."""
        weight = self.weight[number] / self.std
        return weight, self.bias[number] - weight @ self.mean


def fit(
    features: Tensor,
    labels: Tensor,
    classes: int,
    decays: Sequence[float],
    tolerance: float = 1e-3,
    max_steps: int = 500,
) -> LinearClassifiers:
    """Fit one classifier for each decay.

    Args:
        features: [N, D].
        labels: [N] int64, in [0, classes).
        decays: G positive numbers; 1 / (N c) is scikit-learn's C = c.
        tolerance: a classifier has converged when its next step is predicted to lower its loss by less, nats.
    """
    kind = features.dtype if features.dtype == torch.float64 else torch.float32
    parts = torch.split(features, ROWS)
    mean = sum((part.to(kind).sum(0) for part in parts), torch.zeros((), dtype=kind)) / len(features)
    covariance = torch.zeros(len(mean), len(mean), dtype=kind, device=features.device)
    for part in parts:
        centered = part.to(kind) - mean
        covariance += centered.T @ centered / len(features)
    std = covariance.diagonal().sqrt()
    std = torch.where(std > 1e-6 * std.amax(), std, torch.ones_like(std))  # constant features stay zero
    covariance /= std[:, None] * std
    eigenvalues, basis = eigen(covariance)
    decay = torch.tensor(decays, dtype=kind, device=mean.device)[:, None]  # [G, 1]
    scale = torch.cat([eigenvalues.clamp_min(0) / 2 + decay, torch.full_like(decay, 0.5)], dim=1)[:, None] ** -0.5
    decay = torch.cat([decay.expand(-1, len(mean)), torch.zeros_like(decay)], dim=1)[:, None]  # the bias has none
    z = features.new_ones(len(features), len(mean) + 1, dtype=torch.half if features.numel() > HALF_FROM else kind)
    for rows, part in zip(torch.split(z, ROWS), parts, strict=True):
        rows[:, :-1] = (part.to(kind) - mean) / std @ basis
    loss = Loss(z, labels, scale, decay)
    start = mean.new_zeros(len(decays), classes, len(mean) + 1)
    heads = minimize(loss, start, tolerance, max_steps) * scale
    return LinearClassifiers(heads[..., :-1] @ basis.T, heads[..., -1], mean, std)


def eigen(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors. Of few images most are zero, where float32 raises or returns NaN."""
    try:
        eigenvalues, basis = torch.linalg.eigh(covariance)
        if eigenvalues.isfinite().all() and basis.isfinite().all():
            return eigenvalues, basis
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        pass
    eigenvalues, basis = torch.linalg.eigh(covariance.double())
    return eigenvalues.to(covariance.dtype), basis.to(covariance.dtype)


@dataclass(frozen=True)
class Loss:
    """The losses of G classifiers, as a function of scaled coordinates."""

    z: Tensor  # [N, D + 1], the last is 1
    labels: Tensor  # [N] int64
    scale: Tensor  # [G, 1, D + 1], of the coordinates
    decay: Tensor  # [G, 1, D + 1]

    def of(self, numbers: Tensor) -> "Loss":
        """Return the losses of some classifiers."""
        return Loss(self.z, self.labels, self.scale[numbers], self.decay[numbers])

    def __call__(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Return values, [G, 1, 1], and gradients, [G, C, D + 1]."""
        heads = scaled * self.scale
        G, C, _ = heads.shape
        value, slope = heads.new_zeros(G), torch.zeros_like(heads).flatten(0, 1)
        rows = max(1, CHUNK // (G * C))
        for some, labels in zip(torch.split(self.z, rows), torch.split(self.labels, rows), strict=True):
            some = some.to(heads.dtype)
            probabilities = torch.unflatten(some @ heads.flatten(0, 1).T, 1, (G, C)).softmax(-1)
            true = labels[:, None, None].expand(-1, G, 1)
            value -= probabilities.gather(2, true).clamp_min(torch.finfo(probabilities.dtype).tiny).log().sum((0, 2))
            probabilities.scatter_add_(2, true, torch.full_like(true, -1, dtype=probabilities.dtype))
            slope.addmm_(probabilities.flatten(1).T, some)
        pull = self.decay * heads
        value = value[:, None, None] / len(self.z) + (pull * heads).sum((1, 2), keepdim=True) / 2
        return value, (torch.unflatten(slope, 0, (G, C)) / len(self.z) + pull) * self.scale


def minimize(loss: Loss, start: Tensor, tolerance: float, max_steps: int) -> Tensor:
    """Find the minima, [G, C, D + 1], from a start of that shape; converged classifiers are not changed any more."""
    solution, left = start.clone(), torch.arange(len(start), device=start.device)
    point, (value, slope) = start, loss(start)
    history: list[tuple[Tensor, Tensor]] = []  # steps and changes of the slope, including rejected ones
    length, direction = torch.ones_like(value), -slope
    for number in range(max_steps):
        candidate = point + length * direction
        new_value, new_slope = loss(candidate)
        accepted = new_value <= value + ARMIJO * length * dot(slope, direction)
        history = [*history[1 - HISTORY :], (candidate - point, new_slope - slope)]
        pairs = (candidate, point), (new_value, value), (new_slope, slope)
        point, value, slope = (torch.where(accepted, *pair) for pair in pairs)
        length = torch.where(accepted, torch.ones_like(length), length / 2)
        direction = -newton(slope, history)
        if number % CHECK_EVERY == CHECK_EVERY - 1:
            solution[left] = point
            go_on = (-dot(slope, direction) / 2 > tolerance).flatten()
            if not go_on.any():
                break
            left, loss = left[go_on], loss.of(go_on)
            point, value, slope, length, direction = (each[go_on] for each in (point, value, slope, length, direction))
            history = [(step[go_on], change[go_on]) for step, change in history]
    solution[left] = point
    return solution


def newton(slope: Tensor, history: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Multiply the slope by the inverse Hessian estimated from past steps: [2], Algorithm 7.4, per classifier."""
    step, parts = slope, []
    for move, change in reversed(history):
        parts.append(ratio(dot(move, step), dot(move, change)))
        step = step - parts[-1] * change
    step = step * ratio(dot(*history[-1]), dot(history[-1][1], history[-1][1]))  # [2], Eq. (7.20)
    for (move, change), part in zip(history, reversed(parts), strict=True):
        step = step + (part - ratio(dot(change, step), dot(move, change))) * move
    return step


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return the quotient, and 0 where the whole is not positive."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(part))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products per classifier, [G, C, D + 1] twice -> [G, 1, 1]."""
    return (a * b).sum((1, 2), keepdim=True)
