from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from scenemem import __version__, cli
from scenemem.commands import COMMANDS
from scenemem.errors import UserError


def _exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code() == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_a_group_lists_its_own_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("data", "--help") == 0
    shown = capsys.readouterr().out
    assert "data check" in shown
    assert "score" not in shown
    assert _exit_code("data") == 2, "a group alone is not a command"


def test_an_unknown_command_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("fly", "away") == 2
    assert (
        "error: unknown command 'fly away'; 'scenemem --help' lists all commands" in capsys.readouterr().err
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("--version") == 0
    assert capsys.readouterr().out == f"scenemem {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert f"scenemem {name}" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_flags_exit_with_code_2(name: str) -> None:
    assert _exit_code(*name.split(), "--no-such-flag") == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("the [bold]file[/bold] is bad"), 2, "error: the [bold]file[/bold] is bad\n"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was left half-written\n"),
    ],
)
def test_mistakes_and_interruptions_never_show_a_traceback(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing() -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("scenemem.commands.data"), "data_check", failing)
    assert _exit_code("data", "check") == code
    assert capsys.readouterr().err == message


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


def test_importing_the_command_line_does_not_import_torch() -> None:
    code = "import sys, scenemem.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("words", ["view", "report", "serve", "doctor", "completion", "data images"])
def test_help_that_needs_no_torch_does_not_load_it(words: str) -> None:
    code = (
        "import sys; from scenemem.cli import main\n"
        f"try: main({[*words.split(), '--help']!r})\n"
        "except SystemExit: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"
    assert f"scenemem {words}" in done.stdout
