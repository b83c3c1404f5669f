"""Pages and project files name flags, files and versions that exist, and show the commands first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scenemem import __version__
from tests.commands.helpers import Shell

yaml: Any = pytest.importorskip("yaml", reason="needs PyYAML, which mkdocs brings")

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "scenemem"
DOTTED = re.compile(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*\.[a-z0-9.-]*[a-z0-9]")


def _text(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_every_setting_a_page_names_is_a_flag_of_train(shell: Shell) -> None:
    files = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("runs/*")]
    files += PACKAGE.glob("ssm/*.py")
    named = {
        flag: file.name
        for file in files
        if file.is_file() and file.name != "log.md"  # history: the flags of its day
        for flag in DOTTED.findall(file.read_text("utf-8"))
    }
    assert len(named) > 10
    helps = [shell.split("train", preset, "--help").out for preset in ("ssm", "ssm-plus")]
    known = set(DOTTED.findall("".join(helps)))
    assert {flag: page for flag, page in named.items() if flag not in known} == {}


def test_the_readme_shows_commands_and_python_before_line_25() -> None:
    opening = "\n".join(_text("README.md").splitlines()[:24])
    for line in ("make demo", "make test", "import scenemem as sm", "agent.walk("):
        assert line in opening


@pytest.mark.parametrize(
    ("page", "pattern", "folder", "least"),
    [
        ("README.md", r"\]\((?!\w+://)([^)#]+)", ".", 5),
        ("docs/glossary.md", r"`([\w/]+\.py)`", "src/scenemem", 10),
        ("CONTRIBUTING.md", r"((?:tests|docs)/[\w/]+\.(?:py|md))", ".", 1),
    ],
)
def test_files_that_a_page_names_exist(page: str, pattern: str, folder: str, least: int) -> None:
    named = set(re.findall(pattern, _text(page)))
    assert len(named) > least
    assert [name for name in named if not (REPOSITORY / folder / name).is_file()] == []


def test_the_tree_of_the_readme_is_the_package() -> None:
    readme = _text("README.md")
    tree = readme[readme.index("src/scenemem/\n") :]
    there = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("_")}
    there |= {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    named = set(re.findall(r"(?:^  |   )([a-z_]+(?:/|\.py))  ", tree, flags=re.MULTILINE))
    assert named - {"notebooks/", "docs/", "runs/"} == there - {"runs/"}


@pytest.mark.parametrize("file", sorted(REPOSITORY.glob(".github/**/*.yml")), ids=lambda file: file.name)
def test_forms_and_workflows_are_yaml(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_citation_and_changelog_have_this_version() -> None:
    citation = yaml.safe_load(_text("CITATION.cff"))
    assert citation["version"] == __version__
    assert citation["preferred-citation"]["url"] == "https://arxiv.org/abs/2103.03454"
    assert f"## {__version__}" in _text("CHANGELOG.md")


def test_builds_run_what_is_there() -> None:
    workflow = _text(".github/workflows/test.yml")
    assert "run: .ci/run" in workflow
    assert all(f'"3.{minor}"' in workflow for minor in (10, 11, 12, 13))
    assert "ifdef CPU" in _text("Makefile")
    for line in _text("Dockerfile").splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (REPOSITORY / source).exists(), source
