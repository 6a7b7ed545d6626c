# SPDX-License-Identifier: Apache-2.0
"""Near-duplicates: images that are the same picture shrunk, saved again or slightly changed, such as frames of a video.

Found by thumbnails of SIDE x SIDE colors. With a and b the thumbnails, and l the mean of a color's three levels, two
images are near-duplicates where

    mean |l(a) - l(b)| <= MAX_LIGHT      mean |a - b| <= MAX_COLOR      rms(a - b) <= MAX_RATIO std(l)
    l(|a - b|) <= MAX_LOCAL at every pixel

with the smaller std of the two. The light alone would take shirts of two colors for duplicates, the means alone a scene
with and without a small object; the ratio rules out haze. Candidates come from a k-d tree over the light of
4 x 4 blocks, which differs by no more than that of the thumbnails, so that no pair is missed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from ..errors import counted
from ..parallel import cores

SIDE = 16  # of a thumbnail, pixels
MIN_SIDE = 32  # of an image, pixels; a smaller one has duplicates only where all pixels are equal
MAX_LIGHT, MAX_COLOR, MAX_LOCAL, MAX_RATIO = 4.0, 6.0, 24.0, 0.25  # of 255, except for the ratio: see above
MIN_SPREAD = 8.0  # standard deviation of a thumbnail, of 255; a flatter image resembles every other flat one
NEIGHBORS = 32  # candidates that an image is compared with, the nearest ones: bounds the work where thousands are alike
LISTED = 16  # equal images of which all pairs are listed
MAX_IMAGES = 200_000  # of a data set; a larger one is not searched
TOO_MANY = f"near-duplicates are not searched among more than {MAX_IMAGES:,} images"
SAMPLE, CROWD, FOLLOWING = 2048, 8, 8
"""Of more than 16 SAMPLE images, one near to CROWD of SAMPLE is compared with the FOLLOWING ones alone."""
_CHUNK = 4096

Thumbnail = NDArray[np.uint8]  # [SIDE, SIDE, 3]
Candidates = tuple[NDArray[np.int64], NDArray[np.int64]]  # images, and as many others that may be their near-duplicates


def thumbnail(image: Image.Image) -> Thumbnail | None:
    """Shrink an RGB image; return None for one that is too small or too flat to compare."""
    if min(image.size) < MIN_SIDE:
        return None
    pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))
    return pixels if pixels.mean(2).std() >= MIN_SPREAD else None


@dataclass(frozen=True, eq=False)
class NearDuplicates:
    """The near-duplicates among N images."""

    same: NDArray[np.int64]  # [N] int64, from 0 on; equal where images have the same pixels, or the same thumbnail
    pairs: NDArray[np.int64]  # [P, 2] int64, different numbers of `same` whose images are near-duplicates
    crowded: int = 0  # images with more candidates than are compared

    @property
    def warnings(self) -> list[str]:
        """Warn where images have so many candidates that some are not compared."""
        images = f"{counted(self.crowded, 'image')} {'resembles' if self.crowded == 1 else 'resemble'}"
        return [f"{images} so many others that only some were compared for near-duplicates"] if self.crowded else []

    @property
    def groups(self) -> NDArray[np.int64]:
        """[N] a number for each set of linked near-duplicates; -1 for an image without any."""
        count = int(self.same.max(initial=-1)) + 1
        links = coo_array((np.ones(len(self.pairs), bool), (self.pairs[:, 0], self.pairs[:, 1])), (count, count))
        group = connected_components(links, directed=False)[1][self.same].astype(np.int64)
        return np.where(np.bincount(group, minlength=1)[group] > 1, group, -1)

    def among(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] whether each image of `rows` has a near-duplicate in `others`; the two are disjoint."""
        there = np.zeros(int(self.same.max(initial=-1)) + 1, bool)
        there[self.same[others]] = True
        near, (first, second) = there.copy(), self.pairs.T
        near[first[there[second]]] = True
        near[second[there[first]]] = True
        return near[self.same[rows]]

    def listed(self) -> Iterator[tuple[int, int]]:
        """Pairs of images, the lower number first. Of more than LISTED equal images each is paired with the next, and
        the first ones with near-duplicates."""
        order = np.argsort(self.same, kind="stable")
        members = np.split(order, np.flatnonzero(np.diff(self.same[order])) + 1) if len(order) else []
        found = set[tuple[int, int]]()
        for group in members:
            if len(group) > LISTED:
                found.update(zip(group[:-1].tolist(), group[1:].tolist(), strict=True))
            else:
                found.update((int(a), int(b)) for i, a in enumerate(group) for b in group[i + 1 :])
        for first, second in self.pairs.tolist():
            pairs = ((int(a), int(b)) for a in members[first][:LISTED] for b in members[second][:LISTED])
            found.update((min(pair), max(pair)) for pair in pairs)
        yield from sorted(found)


