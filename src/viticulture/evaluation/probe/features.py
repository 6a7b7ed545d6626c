# SPDX-License-Identifier: Apache-2.0
"""Features of a frozen network, computed once for every image and cached on disk.

    features/KEY/SPLIT-NAME.npy     [N, D] float32      KEY: weights, architecture, images and their preparation

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
from ...models.taps import features
from ...models.weights.files import weights_digest
from ...training.progress import showing
from ..model import EvaluatedModel

VERSION = "2"  # of the features that the same weights make of the same images

Features = dict[str, dict[str, Tensor]]
"""Split -> name of the features -> [N, D]."""


def frozen_features(model: EvaluatedModel, dataset: Dataset) -> Features:
    """Compute every image's features, or read them from the cache."""
    splits = {name: images for name in ("train", "val", "test") if (images := getattr(dataset, name)) is not None}
    data_spec, crop, prepared = model.data_spec, model.image_settings.crop, dataset.image_settings
    # The data's fingerprint holds neither a stretched shape, nor how streamed images are decoded.
    cached = [prepared.cache_size, prepared.shape, prepared.fitting, prepared.pixel_format]
    how = repr([data_spec.image_size, data_spec.mean, data_spec.std, crop.crop_pct, crop.interpolation, cached])
    key = digest([VERSION, model.architecture, weights_digest(model.network), how, dataset.fingerprint])

    def make(folder: Path) -> None:
        done, total = 0, sum(map(len, splits.values()))
        with showing("computing features") as progress, torch.inference_mode():
            for split, images in splits.items():
                batches: list[dict[str, Tensor]] = []
                for batch in model.batches(images):
                    vectors = features(model.network, batch["image"])
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
            raise ValueError("it does not hold one vector per image")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it: viticulture cache --clear") from error
    return {name: torch.from_numpy(vectors) for name, vectors in by_name.items()}
