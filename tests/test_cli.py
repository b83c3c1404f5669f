"""The command line: finding a command, and how mistakes and interruptions end."""

from __future__ import annotations

import ast
import errno
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import scenemem
from scenemem import __version__
from scenemem.commands import COMMANDS
from scenemem.errors import Interrupted, UserError, with_flags
from tests.commands.helpers import Shell, typed


def test_without_a_command_the_commands_are_listed(shell: Shell) -> None:
    assert shell.split("--version").out == f"scenemem {__version__}\n"
    shown = shell.split().out
    assert all(name in shown for name in COMMANDS)


def test_a_group_lists_its_own_commands_and_an_unknown_command_is_one_line(shell: Shell) -> None:
    shown = shell.split("data", "--help").out
    assert "data check" in shown
    assert "score" not in shown
    assert "data check" in shell.split("data", code=2).err, "a group alone is not a command"
    expected = "error: unknown command 'fly away'; 'scenemem --help' lists all commands\n"
    assert shell.split("fly", "away", code=2).err == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_refuses_wrong_flags(name: str, shell: Shell) -> None:
    assert f"scenemem {name}" in shell.split(*name.split(), "--help").out
    shell.split(*name.split(), "--no-such-flag", code=2)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("the [bold]file[/bold] is bad"), 2, "error: the [bold]file[/bold] is bad"),
        (UserError("name one with `scan`"), 2, "error: name one with --scan"),
        (UserError("no \udcff"), 2, r"error: no \udcff"),
        (MemoryError(), 2, "error: not enough memory; use smaller batches or fewer processes"),
        (
            UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"),
            2,
            "error: the name of a file or folder is no text; rename it",
        ),
        (OSError(errno.ENAMETOOLONG, "too long", "a" * 200), 2, f"error: {'a' * 100}...: too long"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was left half-written"),
        (Interrupted("kept in [runs], `resume=True`", 15), 143, "kept in [runs], --resume"),
    ],
)
def test_mistakes_and_interruptions_never_show_a_traceback(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def failing() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("scenemem.commands.data"), "data_check", failing)
    assert shell.split("data", "check", code=code).err == f"{message}\n"


def test_commands_name_flags_and_functions_name_arguments() -> None:
    shown = "`out`, `max_steps=3`, `device='cpu'`, `resume=True`, `model.hints=False`, `no argument`, 3`4"
    flags = "--out, --max-steps 3, --device cpu, --resume, --model.no-hints, `no argument`, 3`4"
    assert with_flags(shown) == flags
    read = "expected `int` >= 0, got `str`; Expected `object`; missing required field `name`"
    assert with_flags(read) == read, "what a reader says about a file names no argument"
    raised = [
        (file.name, text.value)
        for file in Path(scenemem.__file__).parent.rglob("*.py")
        if file.parent.name != "commands" and file.name != "cli.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
        for text in ast.walk(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    ]
    assert any("`out`" in text for _, text in raised)
    named = [(file, text) for file, text in raised if re.search(r"--[a-z]", text) and "scenemem " not in text]
    assert named == []


def test_a_remark_is_one_line_and_said_once() -> None:
    script = """import warnings
from scenemem import cli
def remarking(words):
    warnings.warn("2 of 3 paths are used")
    with warnings.catch_warnings():  # as torch does, which makes Python forget what was told
        warnings.simplefilter("default", DeprecationWarning)
    warnings.warn("2 of 3 paths are used")
cli._dispatch = remarking
cli.main([])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == "warning: 2 of 3 paths are used\n"


@pytest.mark.parametrize("words", ["eval", "report", "submit --split test --out x", "score --split test"])
@pytest.mark.parametrize("name", ["n" * 300, "weights:" + "n" * 300, "run\udcff"])
def test_names_that_no_file_has_are_one_line(words: str, name: str, shell: Shell) -> None:
    command, *flags = words.split()
    assert shell.refused(command, name, *flags).count("error:") == 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "x"), ValueError("a bug")])
def test_other_errors_are_raised(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("scenemem.commands.data"), "data_check", failing)
    with pytest.raises(type(error)) as caught:
        typed("data", "check")
    assert caught.value is error


@pytest.mark.parametrize("dispatch", ["cli._dispatch", "lambda words: console.print_json({}) or 0"])
def test_a_reader_that_goes_away_gets_no_traceback(dispatch: str) -> None:
    imports = "from scenemem import cli; from scenemem.commands import console"
    code = f"{imports}; cli._dispatch = {dispatch}; cli.main([])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.communicate()[1] == b""
    assert process.returncode == 1


@pytest.mark.parametrize("used", ["scenemem.cli", "scenemem as sm; sm.UserError; sm.load_plugin"])
def test_importing_the_package_or_the_command_line_does_not_import_torch(used: str) -> None:
    code = f"import sys, {used}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["view", "report", "serve", "doctor", "completion", "data fetch"])
def test_help_that_needs_no_torch_does_not_load_it(name: str) -> None:
    code = (
        "import sys; from scenemem.cli import main\n"
        f"try: main({[*name.split(), '--help']!r})\n"
        "except SystemExit: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"
    assert f"scenemem {name}" in done.stdout
