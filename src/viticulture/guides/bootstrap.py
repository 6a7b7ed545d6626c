# SPDX-License-Identifier: Apache-2.0
"""Bootstrapping: a CNN built from the student is trained with it and teaches it the biases of convolutions.

Paper: Zhang et al., "Bootstrapping ViTs: Towards Liberating Vision Transformers from Pre-training", CVPR 2022,
arXiv:2112.03552. Recipes: recipes/bootstrap/. The CNN, called agent, is in models/agent/.

Each of the two networks learns from the labels and from the other's predictions (Eq. 8), the student also from the
agent's feature maps, block by block (Eq. 6, 7). With p_V, p_A their predictions and F_V, F_A their features,

    L = CE(p_V, y) + w [CE(p_A, y) + m KD(p_V | p_A) + m KD(p_A | p_V) + f (1 - e / E) sum_l ||F_A^l - F_V^l||^2]

at epoch e of E. The student's label term is the method's (`method.label_weight`). Eq. (9) calls f alpha = 1 and m
beta = 10; the authors' Table 4 and code have it the other way round, f = 10 and m = 1, and so have we.

Where the agent shares the student's weights, the authors' code sums the gradients of both networks after halving every
term (`method.label_weight` 0.5 and `weight` 0.5 here). Their Algorithm 1 also aligns the agent's gradient with the
student's first, which their code does not do: `weights` offers both.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..keywords import check_fields
from ..losses import cross_entropy, soft_distillation
from ..models.agent.agent_cnn import AgentShape
from ..models.agent.build import agent_for
from ..models.agent.shared_agent import SharedAgent, shared_agent_for
from ..models.data_spec import DataSpec
from ..models.layout import layout
from ..models.taps import Readings
from .guide import Batch, Capability, Guide, check_positive


@dataclass(frozen=True)
class Features:
    """Term that moves the student's tokens towards the agent's feature maps.

    Args:
        weight: factor of the sum over blocks; 0 leaves it out.
        blocks: numbers of blocks, from 0; null takes all.
        adapt: shortens the longer of the two: sequence averages neighbors along the row-major sequence (the published
            way; groups may span rows), grid averages squares of the map (the paper's AP-2D).
        scale: makes the two comparable: standardize each token over its channels (the authors' code), or divide each by
            its length (Eq. 6).
        decay: linear takes the weight down to 0 over the epochs; none leaves it constant.
    """

    weight: float = 10.0
    blocks: list[int] | None = None
    adapt: Literal["sequence", "grid"] = "sequence"
    scale: Literal["standardize", "length"] = "standardize"
    decay: Literal["linear", "none"] = "linear"

    def __post_init__(self) -> None:
        check_fields("features", self)
        if self.weight < 0:
            raise UserError(f"features.weight must not be negative, got {self.weight}")


@dataclass(frozen=True)
class Mutual:
    """Terms by which the two networks learn from each other's predictions.

    Args:
        weight: factor of either direction; 0 leaves both out.
        temperature: softens both distributions.
    """

    weight: float = 1.0
    temperature: float = 4.0

    def __post_init__(self) -> None:
        check_fields("mutual", self)
        if self.weight < 0 or self.temperature <= 0:
            raise UserError(
                "mutual needs a weight of at least 0 and a positive temperature, "
                f"got {self.weight} and {self.temperature}"
            )


class Bootstrap(Guide):
    """Train an agent CNN on the student's images.

    Of a student with a distillation token that token's head is trained, and the agent learns from it, as in the
    authors' code.

    Args:
        student: a ViT with square patches; a plain one where its weights are shared.
        agent: architecture of the agent.
        weights: own gives the agent separate weights (the paper's joint training); shared builds it from the student's
            and sums both gradients, as the authors' code does; aligned first removes from the agent's gradient the part
            that opposes the student's, as in the paper's Algorithm 1.
        features: the agent's feature maps as targets.
        mutual: the predictions as targets, both ways.
        weight: factor of all terms; the authors halve all, `method.label_weight` too, where weights are shared.
    """

    needs = frozenset({"blocks"})
    requires = frozenset(Capability)
    capturable = True
    trains_last_head = True
    uses_labels = True

    def __init__(
        self,
        student: nn.Module,
        data_spec: DataSpec,
        *,
        agent: AgentShape = AgentShape(),
        weights: Literal["own", "shared", "aligned"] = "own",
        features: Features = Features(),
        mutual: Mutual = Mutual(),
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(weight=weight)
        if weights not in ("own", "shared", "aligned"):
            raise UserError(f"weights must be own, shared or aligned, got {weights!r}")
        make = agent_for if weights == "own" else shared_agent_for
        self.agent = make(student, data_spec, agent)
        self.run_agent = self.agent.forward_with_features
        self.weights, self.features, self.mutual, self.weight = weights, features, mutual, weight
        where = layout(student)
        self.prefix, self.grid = where.prefix, where.grid(data_spec.image_size)
        self.blocks = list(range(len(where.blocks))) if features.blocks is None else features.blocks
        for block in self.blocks:
            if not 0 <= block < len(where.blocks):
                raise UserError(f"features.blocks must lie in 0 to {len(where.blocks) - 1}, got {block}")
        self.feature_scale = 1.0  # factor of the feature weight at this epoch

    def compile_networks(self, **options: Any) -> None:
        self.run_agent = torch.compile(self.agent.forward_with_features, **options)

    def start_epoch(self, epoch: int, epochs: int) -> None:
        self.feature_scale = max(0.0, 1 - epoch / epochs) if self.features.decay == "linear" else 1.0

    def losses(self, batch: Batch, readings: Readings) -> dict[str, Tensor]:
        """Return `agent_label`, `from_agent`, `to_agent` (nats) and `features` (squared distance, 0 to 4 a block)."""
        logits, maps = self.run_agent(batch["image"])
        terms = {"agent_label": cross_entropy(logits, batch["label"])}
        if self.mutual.weight:
            head = readings.outputs[-1]
            for name, learner, teacher in (("from_agent", head, logits), ("to_agent", logits, head)):
                terms[name] = self.mutual.weight * soft_distillation(learner, teacher, self.mutual.temperature)
        if self.features.weight * self.feature_scale:
            rows, columns = self.grid
            distances = []
            for block in self.blocks:
                tokens = readings.blocks[block][:, self.prefix :][:, : rows * columns]  # [B, P, D]
                map_ = torch.unflatten(tokens.transpose(1, 2), 2, self.grid)  # [B, D, rows, columns]
                distances.append(feature_distance(map_, maps[block], self.features.adapt, self.features.scale))
            terms["features"] = self.features.weight * self.feature_scale * torch.stack(distances).sum()  # Eq. (7)
        return {name: self.weight * term for name, term in terms.items()}

    def after_backward(self) -> dict[str, Tensor]:
        """Add the agent's gradient of the shared weights to the student's, aligned if configured.

        Returns: the factor of the feature weight; where weights are shared also the cosine between the two gradients
            before they are combined, and whether they conflict (1) or not (0).
        """
        logs = {"feature_scale": torch.tensor(self.feature_scale)} if self.features.weight else {}
        if isinstance(self.agent, SharedAgent):
            cosine = combine_gradients(list(self.agent.gradients()), self.weights == "aligned")
            self.agent.forget_gradients()
            logs |= {"gradient_cosine": cosine, "gradient_conflict": (cosine < 0).float()}
        return logs

    def metrics(self, batch: Batch) -> dict[str, Tensor]:
        """Return the agent's accuracy."""
        correct = self.agent(batch["image"]).argmax(-1) == batch["label"]
        return {"agent_accuracy": correct.float().mean()}


def feature_distance(
    student: Tensor, agent: Tensor, adapt: Literal["sequence", "grid"], scale: Literal["standardize", "length"]
) -> Tensor:
    """Return the distance of a student's tokens from the agent's features at the same depth.

        L = mean over tokens of || F_A / |F_A| - F_V / |F_V| ||^2      Eq. (6), after the longer one is shortened

    Standardized features have length sqrt(D), so that the mean over channels in place of the sum gives the same scale.

    Args:
        student: [B, D, h, w].
        agent: [B, D, H, W]; receives no gradient.

    Returns: scalar from 0 to 4, no unit.
    """
    shorten = shortened_sequences if adapt == "sequence" else shortened_grids
    tokens, target = (side.transpose(1, 2) for side in shorten(student, agent.detach()))  # [B, T, D] each
    if scale == "standardize":
        wide = tokens.shape[-1:]
        return F.mse_loss(F.layer_norm(tokens, wide), F.layer_norm(target, wide))
    return (F.normalize(tokens, dim=-1) - F.normalize(target, dim=-1)).square().sum(-1).mean()


def shortened_sequences(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return two maps as row-major sequences [B, D, T], the longer averaged over groups of neighbors.

    Where the longer map is not as many times wider as its groups are long, a group covers parts of a row that lie
    elsewhere in the shorter map: the published adaptation lines the two up vertically only.

    Args:
        first: [B, D, h, w].
        second: [B, D, H, W]; one's area is a multiple of the other's, or the reverse.
    """
    flat = first.flatten(2), second.flatten(2)
    length = min(sequence.shape[-1] for sequence in flat)
    first, second = (F.avg_pool1d(side, side.shape[-1] // length) for side in flat)
    return first, second


def shortened_grids(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return two maps as sequences [B, D, T], the larger averaged over rectangles first, so that places correspond."""
    rows, columns = (min(first.shape[axis], second.shape[axis]) for axis in (-2, -1))
    first, second = (
        F.avg_pool2d(side, (side.shape[-2] // rows, side.shape[-1] // columns)).flatten(2) for side in (first, second)
    )
    return first, second


def combine_gradients(pairs: list[tuple[Tensor, Tensor]], align: bool) -> Tensor:
    """Add the agent's gradient g_A to the student's g_V in place, over all shared weights as one vector.

        g_V <- g_V + g_A - min(0, <g_A, g_V>) / <g_V, g_V> g_V        Algorithm 1, line 8, times 2; Align as in [1]

    Without `align`, g_V <- g_V + g_A. The paper leaves open what Align works on; one vector is [1]'s reading.

    Args:
        pairs: (g_V, g_A) of every shared weight.
        align: remove from g_A what points against g_V.

    Returns: scalar, the cosine between g_V and g_A; 0 where either vanishes.

    [1] Yu et al., "Gradient Surgery for Multi-Task Learning", NeurIPS 2020, arXiv:2001.06782.
    """
    products = torch.stack([torch.stack([(a * v).sum(), (v * v).sum(), (a * a).sum()]) for v, a in pairs])
    dot, student, agent = products.float().sum(0)
    cosine = dot / (student * agent).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    opposed = dot.clamp_max(0) / student.clamp_min(torch.finfo(torch.float32).tiny) if align else dot.new_zeros(())
    for student_part, agent_part in pairs:
        student_part.add_(agent_part - opposed * student_part)
    return cosine
