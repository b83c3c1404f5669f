"""The command line: finds the command and turns a user's mistake into one line and exit code 2."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import tyro
from rich.markup import escape
from rich.table import Table

from scenemem import __version__
from scenemem.commands.console import console, output
from scenemem.errors import Interrupted, UserError
from scenemem.processes import ending_raises
from scenemem.registry import load_plugin

# command -> (module in scenemem.commands, function, what it does); modules are imported when called
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("demo", "demo", "build the houses, train two agents, walk unseen houses, write a report"),
    "data check": ("data", "data_check", "what is in a data folder, what is wrong, what is still needed"),
    "data houses": ("data", "data_houses", "build the embedded houses as a data folder"),
    "data r4r": ("data", "data_r4r", "write R4R from R2R"),
    "data features": ("data", "data_features", "convert a TSV or HDF5 feature file to a mapped store"),
    "data captions": ("data", "data_captions", "build view features from captions of the views"),
    "data objects": ("data", "data_objects", "build view features from object and room annotations"),
    "data join": ("data", "data_join", "join feature stores into a union of tracks"),
    "data images": ("images", "data_images", "build view features from pictures with an image encoder"),
    "train": ("train", "parse", "train an agent from a preset"),
    "eval": ("evaluate", "eval_run", "walk an agent over a split and print its metrics"),
    "compare": ("evaluate", "compare", "mean and standard deviation over seeds and variants"),
    "speak train": ("speak", "parse_train", "train a speaker, which describes paths in words"),
    "speak eval": ("speak", "speak_eval", "BLEU of a speaker beside a retrieval baseline and a control"),
    "speak describe": ("speak", "speak_describe", "describe paths in words"),
    "speak augment": ("speak", "speak_augment", "describe many new paths and write them as episodes"),
    "view": ("pages", "view", "replay episodes decision by decision as self-contained pages"),
    "report": ("pages", "report", "one page about some runs: scores, curves, failures"),
    "serve": ("pages", "serve", "a live page: type an instruction and watch the memory grow"),
    "weights pack": ("evaluate", "weights_pack", "pack the weights of a run, with a model card"),
    "weights": ("evaluate", "weights", "the weights that come with SceneMem"),
    "doctor": ("doctor", "doctor", "versions, devices and data on one page, for a bug report"),
    "score": ("evaluate", "score", "metrics of a result file, ours or another system's"),
    "submit": ("evaluate", "submit", "validate results and write the leaderboard file"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``scenemem``; always leaves through ``SystemExit``."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with ending_raises():
            code = _dispatch(words)
        sys.stdout.flush()
    except UserError as error:
        console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
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
    """A word of the command line, ``weights:NAME`` replaced by the run folder it stands for."""
    if not word.startswith("weights:"):
        return word
    folder = importlib.import_module("scenemem.runs.folder")  # loads torch, which takes a second
    return str(folder.find_run(word).root)


def _show_commands(words: Sequence[str]) -> int:
    """List the commands; an unknown command is an error."""
    asked_for_help = not words or words[-1] in ("-h", "--help")
    group = [name for name in COMMANDS if words and name.split()[0] == words[0]]
    if not asked_for_help and not group:
        console.print(f"[bold red]error:[/] unknown command '{escape(' '.join(words[:2]))}'", highlight=False)
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


if __name__ == "__main__":
    main()
