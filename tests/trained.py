# SPDX-License-Identifier: Apache-2.0
"""Trained runs without evaluation, which takes longer than a few steps on digits."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

import viticulture
from viticulture.training.run import fit
from viticulture.training.session import begin


def trained(out: Path, overrides: dict[str, Any], seed: int = 0, data: str = "digits") -> viticulture.Run:
    """Train the digits' recipe with some changes in a released folder."""
    session = begin(data, "default/digits", seed, str(out), False, overrides, "test")
    fit(session)
    session.run.unlock()
    return viticulture.Run(out)


def train_apart(out: Path, settings: dict[str, Any]) -> None:
    """Train the digits' recipe by the command, in a process that may start others."""
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "viticulture", "train", "digits", "--recipe", "default/digits", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def weights(run: Path, which: str = "last") -> dict[str, Tensor]:
    """Load the student's saved weights."""
    return load_file(run / "weights" / which / "model.safetensors")
