"""Pages and project files name flags, files and versions that exist, and their code and commands run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scenemem import __version__, extend
from scenemem.formats.connectivity import connectivity_files, read_graphs, read_scan
from scenemem.presets import PRESETS
from scenemem.runs.weights import published
from tests.commands.helpers import Shell, typed

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
        if file.is_file()
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


def test_the_readme_names_every_room_in_the_order_of_the_map() -> None:
    block = next(text for text in _text("README.md").split("```") if text.startswith("\nformats "))
    named = [name for line in block.strip().splitlines() for name in line.partition("  ")[0].split()]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", _text("docs/architecture.md"), flags=re.M)
    rooms = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == [name for name in rooms if name not in ("errors", "processes", "registry", "cli")]
    assert {f"{file.parent.name}" for file in PACKAGE.glob("*/__init__.py")} <= set(named)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_python_of_the_front_page_succeeds_and_turns_back_once(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.+?)^```$", _text(page), re.M | re.S)
    assert len([line for line in code.splitlines() if line]) == 5
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec"), names)
    walk = names["walk"]
    assert (walk.metrics["sr"], walk.stopped) == (1.0, True)
    assert [move.back_to for move in walk.trace.moves].count(None) == len(walk.trace.moves) - 1
    assert f"prints `{capsys.readouterr().out.strip()}`" in _text(page)
    assert "Turned back and reached the goal" in (tmp_path / "replay.html").read_text(encoding="utf-8")


def test_the_readme_has_one_table_of_at_most_five_rows() -> None:
    lines = _text("README.md").splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("|")]
    assert rows == list(range(rows[0], rows[-1] + 1)), "one table"
    assert len(rows) - 2 in range(1, 6)


def test_weights_that_a_page_names_are_there() -> None:
    pages = [REPOSITORY / "README.md", REPOSITORY / "Dockerfile", *REPOSITORY.glob("docs/*.md")]
    named = {
        (name, page.name)
        for page in pages
        for name in re.findall(r"\bweights:([a-z0-9][\w-]+)(?![\w:/-])", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert {(name, page) for name, page in named if name not in {one.name for one in published()}} == set()


def test_no_page_says_that_the_package_is_on_the_index() -> None:
    from_index = re.compile(r"(pip install|uvx|uv tool install) (?!.*--from)(--\S+ \S+ )*scenemem( |$)", re.M)
    for page in ("README.md", "docs/index.md", "docs/quickstart.md", "docs/faq.md"):
        assert not from_index.search(_text(page)), page
    assert "not on PyPI yet" in _text("README.md")


def test_citation_changelog_and_forms_are_of_this_version_and_can_be_read() -> None:
    for file in REPOSITORY.glob(".github/**/*.yml"):
        assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict), file
    citation = yaml.safe_load(_text("CITATION.cff"))
    assert citation["version"] == __version__
    assert citation["preferred-citation"]["url"] == "https://arxiv.org/abs/2103.03454"
    assert f"## {__version__}" in _text("CHANGELOG.md")


def test_builds_run_what_is_there() -> None:
    workflow = _text(".github/workflows/test.yml")
    assert "run: .ci/run" in workflow
    assert all(f'"3.{minor}"' in workflow for minor in (10, 11, 12, 13))


def test_the_container_copies_what_is_there_and_what_it_may_see() -> None:
    seen = {line[1:] for line in _text(".dockerignore").splitlines() if line.startswith("!")}
    copied: set[str] = set()
    for line in _text("Dockerfile").splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (REPOSITORY / source).exists(), source
                copied.add(source)
    assert copied == seen


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("card", "reached", "flags", "cpu"),
    [
        (False, True, (), True),
        (False, False, (), False),
        (True, True, (), False),
        (True, True, ("CPU=1",), True),
        (False, True, ("CPU=",), False),
    ],
)
def test_make_leaves_cuda_out_where_there_is_no_card_and_its_index_is_reached(
    card: bool, reached: bool, flags: tuple[str, ...], cpu: bool, tmp_path: Path
) -> None:
    programs = {"python": int(not reached), **({"nvidia-smi": 0} if card else {})}
    for name, code in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    told = subprocess.run(
        [
            str(shutil.which("make")),
            "-n",
            f"PYTHON={tmp_path / 'python'}",
            f"VENV={tmp_path / 'venv'}",
            *flags,
            "demo",
        ],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    (install,) = (line for line in told.stdout.splitlines() if "pip" in line)
    assert ("--extra-index-url https://download.pytorch.org/whl/cpu" in install) is cpu


BLOCK = re.compile(r"(<!-- not run: (?P<why>.+?) -->\n)?^```python\n(?P<code>.+?)^```$", re.M | re.S)


def test_every_block_of_the_page_on_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PRESETS, "_objects", dict(PRESETS._objects))
    text = _text("docs/api.md")
    blocks = list(BLOCK.finditer(text))
    assert len([found for found in blocks if found["why"] is None]) > 10
    assert [found["why"] for found in blocks if found["why"]] == ["needs the R2R data folder"]
    names: dict[str, Any] = {}
    for found in blocks:
        lines = "\n" * text[: found.start("code")].count("\n")  # errors name the line of the page
        compiled = compile(lines + found["code"], "docs/api.md", "exec")
        if found["why"] is None:
            exec(compiled, names)
    assert (tmp_path / "replay.html").is_file()
    assert (tmp_path / "runs" / "first" / "metrics.jsonl").is_file()
    assert names["found"].n == len(names["episodes"]) == 1080
    assert "ssm-small" in PRESETS


FENCE = re.compile(r"(<!-- not run: .+? -->\n)?^```(\w*)\n(.+?)^```$", re.M | re.S)


def test_the_page_on_graphs_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for left_out, language, code in FENCE.findall(_text("docs/graphs.md")):
        if language == "json":
            Path("flat.json").write_text(code, encoding="utf-8")
        elif language == "python" and not left_out:
            exec(compile(code, "docs/graphs.md", "exec"), names)
        for program, *words in map(str.split, [] if language else code.splitlines()):
            if program == "mkdir":
                Path(*words).mkdir()
            assert program == "mkdir" or typed(*words) == 0, words
    scans = read_graphs("flat.json") + read_graphs("loft.json")
    assert scans == [read_scan(file) for file in connectivity_files("home/connectivity")]
    assert scans[1].viewpoints[2].position == (2.4, 2.6, 1.5), "y was up"
    assert names["walk"].path[0] == "stairs"


EXTENDING = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")


def test_the_tutorial_includes_every_example_and_names_what_is_exported() -> None:
    included = re.findall(r'--8<-- "(.+?)"', EXTENDING)
    assert sorted(included) == sorted(f"examples/{file.name}" for file in REPOSITORY.glob("examples/*.py"))
    named = set(re.findall(r"`([A-Z][A-Z_]+)(?:\.register)?[`(]", EXTENDING))
    assert {"ACTION", "FINAL", "AGENTS", "PRESETS"} <= named
    assert {name for name in named if not hasattr(extend, name)} <= {"PATH"}


def test_the_configuration_of_the_tutorial_trains(tiny_trainable: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    blocks = re.findall(r"^```toml\n(.+?)^```$", EXTENDING, re.M | re.S)
    config.write_text(next(block for block in blocks if "base =" in block), encoding="utf-8")
    command = next(line for line in EXTENDING.splitlines() if line.startswith("scenemem train --config"))
    words = command.replace("mine.toml", str(config)).split()[1:]
    flags = ["--data", str(tiny_trainable), "--out", str(tmp_path / "run"), "--iterations", "2", "--json"]
    small = ["--data.min-count", "1", "--learning.batch", "4", "--selection.split", "val_unseen"]
    trained = subprocess.run(  # a process of its own, so that the plugin is not registered in this one
        [sys.executable, "-m", "scenemem", *words, *flags, *small, "--no-replays"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["iteration"] == 2
    logged = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert set(json.loads(logged.splitlines()[-1])["losses"]) == {"teacher_forcing", "a2c", "progress"}
