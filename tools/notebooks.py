"""Run the notebooks and keep what they show: ``make notebooks``, after any change to one.

A notebook that cannot be run to its end is left as it was. Once ``[project.urls]`` in pyproject.toml names a
``Repository`` on GitHub, every notebook begins with a button that opens it in Colab and a cell that installs
SceneMem from there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FRONT = "colab"
"""How the ids of the cells begin that are written here and not by hand."""


def main() -> None:
    """Run every notebook in an empty folder and write it back with its outputs."""
    for file in NOTEBOOKS:
        book = read(file)
        written = [cell for cell in book.cells if not cell.id.startswith(FRONT)]
        book.cells = [*front_cells(address(), file.name), *written]
        with tempfile.TemporaryDirectory() as folder:
            run(book, Path(folder))
        file.write_text(nbformat.writes(book) + "\n", encoding="utf-8")  # type: ignore[no-untyped-call]
        sys.stdout.write(f"{file.relative_to(ROOT)}: run and written\n")


def read(file: Path) -> Any:
    """A notebook, as nbformat holds it."""
    return nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]


def run(book: Any, folder: Path) -> None:
    """Run a notebook in a folder and keep what its cells print and return; not messages and progress."""
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=600, record_timing=False, resources=place).execute()
    book.metadata.language_info = {"name": "python"}  # not the version of this Python
    for cell in book.cells:
        if cell.cell_type == "code":
            told = [one for one in cell.outputs if one.get("name") == "stdout" or "execution_count" in one]
            cell.outputs = told


def address() -> str | None:
    """The repository that pyproject.toml names, e.g. ``https://github.com/OWNER/NAME``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: str | None = project["urls"].get("Repository")
    return found


def front_cells(repository: str | None, name: str) -> list[Any]:
    """The button and the cell that installs, for one notebook; none without the address of the repository."""
    if repository is None:
        return []
    page = (
        f"{repository.replace('github.com', 'colab.research.google.com/github')}/blob/main/notebooks/{name}"
    )
    button = f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({page})"
    install = (
        "from importlib.util import find_spec\n\n"
        'if find_spec("scenemem") is None:  # on Colab\n'
        f"    %pip install --quiet git+{repository}\n"
        'print("SceneMem is installed")'
    )
    make = nbformat.v4
    return [
        make.new_markdown_cell(button, id=f"{FRONT}-button"),  # type: ignore[no-untyped-call]
        make.new_code_cell(install, id=f"{FRONT}-install"),  # type: ignore[no-untyped-call]
    ]


if __name__ == "__main__":
    main()
