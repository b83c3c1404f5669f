"""The command line: finds the command and turns a user's mistake into one line and exit code 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import tyro
from rich.markup import escape
from rich.table import Table

from scenemem import __version__
from scenemem.commands.console import console, output
from scenemem.commands.table import COMMANDS
from scenemem.errors import Interrupted, UserError
from scenemem.processes import ending_raises
from scenemem.registry import load_plugin


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``scenemem``; always leaves through ``SystemExit``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with ending_raises():
            code = _dispatch(words)
        sys.stdout.flush()
    except UserError as error:
        text = str(error).encode("utf-8", "backslashreplace").decode()  # names may be no text
        console.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
        code = 2
    except MemoryError:
        console.print("[bold red]error:[/] not enough memory; use smaller batches or fewer processes")
        code = 2
    except Interrupted as stopped:
        console.print(escape(str(stopped)), highlight=False, soft_wrap=True)
        code = 128 + stopped.number
    except KeyboardInterrupt:
        console.print("interrupted; nothing was left half-written")
        code = 130
    except BrokenPipeError:
        # the reader of our output went away (`| head`); keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        console.print("[bold red]error:[/] the name of a file or folder is no text; rename it")
        code = 2
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EILSEQ):
            raise
        console.print(f"[bold red]error:[/] {escape(str(error.filename)[:100])}...: {error.strerror}")
        code = 2
    sys.exit(code)


def _dispatch(words: Sequence[str]) -> int:
    words = _without_plugins(words)
    if words[:1] == ["--version"]:
        output.print(f"scenemem {__version__}", highlight=False)
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
    asked_for_help = not words or words[-1] in ("-h", "--help")
    group = [name for name in COMMANDS if words and name.split()[0] == words[0]]
    if not asked_for_help and (not group or len(words) > 1):
        raise UserError(_unknown(words, group))
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name in group or COMMANDS:
        table.add_row(f"scenemem {name}", COMMANDS[name][2])
    shown = output if asked_for_help else console
    shown.print("Vision-and-language navigation with a structured scene memory.\n")
    shown.print(table)
    shown.print(
        "\nEvery command explains its flags with --help, and loads a plugin with --plugin MODULE or FILE.py."
    )
    return 0 if asked_for_help else 2


def _unknown(words: Sequence[str], group: Sequence[str]) -> str:
    """What to say about a command that there is not: the nearest ones, else where they are listed."""
    asked = " ".join(word for word in words[:2] if not word.startswith("-"))
    pairs = {name: name for name in group or COMMANDS}
    pairs |= {name.split()[0]: name for name in pairs if not group}  # a group alone is near, too
    near = get_close_matches(asked, pairs, n=3) or get_close_matches(words[0], pairs, n=3)
    found = list(dict.fromkeys(pairs[name] for name in near))
    there = f"there are: {', '.join(group)}" if group else "'scenemem --help' lists all commands"
    meant = f"did you mean {' or '.join(f'scenemem {name}' for name in found)}? " if found else ""
    return f"unknown command '{asked}'; {meant}{there[0].upper() + there[1:] if meant else there}"


if __name__ == "__main__":
    main()
