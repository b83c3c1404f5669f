"""Pages of ``--help``, kept: they do not change between two calls, and loading torch takes seconds."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

import scenemem
from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import cache_folder
from scenemem.registry import GROUP, VARIABLE, loaded_plugins

_ASKING = ("-h", "--help")


def kept_page(words: Sequence[str]) -> Path | None:
    """The file for the page these words ask for, which need not be there; None where it must not be kept.

    Plugins and files may change what there is to explain without a trace here: with them nothing is kept.
    """
    if not any(word in _ASKING for word in words) or any(Path(word).is_file() for word in words):
        return None
    if loaded_plugins() or os.environ.get(VARIABLE) or any(importlib.metadata.entry_points(group=GROUP)):
        return None
    style = [str(shutil.get_terminal_size().columns), str(sys.stdout.isatty()), str(sys.stdout.encoding)]
    style += [os.environ.get(name, "") for name in ("TERM", "NO_COLOR", "FORCE_COLOR")]
    name = hashlib.sha256("\0".join([*words, *style]).encode()).hexdigest()
    return cache_folder() / "help" / _package_digest() / name


@contextmanager
def keeping(page: Path) -> Iterator[None]:
    """What is printed inside the block is shown and, unless the block fails, kept as ``page``."""
    both = _Both(sys.stdout)
    try:
        with redirect_stdout(both):
            yield
    except SystemExit as ended:
        if ended.code:
            raise
    _keep(page, both.text.getvalue())


class _Both(io.TextIOBase):
    """Shows what is written, and remembers it."""

    def __init__(self, shown: TextIO) -> None:
        self.text = io.StringIO()
        self._shown = shown

    def write(self, text: str) -> int:
        self.text.write(text)
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()

    def isatty(self) -> bool:
        return self._shown.isatty()

    def fileno(self) -> int:
        return self._shown.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in typeshed
        return self._shown.encoding


def _keep(page: Path, text: str) -> None:
    """Write the page and remove those of other versions, if the cache can be written."""
    with suppress(OSError, UserError):
        page.parent.mkdir(parents=True, exist_ok=True)
        for other in page.parent.parent.iterdir():
            if other != page.parent:
                shutil.rmtree(other, ignore_errors=True)
        with atomic_file(page) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _package_digest() -> str:
    """Of the names, sizes and times of the package's files: another one after every change."""
    found = hashlib.sha256(f"{scenemem.__version__} {sys.version}".encode())
    root = Path(scenemem.__file__).parent
    for folder, inner, files in os.walk(root):
        inner.sort()
        for file in sorted(files):
            if file.endswith((".py", ".toml")):
                state = os.stat(os.path.join(folder, file))
                found.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]
