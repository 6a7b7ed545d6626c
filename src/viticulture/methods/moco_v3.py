# SPDX-License-Identifier: Apache-2.0
"""MoCo v3: train without labels by recognizing an image in another view of it.

Paper: Chen et al., "An Empirical Study of Training Self-Supervised Vision Transformers", ICCV 2021, arXiv:2104.02057;
for small ViTs "A Closer Look at Self-Supervised Lightweight Vision Transformers", arXiv:2205.14443. Recipes:
recipes/mae/moco-*.yaml.

    q = predictor(projector(student(view)))        k = the momentum encoder's projector(student(view))
    loss = ctr(q1, k2) + ctr(q2, k1)               ctr(q, k) = 2 T CE(cos(q, k) / T, same image)    [Sec. 3, Alg. 1]

Keys of all processes count as negatives, BatchNorm runs over all of them. The momentum encoder
(`models.momentum_encoder`) moves before it makes keys. The network that remains is the student with gradient.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..guides.guide import Batch, Capability
from ..models.momentum_encoder import MomentumEncoder
from ..models.shared_batch_norm import gathered, normalized, perceptron, rank
from ..models.taps import feature_width
from ..models.vit.patches import choose_positions
from .method import BatchSpec, Method, Setup

MIN_BATCH = 256  # images, below which a warning is given


class MoCoV3(Method):
    """Two views of every image (recipe sections `augment` and `augment2`): find each among all images of a batch.

    Args:
        temperature: T; smaller is stricter.
        momentum: m0, share of the momentum encoder that stays in the first step; it rises to 1.
        width: of queries and keys.
        hidden_width: of the projector's and the predictor's hidden layers.
        freeze_patches: leave the student's random patch embedding untrained, which stabilizes large ViTs.
        positions: `fixed` gives a plain ViT a constant table of sines and cosines; `learned` trains the student's.
            Students without such a table are left unchanged.
    """

    provides: ClassVar[frozenset[Capability]] = frozenset({Capability.PATCHES})
    batch_spec = BatchSpec(labels=False, views=2)

    def __init__(
        self,
        setup: Setup,
        *,
        temperature: float = 0.2,
        momentum: float = 0.99,
        width: int = 256,
        hidden_width: int = 4096,
        freeze_patches: bool = False,
        positions: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__(setup)
        if temperature <= 0 or not 0 <= momentum < 1:
            raise UserError(
                "method.temperature must be positive and method.momentum lie in [0, 1), "
                f"got {temperature} and {momentum}"
            )
        if min(width, hidden_width) < 1:
            raise UserError(f"method.width and method.hidden_width must be positive, got {width} and {hidden_width}")
        student, data_spec = setup.student, setup.data_spec
        choose_positions(student, positions)
        if freeze_patches:
            if not hasattr(student, "patch_embed"):
                raise UserError(
                    f"method.freeze_patches needs a patch embedding, which {type(student).__name__} lacks; leave it out"
                )
            student.get_submodule("patch_embed").requires_grad_(False)
        self.temperature = temperature
        features = feature_width(student, data_spec.image_size, data_spec.channels)
        projector = perceptron([features, hidden_width, hidden_width, width])
        self.auxiliary["projector"] = projector
        self.auxiliary["predictor"] = perceptron([width, hidden_width, width])
        self.auxiliary["momentum"] = MomentumEncoder(student, projector, momentum)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compare each view's query with the keys of all images' other views.

            q1, q2 = predictor(projector(student(views)))                       [B, width] each
            k1, k2 = the momentum encoder's projector(student(views))           [B, width] each, from all processes
            contrast = ctr(q1, k2) + ctr(q2, k1)                                Alg. 1, nats times 2 T

        Guides read the pass over both views, [2 B, 3, H, W].
        """
        both = torch.cat([batch["image"], batch["image2"]])
        readings = self.taps(both)
        q1, q2 = (self._query(features) for features in readings.outputs[0].chunk(2))
        momentum = self.auxiliary["momentum"]
        assert isinstance(momentum, MomentumEncoder)
        if self.step.begins:
            momentum.update(self.student, self.auxiliary["projector"], self.length.steps)
        k1, k2 = momentum(batch["image"], batch["image2"])
        loss = self._contrast(q1, k2) + self._contrast(q2, k1)
        return {"contrast": loss, **self.guide_losses({**batch, "image": both}, readings)}

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss between each image and its mirror image."""
        images, mirrored = batch["image"], batch["image"].flip(-1)
        (k,) = self.auxiliary["momentum"](mirrored)
        return {"loss": 2 * self._contrast(self._query(self.student(images)), k)}

    def warnings(self, batch_size: int) -> list[str]:
        if batch_size < 2:
            raise UserError(
                f"moco_v3 compares each image with the others of its batch, and the batch size is {batch_size}; take a "
                "larger train.batch_size (train.accumulate divides it)"
            )
        if batch_size >= MIN_BATCH:
            return []
        return [
            f"moco_v3 compares each image with the others of its batch of {batch_size}: with fewer than {MIN_BATCH} "
            "the task is easy and batch statistics are noisy; take a larger train.batch_size (train.accumulate divides "
            "it), or method mae"
        ]

    def _query(self, features: Tensor) -> Tensor:
        return self.auxiliary["predictor"](self.auxiliary["projector"](features))

    def _contrast(self, query: Tensor, key: Tensor) -> Tensor:
        logits = normalized(query) @ gathered(normalized(key)).T / self.temperature  # [B, world * B]
        world = logits.shape[1] // len(query)
        same = torch.arange(len(query), device=query.device) * world + rank()
        self.logs["instance_accuracy"] = (logits.detach().argmax(1) == same).float().mean()
        return 2 * self.temperature * F.cross_entropy(logits, same)
