# SPDX-License-Identifier: Apache-2.0
"""Linear classifiers on frozen features: logistic regression for a whole grid of weight decays in one pass.

    minimize over W, b:  mean over images of CE(W z + b, label) + decay / 2 ||W||^2,    z = (x - mean) / std

Features are standardized over the training images, as the batch norm without scale before MAE's linear probe does [1].
All decays are solved at once, each by L-BFGS [2], in the eigenbasis of the features' covariance. There the Hessian of
every class lies below diag(eigenvalue / 2 + decay) [3], by whose root the coordinates are scaled. Nothing is drawn.

[1] He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022, arXiv:2111.06377, Appendix A.1.
[2] Nocedal and Wright, "Numerical Optimization", 2006, Algorithms 7.4 and 7.5, with step halving for a line search.
[3] Boehning, "Multinomial Logistic Regression Algorithm", Ann. Inst. Statist. Math. 44, 1992.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 2**22  # scores held at once
MEMORY = 10  # moves that L-BFGS remembers
LOOK = 5  # steps between two looks at what is left to gain
ENOUGH = 1e-4  # of the decrease that the slope promises (Armijo's condition)


@dataclass(frozen=True)
class LinearClassifiers:
    """G linear classifiers of D features into C classes.

    Args:
        weight: [G, C, D].
        bias: [G, C].
        mean: [D], subtracted from features first.
        std: [D], divides them then.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor

    def predict(self, features: Tensor) -> Tensor:
        """The class that every head sees in each of N vectors, [N, D] -> [G, N]."""
        G, C = self.bias.shape
        predicted = []
        for some in torch.split(features, max(1, CHUNK // (G * C))):
            scores = torch.addmm(self.bias.flatten(), (some - self.mean) / self.std, self.weight.flatten(0, 1).T)
            predicted.append(torch.unflatten(scores, 1, (G, C)).argmax(-1))
        return torch.cat(predicted).T


def fit(
    features: Tensor,
    labels: Tensor,
    classes: int,
    decays: Sequence[float],
    tolerance: float = 1e-3,
    most_steps: int = 500,
) -> LinearClassifiers:
    """One classifier a decay.

    Args:
        features: [N, D].
        labels: [N] int64, in [0, classes).
        classes: C.
        decays: G positive numbers; 1 / (N c) is scikit-learn's C = c.
        tolerance: a classifier is done when its next step promises to lower its loss by less, nats.
        most_steps: steps after which all are taken for done.
    """
    mean, std = features.mean(0), features.std(0, correction=0)
    std = torch.where(std > 1e-6 * std.amax(), std, torch.ones_like(std))  # constant features stay zero
    z = (features - mean) / std
    eigenvalues, basis = torch.linalg.eigh(z.T @ z / len(z))
    decay = torch.tensor(decays, dtype=z.dtype, device=z.device)[:, None]  # [G, 1]
    scale = torch.cat([eigenvalues.clamp_min(0) / 2 + decay, torch.full_like(decay, 0.5)], dim=1)[:, None] ** -0.5
    decay = torch.cat([decay.expand(-1, z.shape[1]), torch.zeros_like(decay)], dim=1)[:, None]  # the bias has none
    loss = Loss(torch.cat([z @ basis, torch.ones_like(z[:, :1])], dim=1), labels, scale, decay)
    start = z.new_zeros(len(decays), classes, z.shape[1] + 1)
    heads = minimize(loss, start, tolerance, most_steps) * scale
    return LinearClassifiers(heads[..., :-1] @ basis.T, heads[..., -1], mean, std)


@dataclass(frozen=True)
class Loss:
    """What G heads minimize, as a function of scaled coordinates.

    Args:
        z: [N, D + 1], the last is 1.
        labels: [N] int64.
        scale: [G, 1, D + 1], of the coordinates.
        decay: [G, 1, D + 1].
    """

    z: Tensor
    labels: Tensor
    scale: Tensor
    decay: Tensor

    def of(self, numbers: Tensor) -> "Loss":
        """That of some heads."""
        return Loss(self.z, self.labels, self.scale[numbers], self.decay[numbers])

    def __call__(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Value, [G, 1, 1], and gradient, [G, C, D + 1]."""
        heads = scaled * self.scale
        G, C, _ = heads.shape
        value, slope = heads.new_zeros(G), torch.zeros_like(heads).flatten(0, 1)
        rows = max(1, CHUNK // (G * C))
        for some, labels in zip(torch.split(self.z, rows), torch.split(self.labels, rows), strict=True):
            probabilities = torch.unflatten(some @ heads.flatten(0, 1).T, 1, (G, C)).softmax(-1)
            own = labels[:, None, None].expand(-1, G, 1)
            value -= probabilities.gather(2, own).clamp_min(torch.finfo(probabilities.dtype).tiny).log().sum((0, 2))
            probabilities.scatter_add_(2, own, torch.full_like(own, -1, dtype=probabilities.dtype))
            slope.addmm_(probabilities.flatten(1).T, some)
        pull = self.decay * heads
        value = value[:, None, None] / len(self.z) + (pull * heads).sum((1, 2), keepdim=True) / 2
        return value, (torch.unflatten(slope, 0, (G, C)) / len(self.z) + pull) * self.scale


def minimize(loss: Loss, start: Tensor, tolerance: float, most_steps: int) -> Tensor:
    """The minima, [G, C, D + 1], from a start of that shape; heads that are done are left alone."""
    solution, left = start.clone(), torch.arange(len(start), device=start.device)
    point, (value, slope) = start, loss(start)
    moves: list[tuple[Tensor, Tensor]] = []  # and how each changed the slope, refused ones included
    length, ahead = torch.ones_like(value), -slope
    for number in range(most_steps):
        there = point + length * ahead
        lower, steeper = loss(there)
        good = lower <= value + ENOUGH * length * dot(slope, ahead)
        moves = [*moves[1 - MEMORY :], (there - point, steeper - slope)]
        point, value, slope = (torch.where(good, *pair) for pair in ((there, point), (lower, value), (steeper, slope)))
        length = torch.where(good, torch.ones_like(length), length / 2)
        ahead = -newton(slope, moves)
        if number % LOOK == LOOK - 1:
            solution[left] = point
            go_on = (-dot(slope, ahead) / 2 > tolerance).flatten()
            if not go_on.any():
                break
            left, loss = left[go_on], loss.of(go_on)
            point, value, slope, length, ahead = (each[go_on] for each in (point, value, slope, length, ahead))
            moves = [(move[go_on], change[go_on]) for move, change in moves]
    solution[left] = point
    return solution


def newton(slope: Tensor, moves: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The slope times the inverse Hessian that past moves tell of: [2], Algorithm 7.4, for every head by itself."""
    step, parts = slope, []
    for move, change in reversed(moves):
        parts.append(ratio(dot(move, step), dot(move, change)))
        step = step - parts[-1] * change
    step = step * ratio(dot(*moves[-1]), dot(moves[-1][1], moves[-1][1]))  # [2], Eq. (7.20)
    for (move, change), part in zip(moves, reversed(parts), strict=True):
        step = step + (part - ratio(dot(change, step), dot(move, change))) * move
    return step


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Quotient, and 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(part))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Of every head by itself, [G, C, D + 1] twice -> [G, 1, 1]."""
    return (a * b).sum((1, 2), keepdim=True)
