# SPDX-License-Identifier: Apache-2.0
"""Features of a network's layers as maps: of a ViT and its agent CNN side by side, as in Bootstrapping ViTs,
arXiv:2112.03552, Appendix D, Tables 10 and 11.

    feature_galleries({"student": vit, "its agent": agent}, images, layers=(2, 4, 6))

The paper does not say how it turns D channels into one picture. Here the brightness of a place is the distance of its
features from their mean over the image, so that features that are the same everywhere stay dark:

    m(place) = sqrt( mean over channels of (F(place) - mean over places of F)^2 )
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..data.image_set import Images
from ..evaluation.model import EvaluatedModel, pictures
from .attention import selected_layers
from .galleries import Gallery, Group, file_name
from .layers import layer_taps, patch_features

MAX_IMAGES = 6


def feature_map(features: Tensor) -> Tensor:
    """Compute the formula above. Shape: [B, D, rows, columns] -> [B, rows, columns]; not negative."""
    centered = features - features.mean((2, 3), keepdim=True)
    return centered.square().mean(1).sqrt()


def feature_maps(
    model: EvaluatedModel, batch: Tensor, layers: Sequence[int] = (), network: str = "the network"
) -> dict[int, Tensor]:
    """Compute the maps of layers for every image: layer, counted from 1 -> [B, rows, columns]. `layers`: counted from
    1; empty takes up to four, spread over the depth. Raises: UserError for a layer that the network does not have.
    """
    taps = layer_taps(model.network, "blocks")
    assert taps.layout is not None
    selected = selected_layers(layers, len(taps.layout.blocks), network)
    with torch.inference_mode():
        tokens, grids = patch_features(taps(batch).blocks, taps.layout, batch)
    maps = (tokens[layer].transpose(1, 2).unflatten(2, grids[layer]).float() for layer in selected)  # type: ignore[no-untyped-call]
    return {layer + 1: feature_map(features) for layer, features in zip(selected, maps, strict=True)}


def feature_galleries(networks: Mapping[str, EvaluatedModel], images: Images, layers: Sequence[int]) -> list[Gallery]:
    """Draw the maps of every network for each of the first images, one gallery per image."""
    some = images.part(torch.arange(min(MAX_IMAGES, len(images))))
    groups: list[list[Group]] = [[] for _ in some.records.names]
    for name, model in networks.items():
        pixels = torch.cat([part for _, part in model.views(some)])
        maps = feature_maps(model, model.normalized(pixels), layers, name)
        lines = [name, f"layer{'s' if len(maps) > 1 else ''} {', '.join(map(str, maps))}"]
        for i, (group, picture) in enumerate(zip(groups, pictures(pixels), strict=True)):
            group.append(([picture, *(each[i].cpu().numpy() for each in maps.values())], lines))
    return [Gallery(file_name(name), group) for name, group in zip(some.records.names, groups, strict=True)]
