# SPDX-License-Identifier: Apache-2.0
"""The pictures of a run's page, collected once, while network and images are available, and saved in pictures.npz."""

from collections.abc import Sequence

import numpy as np
import torch

from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.images.format import displayed
from ..data.subsets import evenly
from ..errors import UserError
from ..evaluation.model import EvaluatedModel, of_run, pictures
from ..evaluation.robustness.corrupt import corrupt
from ..evaluation.robustness.strengths import CORRUPTIONS, EXTRA
from ..models.taps import Taps
from ..training.run_folder import RunFolder
from .attention import class_map, head_token_maps, mean_attention, selected_layers
from .galleries import Gallery, Group, file_name, save_galleries

MISTAKES = 24
EXAMPLES = 4  # per class
CLASSES_WITH_EXAMPLES = 12
CORRUPTED = "corruptions.npz"
CORRUPTED_SEVERITIES = (3, 5)
ATTENTION_IMAGES = 8
MIN_GRID = 6  # patches on a side, below which an attention map is too coarse to locate anything
CELLS = 8  # on a side of an occlusion map; the square that is covered has a quarter of the image's side
CAPTION_LABELS = 4  # below an image


def save_corruptions(run: RunFolder, dataset: Dataset) -> None:
    """Write corruptions.npz: one of the images that count under each corruption."""
    split, images = next(iter(dataset.held_out.items()))
    ((_, pixels),) = of_run(run).views(images.part(torch.tensor([0])))
    view = pixels[0].permute(1, 2, 0).numpy()
    groups: list[Group] = [([view], ["original"])]
    for name in CORRUPTIONS:
        lines = [name.replace("_", " "), *(["extra"] if name in EXTRA else [])]
        groups.append(([corrupt(view, name, severity, 0, 0) for severity in CORRUPTED_SEVERITIES], lines))
    title = f"A {'validation' if split == 'val' else split} image, corrupted"
    note = f"Severities {' and '.join(map(str, CORRUPTED_SEVERITIES))} of 5."
    save_galleries(run.path / CORRUPTED, {"corruptions": [Gallery(title, groups, note)]})


def examples(images: Images, classes: Sequence[str], note: str = "") -> list[Gallery]:
    """Draw a few training images of each of the first classes or labels, or from the smallest to the largest number."""
    labels = images.records.labels.numpy()
    groups: list[Group] = []
    if labels.ndim == 1 and labels.dtype.kind == "f":
        some = evenly(np.argsort(labels, kind="stable"), CLASSES_WITH_EXAMPLES)
        groups = [([images.original(int(i))], (f"{labels[i]:.4g}",)) for i in some]
        classes = ()
    for c, name in enumerate(classes[:CLASSES_WITH_EXAMPLES]):
        numbers = np.flatnonzero(labels == c if labels.ndim == 1 else labels[:, c])[:EXAMPLES]
        groups += [([images.original(int(i)) for i in numbers], (name,))] if len(numbers) else []
    return [Gallery("", groups, note)] if groups else []


@torch.inference_mode()
def occlusion(model: EvaluatedModel, images: Images) -> Gallery:
    """Draw which parts of the first image of each of a few classes the predicted class depends on.

        m(cell) = mean over squares S that cover the cell of p(c | x) - p(c | x with S in the mean color)

    c is the class predicted for the whole image x. This works for any classifier, also with coarse feature maps.
    Source: Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, Sec. 4.2.
    """
    numbers = _first_of_classes(images)
    pixels = torch.cat([some for _, some in model.views(images.part(torch.tensor(numbers)))])
    groups: list[Group] = []
    for number, view, image in zip(numbers, pictures(pixels), model.normalized(pixels), strict=True):
        rows, columns = (torch.linspace(0, side, CELLS + 1).long().tolist() for side in image.shape[1:])
        squares = [(r, c) for r in range(CELLS - 1) for c in range(CELLS - 1)]
        covered = image.repeat(1 + len(squares), 1, 1, 1)
        for copy, (r, c) in zip(covered[1:], squares, strict=True):
            copy[:, rows[r] : rows[r + 2], columns[c] : columns[c + 2]] = 0  # normalized: the mean color
        probabilities = model.data_spec.probabilities(
            torch.cat([model.network(some) for some in covered.split(model.batch_size)]).float()
        )
        label = int(probabilities[0].argmax())
        drops = (probabilities[0, label] - probabilities[1:, label]).cpu().numpy()
        sums, counts = np.zeros((2, CELLS, CELLS))
        for drop, (r, c) in zip(drops, squares, strict=True):
            sums[r : r + 2, c : c + 2] += drop
            counts[r : r + 2, c : c + 2] += 1
        predicted = f"predicted {model.data_spec.classes[label]} {100 * float(probabilities[0, label]):.0f}\u00a0%"
        largest = f"covering a square lowers it by up to {max(100 * float(drops.max()), 0):.0f} points"
        groups.append(([view, sums / counts], [_caption(model, images, number), predicted, largest]))
    note = (
        "Bright: covering this part lowers the probability of the predicted class most. A gray square of a quarter of "
        f"the image's side is moved over the image; each map has its own scale.{displayed(model.data_spec.channels)}"
    )
    return Gallery("What the prediction depends on", groups, note)


