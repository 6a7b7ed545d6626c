# SPDX-License-Identifier: Apache-2.0
"""A section of the page: where a ViT looks, on a few test images."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...analysis.attention_maps import averaged, class_map, head_token_maps, shown_layers
from ...data.images import Images
from ...errors import UserError
from ...evaluation.subject import Subject
from ...models.taps import Taps
from ..charts.figures import image_grid
from ..document import Section

IMAGES = 4
SHOWN = 64  # pixels, the smaller side of a drawn map
HEAT = np.array([[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float64)
"""Five colours of matplotlib's inferno, dark to light: readable without colour vision and in print."""


def attention_section(subject: Subject, images: Images) -> Section:
    """Maps for the first image of each of a few classes; an empty section for students without class attention."""
    try:
        taps = Taps(subject.network, frozenset({"attention"}))
    except UserError:
        return Section("Where it looks", "")
    assert taps.layout is not None
    if not taps.layout.class_token:
        return Section("Where it looks", "")
    numbers = _spread(images)
    pixels = torch.cat([some for _, some in subject.views(images.part(torch.tensor(numbers)))])
    with torch.inference_mode():
        seen = taps(subject.normalised(pixels))
    layers = shown_layers(len(seen.attention))
    readings = [seen.attention[layer] for layer in layers]
    names = [f"layer {layer + 1}" for layer in layers]
    pictures = pixels.permute(0, 2, 3, 1).numpy()
    classes = [subject.task.classes[int(images.records.labels[number])] for number in numbers]

    maps = [class_map(reading, reading.grid) for reading in readings]
    looks = [([pictures[i], *(heat(layer[i]) for layer in maps)], [name]) for i, name in enumerate(classes)]
    note = (
        f"Each image as the student is shown it, then {', '.join(names)}. Mean over heads; light is much, each map on "
        "its own scale."
    )
    html = image_grid("Where the class token looks", looks, note)
    squares = [([heat(averaged(reading)[0])], [name]) for name, reading in zip(names, readings, strict=True)]
    try:
        heads = [head_token_maps(reading, reading.grid)[0] for reading in readings]
    except UserError:
        heads = []
    tokens = "class token, patches, then DHVT's head tokens" if heads else "class token, then patches"
    note = f"Rows look at columns: {tokens}. Image of {classes[0]}, mean over heads."
    html += image_grid("Every token's attention to every token", squares, note)
    if not heads:
        return Section("Where it looks", html)
    rows = [
        ([heat(one) for one in layer], [name, f"head 1 to {len(layer)}"])
        for name, layer in zip(names, heads, strict=True)
    ]
    note = f"Attention of head token i to the patches in head i. Image of {classes[0]}."
    return Section("Where it looks", html + image_grid("Where each head token looks", rows, note))


def heat(values: Tensor) -> NDArray[np.uint8]:
    """A map [rows, columns] as a picture on its own scale, dark to light, each cell a block of pixels."""
    low, high = values.aminmax()
    share = ((values - low) / (high - low).clamp_min(1e-12)).double().cpu().numpy()
    places = np.linspace(0, 1, len(HEAT))
    picture = np.stack([np.interp(share, places, HEAT[:, channel]) for channel in range(3)], -1).astype(np.uint8)
    block = max(1, SHOWN // min(picture.shape[:2]))
    return picture.repeat(block, 0).repeat(block, 1)


def _spread(images: Images) -> list[int]:
    """The first image of each of the first classes."""
    labels = images.records.labels.tolist()
    return sorted(labels.index(label) for label in sorted(set(labels))[:IMAGES])
