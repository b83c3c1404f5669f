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
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.faults.readers import Reader, attempt, readers, write_beside
from scenemem.errors import DataError
from scenemem.features.pictures import read_picture
from scenemem.formats import archives
from scenemem.formats.annotations import read_view_objects, read_word_vectors
from scenemem.formats.captions import CaptionFiles, read_captions
from scenemem.formats.decoding import read_bytes, read_lines
from scenemem.formats.digests import file_digest
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_feature_hdf5, read_store
from scenemem.formats.originals import read_glove, read_glove_table
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.runs.config import read_config
from scenemem.runs.folder import read_published


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


def _bomb(file: Path, megabytes: int, begin: bytes = b"") -> None:
    """A gzip file of zeros that is a thousandth of what it unpacks to."""
    with gzip.open(file, "wb", compresslevel=1) as stream:
        stream.write(begin)
        for _ in range(megabytes):
            stream.write(bytes(1 << 20))


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    _bomb(tmp_path / "bomb.json.gz", 300)
    with memory_limit(220), pytest.raises(DataError, match=r"unpacks to more than 1?[0-9]{2} MB, 100 times"):
        read_bytes(tmp_path / "bomb.json.gz")
    with memory_limit(220), pytest.raises(DataError, match="line 1: is longer than 64 MB"):
        list(read_lines(tmp_path / "bomb.json.gz"))


@pytest.mark.parametrize("kind", ["member", "header"])
def test_a_tar_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, kind: str) -> None:
    member = tarfile.TarInfo("BBox/s_v.json")
    member.size = 200 << 20
    if kind == "header":  # a header that claims to describe the next member at great length
        member.type = tarfile.XHDTYPE
    _bomb(tmp_path / "BBox.tar.gz", 200, member.tobuf(tarfile.USTAR_FORMAT))
    with memory_limit(250), pytest.raises(DataError, match=r"unpacks to more than|not a readable archive"):
        list(read_view_objects(tmp_path / "BBox.tar.gz"))


def test_a_member_that_claims_to_be_huge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 10)
    _archive(tmp_path / "BBox.tar", "BBox/s_v.json", b'{"v": {}, "w": {}}')
    with pytest.raises(DataError, match=r"s_v\.json: is 0 MB large, expected at most 0"):
        list(read_view_objects(tmp_path / "BBox.tar"))


def _archive(file: Path, name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> None:
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
    with pytest.raises(DataError, match=message):
        list(read_view_objects(tmp_path / "BBox"))
    for read in (read_bytes, lambda file: list(read_lines(file)), file_digest):
        for file in (tmp_path / "zero.json", tmp_path / "BBox" / "s_v.json"):
            with pytest.raises(DataError, match=message):
                read(file)


def _secret(folder: Path) -> Path:
    file = folder / "secret.bin"
    file.write_bytes(np.arange(36 * 4, dtype=np.float32).tobytes())
    return file


def _external_storage(file: h5py.File, secret: Path) -> None:
    file.create_dataset("s_a", (36, 4), np.float32, external=[(str(secret), 0, 36 * 16)])


def _external_link(file: h5py.File, secret: Path) -> None:
    with h5py.File(secret.with_suffix(".hdf5"), "w") as other:
        other["x"] = np.zeros((36, 4), np.float32)
    file["s_a"] = h5py.ExternalLink(str(secret.with_suffix(".hdf5")), "/x")


def _virtual(file: h5py.File, secret: Path) -> None:
    with h5py.File(secret.with_suffix(".hdf5"), "w") as other:
        other["x"] = np.zeros((36, 4), np.float32)
    layout = h5py.VirtualLayout((36, 4), np.float32)
    layout[:] = h5py.VirtualSource(str(secret.with_suffix(".hdf5")), "x", shape=(36, 4))
    file.create_virtual_dataset("s_a", layout)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_external_storage, "takes its values from another file, which is not followed"),
        (_virtual, "takes its values from another file, which is not followed"),
        (_external_link, "is a link, expected a data set of this file"),
    ],
)
def test_a_feature_file_reads_no_other_file(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        make(file, _secret(tmp_path))
    with pytest.raises(DataError, match=message):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))


def test_declared_terabytes_are_not_believed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        file.create_dataset("s_a", (36, 1 << 40), np.float32, chunks=(36, 64))
    with pytest.raises(
        DataError, match=r"has the shape \(36, 1099511627776\), expected \(36, D\) with D at most"
    ):
        list(read_feature_hdf5(tmp_path / "f.hdf5"))
    head = {"descr": "<f2", "fortran_order": False, "shape": (1 << 40, 36, 8)}
    with (tmp_path / "store.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, head)
    record = '{"keys": ["s_a"], "width": 8, "source": "", "encoder": "", "sha256": ""}'
    (tmp_path / "store.json").write_text(record)
    with pytest.raises(DataError, match=r"not a readable \.npy file"):
        read_store(tmp_path / "store.npy")
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {**head, "descr": "<f4"})
    with zipfile.ZipFile(tmp_path / "words.npz", "w", zipfile.ZIP_DEFLATED) as content:
        for name in ("words", "vectors"):
            content.writestr(f"{name}.npy", array.getvalue())
    with memory_limit(200), pytest.raises(DataError, match="says it has the shape"):
        read_word_vectors(tmp_path / "words.npz")


