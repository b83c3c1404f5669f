"""Damaged files guided by coverage: ``python -m benchmarks.faults.guided READER -runs=100000 [CORPUS]``.

Needs atheris (``pip install atheris``), which mutates the good file of a reader towards code that no input
has reached yet; the folder CORPUS keeps what it found. Words after the reader are libFuzzer's. It stops at
the first input that a reader neither reads nor refuses, and writes it to ``crash-...``.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["scenemem.formats", "scenemem.runs", "scenemem.learning"]):
    from benchmarks.faults.readers import attempt, readers, write_beside

_MEMORY = Path("/dev/shm")  # files that never reach a disk


def main() -> None:
    """Fuzz one reader."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
        folder = Path(place)
        found = readers(folder)
        name = sys.argv[1] if len(sys.argv) > 1 else ""
        if name not in found:
            sys.exit(f"name one reader: {', '.join(found)}")
        reader, work, corpus = found[name], folder / "work", folder / "corpus"
        for new in (work, corpus):
            new.mkdir()
        write_beside(found, name, work)
        (corpus / "good").write_bytes(reader.good)
        warnings.simplefilter("ignore")  # libraries warn of what they do not like

        def read(content: bytes) -> None:
            attempt(reader, content, work)

        kept = [word for word in sys.argv[2:] if not word.startswith("-")]  # libFuzzer writes into the first
        flags = [word for word in sys.argv[2:] if word.startswith("-")]
        atheris.Setup([sys.argv[0], "-timeout=20", "-rss_limit_mb=2048", *flags, *kept, str(corpus)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
