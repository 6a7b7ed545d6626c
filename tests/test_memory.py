# SPDX-License-Identifier: Apache-2.0
"""Memory estimates in recipes' headers are those of their steps."""

from itertools import accumulate
from pathlib import Path

import pytest
import torch
from benchmarks.memory import assembled, classes_of, estimate, measure
from torch.autograd import profiler

from viticulture.config.load import about, load_config, read
from viticulture.config.resolve import resolve


@pytest.mark.slow
def test_an_estimate_is_what_a_step_takes(tmp_path: Path) -> None:
    """torch's profiler on a CPU; the tolerance, a twentieth, is for scratch space inside kernels."""
    config = resolve("x", read("mae/cifar100"), {"student.options": {"embed_dim": 64, "depth": 3, "num_heads": 2}})
    expected = estimate(config, 0, tmp_path, bfloat16=False)
    method = assembled(config, 0, 32)
    optimizer = method.optim.build(method.optim.groups(method.student, method.auxiliary))
    weights = sum(4 * tensor.numel() for tensor in [*method.parameters(), *method.buffers()])

    def step() -> None:
        batch = {"image": torch.randn(expected.batch_size, 3, 32, 32), "noise": torch.rand(expected.batch_size, 64)}
        optimizer.zero_grad()
        torch.stack(list(method.losses(batch).values())).sum().backward()
        optimizer.step()

    step()
    state = sum(x.nbytes for values in optimizer.state.values() for x in values.values() if x.ndim)
    optimizer.zero_grad()
    with profiler.profile(profile_memory=True) as profile:
        step()
    changes = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    live = list(accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())))
    assert expected.peak == pytest.approx(weights + state + max(live), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mae/cifar100-distilled", "dhvt/cifar100-tiny-patch4"])
def test_a_header_has_the_memory_of_a_step(name: str, tmp_path: Path) -> None:
    assert about(name)["Memory"] == str(estimate(load_config(name), classes_of(name), tmp_path))


@pytest.mark.parametrize("name", ["mae/cifar100", "mae/moco-cifar100"])
def test_real_steps_are_taken(name: str, tmp_path: Path) -> None:
    """On a CPU, four images at a time."""
    found = measure(load_config(name, {"train.batch_size": 4}), classes_of(name), tmp_path, "cpu")
    assert found.milliseconds > 0
    assert found.device == "cpu"