def _glove_zip(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("glove.txt", "lamp 0.5 1\n" * 500)


def test_a_damaged_zip_of_word_vectors_is_one_line(tmp_path: Path) -> None:
    _glove_zip(tmp_path / "glove.zip")
    good = (tmp_path / "glove.zip").read_bytes()
    place = good.index(b"glove.txt") + len("glove.txt")
    packed = bytearray(good)
    packed[place : place + 8] = b"\xff" * 8  # a stream that zlib cannot read
    encrypted = bytearray(good)
    encrypted[6] |= 1
    encrypted[good.index(b"PK\x01\x02") + 8] |= 1
    method = bytearray(good)
    method[8], method[good.index(b"PK\x01\x02") + 10] = 99, 99
    for damaged in (packed, encrypted, method):
        (tmp_path / "glove.zip").write_bytes(damaged)
        with pytest.raises(DataError, match=r"glove\.zip: not a readable archive"):
            read_glove(tmp_path / "glove.zip")


def test_a_zip_that_unpacks_to_one_endless_line_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "glove.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("glove.txt", bytes(100 << 20))
    with memory_limit(220), pytest.raises(DataError, match="line 1: is longer than 64 MB"):
        read_glove(tmp_path / "glove.zip")


def test_a_table_of_word_vectors_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("lamp\n")
    head = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 300)}
    with (tmp_path / "table.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, head)
    with memory_limit(200), pytest.raises(DataError, match=r"not an \.npy table of numbers"):
        read_glove_table(tmp_path / "table.npy", tmp_path / "words.txt")
    np.savez(tmp_path / "table.npz", a=np.zeros((1, 3)))
    (tmp_path / "table.npz").rename(tmp_path / "table.npy")
    with pytest.raises(DataError, match=r"not an \.npy table of numbers"):
        read_glove_table(tmp_path / "table.npy", tmp_path / "words.txt")


def test_a_configuration_that_is_nested_too_deeply_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("base = " + "[" * 100_000)
    with pytest.raises(DataError, match=r"my\.toml: is no TOML"):
        read_config(tmp_path / "my.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device or a pipe, expected a plain file"):
        read_config(tmp_path / "zero.toml")


@pytest.mark.parametrize(
    "content", [b"GIF89a" + b"\0" * 4, b"\x89PNG\r\n\x1a\n" + b"\xff" * 40, b"", b"BM" + b"\xff" * 60]
)
def test_a_damaged_picture_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.jpg").write_bytes(content)
    with pytest.raises(DataError, match=r"0\.jpg: view 0: not a readable picture"):
        read_picture(tmp_path / "0.jpg", "view 0")


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
    seen = "Object missing required field `width` - at `$.features`"
    assert str(caught.value) == f"{file}: does not describe its weights ({seen}); get the file again"


def test_a_checkpoint_that_describes_itself_twice_is_refused(
    known: dict[str, Reader], tmp_path: Path
) -> None:
    pack = known["packed weights"].pack
    assert pack is not None
    (tmp_path / "c").write_bytes(pack(b'{"version": 3, "seed": 1, "seed": 2}'))
    with pytest.raises(DataError, match="or damaged \\('seed' stands twice in one object, expected once\\)"):
        read_checkpoint(tmp_path / "c")


def test_a_checkpoint_with_half_a_character_is_refused(known: dict[str, Reader], tmp_path: Path) -> None:
    pack = known["packed weights"].pack
    assert pack is not None
    (tmp_path / "c").write_bytes(pack(b'{"version": 3, "name": "\\ud800"}'))
    with pytest.raises(DataError, match=r"not a checkpoint of SceneMem, or damaged .*surrogates not allowed"):
        read_checkpoint(tmp_path / "c")
    (tmp_path / "c").write_bytes(pack(b'{"version": 3, "name": "\\ud83d\\ude00"}'))
    assert read_checkpoint(tmp_path / "c").metadata == {"name": "\N{GRINNING FACE}"}


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
        record = b'{"scan": "s", "path_id": 1, "path": ["a"], "heading": 0, "instructions": ["Go."]}'
        (tmp_path / "e.json").write_bytes(b"[" + b",".join([record] * count) + b"]")
        started = time.process_time()
        assert read_episodes(tmp_path / "e.json")[-1].instruction_ids == (f"1_{count - 1}",)
        return time.process_time() - started

    seconds(1000)  # warm
    assert seconds(16_000) < 64 * max(seconds(1000), 0.002), (
        "sixteen times the records, not 256 times the time"
    )
