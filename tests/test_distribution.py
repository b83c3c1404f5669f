"""Wheel and sdist hold what they should and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(find_spec("hatchling") is None, reason="needs hatchling, which builds both")

TOP = {
    *("src", "tests", "benchmarks", "tools", "docs", "examples", "notebooks", "Makefile", "mkdocs.yml"),
    *("constraints.txt", "constraints.sha256", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("CITATION.cff", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"),
}
ENDINGS = {".py", ".toml", ".tsv", ".svg", ".css", ".js", ".html", ".md", ".safetensors", ".typed"}


def _tracked(*places: str) -> set[str]:
    """The files of the repository in some folders, without what a build or a test leaves behind."""
    if (REPOSITORY / ".git").exists() and shutil.which("git"):
        told = subprocess.run(
            ["git", "ls-files", *places], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return set(told.stdout.splitlines())
    files = (file for place in places for file in (REPOSITORY / place).rglob("*") if file.is_file())
    return {str(file.relative_to(REPOSITORY)) for file in files if "__pycache__" not in file.parts}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built from a copy of the checkout with a stray file in it."""
    copy, target = tmp_path_factory.mktemp("copy") / "checkout", tmp_path_factory.mktemp("dist")
    for name in _tracked("."):
        if (REPOSITORY / name).is_file():  # not one that was deleted and not committed
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, copy / name)
    strays = ("runs/ssm-0/preset.json", "secret.txt", "src/scenemem/__pycache__/a.pyc", "data/r2r/x.json")
    for stray in strays:
        (copy / stray).parent.mkdir(parents=True, exist_ok=True)
        (copy / stray).write_text("not for others")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(target)], cwd=copy, check=True)
    return target


def test_a_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if ".dist-info/" in name}
    package = {name.removeprefix("src/") for name in _tracked("src") if (REPOSITORY / name).is_file()}
    assert names - about == package
    assert {PurePosixPath(name).suffix for name in package} <= ENDINGS
    assert {name.partition("/")[2] for name in about} == {
        *("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }


def test_an_sdist_holds_what_its_tests_need_and_nothing_else(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert all(member.isfile() for member in members)
    names = {member.name.partition("/")[2] for member in members}
    assert {name.partition("/")[0] for name in names} == TOP
    folders = ("src", "tests", "benchmarks", "tools", "docs", "examples", "notebooks")
    wanted = {name for name in _tracked(*folders) if (REPOSITORY / name).is_file()}
    assert {name for name in names if name.partition("/")[0] in folders} == wanted
