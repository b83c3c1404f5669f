"""The flags of every command, read from the parsers the commands really use."""

from __future__ import annotations

import argparse
import re
import shlex
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn
from unittest import mock

import tyro
from tyro.extras import get_parser

from scenemem.cli import main


@dataclass(frozen=True)
class Flag:
    """One flag or positional argument."""

    name: str
    value: str  # what it takes; empty for a switch
    meaning: str
    default: str  # empty when it has to be given


@dataclass(frozen=True)
class Manual:
    """Everything ``--help`` shows about a command."""

    description: str
    groups: dict[str, tuple[Flag, ...]]  # by title

    def flags(self) -> dict[str, Flag]:
        """All flags by their names."""
        return {flag.name: flag for group in self.groups.values() for flag in group}


@cache
def manual_of(example: str) -> Manual:
    """The manual of the command in an example such as ``scenemem eval expert``, which has to parse.

    Raises:
        ValueError: the command has no flags, or not one of the example.
    """
    found: list[tuple[Any, list[str]]] = []

    def stop(subject: Any, *, args: list[str], prog: str, default: Any = None) -> NoReturn:
        options = {} if default is None else {"default": default}
        with warnings.catch_warnings():
            # tyro has no other way to list flags one by one; its version is pinned in constraints.txt
            warnings.simplefilter("ignore", DeprecationWarning)
            found.append((get_parser(subject, prog=prog, **options), args))
        raise SystemExit

    with mock.patch.object(tyro, "cli", stop), suppress(SystemExit):
        main(shlex.split(example)[1:])
    if not found:
        raise ValueError(f"'{example}' reads no flags")
    parser, words = found[0]
    try:
        with mock.patch.object(parser, "error", _refuse):
            parser.parse_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(f"'{example}' is wrong: {error}") from error
    groups = {str(group.title): _flags(group) for group in parser._action_groups}
    return Manual(parser.description or "", {title: flags for title, flags in groups.items() if flags})


def _refuse(message: str) -> NoReturn:
    raise argparse.ArgumentError(None, message)


def _flags(group: Any) -> tuple[Flag, ...]:
    return tuple(_flag(action) for action in group._group_actions if action.dest != "help")


def _flag(action: argparse.Action) -> Flag:
    text = " ".join((action.help or "").split())
    found = re.fullmatch(r"(.*?)\.? ?\((?:default: (.*)|required|repeatable.*)\)", text)
    meaning, default = (found[1], found[2] or "") if found else (text, "")
    value = "" if action.nargs == 0 else str(action.metavar).removeprefix("{None}|")
    if not action.option_strings:
        return Flag(value, "", meaning, default)
    return Flag(action.option_strings[0], value, meaning, default)
