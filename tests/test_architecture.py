"""The living map: data flows downward through the packages, and nothing imports upward."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path

import msgspec
import pytest

import scenemem

PACKAGE = Path(scenemem.__file__).parent

# Top to bottom: a module may import its own room and the rooms before it. docs/architecture.md explains each.
ORDER = (
    "errors",
    "processes",
    "registry",
    "formats",
    "sources",
    "world",
    "tasks",
    "houses",
    "features",
    "models",
    "agents",
    "ssm",
    "learning",
    "evaluation",
    "simulator",
    "viewer",
    "presets",
    "extend",
    "zoo",
    "runs",
    "api",
    "commands",
    "cli",
    "__main__",
)

MODULES = sorted(PACKAGE.rglob("*.py"))


def _room(parts: tuple[str, ...]) -> str | None:
    """The first name below ``scenemem``; None for the package's own ``__init__``."""
    return parts[0].removesuffix(".py") if parts and parts != ("__init__.py",) else None


def _imported_rooms(module: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    if module == PACKAGE / "__init__.py":  # what only type checkers read imports nothing
        tree.body = [
            node
            for node in tree.body
            if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide the direction"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "scenemem" and len(parts) > 1 and parts[1] in ORDER:
                yield node.lineno, parts[1]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_no_module_imports_a_room_below_its_own(module: Path) -> None:
    room = _room(module.relative_to(PACKAGE).parts)
    if room is None:
        assert not list(_imported_rooms(module)), "importing scenemem itself must do nothing"
        return
    assert room in ORDER, f"'{room}' has no place on the map; add it here and in docs/architecture.md"
    for line, imported in _imported_rooms(module):
        assert ORDER.index(imported) <= ORDER.index(room), (
            f"{module}:{line}: {room} imports {imported} upward"
        )


def test_the_import_check_sees_an_upward_import(tmp_path: Path) -> None:
    module = tmp_path / "sneaky.py"
    module.write_text("def f():\n    from scenemem.cli import main\n    import scenemem.world.graph\n")
    assert list(_imported_rooms(module)) == [(2, "cli"), (3, "world")]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_every_module_says_its_role_in_one_line(module: Path) -> None:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    assert text, f"{module} has no docstring"
    assert len(text.splitlines()[0]) <= 110


def test_the_map_in_the_docs_names_every_room() -> None:
    text = (PACKAGE.parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    for module in MODULES:
        room = _room(module.relative_to(PACKAGE).parts)
        assert room is None or f"`{room}" in text, f"docs/architecture.md does not mention '{room}'"


def test_only_the_command_and_the_default_data_import_the_generator_of_the_houses() -> None:
    generator = re.compile(r"from scenemem\.houses\.(build|plan|furniture|viewpoints|instructions|features)")
    importing = {
        module.relative_to(PACKAGE).as_posix()
        for module in MODULES
        if module.parent.name != "houses" and generator.search(module.read_text(encoding="utf-8"))
    }
    assert importing == {"commands/data.py", "runs/experiment.py", "simulator.py"}


def test_no_class_name_stands_twice() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(module.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


RECORDS = [module for module in MODULES if module.parent.name in {"formats", "world", "tasks", "evaluation"}]


@pytest.mark.parametrize("module", RECORDS, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_records_cannot_be_changed(module: Path) -> None:
    loaded = importlib.import_module(f"scenemem.{module.parent.name}.{module.stem}")
    for name, found in vars(loaded).items():
        if isinstance(found, type) and not name.startswith("_") and found.__module__ == loaded.__name__:
            if issubclass(found, msgspec.Struct):
                assert found.__struct_config__.frozen, name
            if is_dataclass(found):
                assert getattr(found, "__dataclass_params__").frozen, name  # noqa: B009, mypy does not know it


def _lines(folder: Path, *without: str) -> int:
    files = (file for file in folder.rglob("*.py") if file.relative_to(folder).parts[0] not in without)
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


@pytest.mark.parametrize(
    ("what", "measured", "ceiling"),
    [
        ("modules of the package", lambda: len(MODULES), 139),
        ("lines of the package", lambda: _lines(PACKAGE), 30_450),
        ("lines of the core", lambda: _lines(PACKAGE, "zoo", "houses", "viewer"), 20_550),
        ("lines of the room ssm", lambda: _lines(PACKAGE / "ssm"), 1_290),
        ("lines of the tests", lambda: _lines(Path(__file__).parent), 27_900),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_growth_needs_a_reason(what: str, measured: Callable[[], int], ceiling: int) -> None:
    assert measured() <= ceiling, (
        f"{measured():,} {what}, more than {ceiling:,}; delete something, or raise the ceiling with a "
        "reason in docs/architecture.md"
    )
