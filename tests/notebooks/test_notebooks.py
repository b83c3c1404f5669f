"""The notebooks run from top to bottom in a kernel of their own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path) -> None:
    book = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), (
        "notebooks are kept without outputs"
    )
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.outputs for cell in code), "every cell shows something"


def test_there_is_a_quickstart() -> None:
    assert "quickstart" in [file.stem for file in NOTEBOOKS]
