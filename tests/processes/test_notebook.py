"""The notebook of examples/, run from its first cell to its last in a kernel, with fewer steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import REPOSITORY, Traces

NOTEBOOK = REPOSITORY / "examples/notebook/pendulum.ipynb"
SHORTER = {"6000": "2000", '"every_s": 0.25': '"every_s": 0.04'}  # 1,000 updates have the records that compare needs


def executed(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:  # Any: cells of nbformat have no types
    """Returns the cells with the outputs of this run."""
    traces = Traces()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        for long, short in SHORTER.items():
            cell.source = cell.source.replace(long, short)
    for name, value in {
        **traces.environ, "PYTHONPATH": str(REPOSITORY),
        "IPYTHONDIR": str(home / "ipython"), "JUPYTER_RUNTIME_DIR": str(home / "jupyter"), "MPLBACKEND": "",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    os.environ.pop("MPLBACKEND")
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(home)}}).execute()
    traces.assert_none()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any) -> str:
    """Everything that a cell printed or displayed, as text."""
    return "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.outputs)


@pytest.mark.mp
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = executed(tmp_path, monkeypatch)
    sac, td3, curves, act, evaluated, compared = cells
    for cell in (sac, td3):
        assert "2,000 env steps" in shown(cell)
        assert len(cell.outputs) <= 12, "one line of progress is written again"
    assert any("image/png" in output.get("data", {}) for output in curves.outputs)
    assert -2500 < float(shown(act).split()[-1]) <= 0
    assert "'sac'" in shown(evaluated)
    assert any("text/markdown" in output.get("data", {}) for output in compared.outputs)
