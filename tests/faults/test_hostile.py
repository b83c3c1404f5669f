"""Files of strangers: bombs, links, lies about sizes, pickles, and random damage to every reader."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import resource
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.faults.bombs import BOMBS, RECORD, zipped
from benchmarks.faults.readers import Reader, attempt, readers, write_beside
from scenemem.errors import DataError
from scenemem.features.pictures import read_picture
from scenemem.formats import decoding
from scenemem.formats.annotations import CaptionFiles, read_captions, read_view_objects, read_word_vectors
from scenemem.formats.decoding import file_digest, read_bytes, read_lines
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_feature_hdf5, read_store
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.runs.config import read_config
from scenemem.runs.folder import RunFolder
from scenemem.runs.weights import read_published
from scenemem.sources.convert import read_glove, read_glove_table

MEGABYTES = 330
"""A process begins with 166 MB; together that stays below 500."""


@contextmanager
def memory_limit(megabytes: int) -> Iterator[None]:
    """Let this process grow by so much only."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (megabytes << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.filterwarnings("ignore:Image size")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, bomb: str) -> None:
    name, make, read, message = BOMBS[bomb]
    make(tmp_path / name)
    with memory_limit(MEGABYTES), pytest.raises(DataError, match=message):
        read(tmp_path / name)


def test_many_small_records_are_read_within_the_limit(tmp_path: Path) -> None:
    count = (15 << 20) // (len(RECORD) + 1)
    (tmp_path / "e.json.gz").write_bytes(gzip.compress(b"[" + b",".join([RECORD] * count) + b"]", 1))
    with memory_limit(MEGABYTES):
        assert len(read_episodes(tmp_path / "e.json.gz")) == count


def test_too_little_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(_text: str, _begin: int) -> object:
        raise MemoryError

    monkeypatch.setattr(decoding, "_decoded", greedy)
    (tmp_path / "preset.json").write_text("{}")
    with pytest.raises(DataError, match="takes more memory than there is"):
        RunFolder(tmp_path).describe()


def _archive(file: Path, name: str, content: bytes, kind: bytes) -> None:
    with tarfile.open(file, "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.size = kind, len(content) if kind == tarfile.REGTYPE else 0
        member.linkname = "/etc/passwd" if kind != tarfile.REGTYPE else ""
        archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("../s_v.json", tarfile.REGTYPE, "leads out of the archive"),
        ("/BBox/s_v.json", tarfile.REGTYPE, "leads out of the archive"),
        ("BBox/../../s_v.json", tarfile.REGTYPE, "leads out of the archive"),
        ("BBox/s_v.json", tarfile.SYMTYPE, "is a link to '/etc/passwd'"),
        ("BBox/s_v.json", tarfile.LNKTYPE, "is a link to '/etc/passwd'"),
        ("BBox/s_v.json", tarfile.FIFOTYPE, "is a link to|is no plain file"),
    ],
)
def test_members_that_lead_elsewhere_are_refused(
    tmp_path: Path, name: str, kind: bytes, message: str
) -> None:
    _archive(tmp_path / "BBox.tar", name, b"{}", kind)
    with pytest.raises(DataError, match=message):
        list(read_view_objects(tmp_path / "BBox.tar"))
    with pytest.raises(DataError, match=message):
        list(read_captions(CaptionFiles("langnav", tmp_path / "BBox.tar")))


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "BBox").mkdir()
    os.mkfifo(tmp_path / "BBox" / "s_v.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    message = "is a device or a pipe, expected a plain file"
    for read in (read_bytes, lambda file: list(read_lines(file)), file_digest, read_config, read_checkpoint):
        for file in (tmp_path / "zero.json", tmp_path / "BBox" / "s_v.json"):
            with pytest.raises(DataError, match=message):
                read(file)
    with pytest.raises(DataError, match=message):
        list(read_view_objects(tmp_path / "BBox"))


def _external_storage(file: h5py.File, folder: Path) -> None:
    (folder / "secret").write_bytes(bytes(36 * 16))
    file.create_dataset("s_a", (36, 4), np.float32, external=[(str(folder / "secret"), 0, 36 * 16)])


def _other(folder: Path) -> str:
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["x"] = np.zeros((36, 4), np.float32)
    return str(folder / "other.hdf5")


def _external_link(file: h5py.File, folder: Path) -> None:
    file["s_a"] = h5py.ExternalLink(_other(folder), "/x")


def _virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((36, 4), np.float32)
    layout[:] = h5py.VirtualSource(_other(folder), "x", shape=(36, 4))
    file.create_virtual_dataset("s_a", layout)


def _terabytes(file: h5py.File, _folder: Path) -> None:
    file.create_dataset("s_a", (36, 1 << 40), np.float32, chunks=(36, 64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_external_storage, "takes its values from another file, which is not followed"),
        (_virtual, "takes its values from another file, which is not followed"),
        (_external_link, "is a link, expected a data set of this file"),
        (_terabytes, r"has the shape \(36, 1099511627776\), expected \(36, D\) with D at most"),
    ],
)
def test_a_feature_file_reads_no_other_file_and_no_terabytes(
    tmp_path: Path, make: Callable[[h5py.File, Path], None], message: str
) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        make(file, tmp_path)
    with pytest.raises(DataError, match=message):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


