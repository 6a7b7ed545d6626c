# SPDX-License-Identifier: Apache-2.0
"""Batches per second on a CPU, two worker processes each: ours against timm's with the same augmentation.

    python -m benchmarks.loader CLOTHING10 CIFAR100        folders that hold train/CLASS/file, one a case

Alternating epochs over the same images in one run, medians; first epochs apart, ours with the building of the store.
`core-s` counts the processor time of all processes, which other work on the machine disturbs less than the wall clock.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import timm.data.auto_augment
import torch
from timm.data.dataset_factory import create_dataset
from timm.data.loader import create_loader
from torchvision.transforms import RandomCrop

from viticulture.data.batches.loader import Loader, Shard
from viticulture.data.data_settings import DataSettings
from viticulture.data.dataset import ImageSettings, prepare
from viticulture.data.transforms.crop import PaddedCrop, ResizedCrop
from viticulture.data.transforms.erase import Erase
from viticulture.data.transforms.geometry import Flip
from viticulture.data.transforms.rand_augment import RandAugment
from viticulture.data.transforms.view import Augment

from .clock import begin, core_seconds, count

WORKERS, BATCH = 2, 128


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        name: what is compared.
        size: height and width of the images shown, pixels.
        transforms: our augmentation.
        theirs: the same in timm's words.
        padding: zeros around timm's images before a random crop; 0 leaves its random resized crop.
    """

    name: str
    size: int
    transforms: tuple[Any, ...]
    theirs: dict[str, Any]
    padding: int = 0


CASES = (
    Case(
        "128 px: resized crop, flip, RandAugment, erasing",
        128,
        (ResizedCrop(interpolation="random"), Flip(), RandAugment(), Erase()),
        {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel", "interpolation": "random"},
    ),
    Case("32 px: padded crop, flip", 32, (PaddedCrop(), Flip()), {"auto_augment": None, "color_jitter": None}, 4),
)


def timm_loader(folder: Path, case: Case) -> Any:
    """timm's own loader; the crop of small images is replaced as DeiT does it."""
    dataset = create_dataset("", root=str(folder), split="train", is_training=True)
    loader = create_loader(
        dataset, (3, case.size, case.size), BATCH, is_training=True, use_prefetcher=False, num_workers=WORKERS,
        pin_memory=False, persistent_workers=True, device=torch.device("cpu"), **case.theirs,
    )  # fmt: skip
    if case.padding:
        loader.dataset.transform.transforms[0] = RandomCrop(case.size, padding=case.padding)
    return loader


def our_loader(folder: Path, case: Case) -> Loader:
    """Ours, with the store built or found."""
    every = DataSettings(val_fraction=0, test_fraction=0)  # as many images as timm reads
    data = prepare(folder / "train", every, ImageSettings(image_size=case.size))
    augment = Augment(case.transforms, (case.size, case.size), data.mean, data.std, len(data.classes))
    return Loader(data.train, (augment,), BATCH, seed=0, shard=Shard(workers=WORKERS))


def epoch(loader: Iterable[Any]) -> tuple[float, float]:
    """Wall seconds and core seconds an image."""
    images, wall, core = 0, time.perf_counter(), core_seconds()
    for batch in loader:
        images += len(batch["image"] if isinstance(batch, dict) else batch[0])
    return (time.perf_counter() - wall) / images, (core_seconds() - core) / images


def first(make: Callable[[], Any]) -> tuple[Any, float, float]:
    """A loader with its first epoch behind it; wall and core seconds an image, its making included."""
    wall, core = time.perf_counter(), core_seconds()
    loader = make()
    epoch(loader)
    images = len(loader) * BATCH
    return loader, (time.perf_counter() - wall) / images, (core_seconds() - core) / images


def compare(folder: Path, case: Case, epochs: int) -> str:
    """One row of the table."""
    gc.collect()  # the last case's workers end now, which takes seconds, and not within what is measured next
    theirs, their_first, their_first_core = first(lambda: timm_loader(folder, case))
    ours, our_first, our_first_core = first(lambda: our_loader(folder, case))
    rounds = [(epoch(theirs), epoch(ours)) for _ in range(epochs)]
    (wall, core), (our_wall, our_core) = (
        [median(x) for x in zip(*side, strict=True)] for side in zip(*rounds, strict=True)
    )
    return (
        f"| {case.name} | {1 / wall:,.0f} | {1 / our_wall:,.0f} | **{wall / our_wall:.1f}** |"
        f" {core / our_core:.1f} | {their_first / our_first:.2f} | {their_first_core / our_first_core:.2f} |"
    )


def trained(text: str) -> Path:
    """A folder on the command line."""
    if not (folder := Path(text)).joinpath("train").is_dir():
        raise argparse.ArgumentTypeError(f"must hold train/CLASS/file, which {folder} does not")
    return folder


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="+", type=trained, metavar="FOLDER", help="one a case, in order: photographs, small images"
    )
    parser.add_argument("--epochs", type=count, default=5, help="measured epochs of each")
    torch.set_num_threads(1)  # the workers take both cores
    options = begin(parser)
    if len(options.folders) > len(CASES):
        parser.error(f"there are {len(CASES)} cases, got {len(options.folders)} folders")
    theirs = timm.data.auto_augment.posterize  # newer Pillow refuses its zero bits
    timm.data.auto_augment.NAME_TO_OP["PosterizeIncreasing"] = lambda im, bits, **k: theirs(im, max(1, bits), **k)
    print(
        "| case | timm, images/s | ours, images/s | ratio | ratio of core-s | ratio of first epochs | of their core-s |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["VITICULTURE_CACHE"] = cache
        for folder, case in zip(options.folders, CASES, strict=False):
            print(compare(folder, case, options.epochs), flush=True)


if __name__ == "__main__":
    main()
