# SPDX-License-Identifier: Apache-2.0
"""The notebook of the docs runs from its first cell to its last."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "ten-minutes.ipynb"


def test_the_notebook_has_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient runs notebooks")
    pytest.importorskip("ipykernel", reason="nbclient needs a kernel of Python's")
    pytest.importorskip("pandas", reason="the extra `pandas`")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call, unused-ignore]
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    said = "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    top1 = float(said.partition("% of ")[0].rpartition("\n")[2])
    assert top1 > 50, "chance is 10 %"
    assert "vit" in said.lower() or "VisionTransformer" in said
