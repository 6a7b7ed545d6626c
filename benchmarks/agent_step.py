# SPDX-License-Identifier: Apache-2.0
"""What an agent CNN adds to a training step, beside a step of timm's ViT-Ti, on a CPU.

    python -m benchmarks.agent_step                      both kinds of agent, two threads
    python -m benchmarks.agent_step --threads 1 --steps 30
    python -m benchmarks.agent_step --profile own        where the time of one step goes

224 px, batch 8, ViT-S with the dropout of the paper and its res-like agent, float32, cross-entropy, fused AdamW over
the agent's own weights. Steps alternate in one run; ratios are medians of neighboring steps. `core-s` counts processor
time, which other work on the machine disturbs less than the wall clock.
"""

import argparse
from collections.abc import Callable

import timm
import torch
import torch.nn.functional as F
from torch import nn

from viticulture.models.agent.agent_cnn import AgentShape
from viticulture.models.agent.build import agent_for
from viticulture.models.agent.shared_agent import shared_agent_for
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student

from .clock import begin, count, measure, print_beside

TASK = DataSpec(tuple(map(str, range(100))), (224, 224), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
BATCH, WARMUP = 8, 3


def stepper(model: nn.Module, trained: list[nn.Parameter]) -> Callable[[], None]:
    """One training step on random images, always the same; only `trained` are updated, but all get a gradient."""
    images, labels = torch.randn(BATCH, 3, *TASK.image_size), torch.randint(len(TASK.classes), (BATCH,))
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    model.train()

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def cases() -> dict[str, Callable[[], None]]:
    """Steps by name: the yardstick, an agent with weights of its own, one with the student's."""
    torch.manual_seed(0)
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=len(TASK.classes))
    student = create_student("vit_small", TASK, 16)
    own, shared = agent_for(student, TASK, AgentShape()), shared_agent_for(student, TASK, AgentShape())
    students = {parameter.untyped_storage().data_ptr() for parameter in student.parameters()}
    private = [p for p in shared.parameters() if p.untyped_storage().data_ptr() not in students]
    return {
        "vit_tiny": stepper(vit, list(vit.parameters())),
        "own": stepper(own, list(own.parameters())),
        "shared": stepper(shared, private),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=15, help="measured steps of each")
    parser.add_argument("--profile", choices=["vit_tiny", "own", "shared"])
    options = begin(parser)
    steps = cases()
    if options.profile:
        for _ in range(WARMUP):
            steps[options.profile]()
        with torch.profiler.profile() as profile:
            steps[options.profile]()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
        return
    times = [{name: measure(step) for name, step in steps.items()} for _ in range(WARMUP + options.steps)][WARMUP:]
    print_beside(times, "vit_tiny")


if __name__ == "__main__":
    main()
