# SPDX-License-Identifier: Apache-2.0
"""AutoAugment draws torchvision's operations with torchvision's strengths, for every image by itself."""

import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import AutoAugment as Theirs
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode

from noise import pictures, uniform
from viticulture.data.transforms.rand_augment import ALL, AutoAugment, offsets, strengths
from viticulture.errors import UserError

POLICIES = {
    "cifar10": AutoAugmentPolicy.CIFAR10,
    "imagenet": AutoAugmentPolicy.IMAGENET,
    "svhn": AutoAugmentPolicy.SVHN,
}
SIDE = 32
SHIFTED = {"Brightness": 1.0, "Color": 1.0, "Contrast": 1.0, "Sharpness": 1.0}  # a factor is 1 + magnitude


@pytest.mark.parametrize("name", POLICIES)
def test_every_operation_has_torchvisions_strength(name: str) -> None:
    """All 25 pairs, both layers, both signs: bits, thresholds, factors, degrees and offsets of pixels.

    Fails for a pair in another order, a magnitude of RandAugment's (posterize, translations), or a lost sign.
    """
    theirs = Theirs(POLICIES[name])
    space = theirs._augmentation_space(10, (SIDE, SIDE))
    for pair, operations in enumerate(theirs.policies):
        for layer, (operation, probability, place) in enumerate(operations):
            for sign in (1.0, -1.0):
                u = torch.tensor(
                    [[(pair + 0.5) / 25, 0.0, 0.0, *[0.25 if sign > 0 else 0.75] * 2]], dtype=torch.float64
                )
                drawn = AutoAugment(name).draw(u, layer)
                if probability == 0:
                    assert drawn.operation.item() == -1
                    continue
                kind = ALL[drawn.operation.item()]
                assert kind.replace("_half", "").replace("_", "") == operation.lower()
                values, signed = space[operation]
                if place is None:
                    continue
                wanted = float(values[place]) * (sign if signed else 1.0) + SHIFTED.get(operation, 0.0)
                if kind.startswith("translate"):
                    found = offsets(drawn, [], [0], 1, SIDE).item()
                elif kind.startswith("shear"):  # torchvision counts from the image's center or edge
                    lines = offsets(drawn, [0], [], 2, SIDE)[0]
                    found = (lines[1] - lines[0]).item()
                elif kind == "rotate":
                    found = (30 * drawn.sign * drawn.share).item()
                else:
                    found = strengths(kind, drawn.share, drawn.sign).item()
                assert found == pytest.approx(wanted, abs=2 if kind == "solarize" else 1e-6)  # of 255


def test_operations_happen_as_often_as_in_torchvision() -> None:
    """Pairs uniformly, operations with their probability: 8,000 draws of the policy of CIFAR-10, four deviations."""
    augment, u = AutoAugment(), uniform(8000, 5)
    for layer in (0, 1):
        counts = torch.bincount(augment.draw(u, layer).operation + 1, minlength=len(ALL) + 1) / 8000
        expected = torch.zeros(len(ALL) + 1).double()
        for operation, probability, _ in augment.policy[:, layer].tolist():
            expected[int(operation) + 1] += probability / 25
            expected[0] += (1 - probability) / 25
        assert ((counts - expected).abs() <= 4 * (expected * (1 - expected) / 8000).sqrt() + 1e-9).all()


def test_augmented_images_are_distributed_as_torchvisions() -> None:
    """Mean, spread and red of one image augmented 600 times; fails for one layer, or layers that do not build on one
    another."""
    image, count = pictures(1, 16, 16), 600
    ours = AutoAugment().filled((0.5, 0.5, 0.5))(image.repeat(count, 1, 1, 1), uniform(count, 5)).float()
    torch.manual_seed(0)
    theirs = Theirs(AutoAugmentPolicy.CIFAR10, InterpolationMode.BILINEAR, [128.0] * 3)
    other = torch.stack([theirs(image[0]) for _ in range(count)]).float()
    for measure in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3)), lambda x: x[:, 0].mean((1, 2))):
        assert ks_2samp(measure(ours).numpy(), measure(other).numpy()).pvalue > 1e-3


def test_an_image_does_not_depend_on_its_batch() -> None:
    images, u = pictures(12), uniform(12, 5)
    together = AutoAugment()(images.clone(), u)
    assert torch.equal(together, torch.cat([AutoAugment()(images[k : k + 1].clone(), u[k : k + 1]) for k in range(12)]))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UserError, match="policy must be cifar10, imagenet or svhn, got 'cifar'"):
        AutoAugment("cifar")  # type: ignore[arg-type]
