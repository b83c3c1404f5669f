from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scenemem.errors import DataError, UserError
from scenemem.sources.fetch import NoAnswerError, RetryPolicy, download
from scenemem.sources.table import RemoteFile
from tests.sources.server import Served, serving

CONTENT = bytes(range(256)) * 64
QUICK = RetryPolicy(seconds=0.3, attempts=3, pause=0.01)


def _remote(address: str, content: bytes = CONTENT, *, known: bool = True) -> RemoteFile:
    digest = hashlib.sha256(content).hexdigest()
    return RemoteFile(f"{address}/f", "f", len(content) if known else None, digest if known else None)


def _fetch(served: Served, target: Path, *, known: bool = True, retries: RetryPolicy = QUICK) -> list[int]:
    told: list[int] = []
    with serving({"/f": served}) as address:
        download(_remote(address, known=known), target, retries, told.append)
    return told


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("length", [True, False])
def test_a_file_arrives_whole_and_its_bytes_are_told(tmp_path: Path, known: bool, length: bool) -> None:
    target = tmp_path / "deep" / "file.bin"
    told = _fetch(Served(CONTENT, length=length), target, known=known)
    assert target.read_bytes() == CONTENT
    assert sum(told) == len(CONTENT)
    assert [file.name for file in target.parent.iterdir()] == ["file.bin"], "nothing else is left"


@pytest.mark.parametrize(
    "served",
    [
        Served(CONTENT, cut=2),
        Served(CONTENT, stall=1),
        Served(CONTENT, busy=2),
        Served(CONTENT, cut=1, busy=1),
        Served(CONTENT, pause=0.12),  # slow, and waited for as long as something comes
        Served(CONTENT, cut=1, ranges=False),  # cannot continue, so it sends everything again
    ],
    ids=["cut", "stall", "busy", "cut and busy", "slow", "no ranges"],
)
def test_a_broken_connection_is_taken_up_again(tmp_path: Path, served: Served) -> None:
    breaks = served.ranges and (served.cut or served.stall)
    told = _fetch(served, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert sum(told) == len(CONTENT), "bytes that are there are not fetched twice"
    if breaks:
        assert any(asked and asked.startswith("bytes=") and asked != "bytes=0-" for asked in served.asked)


def test_a_later_call_goes_on_where_an_earlier_one_broke_off(tmp_path: Path) -> None:
    served = Served(CONTENT, cut=3)
    with serving({"/f": served}) as address:
        with pytest.raises(UserError, match=r"/f: the connection broke 3 times, 14,336 of 16,384 bytes have"):
            download(_remote(address), tmp_path / "f", QUICK)
        assert not (tmp_path / "f").exists()
        download(_remote(address), tmp_path / "f", QUICK)
    assert served.asked[-1] == "bytes=14336-"
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_piece_from_elsewhere_is_not_put_behind_what_is_there(tmp_path: Path) -> None:
    part = tmp_path / ".f.part"
    part.write_bytes(CONTENT[:100])
    with pytest.raises(UserError, match="the connection broke 1 times"):
        _fetch(Served(CONTENT, shift=7), tmp_path / "f", retries=RetryPolicy(0.3, 1, 0.01))
    assert not part.exists()


@pytest.mark.parametrize(
    ("content", "length", "message"),
    [
        (CONTENT[:-1] + b"!", True, r"has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}; it was changed or dam"),
        (CONTENT[:-1], True, "has 16,383 bytes, expected 16,384; it was changed"),
        (CONTENT + b"!", True, "has 16,385 bytes, expected 16,384; it was changed"),
        (b"<!DOCTYPE html><p>sign in", True, r"has 25 bytes, expected 16,384 \(it is a web page\)"),
        (CONTENT * 100, False, "has more than the expected 16,384 bytes"),  # no more of it is read
    ],
)
def test_a_wrong_file_is_refused_and_nothing_of_it_kept(
    tmp_path: Path, content: bytes, length: bool, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        _fetch(Served(content, length=length), tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_an_unknown_host_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match=r"the server answers 404 Not Found; is there a network\?"):
        _fetch(Served(CONTENT, status=404), tmp_path / "f")
    nowhere = RemoteFile("http://nowhere.invalid/f", "f")
    with pytest.raises(
        NoAnswerError, match=r"cannot be reached \(.*'scenemem data fetch NAME --instructions'"
    ):
        download(nowhere, tmp_path / "f", QUICK)


def test_impossible_addresses_places_and_policies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="file:///etc/passwd: only http and https addresses are fetched"):
        download(RemoteFile("file:///etc/passwd", "f"), tmp_path / "f")
    (tmp_path / "f").write_text("a file")
    with pytest.raises(UserError, match=r"f/g: cannot be written \("):
        _fetch(Served(CONTENT), tmp_path / "f" / "g")
    with pytest.raises(UserError, match="`timeout` must be more than 0 seconds, got 0"):
        RetryPolicy(seconds=0)
    with pytest.raises(UserError, match="attempts must be 1 or more, got 0"):
        RetryPolicy(attempts=0)


@settings(max_examples=20, deadline=None)
@example(content=CONTENT, share=1.0, more=b"more")
@given(content=st.binary(min_size=1, max_size=4096), share=st.floats(0, 1), more=st.binary(max_size=4))
def test_whatever_has_arrived_before_the_file_ends_up_the_same(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, share: float, more: bytes
) -> None:
    folder = tmp_path_factory.mktemp("resume")
    (folder / ".f.part").write_bytes(content + more if share == 1 else content[: int(share * len(content))])
    with serving({"/f": Served(content)}) as address:
        download(_remote(address, content), folder / "f", QUICK)
    assert (folder / "f").read_bytes() == content
