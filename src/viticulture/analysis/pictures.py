# SPDX-License-Identifier: Apache-2.0
"""The pictures of a run's page, gathered once, while network and images are at hand, and kept in pictures.npz."""

from collections.abc import Sequence

import numpy as np
import torch

from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.images.format import displayed
from ..errors import UserError
from ..evaluation.accuracy import Evaluation, most_confident_mistakes
from ..evaluation.evaluate import EvaluatedRun
from ..evaluation.results import Result
from ..evaluation.robustness.corrupt import corrupt
from ..evaluation.robustness.strengths import CORRUPTIONS, EXTRA
from ..evaluation.subject import Subject, of_run, pictures
from ..models.taps import Taps
from ..training.run_folder import RunFolder
from ..training.run_inputs import recipe_of
from .attention_maps import averaged, chosen_layers, class_map, head_token_maps
from .galleries import FILE, Gallery, Group, keep_galleries
from .reconstruction import paints, reconstruction_gallery

MISTAKES = 24
EXAMPLES = 4  # a class
CLASSES_WITH_EXAMPLES = 12
CORRUPTED = "corruptions.npz"
SHOWN_SEVERITIES = (3, 5)
LOOKED_AT = 8  # images whose attention is shown
MIN_GRID = 6  # patches on a side, below which an attention map is too coarse to point at anything
CELLS = 8  # on a side of an occlusion map; the square that is covered has a quarter of the image's side


def gather_pictures(run: RunFolder, dataset: Dataset, evaluated: EvaluatedRun) -> None:
    """Write pictures.npz: `mistakes`, `examples`, `attention` and `reconstruction`, as far as there are any."""
    counting = evaluated.counting
    note = displayed(len(dataset.mean)).strip()
    galleries = {"examples": examples(dataset.train, dataset.classes, note)}
    if counting is not None:
        galleries["mistakes"] = mistakes(counting, dataset.classes, note)
        subject = of_run(run, evaluated.counts.partition("/")[0])
        galleries["attention"] = [occlusion(subject, counting.images), *fine_attention(subject, counting.images)]
    if paints(recipe_of(run)):
        galleries["reconstruction"] = [reconstruction_gallery(run, dataset)]
    keep_galleries(run.path / FILE, galleries)


def gather_corruptions(run: RunFolder, dataset: Dataset) -> None:
    """Write corruptions.npz: one of the images that count as each corruption leaves it."""
    split, images = next(iter(dataset.held_out.items()))
    ((_, pixels),) = of_run(run).views(images.part(torch.tensor([0])))
    view = pixels[0].permute(1, 2, 0).numpy()
    groups: list[Group] = [([view], ["as it is"])]
    for name in CORRUPTIONS:
        words = [name.replace("_", " "), *(["extra"] if name in EXTRA else [])]
        groups.append(([corrupt(view, name, severity, 0, 0) for severity in SHOWN_SEVERITIES], words))
    title = f"A {'validation' if split == 'val' else split} image, corrupted"
    note = f"Severities {' and '.join(map(str, SHOWN_SEVERITIES))} of 5."
    keep_galleries(run.path / CORRUPTED, {"corruptions": [Gallery(title, groups, note)]})


def mistakes(result: Result[Evaluation], classes: Sequence[str], note: str = "") -> list[Gallery]:
    """Images that were taken for another class, the most confident first."""
    groups: list[Group] = [
        (
            [result.images.original(mistake.number)],
            (
                f"said {classes[mistake.predicted]}, {100 * mistake.probability:.0f}\u00a0%",
                f"is {classes[mistake.label]}",
                mistake.name.rsplit("/", 1)[-1],
            ),
        )
        for mistake in most_confident_mistakes(result.predictions, MISTAKES)
    ]
    return [Gallery("", groups, note)] if groups else []


def examples(images: Images, classes: Sequence[str], note: str = "") -> list[Gallery]:
    """A few training images of each of the first classes, or labels, so that a person sees what was learnt from."""
    labels = images.records.labels.numpy()
    groups: list[Group] = []
    for c, name in enumerate(classes[:CLASSES_WITH_EXAMPLES]):
        numbers = np.flatnonzero(labels == c if labels.ndim == 1 else labels[:, c])[:EXAMPLES]
        groups += [([images.original(int(i)) for i in numbers], (name,))] if len(numbers) else []
    return [Gallery("", groups, note)] if groups else []


