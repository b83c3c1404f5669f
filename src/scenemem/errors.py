"""The errors a user can cause and mend; the command line shows them as one line and exits with code 2.

Messages name arguments of functions, in backticks; the command line shows them as its flags.
"""

from __future__ import annotations

import os
import re


class UserError(Exception):
    """A mistake of the user: the text has what was seen, what was expected and what to do."""


class SettingError(UserError, ValueError):
    """An impossible setting; a ValueError, too."""


class DataError(UserError):
    """Bad content in a file, located by file, record and field.

    Args:
        file: the file (or folder) that holds the bad content.
        reason: what was seen and what was expected.
        record: which record of the file, for example ``"record 3"`` or ``"line 12"``.
        field: which field of that record, for example ``"path[1]"``.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        reason: str,
        *,
        record: str | None = None,
        field: str | None = None,
    ) -> None:
        self.file = str(file)
        self.reason = reason
        self.record = record
        self.field = field
        place = ", ".join(part for part in (record, f"field '{field}'" if field else None) if part)
        super().__init__(f"{self.file}: {place}: {reason}" if place else f"{self.file}: {reason}")


class NotFiniteError(UserError):
    """Something computed is not a finite number; ``what`` is the first such thing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not a finite number; look for broken features")
        self.what = what


def with_flags(text: str) -> str:
    """A message for the command line: `` `out` `` is shown as ``--out``, `` `max_steps=3` `` as
    ``--max-steps 3``, `` `sample=True` `` as ``--sample`` and `` `model.hints=False` `` as
    ``--model.no-hints``. Types and fields of files, as msgspec names them, are left alone.
    """
    return re.sub(
        r"(?<![Ee]xpected )(?<!got )(?<!field )`([a-z][\w.]*)(?:=([^`]*))?`",
        lambda found: _flag(*found.groups()),
        text,
    )


def _flag(argument: str, value: str | None) -> str:
    table, dot, name = argument.replace("_", "-").rpartition(".")
    flag = f"--{table}{dot}{'no-' if value == 'False' else ''}{name}"
    return flag if value in (None, "True", "False") else f"{flag} {value}".replace("'", "")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or another signal (its ``number``) to end; the text has what was kept and how to go on."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number
