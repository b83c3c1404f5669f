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


def packed(members: dict[str, bytes], kind: str = "w:gz") -> bytes:
    """An archive with a folder and these files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=kind) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


def pack(file: Path, members: dict[str, bytes]) -> Path:
    """Write an archive, gzipped when the name ends in ``gz``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(packed(members, "w:gz" if file.suffix == ".gz" else "w"))
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
