"""The files that hosts and newcomers look for are there, and say what is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scenemem import __version__

yaml: Any = pytest.importorskip("yaml", reason="needs PyYAML, which mkdocs brings")

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("file", sorted(REPOSITORY.glob(".github/**/*.yml")), ids=lambda file: file.name)
def test_forms_and_workflows_are_yaml(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_the_citation_names_version_and_paper() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert citation["preferred-citation"]["url"] == "https://arxiv.org/abs/2103.03454"


def test_the_changelog_has_this_version() -> None:
    assert f"## {__version__}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_calls_the_continuous_integration() -> None:
    workflow = (REPOSITORY / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "run: .ci/run" in workflow
    assert all(f'"3.{minor}"' in workflow for minor in (10, 11, 12, 13))


def test_what_contributors_are_told_to_run_exists() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"(?:tests|docs)/[\w/]+\.(?:py|md)", text):
        assert (REPOSITORY / path).is_file(), path
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert "ifdef CPU" in makefile


def test_the_docker_image_installs_what_it_copies() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (REPOSITORY / source).exists(), source
