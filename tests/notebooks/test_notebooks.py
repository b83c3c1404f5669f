"""The notebooks run from top to bottom in a kernel of their own, and hold what they show when they do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import NOTEBOOKS, address, front_cells, read, run

SVG = "image/svg+xml"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_shows_what_is_stored(file: Path, tmp_path: Path) -> None:
    stored, book = read(file), read(file)
    for cell in book.cells:
        cell.pop("outputs", None)
    run(book, tmp_path)
    assert [_shown(cell) for cell in stored.cells] == [_shown(cell) for cell in book.cells]
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code), "every cell shows something"
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def _shown(cell: Any) -> list[str]:
    """The outputs of a cell without numbers, which move with processor and version; of a picture its kind."""
    texts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        texts.append(SVG if SVG in data else output.get("text") or data["text/plain"])
    return [re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", text)) for text in texts]


def test_a_change_of_the_outputs_is_seen() -> None:
    def cell(text: str) -> dict[str, Any]:
        return {"outputs": [{"name": "stdout", "text": text}]}

    assert _shown(cell("1 turns back 0.63\n")) == _shown(cell("1 turns back  0.629\n"))
    assert _shown(cell("1 turns back\n")) != _shown(cell("1 goes on\n"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_small_names_no_machine_and_opens_in_colab(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text) < 30_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    book, front = read(file), front_cells(address(), file.name)
    assert [cell.source for cell in book.cells[: len(front)]] == [cell.source for cell in front]
    assert ("colab" in text) is bool(front), "run make notebooks"


def test_the_button_leads_to_the_notebook_and_the_cell_installs_from_the_repository() -> None:
    button, install = front_cells("https://github.com/somebody/something", "quickstart.ipynb")
    page = "https://colab.research.google.com/github/somebody/something/blob/main/notebooks/quickstart.ipynb"
    assert f"]({page})" in button.source
    assert "%pip install --quiet git+https://github.com/somebody/something\n" in install.source
    assert front_cells(None, "quickstart.ipynb") == []


def test_there_is_a_quickstart() -> None:
    assert "quickstart" in [file.stem for file in NOTEBOOKS]
