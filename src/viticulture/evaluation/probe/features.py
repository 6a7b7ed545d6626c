# SPDX-License-Identifier: Apache-2.0
"""Features of a network that learns no more, computed once for every image and kept on disk.

    features/KEY/SPLIT-NAME.npy     [N, D] float32      KEY: weights, architecture, images and how they were looked at

`viticulture cache --clear` removes them.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...cache import cache_folder, digest, publish
from ...data.dataset import Dataset
from ...data.image_set import Images
from ...errors import UserError
from ...models.features import features
from ...models.weights.files import weights_digest
from ...training.progress import showing
from ..model import EvaluatedModel

VERSION = "1"  # of the features that equal weights make of equal images

Features = dict[str, dict[str, Tensor]]
"""Split -> name of the features -> [N, D]."""


def frozen_features(subject: EvaluatedModel, dataset: Dataset) -> Features:
    """Every image's features, from the disk where they were computed before.

    Args:
        subject: whose.
        dataset: prepared with the subject's `image_settings`.
    """
    splits = {name: images for name in ("train", "val", "test") if (images := getattr(dataset, name)) is not None}
    data_spec, crop = subject.data_spec, subject.image_settings.crop
    kept = dataset.image_settings
    # The data's fingerprint knows neither a stretched shape, nor how images that are streamed are decoded.
    made = [kept.cache_size, kept.shape, kept.fitting, kept.pixel_format]
    how = repr([data_spec.image_size, data_spec.mean, data_spec.std, crop.crop_pct, crop.interpolation, made])
    key = digest([VERSION, subject.architecture, weights_digest(subject.network), how, dataset.fingerprint])

    def make(folder: Path) -> None:
        done, total = 0, sum(map(len, splits.values()))
        with showing("computing features") as progress, torch.inference_mode():
            for split, images in splits.items():
                batches: list[dict[str, Tensor]] = []
                for batch in subject.batches(images):
                    vectors = features(subject.network, batch["image"])
                    batches.append({name: vector.float().cpu() for name, vector in vectors.items()})
                    done += len(batch["image"])
                    progress(done, total)
                for name in batches[0]:
                    np.save(folder / f"{split}-{name}.npy", torch.cat([vectors[name] for vectors in batches]).numpy())

    folder = publish(cache_folder() / "features" / key, make)
    return {split: _read(folder, split, images) for split, images in splits.items()}


def _read(folder: Path, split: str, images: Images) -> dict[str, Tensor]:
    try:
        files = sorted(folder.glob(f"{split}-*.npy"))
        by_name = {file.stem.removeprefix(f"{split}-"): np.load(file, allow_pickle=False) for file in files}
        if not by_name or any(len(vectors) != len(images) for vectors in by_name.values()):
            raise ValueError("it does not hold a vector an image")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it: viticulture cache --clear") from error
    return {name: torch.from_numpy(vectors) for name, vectors in by_name.items()}
