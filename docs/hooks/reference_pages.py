"""Writes one reference page per package, in the order of the table in docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import scenemem
from scenemem import extend

PACKAGE = Path(scenemem.__file__).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages to the navigation."""
    pages = [{name: f"reference/{name}.md"} for name in packages(config)]
    config.nav = [*(config.nav or []), {"Reference": pages}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages themselves."""
    for name in packages(config):
        files.append(File.generated(config, f"reference/{name}.md", content=_page(name)))
    return files


def packages(config: MkDocsConfig) -> list[str]:
    """Packages and modules right below ``scenemem``; those that the table does not name come last."""
    architecture = (Path(config.docs_dir) / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)", architecture, flags=re.MULTILINE)
    there = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    there = {name for name in there if not name.startswith("_")}
    return [name for name in listed if name in there] + sorted(there - set(listed))


def _page(name: str) -> str:
    modules = sorted(path.stem for path in (PACKAGE / name).glob("*.py") if not path.stem.startswith("_"))
    if name == "extend":
        return f"# {name}\n\n::: scenemem.{name}\n    options:\n      members: false\n\n{_exports()}\n"
    if not modules:
        return f"# {name}\n\n::: scenemem.{name}\n"
    about = f"::: scenemem.{name}\n    options:\n      members: false\n      show_root_heading: false\n\n"
    return f"# {name}\n\n{about}" + "\n\n".join(f"::: scenemem.{name}.{module}" for module in modules) + "\n"


def _exports() -> str:
    """The names of ``scenemem.extend``, each with a link to where it is defined."""
    lines = []
    for name in extend.__all__:
        value = getattr(extend, name)
        linked = getattr(value, "__name__", None) == name  # constants have no module
        lines.append(f"- [`{name}`][{value.__module__}.{name}]" if linked else f"- `{name}`")
    return "\n".join(lines)
