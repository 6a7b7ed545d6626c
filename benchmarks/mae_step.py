# SPDX-License-Identifier: Apache-2.0
"""Steps of pre-training and fine-tuning small ViTs beside one of timm's ViT-Tiny, on a CPU.

    python -m benchmarks.mae_step                      all cases, two threads
    python -m benchmarks.mae_step --threads 1 --steps 30 --cases mae,distilled

A step is forward, loss, backward and fused AdamW on random images, in float32, batch 8 at 224 pixels with patch 16.
Steps alternate in one run; ratios are medians of neighboring steps. `core-s` counts processor time, which other work
on the machine disturbs less than the wall clock.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from viticulture.guides.attention_distillation import AttentionDistillation
from viticulture.methods.mae import MAE
from viticulture.methods.method import Setup
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student
from viticulture.models.weights.files import save

from .clock import begin, count, measure, print_beside

BATCH, PIXELS, WARMUP = 8, 224, 3
HALF = (0.5, 0.5, 0.5)
Loss = Callable[[], Tensor]


def stepper(modules: list[nn.Module], loss: Loss) -> Callable[[], None]:
    """One training step."""
    trained = [p for module in modules for p in module.train().parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def classifier(net: nn.Module) -> Callable[[], None]:
    images, labels = torch.randn(BATCH, 3, PIXELS, PIXELS), torch.randint(1000, (BATCH,))
    return stepper([net], lambda: F.cross_entropy(net(images), labels))


def yardstick() -> Callable[[], None]:
    """timm's ViT-Tiny, 3 heads, class token."""
    return classifier(timm.create_model("vit_tiny_patch16_224"))


def tuned() -> Callable[[], None]:
    """ViT-Tiny with 12 heads and the mean of the patches."""
    data_spec = DataSpec(tuple(map(str, range(1000))), (PIXELS, PIXELS), HALF, HALF)
    return classifier(create_student("mae_tiny", data_spec, 16, {"global_pool": "avg"}))


def mae(teacher: str = "") -> Callable[[], None]:
    """MAE-Tiny at 75 % masking, alone or with a teacher's attention."""
    data_spec = DataSpec((), (PIXELS, PIXELS), HALF, HALF)
    student = create_student("mae_tiny", data_spec, 16)
    guides = {"attention_distillation": AttentionDistillation(student, data_spec, teacher=teacher)} if teacher else {}
    method = MAE(Setup(student, data_spec, guides))
    images = torch.randn(BATCH, 3, PIXELS, PIXELS)

    def loss() -> Tensor:
        batch = {"image": images, "noise": torch.rand(BATCH, method.batch_spec.noise)}
        return torch.stack(list(method.losses(batch).values())).sum()

    return stepper([method], loss)


def distilled() -> Callable[[], None]:
    """MAE-Tiny taught by the last attention layer of MAE-Base, with random weights."""
    data_spec = DataSpec((), (PIXELS, PIXELS), HALF, HALF)
    with TemporaryDirectory() as folder:
        save(create_student("mae_base", data_spec, 16), Path(folder), data_spec)
        return mae(folder)


CASES = {"mae": mae, "distilled": distilled, "fine-tuning": tuned}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--steps", type=count, default=15, help="measured steps of each case")
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas")
    options = begin(parser)
    torch.manual_seed(0)
    runs = {"ViT-Tiny": yardstick(), **{name: CASES[name]() for name in options.cases.split(",")}}
    times = [{name: measure(run) for name, run in runs.items()} for _ in range(WARMUP + options.steps)][WARMUP:]
    print_beside(times, "ViT-Tiny")


if __name__ == "__main__":
    main()
