# SPDX-License-Identifier: Apache-2.0
"""Mixup and cutmix: blend or patch each image with a partner of its batch, labels in the same proportion."""

import torch
from scipy.special import betaincinv
from torch import Tensor

from ...errors import UserError
from .transform import check_share


class Mix:
    """One mixup or cutmix for the whole batch (timm's Mixup in batch mode).

        mixup [1]    x = lam x_i + (1 - lam) x_j,            lam ~ Beta(mixup, mixup)
        cutmix [2]   a rectangle of x_j on x_i,              lam ~ Beta(cutmix, cutmix), then 1 - its true area
        label        y = lam y_i + (1 - lam) y_j,            y smoothed: (1 - s) one-hot + s / C

    Several labels an image, [B, C], are mixed alike, without s: `method.smoothing` smooths them.

    Deviation: the partner j lies half a batch away, where timm reverses the batch; then one process and two see
    the same pairs, as long as the images of a process are even in number. A rectangle of an odd side keeps it, as
    in today's timm; in older timm and [2]'s code it is a pixel shorter.

    Args:
        mixup: alpha of mixup's Beta distribution; 0 switches it off.
        cutmix: alpha of cutmix's; 0 switches it off.
        probability: of mixing a batch at all.
        switch: probability of cutmix where both are on.
        smoothing: s, the share of a label that is spread evenly over all classes.

    [1] Zhang et al. 2018, arXiv:1710.09412. [2] Yun et al. 2019, arXiv:1905.04899.
    """

    columns = 5  # uniform numbers that it reads for a batch

    def __init__(
        self,
        mixup: float = 0.8,
        cutmix: float = 1.0,
        probability: float = 1.0,
        switch: float = 0.5,
        smoothing: float = 0.1,
    ) -> None:
        if mixup < 0 or cutmix < 0:
            raise UserError(f"mix.mixup and mix.cutmix must not be negative, got {mixup} and {cutmix}")
        check_share("mix", "probability", probability)
        check_share("mix", "switch", switch)
        check_share("mix", "smoothing", smoothing)
        self.mixup, self.cutmix, self.probability, self.switch = mixup, cutmix, probability, switch
        self.smoothing = smoothing

    def __call__(self, images: Tensor, labels: Tensor, u: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Mix a batch.

        Args:
            images: [B, C, H, W] float.
            labels: [B] int64, or [B, C] float, on the images' device.
            u: [columns] float64 in [0, 1), on the CPU.
            classes: C.

        Returns: images, and labels [B, C] float32; of one class an image they sum to 1.
        """
        share, box = self.draw(u, *images.shape[-2:])
        half = len(images) // 2
        partner = images.roll(half, 0)
        if box is not None:
            top, bottom, left, right = box
            images = images.clone()
            images[..., top:bottom, left:right] = partner[..., top:bottom, left:right]
        elif share < 1:
            images = torch.lerp(partner, images, share)
        soft = labels if labels.is_floating_point() else self.smoothed(labels, classes)
        return images, torch.lerp(soft.roll(half, 0), soft, share)

    def smoothed(self, labels: Tensor, classes: int) -> Tensor:
        """[B] class numbers -> [B, C] smoothed distributions."""
        soft = torch.full((len(labels), classes), self.smoothing / classes, device=labels.device)
        return soft.scatter_add_(1, labels[:, None], torch.full_like(soft[:, :1], 1 - self.smoothing))

    def draw(self, u: Tensor, height: int, width: int) -> tuple[float, tuple[int, int, int, int] | None]:
        """Return lam, and cutmix's top, bottom, left, right in pixels."""
        happens, switch, quantile, center_y, center_x = u.tolist()
        cut = self.cutmix > 0 and (self.mixup == 0 or switch < self.switch)
        alpha = self.cutmix if cut else self.mixup
        if happens >= self.probability or alpha == 0:
            return 1.0, None
        share = float(betaincinv(alpha, alpha, quantile))
        if not cut:
            return share, None
        h, w = (int(side * (1 - share) ** 0.5) for side in (height, width))
        y, x = int(center_y * height), int(center_x * width)
        top, bottom = max(y - h // 2, 0), min(y + (h + 1) // 2, height)
        left, right = max(x - w // 2, 0), min(x + (w + 1) // 2, width)
        return 1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right)
