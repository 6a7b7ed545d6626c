# SPDX-License-Identifier: Apache-2.0
"""The optimizer of recipes that leave it open, `optim: {name: auto}`, as those for a person's own images do."""

from contextlib import suppress
from typing import Any

from ..models.students import HYBRIDS

OPEN = "auto"
MUON: dict[str, Any] = {"name": "muon", "lr": 2e-3, "momentum": 0.95}
KERNELS = 10.0
"""A hybrid that learns classes learns by `MUON`, its kernels at so many times the rate; LOG.md holds the evidence.

In the same time that is worth four points over AdamW of 40 images a class. A step takes a tenth to a fifth longer in
batches of 64, and 1.4 to 1.6 times as long in batches of 16, which learn the more of few images. Kernels before a batch
norm bear their rate, which is most of the gain; matrices of a ViT's blocks do not, and other methods were not tried.
"""


def with_optimizer(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords of the optimizer, where a name is open: muon for hybrids that learn classes, adamw for all else.

    What else the recipe says of the optimizer stays; kernels keep `KERNELS` times the rate unless they have their own.

    Args:
        values: of a recipe, section -> keyword -> value, as far as it says them.
    """
    given = {key: value for key, value in values["optim"].items() if key != "name"}
    if values["optim"].get("name") != OPEN:
        return values["optim"]
    classes = values["method"].get("name", "supervised") == "supervised"
    if not (classes and values["student"].get("name") in HYBRIDS):
        return {**given, "name": "adamw"}
    chosen = {**MUON, **given}
    with suppress(TypeError, ValueError):  # what is no number is refused with all else
        chosen.setdefault("kernel_lr", KERNELS * float(chosen["lr"]))
    return chosen
