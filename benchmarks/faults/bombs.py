"""Small files that would fill the memory: ``python -m benchmarks.faults.bombs`` prints the peaks.

Every file is read in a process of its own; a reader has to refuse it with one line.
"""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import resource
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from scenemem.errors import DataError
from scenemem.features.pictures import read_picture
from scenemem.formats.annotations import read_landmark_labels, read_view_objects, read_word_vectors
from scenemem.formats.decoding import read_bytes, read_lines
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_feature_hdf5
from scenemem.formats.results import read_trajectories
from scenemem.formats.traces import read_trace
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.runs.config import read_config
from scenemem.runs.folder import RunFolder
from scenemem.sources.convert import read_glove
from scenemem.tasks.vocabulary import Vocabulary

LIMIT = 500
"""Megabytes that a process may have resident at the most."""


def _run(file: Path) -> RunFolder:
    return RunFolder(file.parent)


def _writing(make: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(make())


def _tar_bomb(kind: str) -> bytes:
    """A packed archive of zeros that is a thousandth of what it unpacks to."""
    member = tarfile.TarInfo("BBox/s_v.json")
    member.size = 200 << 20
    if kind == "header":  # a header that claims to describe the next member at great length
        member.type = tarfile.XHDTYPE
    return gzip.compress(member.tobuf(tarfile.USTAR_FORMAT) + bytes(200 << 20), 1)


def _unwritten(file: Path) -> None:
    """Data sets whose chunks were never written: 2 GB of zeros in a megabyte."""
    with h5py.File(file, "w") as content:
        for number in range(230):
            content.create_dataset(f"s_{number}", (36, 1 << 16), np.float32, chunks=(36, 1 << 16))


def _checkpoint(metadata: bytes) -> bytes:
    header = json.dumps({"__metadata__": {"scenemem": metadata.decode()}}).encode()
    return struct.pack("<Q", len(header)) + header


def _huge_picture() -> bytes:
    """A PNG of 400 million pixels, all of them black."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(20_000 * 2501), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zipped(name: str, content: bytes) -> bytes:
    """A zip file with one member."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(name, content)
    return target.getvalue()


EMPTY_LISTS = b"[" + b"[]," * 21_000_000
RECORD = b'{"scan":"","path_id":0,"path":[""],"heading":0,"instructions":[""]}'
VALUES = "holds more than 1,000,000 values"
GROWN = "unpacks to more than [0-9]+ MB, 100 times its size"

Bomb = tuple[str, Callable[[Path], object], Callable[[Path], object], str]

BOMBS: dict[str, Bomb] = {
    "packed lists, episodes": (
        "e.json.gz",
        _writing(lambda: gzip.compress(EMPTY_LISTS, 9)),
        read_episodes,
        "record 0: expected `object`, got `array`",
    ),
    "packed lists, labels": (
        "l.json.gz",
        _writing(lambda: gzip.compress(EMPTY_LISTS, 9)),
        read_landmark_labels,
        GROWN,
    ),
    "one record of lists": (
        "e.json",
        _writing(lambda: b'[{"scan":' + EMPTY_LISTS),
        read_episodes,
        "record 0: not valid JSON",
    ),
    "one walk of lists": (
        "e.json",
        _writing(lambda: b'[{"instr_id":1,"trajectory":' + EMPTY_LISTS),
        read_trajectories,
        "record 0: not valid JSON",
    ),
    "a line of lists": (
        "e.jsonl",
        _writing(lambda: b'{"scan":' + EMPTY_LISTS),
        read_episodes,
        "longer than 16 MB",
    ),
    "lists in a preset": (
        "preset.json",
        _writing(lambda: b'{"a":' + EMPTY_LISTS[:10_000_000]),
        lambda file: _run(file).describe(),
        VALUES,
    ),
    "a long preset": (
        "preset.json",
        _writing(lambda: b'{"a":"' + bytes([0x61]) * (63 << 20) + b'"}'),
        lambda file: _run(file).describe(),
        "is larger than 32 MB",
    ),
    "lists in metrics": (
        "metrics.jsonl",
        _writing(lambda: b'{"iteration":' + EMPTY_LISTS[:10_000_000]),
        lambda file: list(_run(file).logged()),
        VALUES,
    ),
    "lists in a trace": (
        "t.json",
        _writing(lambda: b'{"version":' + EMPTY_LISTS[:9_000_000]),
        read_trace,
        VALUES,
    ),
    "a long description": (
        "c",
        _writing(lambda: _checkpoint(b"[" + b"[]," * 20_000_000)),
        read_checkpoint,
        "its header is longer than 8 MB",
    ),
    "lists in a description": (
        "c",
        _writing(lambda: _checkpoint(b"[" + b"[]," * 2_000_000)),
        read_checkpoint,
        VALUES,
    ),
    "many words": (
        "w.txt",
        _writing(lambda: b"a\n" * 5_000_000),
        Vocabulary.load,
        "more than 1,000,000 words",
    ),
    "zeros": (
        "z.json.gz",
        _writing(lambda: gzip.compress(bytes(300 << 20), 1)),
        read_bytes,
        "is larger than|" + GROWN,
    ),
    "a line of zeros": (
        "z.txt.gz",
        _writing(lambda: gzip.compress(bytes(300 << 20), 1)),
        lambda file: list(read_lines(file)),
        "line 1: is longer than 16 MB|" + GROWN,
    ),
    "zeros in an archive": (
        "BBox.tar.gz",
        _writing(lambda: _tar_bomb("member")),
        lambda file: list(read_view_objects(file)),
        "is larger than|" + GROWN,
    ),
    "zeros in the header of an archive": (
        "BBox.tar.gz",
        _writing(lambda: _tar_bomb("header")),
        lambda file: list(read_view_objects(file)),
        GROWN + "|not a readable archive",
    ),
    "zeros in a zip": ("g.zip", _writing(lambda: zipped("g.txt", bytes(100 << 20))), read_glove, GROWN),
    "zeros in an npz": (
        "w.npz",
        _writing(lambda: zipped("words.npy", bytes(100 << 20))),
        read_word_vectors,
        GROWN,
    ),
    "lists in a configuration": (
        "c.toml",
        _writing(lambda: b"a = " + EMPTY_LISTS[:10_000_000]),
        read_config,
        "is larger than 1 MB",
    ),
    "a huge picture": (
        "0.png",
        _writing(_huge_picture),
        lambda file: read_picture(file, "view 0"),
        "it has 20000 x 20000 pixels|exceeds limit",
    ),
    "chunks that were never written": (
        "f.hdf5",
        _unwritten,
        lambda file: sum(1 for _ in read_feature_hdf5(file)),
        f"data set 's_[0-9]+': {GROWN}",
    ),
}
"""Name of the file, what writes it, what reads it, and what is said about it."""


def main() -> None:
    """Print the peak of every reader."""
    warnings.simplefilter("ignore")
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        for name in BOMBS:
            maker = fork.Process(target=lambda name=name: BOMBS[name][1](Path(folder, BOMBS[name][0])))
            maker.start()
            maker.join()
            with fork.Pool(1) as pool:
                print(f"{pool.apply(_peak, (name, folder)):4} MB  {name}", flush=True)


def _peak(name: str, folder: str) -> int:
    file, _, read, _ = BOMBS[name]
    try:
        read(Path(folder, file))
    except DataError as error:
        print(str(error)[:120])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main()