@torch.inference_mode()
def occlusion(subject: Subject, images: Images) -> Gallery:
    """Draw which parts of the first image of each of a few classes the predicted class depends on.

        m(cell) = mean over squares S that cover the cell of p(c | x) - p(c | x with S in the mean color)

    c is the class predicted for the whole image x. Works for any classifier, however coarse its feature maps.
    Source: Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, Sec. 4.2.
    """
    numbers = _spread(images)
    pixels = torch.cat([some for _, some in subject.views(images.part(torch.tensor(numbers)))])
    groups: list[Group] = []
    for number, view, image in zip(numbers, pictures(pixels), subject.normalized(pixels), strict=True):
        rows, columns = (torch.linspace(0, side, CELLS + 1).long().tolist() for side in image.shape[1:])
        squares = [(r, c) for r in range(CELLS - 1) for c in range(CELLS - 1)]
        covered = image.repeat(1 + len(squares), 1, 1, 1)
        for copy, (r, c) in zip(covered[1:], squares, strict=True):
            copy[:, rows[r] : rows[r + 2], columns[c] : columns[c + 2]] = 0  # normalized: the mean color
        probabilities = subject.data_spec.probabilities(
            torch.cat([subject.network(some) for some in covered.split(subject.batch_size)]).float()
        )
        label = int(probabilities[0].argmax())
        drops = (probabilities[0, label] - probabilities[1:, label]).cpu().numpy()
        sums, counts = np.zeros((2, CELLS, CELLS))
        for drop, (r, c) in zip(drops, squares, strict=True):
            sums[r : r + 2, c : c + 2] += drop
            counts[r : r + 2, c : c + 2] += 1
        words = f"{subject.data_spec.classes[label]} {100 * float(probabilities[0, label]):.0f}\u00a0%"
        most = f"covering a square takes up to {max(100 * float(drops.max()), 0):.0f} points"
        groups.append(([view, sums / counts], [_called(subject, images, number), f"predicted {words}", most]))
    note = (
        "Bright: covering this part lowers the probability of the predicted class most (a gray square of a quarter of "
        f"the image's side is moved over the image; each map on its own scale).{displayed(subject.data_spec.channels)}"
    )
    return Gallery("What the prediction depends on", groups, note)


def attention(subject: Subject, images: Images, layers: Sequence[int] = ()) -> list[Gallery]:
    """Draw where a ViT attends to in the first image of each of a few classes.

    Nothing for students without attention.

    Args:
        subject: the ViT.
        images: the first ones are shown where they have no labels.
        layers: counted from 1; empty takes up to four, spread over the depth, and so does a network whose blocks do not
            hold one attention each, for which the numbers would mean others.
    """
    try:
        taps = Taps(subject.network, frozenset({"attention"}))
    except UserError:
        return []
    assert taps.layout is not None
    who = "class token" if taps.layout.class_token else "mean patch"
    numbers = _spread(images)
    pixels = torch.cat([some for _, some in subject.views(images.part(torch.tensor(numbers)))])
    with torch.inference_mode():
        attention = taps(subject.normalized(pixels)).attention
    chosen = chosen_layers(layers if len(attention) == len(taps.layout.blocks) else (), len(attention))
    readings = [attention[layer] for layer in chosen]
    names = [f"layer {layer + 1}" for layer in chosen]
    classes = [_called(subject, images, number) for number in numbers]
    maps = [class_map(reading, reading.grid).cpu().numpy() for reading in readings]
    views = pictures(pixels)
    note = (
        f"Each image as the student is shown it, then {', '.join(names)}. Mean over heads; light is much, each map "
        f"on its own scale.{displayed(subject.data_spec.channels)}"
    )
    groups = [([views[i], *(layer[i] for layer in maps)], [name]) for i, name in enumerate(classes)]
    galleries = [Gallery(f"Where the {who} looks", groups, note)]
    try:
        heads = [head_token_maps(reading, reading.grid)[0].cpu().numpy() for reading in readings]
    except UserError:
        heads = []
    tokens = ["class token", "patches"] if taps.layout.class_token else ["patches"]
    tokens += ["DHVT's head tokens"] if heads else []
    note = f"Rows look at columns: {', then '.join(tokens)}. Image of {classes[0]}, mean over heads."
    squares = [([averaged(reading)[0].cpu().numpy()], [name]) for name, reading in zip(names, readings, strict=True)]
    galleries.append(Gallery("Every token's attention to every token", squares, note))
    if heads:
        note = f"Attention of head token i to the patches in head i. Image of {classes[0]}."
        rows = [([*layer], [name, f"head 1 to {len(layer)}"]) for name, layer in zip(names, heads, strict=True)]
        galleries.append(Gallery("Where each head token looks", rows, note))
    return galleries


def fine_attention(subject: Subject, images: Images) -> list[Gallery]:
    """The same for a page; nothing where all maps are too coarse to point at anything, as those of hybrids are."""
    galleries = attention(subject, images)
    maps = [picture for gallery in galleries[:1] for pictures, _ in gallery.groups for picture in pictures[1:]]
    return galleries if any(min(each.shape) >= MIN_GRID for each in maps) else []


def _spread(images: Images) -> list[int]:
    """The first image of each of the first classes; the first images, where they have none, or several."""
    labels = images.records.labels.tolist()
    if -1 in labels or images.records.labels.ndim == 2:
        return list(range(min(LOOKED_AT, len(labels))))
    return sorted(labels.index(label) for label in sorted(set(labels))[:LOOKED_AT])


def _called(subject: Subject, images: Images, number: int) -> str:
    """An image's class, or its file's name without one, or with several."""
    several, classes = images.records.labels.ndim == 2, subject.data_spec.classes
    label = -1 if several else int(images.records.labels[number])
    return classes[label] if 0 <= label < len(classes) else images.records.names[number].rsplit("/", 1)[-1]
