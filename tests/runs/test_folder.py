"""Run folders: what happens to damaged and cut ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.errors import DataError, UserError
from scenemem.presets import Preset
from scenemem.runs.experiment import begun
from scenemem.runs.folder import RunFolder

LINES = [{"iteration": number, "losses": {"a": 0.5}} for number in (2, 4, 6)]

FULL_DISK = """
import resource, signal, sys
from scenemem.errors import UserError
from scenemem.runs.folder import RunFolder
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
run = RunFolder(Path(sys.argv[1]))
run.log({"iteration": 2})
resource.setrlimit(resource.RLIMIT_FSIZE, (30, 30))
try:
    run.log({"iteration": 4, "losses": {"a": 0.5}})
except UserError as error:
    print(error)
"""


def _run(root: Path) -> RunFolder:
    run = RunFolder(root)
    for line in LINES:
        run.log(line)
    return run


def test_a_line_that_does_not_fit_on_the_disk_is_not_logged(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, capture_output=True, text=True
    )
    run = RunFolder(tmp_path)
    assert finished.stdout.startswith(f"{run.metrics}: cannot be written (")
    assert "the last checkpoint is kept; free some space or make the folder writable, then continue" in (
        finished.stdout
    )
    assert [line["iteration"] for line in run.logged()] == [2], "a line that was cut is none"
    run.forget_after(2)
    assert run.metrics.read_bytes() == b'{"iteration":2}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"garbage", "line 2: not valid JSON"),
        (b"\x00" * 40, "line 2: not valid JSON"),
        (b"\xff\xfe", "line 2"),
        (b"[]", "line 2: expected `object`, got `array`"),
        (b"{}", "line 2: object missing required field `iteration`"),
        (b'{"iteration": "2"}', "line 2, field 'iteration': expected `int`, got `str`"),
        (b'{"iteration": -1}', "line 2, field 'iteration': expected `int` >= 0"),
        (b'{"iteration": 3, "losses": []}', "line 2, field 'losses': expected `object`, got `array`"),
        (b'{"iteration": 3, "validation": {"sr": "x"}}', "line 2, field 'validation"),
    ],
)
def test_a_damaged_line_is_named_and_never_dropped(tmp_path: Path, line: bytes, message: str) -> None:
    run = _run(tmp_path)
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], line + b"\n", *lines[1:]])
    run.metrics.write_bytes(damaged)
    with pytest.raises(DataError, match=message):
        list(run.logged())
    with pytest.raises(DataError, match=message):
        run.forget_after(4)
    assert run.metrics.read_bytes() == damaged


def test_lines_after_the_checkpoint_and_a_cut_one_are_forgotten(tmp_path: Path) -> None:
    run = _run(tmp_path)
    with run.metrics.open("ab") as stream:
        stream.write(b'{"iteration": 8, "los')
    run.forget_after(4)
    assert list(run.logged()) == LINES[:2]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


DESCRIPTION = {
    "name": "ssm",
    "seed": 0,
    "preset": {"agent": "ssm"},
    "data": {"folder": "tiny", "features": "f", "sha256": "0"},
    "versions": {"torch": "2"},
    "plugins": [],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_descriptions_are_messages(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = RunFolder(tmp_path_factory.getbasetemp() / "described")
    run.root.mkdir(exist_ok=True)
    described = json.loads(json.dumps(DESCRIPTION))
    name = data.draw(st.sampled_from(sorted(described)))
    described[name] = data.draw(JSON)
    content = bytearray(msgspec.json.encode(described))
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    run.description.write_bytes(content)
    try:
        begun(run, Preset)
    except UserError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"[]", b"[" * 100_000, b"\xff"])
def test_a_description_that_is_none_is_a_message(tmp_path: Path, content: bytes) -> None:
    run = RunFolder(tmp_path)
    run.description.write_bytes(content)
    with pytest.raises(DataError, match=r"preset\.json"):
        begun(run, Preset)