def test_a_declared_size_is_not_believed(tmp_path: Path) -> None:
    def lying(file: str, descr: str, *shape: int) -> Path:
        with (tmp_path / file).open("wb") as stream:
            head = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, head)
        return tmp_path / file

    record = '{"keys": ["s_a"], "width": 8, "source": "", "encoder": "", "sha256": ""}'
    (tmp_path / "store.json").write_text(record)
    (tmp_path / "words.txt").write_text("lamp\n")
    with memory_limit(200), pytest.raises(DataError, match=r"not a readable \.npy file"):
        read_store(lying("store.npy", "<f2", 1 << 40, 36, 8))
    with memory_limit(200), pytest.raises(DataError, match=r"not a readable \.npy file"):
        read_glove_table(lying("table.npy", "<f4", 1 << 40, 300), tmp_path / "words.txt")
    (tmp_path / "words.npz").write_bytes(
        zipped("words.npy", lying("words.npy", "<f4", 1 << 40, 8).read_bytes())
    )
    with memory_limit(200), pytest.raises(DataError, match=r"not an \.npz file"):
        read_word_vectors(tmp_path / "words.npz")
    np.savez(tmp_path / "table.npz", a=np.zeros((1, 3)))
    (tmp_path / "table.npz").rename(tmp_path / "table.npy")
    with pytest.raises(DataError, match=r"not a readable \.npy file \(it is an archive"):
        read_glove_table(tmp_path / "table.npy", tmp_path / "words.txt")


def test_a_damaged_zip_of_word_vectors_is_one_line(tmp_path: Path) -> None:
    good = zipped("glove.txt", b"lamp 0.5 1\n" * 500)
    place, central = good.index(b"glove.txt") + len("glove.txt"), good.index(b"PK\x01\x02")
    packed, encrypted, method = bytearray(good), bytearray(good), bytearray(good)
    packed[place : place + 8] = b"\xff" * 8  # a stream that zlib cannot read
    encrypted[6] |= 1
    encrypted[central + 8] |= 1
    method[8], method[central + 10] = 99, 99
    for damaged in (packed, encrypted, method):
        (tmp_path / "glove.zip").write_bytes(damaged)
        with pytest.raises(DataError, match=r"glove\.zip: not a readable archive"):
            read_glove(tmp_path / "glove.zip")


