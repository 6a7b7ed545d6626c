# SPDX-License-Identifier: Apache-2.0
"""Convolution and BatchNorm computed as one (models/cpu/folding.py)."""

from contextlib import nullcontext
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from viticulture.kernels import plain_kernels
from viticulture.methods.method import Setup
from viticulture.methods.supervised import Supervised
from viticulture.models.cpu import folding
from viticulture.models.cpu.folding import folded_batch_norms
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student


class TwoReaders(nn.Module):
    """The first convolution's output is read by its BatchNorm, and added afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        return (self.norm(x).relu() + x).mean((2, 3))


class SharedNorm(nn.Module):
    """Two convolutions have one BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions, self.norm = nn.ModuleList(nn.Conv2d(3, 3, 3) for _ in range(2)), nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        for convolution in self.convolutions:
            images = self.norm(convolution(images))
        return images.mean((2, 3))


def network_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    made = {"two readers": TwoReaders, "shared norm": SharedNorm}
    network = made[name]() if name in made else timm.create_model(name, num_classes=4)
    for norm in (each for each in network.modules() if isinstance(each, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.5, 0.5)
        norm.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr]
        norm.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return network.eval()


def trained(network: nn.Module, images: Tensor, fold: bool) -> tuple[int, list[Tensor]]:
    """Return how many BatchNorms compute something, and output and gradients of all parameters."""
    calls: list[int] = []
    folded_batch_norms(network, images)  # finds the pairs
    hooks = [
        each.register_forward_hook(lambda layer, *_: calls.append("forward" not in vars(layer)))
        for each in network.modules()
        if isinstance(each, nn.BatchNorm2d)
    ]
    network.zero_grad()
    with folded_batch_norms(network, images) if fold else nullcontext():
        outputs = network(images)
    for hook in hooks:
        hook.remove()
    outputs.square().sum().backward()
    return sum(calls), [
        outputs.detach(),
        *(each.grad.clone() for each in network.parameters() if each.grad is not None),
    ]


@pytest.mark.parametrize(
    ("name", "unfolded"), [("resnet10t", 0), ("tf_efficientnet_lite0", 0), ("two readers", 1), ("shared norm", 2)]
)
def test_outputs_and_gradients_stay_equal(name: str, unfolded: int) -> None:
    network, images = network_of(name).double(), torch.randn(3, 3, 40, 40, dtype=torch.float64)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    (_, plain), (norms, folded) = trained(network, images, fold=False), trained(network, images, fold=True)
    assert norms == unfolded
    assert len(plain) == len(folded) > 1
    for one, other in zip(plain, folded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any({"weight", "bias", "forward"} & vars(each).keys() for each in network.modules())


def test_plain_kernels_and_failures_leave_the_network_as_it_is() -> None:
    network, images = network_of("resnet10t"), torch.randn(2, 3, 32, 32)
    with plain_kernels():
        assert trained(network, images, fold=True)[0] > 0
    with pytest.raises(ZeroDivisionError), folded_batch_norms(network, images):
        _ = 1 / 0
    assert not any({"weight", "bias", "forward"} & vars(each).keys() for each in network.modules())


DATA_SPEC = DataSpec(tuple("abcd"), (32, 32), (0.5,) * 3, (0.25,) * 3)
HEADS = {"heads": 3, "small_images": True}


@pytest.mark.parametrize(("name", "options"), [("resnet10t", {}), ("resnet10", HEADS), ("dhvt_nano", {})])
@pytest.mark.parametrize("eval_mode", [True, False])
def test_supervised_training_folds_in_evaluation_mode_alone(
    name: str, options: dict[str, Any], eval_mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = create_student(name, DATA_SPEC, None, options).double()
    method = Supervised(Setup(network, DATA_SPEC), eval_mode=eval_mode, every_head=bool(options)).train()
    batch = {"image": torch.randn(4, 3, 32, 32, dtype=torch.float64), "label": torch.arange(4)}
    statistics = [each.running_mean.clone() for each in network.modules() if isinstance(each, nn.BatchNorm2d)]  # type: ignore[union-attr]
    losses = [method.losses(batch)["label"]]
    with plain_kernels():
        losses.append(method.losses(batch)["label"])
    method.taps.compiled = True  # hooks and hidden weights would break the graph at every layer
    with monkeypatch.context() as patch:
        patch.setattr(folding, "_folded", None)
        method.losses(batch)
    if eval_mode:  # else drop path is random
        torch.testing.assert_close(*losses)
    assert bool(folding._pairs.get(network)) is eval_mode
    now = [each.running_mean for each in network.modules() if isinstance(each, nn.BatchNorm2d)]
    assert all(map(torch.equal, statistics, now)) is eval_mode  # type: ignore[arg-type]
