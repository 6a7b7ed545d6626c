# SPDX-License-Identifier: Apache-2.0
"""What a network's layers hold of an image, as maps: of a ViT and of its agent CNN beside each other, as Bootstrapping
ViTs, arXiv:2112.03552, Appendix D, Tables 10 and 11, shows them.

    feature_galleries({"student": vit, "its agent": agent}, images, layers=(2, 4, 6))

The paper does not say how it turns D channels into one picture. Here a place is as light as its features are far from
their mean over the image, so that what is everywhere alike stays dark:

    m(place) = sqrt( mean over channels of (F(place) - mean over places of F)^2 )
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..data.image_set import Images
from ..evaluation.subject import Subject, pictures
from .attention_maps import chosen_layers
from .galleries import Gallery, Group
from .inside import patch_features, tapped

SHOWN = 6  # images


def feature_map(features: Tensor) -> Tensor:
    """The formula above. Shape: [B, D, rows, columns] -> [B, rows, columns]; not negative."""
    centered = features - features.mean((2, 3), keepdim=True)
    return centered.square().mean(1).sqrt()


def feature_maps(
    subject: Subject, batch: Tensor, layers: Sequence[int] = (), whose: str = "the network"
) -> dict[int, Tensor]:
    """Layer, counted from 1 -> its map of every image, [B, rows, columns].

    Args:
        subject: a network whose blocks taps can read, CNNs included.
        batch: images as the network takes them, [B, C, H, W].
        layers: which; empty takes up to four, spread over the depth.
        whose: what an error calls the network.

    Raises: UserError for a layer that the network does not have.
    """
    taps = tapped(subject.network, "blocks")
    assert taps.layout is not None
    chosen = chosen_layers(layers, len(taps.layout.blocks), whose)
    with torch.inference_mode():
        tokens, grids = patch_features(taps(batch).blocks, taps.layout, batch)
    maps = (tokens[layer].transpose(1, 2).unflatten(2, grids[layer]).float() for layer in chosen)  # type: ignore[no-untyped-call]
    return {layer + 1: feature_map(features) for layer, features in zip(chosen, maps, strict=True)}


def feature_galleries(networks: Mapping[str, Subject], images: Images, layers: Sequence[int]) -> list[Gallery]:
    """For each of the first images, by its file's name, the image and the maps of every network.

    Args:
        networks: by what they are called; each is shown the images in its own size and crop.
        images: the first of them are shown.
        layers: as for `feature_maps`.
    """
    some = images.part(torch.arange(min(SHOWN, len(images))))
    groups: list[list[Group]] = [[] for _ in some.records.names]
    for name, subject in networks.items():
        pixels = torch.cat([part for _, part in subject.views(some)])
        maps = feature_maps(subject, subject.normalized(pixels), layers, name)
        words = [name, f"layer{'s' if len(maps) > 1 else ''} {', '.join(map(str, maps))}"]
        for i, (group, picture) in enumerate(zip(groups, pictures(pixels), strict=True)):
            group.append(([picture, *(each[i].cpu().numpy() for each in maps.values())], words))
    names = (name.rsplit("/", 1)[-1] for name in some.records.names)
    return [Gallery(name, group) for name, group in zip(names, groups, strict=True)]
