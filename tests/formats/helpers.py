"""Files for readers, and what readers refuse."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scenemem.errors import DataError


def put(file: Path, content: Any) -> Path:
    """Write bytes and texts as they are, anything else as JSON; packed when the name ends in ``.gz``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, (bytes, str)) else json.dumps(content)
    raw = text.encode() if isinstance(text, str) else text
    file.write_bytes(gzip.compress(raw) if file.suffix == ".gz" else raw)
    return file


def pack(file: Path, members: dict[str, bytes]) -> Path:
    """Write an archive, gzipped when the name ends in ``gz``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz" if file.suffix == ".gz" else "w") as archive:
        for name, content in {"folder": None, **members}.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return file


def refused(read: Callable[[Path], Any], file: Path) -> str:
    """What a reader says of a file that it must not take, without the name of the file."""
    with pytest.raises(DataError) as caught:
        found = read(file)
        if isinstance(found, Iterator):
            list(found)
    text = str(caught.value)
    assert text.startswith(f"{file}: ")
    return text.removeprefix(f"{file}: ")