def attention_galleries(model: EvaluatedModel, images: Images, layers: Sequence[int] = ()) -> list[Gallery]:
    """Draw what a ViT attends to in the first image of each of a few classes; empty for students without attention.
    `layers`: counted from 1; empty takes up to four, spread over the depth. So does a network whose blocks do not have
    one attention layer each.
    """
    try:
        taps = Taps(model.network, frozenset({"attention"}))
    except UserError:
        return []
    assert taps.layout is not None
    query = "class token" if taps.layout.class_token else "mean patch"
    numbers = _first_of_classes(images)
    pixels = torch.cat([some for _, some in model.views(images.part(torch.tensor(numbers)))])
    with torch.inference_mode():
        attention = taps(model.normalized(pixels)).attention
    selected = selected_layers(layers if len(attention) == len(taps.layout.blocks) else (), len(attention))
    readings = [attention[layer] for layer in selected]
    names = [f"layer {layer + 1}" for layer in selected]
    captions = [_caption(model, images, number) for number in numbers]
    maps = [class_map(reading, reading.grid).cpu().numpy() for reading in readings]
    note = (
        f"Each image as the student's input, then {', '.join(names)}. Mean over heads; bright is high, each map has "
        f"its own scale.{displayed(model.data_spec.channels)}"
    )
    groups = [
        ([view, *(layer[i] for layer in maps)], [caption])
        for i, (view, caption) in enumerate(zip(pictures(pixels), captions, strict=True))
    ]
    galleries = [Gallery(f"What the {query} attends to", groups, note)]
    try:
        heads = [head_token_maps(reading, reading.grid)[0].cpu().numpy() for reading in readings]
    except UserError:
        heads = []
    tokens = ["class token", "patches"] if taps.layout.class_token else ["patches"]
    tokens += ["DHVT's head tokens"] if heads else []
    order = ", then ".join(tokens)
    note = f"A row is a token that attends, a column one that is attended to: {order}. First image; mean over heads."
    squares = [([mean_attention(r)[0].cpu().numpy()], [name]) for name, r in zip(names, readings, strict=True)]
    galleries.append(Gallery("Every token's attention to every token", squares, note))
    if heads:
        note = "Attention of each head token to the patches, in its head. First image."
        rows = [([*layer], [name, f"head 1 to {len(layer)}"]) for name, layer in zip(names, heads, strict=True)]
        galleries.append(Gallery("What each head token attends to", rows, note))
    return galleries


def fine_attention(model: EvaluatedModel, images: Images) -> list[Gallery]:
    """Return `attention_galleries`; empty if all maps are too coarse to locate anything, as those of hybrids are."""
    galleries = attention_galleries(model, images)
    maps = [picture for gallery in galleries[:1] for pictures, _ in gallery.groups for picture in pictures[1:]]
    return galleries if any(min(each.shape) >= MIN_GRID for each in maps) else []


def _first_of_classes(images: Images) -> list[int]:
    """Return the first image of each of the first classes; without one label per image, the first images."""
    labels = images.records.labels.tolist()
    if -1 in labels or images.records.labels.is_floating_point():
        return list(range(min(ATTENTION_IMAGES, len(labels))))
    return sorted(labels.index(label) for label in sorted(set(labels))[:ATTENTION_IMAGES])


def _caption(model: EvaluatedModel, images: Images, number: int) -> str:
    """Return an image's class or number; its file's name if it has none, or several."""
    labels, classes = images.records.labels, model.data_spec.classes
    if model.data_spec.scale is not None:
        return f"{float(labels[number]):.4g}"
    label = -1 if labels.ndim == 2 else int(labels[number])
    return classes[label] if 0 <= label < len(classes) else file_name(images.records.names[number])
