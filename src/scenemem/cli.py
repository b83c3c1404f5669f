"""The command line: finds the command and turns a user's mistake into one line and exit code 2."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

import tyro

from scenemem import __version__
from scenemem.commands import COMMANDS
from scenemem.commands.console import console, output, say, table, write
from scenemem.errors import UserError, with_flags
from scenemem.processes import ending_raises
from scenemem.registry import load_plugin


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``scenemem``; always leaves through ``SystemExit``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.formatwarning = partial(_one_line, set())
    warnings.simplefilter("always", UserWarning, append=True)
    try:
        with ending_raises():
            code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of our output went away (`| head`); keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt as stopped:
        say(with_flags(str(stopped)) or "interrupted; nothing was left half-written")
        code = 128 + getattr(stopped, "number", signal.SIGINT)
    except (UserError, MemoryError, UnicodeEncodeError, OSError) as error:
        text = _mistake(error).encode("utf-8", "backslashreplace").decode()  # names may be no text
        console.print("[bold red]error:[/]", end=" ")
        say(text)
        code = 2
    sys.exit(code)


def _one_line(told: set[str], message: Warning | str, *_place: Any, **_line: Any) -> str:
    """A warning without the place in our code, which is of no use to a user; nothing when it was told before.

    The filter "once" would forget what was told whenever a library changes the filters.
    """
    line = f"warning: {message}\n"
    if line in told:
        return ""
    told.add(line)
    return line


def _mistake(error: Exception) -> str:
    """What to print about an error that a user can mend; any other one is raised again."""
    if isinstance(error, UserError):
        return with_flags(str(error))
    if isinstance(error, MemoryError):
        return "not enough memory; use smaller batches or fewer processes"
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return "the name of a file or folder is no text; rename it"
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        return f"{str(error.filename)[:100]}...: {error.strerror}"
    raise error


def _dispatch(words: Sequence[str]) -> int:
    words = _without_plugins(words)
    if words[:1] == ["--version"]:
        write(f"scenemem {__version__}")
        return 0
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if name is None:
        return _show_commands(words)
    module, function, _ = COMMANDS[name]
    command = getattr(importlib.import_module(f"scenemem.commands.{module}"), function)
    rest = [_run_behind(word) for word in words[len(name.split()) :]]
    if function.startswith("parse"):  # the command reads its own words, because they depend on the first one
        command(rest)
    else:
        tyro.cli(command, prog=f"scenemem {name}", args=rest)
    return 0


def _without_plugins(words: Sequence[str]) -> list[str]:
    """The words without ``--plugin X``, which every command understands; the plugins are loaded."""
    rest, left = list[str](), iter(words)
    for word in left:
        flag, equals, name = word.partition("=")
        if flag != "--plugin":
            rest.append(word)
            continue
        name = name if equals else next(left, "")
        if not name:
            raise UserError(
                "--plugin needs a module or a .py file that registers agents, presets or the like"
            )
        load_plugin(name)
    return rest


def _run_behind(word: str) -> str:
    """A word of the command line, ``weights:NAME`` replaced by the run folder it stands for.

    The name may also be a folder in the layout of the Hugging Face Hub, or ``hf://owner/name``.
    """
    if not word.startswith("weights:"):
        return word
    weights = importlib.import_module("scenemem.runs.weights")  # loads torch, which takes a second
    return str(weights.find_run(word).root)


def _show_commands(words: Sequence[str]) -> int:
    """List the commands; an unknown command is an error."""
    help_wanted = not words or words[-1] in ("-h", "--help")
    group = [name for name in COMMANDS if words and name.split()[0] == words[0]]
    if not help_wanted and (not group or len(words) > 1):
        raise UserError(_unknown(words, group))
    shown = output if help_wanted else console
    rows = [(f"scenemem {name}", COMMANDS[name][2]) for name in group or COMMANDS]
    say("Vision-and-language navigation with a structured scene memory.\n", shown)
    shown.print(table("", ("", ""), rows, box=None, show_header=False, padding=(0, 2)))
    say(
        "\nEvery command explains its flags with --help, and loads a plugin with --plugin MODULE or FILE.py.",
        shown,
    )
    return 0 if help_wanted else 2


def _unknown(words: Sequence[str], group: Sequence[str]) -> str:
    """The message about an unknown command: the nearest ones, else where they are listed."""
    typed = " ".join(word for word in words[:2] if not word.startswith("-"))
    pairs = {name: name for name in group or COMMANDS}
    pairs |= {name.split()[0]: name for name in pairs if not group}  # a group alone is near, too
    near = get_close_matches(typed, pairs, n=3) or get_close_matches(words[0], pairs, n=3)
    found = list(dict.fromkeys(pairs[name] for name in near))
    there = f"there are: {', '.join(group)}" if group else "'scenemem --help' lists all commands"
    meant = f"did you mean {' or '.join(f'scenemem {name}' for name in found)}? " if found else ""
    return f"unknown command '{typed}'; {meant}{there[0].upper() + there[1:] if meant else there}"
