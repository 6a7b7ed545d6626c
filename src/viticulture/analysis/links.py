# SPDX-License-Identifier: Apache-2.0
"""Selection of a trained run's attention links: Algorithm 1 of AAL, arXiv:2211.13852, for CNN blocks and layers.

    trained = read_links(RunFolder.open("runs/full"))
    select(magnitude_strengths(trained.links), 0.05)        # a link set for the next run

The algorithm scales all weights to [0, 1], averages them over heads, and keeps what exceeds a threshold. It is printed
for single channels, its outcome (Table 1) for CNN blocks: here it averages over the channels of a block as well. It
scales signed weights, so a link of weight 0 becomes about 0.5, and the printed threshold of 0.05 prunes nothing; the
paper's text and Figure 2 refer to magnitudes. `magnitude_strengths` scales magnitudes, `printed_strengths` follows the
print.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.schema import guide_class
from ..errors import UserError, unknown
from ..guides.attention_link import AttentionLink
from ..models.links import Links, LinkSet
from ..training.feed import Feed
from ..training.run_folder import RunFolder
from ..training.run_inputs import config_of
from ..training.state import beneath, load_checkpoint

THRESHOLD = 0.05  # the paper's


@dataclass(frozen=True)
class TrainedLinks:
    """The links of a run."""

    links: Links
    # Their mean |w| by CNN block and layer at the start of every epoch, and now: each [blocks, layers].
    magnitudes: list[Tensor]
    inside: bool = False  # the checkpoint lies within an epoch, not at the end of one


def linked_guides(run: RunFolder) -> list[str]:
    """Return the names of a run's guides with attention links, as in its recipe."""
    guides = config_of(run).values["guides"]
    return [name for name, entry in guides.items() if issubclass(guide_class(name, entry), AttentionLink)]


def read_links(run: RunFolder, guide: str = "") -> TrainedLinks:
    """Read the links in a run's last checkpoint; the teacher is not needed.

    Raises: UserError if the run was trained without links, or there is no checkpoint yet.
    """
    linked = linked_guides(run)
    if not linked:
        raise UserError(f"{run.path} was trained without the guide attention_link, so it has no links")
    if guide not in linked and (guide or len(linked) > 1):
        raise unknown(f"guide with links in {run.path}", guide, linked)
    content = load_checkpoint(run.checkpoint)
    state = content["state_dict"]
    prefix = f"method.guides.{guide or linked[0]}."
    about = state[f"{prefix}_extra_state"]
    links = Links(**about["links"])
    links.load_state_dict(beneath(state, f"{prefix}links."))
    inside = content[Feed.__qualname__]["next"] > 0
    return TrainedLinks(links, [*about["magnitudes"], links.magnitudes()], inside)


def magnitude_strengths(links: Links) -> Tensor:
    """Compute the mean of (|w| - min |w|) / (max |w| - min |w|) over the channels of a block and the heads of a layer.

    Returns: [blocks, layers], in [0, 1]; 0 where there is no link. Minimum and maximum are taken over all links.
    """
    return _scaled({block_layer: weights.abs() for block_layer, weights in links.weights().items()}, links)


def printed_strengths(links: Links) -> Tensor:
    """Compute the mean of |(w - min w) / (max w - min w)|, as Algorithm 1 is printed; shape as above."""
    return _scaled(links.weights(), links)


def _scaled(weights: dict[tuple[int, int], Tensor], links: Links) -> Tensor:
    low = torch.stack([part.min() for part in weights.values()]).min()
    high = torch.stack([part.max() for part in weights.values()]).max()
    strengths = torch.zeros(len(links.channels), len(links.heads))
    for block_layer, part in weights.items():
        strengths[block_layer] = ((part - low) / (high - low)).mean()
    return strengths


def select(strengths: Tensor, threshold: float = THRESHOLD) -> LinkSet:
    """Return the links stronger than the threshold. Raises: UserError if there is none."""
    linked = [torch.nonzero(row > threshold).flatten().tolist() for row in strengths]
    if not any(linked):
        raise UserError(f"no link is stronger than {threshold:g}; the strongest has {strengths.max():.3g}")
    return linked
