from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from scenemem.errors import DataError
from scenemem.formats.tensors import CHECKSUM, read_tensor_file, write_tensor_file
from tests.formats.helpers import put, refused

TENSORS = {
    "weights": torch.arange(12, dtype=torch.float32).view(3, 4),
    "step": torch.tensor(7.0),
    "state": torch.arange(5, dtype=torch.uint8),
    "half": torch.ones(2, 2, dtype=torch.bfloat16),
    "none": torch.zeros(0, 3),
}
TEXTS = {"description": '{"name": "ä"}', "empty": ""}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tensors") / "tensors"
    write_tensor_file(file, TENSORS, TEXTS)
    return file


def test_tensors_and_texts_come_back_exactly(written: Path) -> None:
    tensors, texts = read_tensor_file(written)
    assert {name: text for name, text in texts.items() if name != CHECKSUM} == TEXTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    for _ in range(5):  # the library shuffles the texts
        write_tensor_file(written.with_name("again"), TENSORS, TEXTS)
        assert written.with_name("again").read_bytes() == written.read_bytes()


@given(data=st.data())
def test_a_flipped_bit_is_refused_wherever_it_is(
    data: st.DataObject, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(written.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    file = written.with_name("flipped")
    file.write_bytes(content)
    try:
        tensors, texts = read_tensor_file(file)
    except DataError as error:
        assert "not a tensor file of SceneMem, or damaged" in str(error)  # noqa: PT017
        return
    # what is left are the spaces that fill up the header, and the name of the checksum
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert CHECKSUM not in texts or {**TEXTS, CHECKSUM: texts[CHECKSUM]} == texts


def test_a_file_without_a_checksum_says_so(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign")
    assert read_tensor_file(tmp_path / "foreign")[1] == {}


HEADER = b'{"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'.ljust(90)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        (2**62).to_bytes(8, "little") + b"{}",  # an endless header
        (90).to_bytes(8, "little") + HEADER,  # terabytes
    ],
)
def test_damaged_hostile_and_missing_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = put(tmp_path / "file", content)
    assert refused(read_tensor_file, file).startswith("not a tensor file of SceneMem, or damaged")
    assert (
        refused(lambda file: read_tensor_file(file, "checkpoint"), tmp_path / "none") == "no such checkpoint"
    )
    assert (
        refused(lambda file: read_tensor_file(file, "checkpoint"), tmp_path) == "is a folder, expected a file"
    )


def test_reading_again_and_again_takes_no_more_memory(tmp_path: Path) -> None:
    file = tmp_path / "many.safetensors"
    write_tensor_file(file, {f"t{number}": torch.zeros(300, 2) for number in range(50)}, {})
    read_tensor_file(file)
    tracemalloc.start()
    try:
        read_tensor_file(file)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            read_tensor_file(file)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 5_000, "50 tensors left 50 numbers each time"