@pytest.mark.parametrize(
    "content", [b"GIF89a" + b"\0" * 4, b"\x89PNG\r\n\x1a\n" + b"\xff" * 40, b"", b"BM" + b"\xff" * 60]
)
def test_damaged_pictures_and_configurations_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.jpg").write_bytes(content)
    with pytest.raises(DataError, match=r"0\.jpg: view 0: not a readable picture"):
        read_picture(tmp_path / "0.jpg", "view 0")
    (tmp_path / "my.toml").write_text("base = " + "[" * 100_000)
    with pytest.raises(DataError, match=r"my\.toml: is no TOML"):
        read_config(tmp_path / "my.toml")


class _Harmful:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return readers(tmp_path_factory.mktemp("good"))


def test_every_good_file_is_read(known: dict[str, Reader], tmp_path: Path) -> None:
    for name, reader in known.items():
        write_beside(known, name, tmp_path)
        assert attempt(reader, reader.good, tmp_path) == "read", name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b'{"version": 3, "seed": 1, "seed": 2}',
            r"damaged \('seed' stands twice in one object, expected once",
        ),
        (b'{"version": 3, "name": "\\ud800"}', r"damaged \(holds half a character"),
        (b'{"version": 3, "seed": Infinity}', r"damaged \(holds NaN or Infinity"),
    ],
)
def test_a_description_that_is_no_json_is_refused(
    known: dict[str, Reader], tmp_path: Path, text: bytes, message: str
) -> None:
    pack = known["packed weights"].pack
    assert pack is not None
    (tmp_path / "c").write_bytes(pack(text))
    with pytest.raises(DataError, match=f"not a checkpoint of SceneMem, or {message}"):
        read_checkpoint(tmp_path / "c")
    (tmp_path / "c").write_bytes(pack(b'{"version": 3, "name": "\\ud83d\\ude00"}'))
    assert read_checkpoint(tmp_path / "c").metadata == {"name": "\N{GRINNING FACE}"}


def test_packed_weights_that_do_not_describe_themselves_are_refused(
    known: dict[str, Reader], tmp_path: Path
) -> None:
    reader, file = known["packed weights"], tmp_path / "packed.safetensors"
    assert reader.pack is not None
    about = json.loads(reader.inner)
    del about["features"]["width"]
    file.write_bytes(reader.pack(json.dumps(about).encode()))
    with pytest.raises(DataError) as caught:
        read_published(file)
    seen = "'features.width' is None"
    assert str(caught.value) == f"{file}: does not describe its weights ({seen}); get the file again"


def test_no_reader_opens_a_pickle(known: dict[str, Reader], tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    plain = pickle.dumps(_Harmful(mark))
    objects = io.BytesIO()
    np.save(objects, np.array([_Harmful(mark)], dtype=object), allow_pickle=True)
    packed = io.BytesIO()
    np.savez(packed, words=np.array(["a"]), vectors=np.array([_Harmful(mark)], dtype=object))
    for name, reader in known.items():
        write_beside(known, name, tmp_path)
        for content in (plain, objects.getvalue(), packed.getvalue(), gzip.compress(plain)):
            assert attempt(reader, content, tmp_path) == "refused", name
    assert not mark.exists()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_damage_is_read_or_refused(
    known: dict[str, Reader], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    folder, chance = tmp_path_factory.getbasetemp() / "damaged", random.Random(seed)
    folder.mkdir(exist_ok=True)
    for name, reader in known.items():
        write_beside(known, name, folder)
        attempt(reader, reader.damaged(chance), folder)


def test_many_records_of_one_path_are_read_in_linear_time(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        (tmp_path / "e.json").write_bytes(b"[" + b",".join([RECORD] * count) + b"]")
        started = time.process_time()
        assert read_episodes(tmp_path / "e.json")[-1].instruction_ids == (f"0_{count - 1}",)
        return time.process_time() - started

    seconds(1000)  # warm
    assert seconds(16_000) < 64 * max(seconds(1000), 0.002), (
        "sixteen times the records, not 256 times the time"
    )
