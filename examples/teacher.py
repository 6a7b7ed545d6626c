# SPDX-License-Identifier: Apache-2.0
"""Train a small CNN, let it teach a small ViT, and compare the ViT with one that learns from labels alone.

python examples/teacher.py [DATA]            by default 200 handwritten digits of scikit-learn
"""

import sys
from pathlib import Path

import viticulture


def main(data: str = "digits", epochs: int = 60, out: str = "runs") -> dict[str, float]:
    """Return the test accuracies of teacher, student and baseline, in [0, 1]."""
    few = {"data.per_class": 20} if data == "digits" else {}
    teacher = viticulture.train(data, epochs=epochs, student="resnet10t", out=f"{out}/teacher", overrides=few)
    taught = {"guides.logits": {"teacher": str(Path(out) / "teacher"), "weight": 0.5}}
    student = viticulture.train(data, epochs=epochs, student="vit_nano", out=f"{out}/student", overrides=few | taught)
    alone = viticulture.train(data, epochs=epochs, student="vit_nano", out=f"{out}/alone", overrides=few)
    accuracies = {"teacher": teacher.accuracy, "student": student.accuracy, "labels alone": alone.accuracy}
    for name, accuracy in accuracies.items():
        print(f"{name}: {accuracy:.1%}")
    return accuracies


if __name__ == "__main__":
    main(*sys.argv[1:2])
