"""The flags of every command, read from the parsers the commands really use."""

from __future__ import annotations

import argparse
import re
import shlex
import warnings
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
class Group:
    """Flags that belong together."""

    title: str
    flags: tuple[Flag, ...]


@dataclass(frozen=True)
class Manual:
    """Everything ``--help`` knows about a command."""

    description: str
    groups: tuple[Group, ...]

    def flag(self, name: str) -> Flag | None:
        """The flag of this name."""
        return next((flag for group in self.groups for flag in group.flags if flag.name == name), None)


class _Parsing(BaseException):
    """Carries what a command was about to parse; not an Exception, so that no command swallows it."""

    def __init__(self, subject: Any, default: Any, words: list[str], program: str) -> None:
        super().__init__()
        self.subject, self.default, self.words, self.program = subject, default, words, program


@cache
def manual_of(example: str) -> Manual:
    """The manual of the command in an example such as ``scenemem eval expert``, which has to parse.

    Raises:
        ValueError: the command does not know a word of the example.
    """
    parsing = _caught(shlex.split(example)[1:])
    parser = _parser(parsing)
    try:
        with mock.patch.object(parser, "error", _refuse):
            parser.parse_args(parsing.words)
    except argparse.ArgumentError as error:
        raise ValueError(f"'{example}' is wrong: {error}") from error
    groups = [Group(*_described(group)) for group in parser._action_groups]
    return Manual(parser.description or "", tuple(group for group in groups if group.flags))


def _caught(words: list[str]) -> _Parsing:
    """Start a command, and stop it where it would read its flags."""

    def stop(subject: Any, *, args: list[str], prog: str, default: Any = None) -> NoReturn:
        raise _Parsing(subject, default, args, prog)

    with mock.patch.object(tyro, "cli", stop):
        try:
            main(words)
        except _Parsing as parsing:
            return parsing
        except SystemExit:
            pass
    raise ValueError(f"'scenemem {' '.join(words)}' reads no flags")


def _parser(parsing: _Parsing) -> Any:
    options = {} if parsing.default is None else {"default": parsing.default}
    with warnings.catch_warnings():
        # there is no other way to ask tyro for flags one by one; the version is pinned in constraints.txt
        warnings.simplefilter("ignore", DeprecationWarning)
        return get_parser(parsing.subject, prog=parsing.program, **options)


def _refuse(message: str) -> NoReturn:
    raise argparse.ArgumentError(None, message)


def _described(group: Any) -> tuple[str, tuple[Flag, ...]]:
    actions = [action for action in group._group_actions if action.dest != "help"]
    return str(group.title), tuple(_flag(action) for action in actions)


def _flag(action: argparse.Action) -> Flag:
    text = " ".join((action.help or "").split())
    found = re.fullmatch(r"(.*?)\.? ?\((?:default: (.*)|required|repeatable.*)\)", text)
    meaning, default = (found[1], found[2] or "") if found else (text, "")
    value = "" if action.nargs == 0 else str(action.metavar).removeprefix("{None}|")
    if not action.option_strings:
        return Flag(value, "", meaning, default)
    return Flag(action.option_strings[0], value, meaning, default)
