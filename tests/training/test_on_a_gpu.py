# SPDX-License-Identifier: Apache-2.0
"""Whole trainings on a simulated GPU, see tests/simulated_gpu.py."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pairs import Data, pair
from simulated_gpu import OnGpu, simulated_gpu
from slowly import slow_but
from viticulture.data.augment.augment import Augment
from viticulture.data.augment.crop import PaddedCrop
from viticulture.data.augment.flip import Flip
from viticulture.data.augment.mix import Mix
from viticulture.data.batches.loader import Loader
from viticulture.data.images import StoredImages
from viticulture.errors import UserError
from viticulture.training.assemble import assemble
from viticulture.training.recipe import Recipe
from viticulture.training.run import fit
from viticulture.training.rundir import RunDir

from .test_devices import TAUGHT


def test_it_refuses_what_a_gpu_refuses() -> None:
    """A CPU's tensor indexed by a GPU's, sums of both, numpy; copies go both ways."""
    with simulated_gpu() as gpu:
        there, here = torch.arange(3, device=gpu), torch.arange(3)
        for attempt in (lambda: here[there], lambda: there + here, lambda: torch.stack([here, there])):
            with pytest.raises(RuntimeError, match="cuda:0"):
                attempt()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert there[here].device == gpu
        assert (there + 1).cpu().tolist() == (here + 1).tolist()
        assert here.to(gpu).device == there.device == gpu


def test_batches_on_a_gpu_are_those_on_a_cpu(data: Data) -> None:
    """The images live on the GPU, and several steps are changed together. Catches: numbers of images, or where they
    stand in the store, left on the CPU."""
    images = data.labeled.train
    assert isinstance(images, StoredImages)
    view = Augment([PaddedCrop(padding=2), Flip(), Mix()], (16, 16), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), 3)
    expected = [batch for loader in [Loader(images, [view], 2, 0)] for _ in (0, 1) for batch in loader]
    with simulated_gpu() as gpu:
        loader = Loader(images, [view], 2, 0, device=gpu)
        found = [batch for _ in (0, 1) for batch in loader]
        assert {value.device for batch in found for value in batch.values()} == {gpu}
        back = [{name: value.cpu() for name, value in batch.items()} for batch in found]
    for one, other in zip(expected, back, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name])


@pytest.mark.parametrize(
    ("method", "guide", "student"), slow_but([("supervised", "none", "vit with dropout"), TAUGHT[1]], TAUGHT)
)
def test_a_gpu_learns_what_a_cpu_learns(
    method: str, guide: str, student: str, data: Data, teachers: Path, tmp_path: Path
) -> None:
    """Two epochs in float32, by the Trainer, from the loader to the weights in the run.

    Catches: whatever of a training needs a tensor where it is not.
    """
    try:
        expected = trained(method, guide, student, data, teachers, tmp_path / "cpu")
    except UserError:
        return  # a pair that does not go together
    with simulated_gpu():
        found = trained(method, guide, student, data, teachers, tmp_path / "gpu")
        assert all(isinstance(value, OnGpu) for value in found.values())
        found = {name: value.cpu() for name, value in found.items()}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def trained(method: str, guide: str, student: str, data: Data, teachers: Path, folder: Path) -> dict[str, Tensor]:
    """The student's weights after two epochs in float32."""
    torch.manual_seed(0)
    session = pair(method, guide, student, data, teachers)
    recipe = Recipe("pair", {**session.recipe.values, "engine": {"precision": "32"}})
    made, remarks = assemble(recipe, session.dataset, seed=0)
    session = replace(session, run=RunDir.create(folder), recipe=recipe, method=made, remarks=remarks)
    fit(session)
    return dict(session.method.student.state_dict())
