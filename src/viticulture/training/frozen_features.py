# SPDX-License-Identifier: Apache-2.0
"""Features of a frozen network, computed once for every image and cached on disk.

    features/KEY/SPLIT-NAME.npy     [N, D] float16, or float32 where they are large;
                                    KEY: weights, architecture, images and their preparation

Images pass once, in batches of at most `PIXELS` pixels, whose features are written at once: memory is that of one
batch, however many images there are. What is read back is a map of the file. `viticulture cache --clear` removes it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from ..cache import cache_folder, digest, publish
from ..data.batches.evaluation import evaluation_batches, usual_batch
from ..data.dataset import Dataset
from ..data.image_set import Images
from ..data.transforms.crop import CenterCrop
from ..errors import UserError
from ..models.data_spec import DataSpec
from .machine import keep_freed_memory
from .progress import showing

VERSION = "3"  # of the features that the same weights make of the same images
HALF_UP_TO = 2.0**12  # largest value in the first batch for which float16, which ends at 65,504, is safe

Features = dict[str, dict[str, Tensor]]  # split -> name of the features -> [N, D]


def frozen_features(
    read: Callable[[Tensor], Mapping[str, Tensor]],
    network: Sequence[str],
    dataset: Dataset,
    data_spec: DataSpec,
    crop: CenterCrop,
    device: torch.device,
    splits: Mapping[str, Images] | None = None,
) -> Features:
    """Compute every image's features, or read them from the cache.

    Args:
        read: images [B, C, H, W], normalized, on the device -> features [B, D] by name.
        network: identifies `read`: architecture, digest of its weights.
        splits: of the dataset; null for all.

    Raises: UserError for features that are not finite.
    """
    prepared, splits = dataset.image_settings, splits or dataset.splits
    # The data's fingerprint holds neither a stretched shape, nor how streamed images are decoded.
    cached = [prepared.cache_size, prepared.shape, prepared.fitting, prepared.pixel_format]
    how = repr([data_spec.image_size, data_spec.mean, data_spec.std, crop.crop_pct, crop.interpolation, cached])
    key = digest([VERSION, *network, how, dataset.fingerprint, *splits])
    batch_size = usual_batch(data_spec.image_size)

    def make(folder: Path) -> None:
        keep_freed_memory()  # each batch's activations would else come from the system as zeroed pages
        done, total = 0, sum(map(len, splits.values()))
        with showing("computing features") as progress, torch.inference_mode():
            for split, images in splits.items():
                files: dict[str, np.memmap] = {}
                start = 0
                for batch in evaluation_batches(images, data_spec, batch_size, device, crop):
                    for name, vectors in read(batch["image"]).items():
                        values = vectors.float().cpu().numpy()
                        if not np.isfinite(values).all():
                            raise UserError("the network's features are not finite; take other weights")
                        if name not in files:
                            kind = np.float16 if np.abs(values).max() <= HALF_UP_TO else np.float32
                            shape, path = (len(images), values.shape[1]), folder / f"{split}-{name}.npy"
                            files[name] = open_memmap(path, "w+", dtype=kind, shape=shape)
                        if np.abs(values).max() > np.finfo(files[name].dtype).max:
                            raise UserError("the network's features differ too much in size; take other weights")
                        files[name][start : start + len(values)] = values
                    start += len(batch["image"])
                    progress(done + start, total)
                done += start
                for file in files.values():
                    file.flush()

    folder = publish(cache_folder() / "features" / key, make)
    return {split: _read(folder, split, images) for split, images in splits.items()}


def _read(folder: Path, split: str, images: Images) -> dict[str, Tensor]:
    try:
        files = sorted(folder.glob(f"{split}-*.npy"))
        by_name = {file.stem.removeprefix(f"{split}-"): np.load(file, "c", allow_pickle=False) for file in files}
        if not by_name or any(len(vectors) != len(images) for vectors in by_name.values()):
            raise ValueError("it does not hold one vector per image")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it: viticulture cache --clear") from error
    return {name: torch.from_numpy(vectors) for name, vectors in by_name.items()}
