# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from their first cell to their last."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [ROOT / "docs" / "ten-minutes.ipynb", *sorted((ROOT / "examples").glob("*.ipynb"))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def outputs(path: Path, folder: Path) -> str:
    """Run a notebook in a folder, and return what its cells print."""
    pytest.importorskip("nbclient", reason="nbclient runs notebooks")
    pytest.importorskip("ipykernel", reason="nbclient needs a kernel of Python's")
    pytest.importorskip("pandas", reason="the extra `pandas`")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call, unused-ignore]
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )


@pytest.mark.slow
def test_ten_minutes(tmp_path: Path) -> None:
    printed = outputs(ROOT / "docs" / "ten-minutes.ipynb", tmp_path)
    top1 = float(printed.partition("% of ")[0].rpartition("\n")[2])
    assert top1 > 50, "chance is 10 %"
    assert "vit" in printed.lower() or "VisionTransformer" in printed


@pytest.mark.slow
def test_teacher(tmp_path: Path) -> None:
    printed = outputs(ROOT / "examples" / "teacher.ipynb", tmp_path)
    (accuracies,) = re.findall(
        r"'teacher': '([0-9.]+)%', 'with it': '([0-9.]+)%', 'labels alone': '([0-9.]+)%'", printed
    )
    assert all(float(accuracy) > 20 for accuracy in accuracies), "chance is 10 %"
    assert "train/logits" in printed


@pytest.mark.slow
def test_plugin(tmp_path: Path) -> None:
    printed = outputs(ROOT / "examples" / "plugin.ipynb", tmp_path)
    assert "train/confident_entropy" in printed
    assert "did you mean" in printed or "wieght" in printed
