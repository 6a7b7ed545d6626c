# SPDX-License-Identifier: Apache-2.0
"""A loss term of your own: a guide that rewards confident predictions (entropy minimization).

    L = weight * mean over images of  -sum_c p_c log p_c        Grandvalet and Bengio, NeurIPS 2004

python examples/plugin.py                    trains on digits; or, in this folder:
viticulture train digits --guides.confident.class plugin.Confident --guides.confident.weight 0.1
"""

from torch import Tensor, nn

import viticulture
from viticulture.plugins import Batch, Capability, DataSpec, Guide, Readings


class Confident(Guide):
    """Minimize the entropy of the student's predictions.

    Args:
        student: the network in training.
        data_spec: its input and classes.
        weight: factor of the term, nats.
    """

    requires = frozenset({Capability.CLASSES})

    def __init__(self, student: nn.Module, data_spec: DataSpec, *, weight: float = 0.1) -> None:
        super().__init__()
        self.weight = weight

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        log_p = readings.outputs[0].float().log_softmax(dim=1)  # [B, C]
        return {"entropy": -self.weight * (log_p.exp() * log_p).sum(dim=1).mean()}


def main(epochs: int = 20, out: str = "") -> viticulture.Run:
    """Train with the guide; `plugin.Confident` is found in the folder of this file."""
    guide = {"guides.confident": {"class": "plugin.Confident", "weight": 0.1}}
    return viticulture.train("digits", epochs=epochs, student="vit_nano", out=out, overrides=guide)


if __name__ == "__main__":
    print(f"{main().accuracy:.1%}")
