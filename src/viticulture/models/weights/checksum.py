# SPDX-License-Identifier: Apache-2.0
"""Names of the files of saved weights, and their checksum, without importing PyTorch."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

FILES = ("model.safetensors", "config.json")
CHECKSUM = "crc32"  # key, in our safetensors' header, of the checksum of the values, which reveals flipped bits


def checksum(folder: Path) -> str:
    """Return the checksum of the weights in a folder that `files.save` wrote; empty where there is none."""
    try:
        with safe_open(folder / FILES[0], "np") as file:
            return (file.metadata() or {}).get(CHECKSUM, "")
    except (OSError, SafetensorError):
        return ""
