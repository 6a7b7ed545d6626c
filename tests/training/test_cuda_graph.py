# SPDX-License-Identifier: Apache-2.0
"""Steps in one CUDA graph: what cannot be captured is refused, and captured steps are the usual ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from pairs import Data, pair
from simulated_gpu import simulated_gpu
from slowly import slow_but
from viticulture.config.resolve import Config
from viticulture.data.transforms.transform import send
from viticulture.errors import UserError
from viticulture.training import cuda_graph
from viticulture.training.assemble import assemble
from viticulture.training.cuda_graph import CapturedModule, is_captured
from viticulture.training.run import fit
from viticulture.training.run_folder import RunFolder
from viticulture.training.session import Session

CASES = [
    ("supervised", "none", "vit"),
    ("supervised", "none", "dhvt"),
    ("mae", "none", "mae"),
    ("simmim", "none", "vit"),
    ("supervised", "bootstrap", "vit"),
    ("supervised", "shared bootstrap", "vit"),
    ("supervised", "co_advise", "cit"),
    ("supervised", "attention_link", "vit"),
    ("supervised", "logits", "vit with dropout"),
    ("supervised", "one head", "vit"),
    ("supervised", "attention_distillation", "vit"),
    ("supervised", "with hidden states", "vit"),
    ("supervised", "relation_distillation", "vit"),
    ("distillation", "feature_distillation", "vit"),
    ("supervised", "none", "cnn"),
    ("supervised", "none", "sparse vit"),
    ("supervised", "none", "agent"),
]
FAST = [case for case in CASES if case[1:] in (("none", "dhvt"), ("none", "mae"), ("shared bootstrap", "vit"))]


def begun(
    case: tuple[str, str, str], data: Data, teachers: Path, folder: Path, captured: bool, **sections: dict[str, Any]
) -> Session:
    """Start the session of a case: a schedule with warm-up, in float32."""
    session = pair(*case, data, teachers)
    values = session.config.values
    changed = {
        "engine": {"precision": "32", "cuda_graph": captured},
        "train": {"epochs": 4},
        "schedule": {"warmup_epochs": 1},
        **sections,
    }
    values = {**values, **{name: {**values[name], **of_section} for name, of_section in changed.items()}}
    config = Config("pair", values)
    made, warnings = assemble(config, session.dataset, seed=0)
    run = RunFolder.create(folder)
    run.write("run.json", {})
    return replace(session, run=run, config=config, method=made, warnings=warnings)


class Seen(Callback):
    """Records losses, rates, and whether a step is a replay; rounds rates to float32, as a graph reads them."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.rates: list[float] = []
        self.replayed: list[bool] = []

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = float(torch.tensor(group["lr"]))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.losses.append(pl_module.method.logs["loss"])
        self.rates.append(pl_module.rate)
        self.replayed.append(isinstance(pl_module, CapturedModule) and pl_module.graph is not None)


def trained(session: Session, until: int | None = None) -> tuple[Seen, dict[str, Tensor]]:
    """Train; return what was seen, and losses and weights on the CPU."""
    seen = Seen()
    fit(session, more=[seen], until=until)
    values = {"losses": torch.stack(seen.losses).cpu()}
    stored = session.method.state_dict().items()
    return seen, values | {name: value.cpu() for name, value in stored if isinstance(value, Tensor)}


@pytest.mark.parametrize(("method", "guide", "student"), slow_but(FAST, CASES))
def test_captured_steps_are_the_usual_ones(
    method: str, guide: str, student: str, data: Data, teachers: Path, tmp_path: Path
) -> None:
    """Three steps before the capture and five after it, in four epochs whose rate rises and falls; drop path and
    dropout included. A number that Python computes in each step, a stale input or a stale teacher would show."""
    case, results = (method, guide, student), []
    for captured in (False, True):
        with simulated_gpu():
            torch.manual_seed(0)
            seen, values = trained(begun(case, data, teachers, tmp_path / str(captured), captured))
        results.append(values)
        assert seen.replayed == [captured and step >= 3 for step in range(8)]
        assert len(set(seen.rates)) == 7
    assert len(set(results[0]["losses"].tolist())) == 8
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name
