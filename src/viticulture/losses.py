# SPDX-License-Identifier: Apache-2.0
"""Losses on logits: pure functions that return a scalar, the mean over the batch.

All take `student` or `logits` [B, C]; a `teacher` [B, C] receives no gradient. They raise ValueError for other shapes.

[1] Touvron et al., "Training data-efficient image transformers" (DeiT), 2021, arXiv:2012.12877.
[2] Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, arXiv:1503.02531.
[3] Ridnik et al., "Asymmetric Loss For Multi-Label Classification", ICCV 2021, arXiv:2009.14119.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, label: Tensor, smoothing: float = 0.0, class_weights: Tensor | None = None) -> Tensor:
    """Return the cross-entropy with a label, or with a distribution over labels.

        L = - sum_c w_c y_c log softmax(logits)_c,    y = (1 - smoothing) onehot(label) + smoothing / C

    Args:
        logits: [B, C].
        label: class numbers, [B] int64, or the distribution y itself, [B, C] float, after mixup or cutmix.
        smoothing: part of y spread over all classes, in [0, 1]; not applied to a distribution.
        class_weights: w, [C]; None for 1. The mean is over images, not over weights, which torch takes of class
            numbers: so parts of a batch, on several processes, add up to the whole.

    Returns: scalar >= 0, nats.
    """
    if label.shape not in (logits.shape, logits.shape[:1]):
        raise ValueError(
            f"labels must be [B] or shaped as the logits, got {tuple(label.shape)} for logits {tuple(logits.shape)}"
        )
    smoothing = 0.0 if label.is_floating_point() else smoothing
    if class_weights is not None and not label.is_floating_point():
        label = F.one_hot(label, logits.shape[-1]).to(class_weights.dtype)
    return F.cross_entropy(logits, label, class_weights, label_smoothing=smoothing)


def partial_cross_entropy(logits: Tensor, label: Tensor, share: float, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of a batch in which only some images have a label.

        L = 1 / (share B) sum_{i labeled} CE(logits_i, label_i)

    whose mean over batches is that of the labeled images, however they are divided into batches.

    Args:
        logits: [B, C].
        label: class numbers, [B] int64; -1 for none.
        share: of the training images that have a label, in (0, 1].

    Returns: scalar >= 0, nats.
    """
    total = F.cross_entropy(logits, label, ignore_index=-1, label_smoothing=smoothing, reduction="sum")
    return total / (share * len(label))


def soft_distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the divergence of the student's distribution over classes from the teacher's.

        L = T^2 KL(softmax(teacher / T) || softmax(student / T))     DeiT [1], Eq. (2), second term

    The factor T^2 makes the gradient's size comparable across temperatures [2, Sec. 2]. Deviation: DeiT's code averages
    over classes as well as images, so its term is this one divided by C; later papers average over images, as here.

    Half precision is converted to float32 first: between networks that nearly agree its rounding exceeds KL, and a
    CPU's autocast leaves it so.

    Returns: scalar >= 0, nats times T^2; 0 only where both predict the same.
    """
    _check(student, teacher)
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    wide = torch.promote_types(student.dtype, torch.float32)
    log_q = F.log_softmax(student.to(wide) / temperature, dim=-1)
    log_p = F.log_softmax(teacher.detach().to(wide) / temperature, dim=-1)
    return temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def hard_distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's most likely class, nats.

    L = - log softmax(student)_y,    y = argmax_c teacher_c      DeiT [1], Eq. (3), second term
    """
    _check(student, teacher)
    return F.cross_entropy(student, teacher.argmax(dim=-1))


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, positive_weights: Tensor | None = None
) -> Tensor:
    """Return the cross-entropy of every class with whether an image has it.

        L = - sum_c [w_c y_c log s(z_c) + (1 - y_c) log(1 - s(z_c))],    y = (1 - smoothing) label + smoothing / 2

    with s the logistic sigmoid.

    Args:
        logits: z, [B, C].
        labels: [B, C] in [0, 1]: 1 where an image has a class; in between after mixup or cutmix.
        smoothing: in [0, 1).
        positive_weights: w, [C]; None for 1.

    Returns: scalar >= 0, nats: sum over classes.
    """
    _check(logits, labels)
    labels = torch.lerp(labels, torch.full_like(labels, 0.5), smoothing)
    each = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=positive_weights, reduction="none")
    return each.sum(-1).mean()


def asymmetric_binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Return a cross-entropy of every class with less weight for the many classes that an image lacks.

        L = - sum_c w_c [y_c log p_c + (1 - y_c) log(1 - p'_c)],    p = s(z),  p' = max(p - 0.05, 0)       [3], Eq. (7)
        w_c = (1 - t_c)^(y_c + 4 (1 - y_c)),    t = y p + (1 - y) (1 - p')

    with s the logistic sigmoid; arguments as `binary_cross_entropy`'s. Deviation from [3]: classes that an image has
    are focused, too (its gamma+ is 1), and t is that of a mixed label as well; both as timm has them.

    Returns: scalar >= 0, nats: sum over classes.
    """
    _check(logits, labels)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    present = logits.sigmoid()
    absent = (1.05 - present).clamp(max=1)
    focus = (1 - labels * present - (1 - labels) * absent) ** (labels + 4 * (1 - labels))
    each = focus * (labels * F.logsigmoid(logits) + (1 - labels) * absent.log())
    return -each.sum(-1).mean()


def binary_distillation(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the divergence of the student's probability of every class; `soft_distillation` for several labels.

        L = T^2 sum_c KL(Bernoulli(s(teacher_c / T)) || Bernoulli(s(student_c / T)))

    Returns: scalar >= 0, nats times T^2: sum over classes; 0 only where both predict the same.
    """
    _check(student, teacher)
    ours, theirs = (torch.stack([z, torch.zeros_like(z)], -1).flatten(0, -2) for z in (student, teacher))  # [B C, 2]
    return student.shape[-1] * soft_distillation(ours, theirs, temperature)


def _check(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape:
        raise ValueError(f"logits must share a shape, got {tuple(student.shape)} and {tuple(teacher.shape)}")
