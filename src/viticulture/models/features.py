# SPDX-License-Identifier: Apache-2.0
"""What a network makes of an image before its classifier, as a vector that other classifiers can read."""

import math
from typing import Any

from torch import Tensor, nn

from .taps import layout


def features(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Vectors of a batch, [B, D] each, by name, as far as the network has them.

        class   the class token after the last norm
        mean    the mean of the patch tokens after the last norm; without tokens, what the network's classifier reads

    A norm that the network keeps behind its pooling (`fc_norm`) is applied where it stands, behind the pooling.

    Args:
        network: in inference mode; a timm classifier, ours included.
        images: [B, channels, H, W], normalized.
    """
    net: Any = network
    tokens = net.forward_features(images)
    if not isinstance(tokens, Tensor) or tokens.ndim != 3:
        return {"mean": net.forward_head(tokens, pre_logits=True)}
    where = layout(network)
    patches = tokens[:, where.prefix : where.prefix + math.prod(where.grid((images.shape[-2], images.shape[-1])))]
    vectors = {"class": tokens[:, 0]} if where.class_token else {}
    vectors |= {"mean": patches.mean(1)} if patches.shape[1] else {}
    norm = getattr(net, "fc_norm", nn.Identity())
    return {name: norm(vector) for name, vector in vectors.items()}
