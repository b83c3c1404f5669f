"""Help texts are kept: writing one imports torch, which takes seconds, and reading it again should not.

A text is kept in the cache folder under everything it depends on: the words, the sources of the package, the
installed plugins and the terminal. Nothing here imports more than the standard library.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from scenemem.errors import UserError
from scenemem.formats.folder import cache_folder

_ASKED = ("-h", "--help")


def kept_help(words: Sequence[str]) -> str | None:
    """The help text these words ask for, if it was shown before."""
    if (file := _file(words)) is not None:
        with suppress(OSError, UnicodeDecodeError):
            return file.read_text(encoding="utf-8")
    return None


@contextmanager
def keeping_help(words: Sequence[str]) -> Iterator[None]:
    """What the block prints is kept when the words ask for help and it succeeds."""
    file = _file(words)
    if file is None:
        yield
        return
    seen = _Copy(sys.stdout)
    try:
        with redirect_stdout(seen):
            yield
    except SystemExit as leaves:
        if not leaves.code:
            _keep(file, seen.text)
        raise
    _keep(file, seen.text)


class _Copy:
    """Standard output that also remembers what was written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._written = io.StringIO()

    @property
    def text(self) -> str:
        return self._written.getvalue()

    def write(self, text: str) -> int:
        self._written.write(text)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _keep(file: Path, text: str) -> None:
    from scenemem.formats.atomic import atomic_file

    with suppress(OSError, UserError), atomic_file(file) as partial:  # without a cache it is slow, not wrong
        partial.write_text(text, encoding="utf-8")


def _file(words: Sequence[str]) -> Path | None:
    """Where the help for these words is kept; None when they ask for none, or name files of the user."""
    if not words or words[-1] not in _ASKED or any(set(word) & set("/\\.:=") for word in words):
        return None
    package = Path(__file__).parent.parent
    sources = sorted(package.rglob("*.py"))
    facts = (
        *words,
        *((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sources),
        sorted(str(entry) for entry in entry_points(group="scenemem.plugins")),
        (shutil.get_terminal_size(), sys.stdout.isatty(), os.environ.get("TERM"), os.environ.get("NO_COLOR")),
        (sys.version, sys.stdout.encoding),
    )
    return cache_folder() / "help" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.txt"
