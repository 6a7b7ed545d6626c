# SPDX-License-Identifier: Apache-2.0
"""OpenVINO reads our ONNX files and equals torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from doc_scripts import DOCS
from viticulture.deploy.onnx.graph import to_onnx
from viticulture.models.data_spec import DataSpec
from viticulture.models.students import create_student

for needed in ("openvino", "onnx", "onnxscript"):
    pytest.importorskip(needed, reason="the extra `deploy`")

TASK = DataSpec(("a", "b", "c"), (32, 32), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.mark.parametrize(("name", "patch"), [("vit_nano", 4), ("dhvt_nano", 4)])
def test_openvino_equals_torch(name: str, patch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lines of the page on deploying."""
    torch.manual_seed(0)
    student = create_student(name, TASK, patch).eval()
    to_onnx(student, tmp_path / "vines.onnx", TASK)
    _, _, section = (DOCS / "guides" / "deploy.md").read_text(encoding="utf-8").partition("## OpenVINO")
    lines = section.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    exec(lines, known)
    for images in (torch.randn(1, 3, 32, 32), torch.randn(3, 3, 32, 32)):
        with torch.inference_mode():
            expected = student(images)
        (logits,) = known["compiled"](images.numpy()).values()
        gap = (torch.from_numpy(logits) - expected).abs().max() / expected.abs().max()
        assert gap < 1e-4, "float32 with other kernels"
