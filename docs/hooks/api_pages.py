"""Writes one API page per room of the package, in the order of the map in docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import scenemem

PACKAGE = Path(scenemem.__file__).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation."""
    config.nav = [*(config.nav or []), {"API": [{room: f"api/{room}.md"} for room in rooms(config)]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages themselves."""
    for room in rooms(config):
        files.append(File.generated(config, f"api/{room}.md", content=_page(room)))
    return files


def rooms(config: MkDocsConfig) -> list[str]:
    """The rooms of the package, data flowing downward; rooms the map does not name come last."""
    architecture = (Path(config.docs_dir) / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^\| `(\w+)", architecture, flags=re.MULTILINE)
    there = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    there = {name for name in there if not name.startswith("_")}
    return [name for name in drawn if name in there] + sorted(there - set(drawn))


def _page(room: str) -> str:
    modules = sorted(path.stem for path in (PACKAGE / room).glob("*.py") if not path.stem.startswith("_"))
    names = [f"scenemem.{room}.{module}" for module in modules] if modules else [f"scenemem.{room}"]
    about = f"::: scenemem.{room}\n    options:\n      members: false\n      show_root_heading: false\n\n"
    return f"# {room}\n\n" + (about if modules else "") + "\n\n".join(f"::: {name}" for name in names) + "\n"
