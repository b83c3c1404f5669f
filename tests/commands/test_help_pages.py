"""``--help`` is rendered once: the second time nothing heavy is loaded, and the page is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenemem.cli import main
from scenemem.commands import help_pages
from scenemem.commands.table import COMMANDS

ASKED = ["eval", "train", "train ssm", "speak train", "data captions"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no plugin that another test has loaded."""
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(help_pages, "loaded_plugins", tuple)
    return tmp_path / "cache" / "help"


def shown(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def pages(cache: Path) -> list[Path]:
    return sorted(file for file in cache.rglob("*") if file.is_file())


@pytest.mark.parametrize("words", ASKED)
def test_second_page_is_the_first(words: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = shown(words, capsys)
    assert len(pages(cache)) == 1
    assert first == pages(cache)[0].read_text(encoding="utf-8")
    pages(cache)[0].write_text("kept", encoding="utf-8")  # it is this file that is shown the next time
    assert shown(words, capsys) == "kept"


def test_kept_page_does_not_load_torch(cache: Path) -> None:
    code = (
        "import sys; from scenemem.cli import main\n"
        "try: main(['eval', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "SCENEMEM_CACHE": str(cache.parent)}
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert (first.stderr.strip(), second.stderr.strip()) == ("True", "False")
    assert first.stdout == second.stdout


def test_width_and_colour_have_pages_of_their_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = set()
    for columns in ("60", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        texts.add(shown("eval", capsys))
    assert len(texts) == len(pages(cache)) == 2
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown("eval", capsys)
    assert len(pages(cache)) == 3


def test_changed_package_is_rendered_again_and_the_old_pages_go(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown("eval", capsys)
    old = pages(cache)
    monkeypatch.setattr("scenemem.__version__", "another")
    shown("eval", capsys)
    assert len(pages(cache)) == 1
    assert pages(cache) != old


@pytest.mark.parametrize("cause", ["loaded", "environment", "installed", "file"])
def test_plugins_and_files_are_never_answered_from_the_cache(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "ssm", "--help"]
    assert help_pages.kept_page(words) is not None
    if cause == "loaded":
        monkeypatch.setattr(help_pages, "loaded_plugins", lambda: ("mine",))
    elif cause == "environment":
        monkeypatch.setenv("SCENEMEM_PLUGINS", "mine")
    elif cause == "installed":
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [group])
    else:
        (tmp_path / "mine.toml").touch()
        words.insert(1, str(tmp_path / "mine.toml"))
    assert help_pages.kept_page(words) is None


def test_nothing_else_is_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(help_pages.kept_page(name.split()) is None for name in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main(["eval", "--no-such-flag", "--help-me"])
    assert ended.value.code == 2
    assert not pages(cache)


def test_cache_that_cannot_be_written_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("SCENEMEM_CACHE", str(tmp_path / "taken"))
    assert "usage" in shown("eval", capsys)
