# SPDX-License-Identifier: Apache-2.0
"""Which links of a trained run to keep: Algorithm 1 of AAL, arXiv:2211.13852, at the level of CNN blocks and layers.

    trained = read_links(RunDir.open("runs/full"))
    select(magnitude_strengths(trained.links), 0.05)        # a link set for the next run

The algorithm scales all weights to [0, 1], averages them over heads, and keeps what exceeds a threshold. It is printed
for single channels, its outcome (Table 1) for CNN blocks: we average over the channels of a block as well. It scales
signed weights, so that a link of weight 0 comes out in the middle, near 0.5, and the printed threshold of 0.05 prunes
nothing; the paper's text and Figure 2 speak of magnitudes. `magnitude_strengths` scales magnitudes,
`printed_strengths` follows the print.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from ..models.links import Links, LinkSet
from ..training.rundir import RunDir
from ..training.state import load_checkpoint

THRESHOLD = 0.05  # the paper's
GUIDE = "guides.attention_link."  # where a checkpoint keeps the guide


@dataclass(frozen=True)
class TrainedLinks:
    """The links of a run.

    Args:
        links: as they are at the last checkpoint.
        magnitudes: their mean |w| by CNN block and layer at the start of every epoch, and now: each [blocks, layers].
    """

    links: Links
    magnitudes: list[Tensor]


def read_links(run: RunDir) -> TrainedLinks:
    """The links in a run's last checkpoint; the teacher is not needed.

    Raises: UserError if the run was trained without links.
    """
    state = load_checkpoint(run.checkpoint)["state_dict"]
    about = state.get(f"{GUIDE}_extra_state")
    if about is None:
        raise UserError(f"{run.path} was trained without the guide attention_link, so it has no links")
    links = Links(**about["links"])
    prefix = f"{GUIDE}links."
    links.load_state_dict({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
    return TrainedLinks(links, [*about["magnitudes"], links.magnitudes()])


def magnitude_strengths(links: Links) -> Tensor:
    """Mean of (|w| - min |w|) / (max |w| - min |w|) over the channels of a block and the heads of a layer.

    Returns: [blocks, layers], in [0, 1]; 0 where there is no link. Least and largest are taken over all links.
    """
    return _scaled({block_layer: weights.abs() for block_layer, weights in links.weights().items()}, links)


def printed_strengths(links: Links) -> Tensor:
    """Mean of |(w - min w) / (max w - min w)|, as Algorithm 1 is printed.

    Returns: as `magnitude_strengths`.
    """
    return _scaled(links.weights(), links)


def _scaled(weights: dict[tuple[int, int], Tensor], links: Links) -> Tensor:
    low = torch.stack([part.min() for part in weights.values()]).min()
    high = torch.stack([part.max() for part in weights.values()]).max()
    strengths = torch.zeros(len(links.channels), len(links.heads))
    for block_layer, part in weights.items():
        strengths[block_layer] = ((part - low) / (high - low)).mean()
    return strengths


def select(strengths: Tensor, threshold: float = THRESHOLD) -> LinkSet:
    """The links stronger than the threshold.

    Raises: UserError if none is.
    """
    linked = [torch.nonzero(row > threshold).flatten().tolist() for row in strengths]
    if not any(linked):
        raise UserError(f"no link is stronger than {threshold:g}; the strongest has {strengths.max():.3g}")
    return linked