def match_thumbnails(
    marks: NDArray[np.uint8], thumbnails: NDArray[np.uint8], usable: NDArray[np.bool_]
) -> NearDuplicates:
    """Find the near-duplicates among N images."""
    _, firsts, same = np.unique(marks.view("V16").ravel(), return_index=True, return_inverse=True)
    numbers = np.sort(firsts[usable[firsts]])  # in the order of the images, one for each mark
    small = thumbnails[numbers]
    blocks = small.mean(3).reshape(-1, 4, SIDE // 4, 4, SIDE // 4).mean((2, 4)).reshape(-1, 16)
    crowd = _crowd(blocks)
    pairs, full = [np.zeros((0, 2), np.int64)], crowd.copy()
    for a, b in chain(_nearest(blocks, np.flatnonzero(~crowd)), _following(crowd)):
        pairs.append(np.stack([a, b], 1)[_alike(small[a], small[b])])
        full |= np.bincount(a, minlength=len(full)) >= NEIGHBORS
    linked = np.concatenate(pairs)
    same = same.reshape(-1).astype(np.int64)
    return NearDuplicates(same, np.unique(np.sort(same[numbers[linked]], axis=1), axis=0), int(full.sum()))


def _query(tree: cKDTree, blocks: NDArray[np.float64], maximum: int) -> NDArray[np.int64]:
    """[n, maximum] the nearest candidates in a tree; its size where there are no more."""
    bound = blocks.shape[1] * MAX_LIGHT + 1e-6
    found = tree.query(blocks, range(1, maximum + 1), p=1, distance_upper_bound=bound, workers=cores())[1]
    return np.asarray(found, np.int64)


def _crowd(blocks: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[n] whether a thumbnail has hundreds of candidates, as in a film of a fixed camera: the tree is slow there."""
    n = len(blocks)
    if n <= 16 * SAMPLE:
        return np.zeros(n, bool)
    tree = cKDTree(blocks[:: n // SAMPLE])
    return _query(tree, blocks, CROWD)[:, -1] < tree.n


def _nearest(blocks: NDArray[np.float64], rows: NDArray[np.int64]) -> Iterator[Candidates]:
    """Each of some thumbnails with the nearest ones."""
    tree = cKDTree(blocks[rows])
    for start in range(0, len(rows), _CHUNK):
        found = _query(tree, blocks[rows[start : start + _CHUNK]], NEIGHBORS + 1)
        first, second = np.nonzero(found < tree.n)
        first, second = first + start, found[first, second]
        yield rows[first[first != second]], rows[second[first != second]]


def _following(crowd: NDArray[np.bool_]) -> Iterator[Candidates]:
    """Each thumbnail of a crowd with its neighbors in order: frames of a film resemble these."""
    for step in range(1, FOLLOWING + 1):
        rows = np.flatnonzero(crowd[:-step] | crowd[step:])
        for start in range(0, len(rows), _CHUNK):
            yield rows[start : start + _CHUNK], rows[start : start + _CHUNK] + step


def _alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """[n] whether thumbnails [n, SIDE, SIDE, 3] are of near-duplicates."""
    difference, a, b = np.abs(a.astype(np.float32) - b), a.mean(3, dtype=np.float32), b.mean(3, dtype=np.float32)
    return (
        (np.abs(a - b).mean((1, 2)) <= MAX_LIGHT)
        & (difference.mean((1, 2, 3)) <= MAX_COLOR)
        & (difference.mean(3).max((1, 2)) <= MAX_LOCAL)
        & (np.sqrt(np.square(difference).mean((1, 2, 3))) <= MAX_RATIO * np.minimum(a.std((1, 2)), b.std((1, 2))))
    )
