"""The server under load: clients that send or read slowly, in whatever number, keep no visitor out."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from scenemem.viewer.live_server import Guards, Limits, live_server
from tests.viewer.live.conftest import running

HEAD = b"Host: 127.0.0.1\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n"
SLOW = {
    "silent": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: local",
    "one byte of a body": b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\nx",
    "never reading": b"GET /300000 HTTP/1.1\r\n" + HEAD + b"\r\n",  # bytes; the page itself sends less
}


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        message = await receive()
        if message["body"] == b"busy":
            time.sleep(1)  # the whole server waits
        size = scope["path"].removeprefix("/")
        await PlainTextResponse("x" * int(size) if size else message["body"])(scope, receive, send)


@contextmanager
def _serving(limits: Limits | None = None) -> Iterator[int]:
    """The port of a server."""
    with running(live_server(Guards(_echo, local=True), limits)) as port:
        yield port


def _sent(port: int, text: bytes, source: str = "127.0.0.1") -> socket.socket:
    """A connection on which that much was sent and nothing is read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", port))
    connection.sendall(text)
    return connection


def _received(connection: socket.socket, seconds: float = 5) -> bytes:
    """Everything until the server closes the connection."""
    connection.settimeout(seconds)
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of 500 connections are open in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("kind", ["half a head", "one byte of a body", "never reading"])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["own address", "other address"])
def test_500_slow_clients_do_not_keep_a_visitor_waiting(kind: str, source: str) -> None:
    with _serving() as port, ExitStack() as opened:
        for _ in range(500):
            opened.enter_context(_sent(port, SLOW[kind], source))
        for _ in range(3):
            begun = time.monotonic()
            with _sent(port, GET) as visitor:
                assert visitor.recv(1000).startswith(b"HTTP/1.1 200")
            assert time.monotonic() - begun < 2


def test_a_flood_does_not_close_visitors_whose_request_has_arrived() -> None:
    with _serving(Limits(connections=64)) as port, ExitStack() as opened:
        busy = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: 4\r\n\r\nbusy"
        opened.enter_context(_sent(port, busy))
        time.sleep(0.3)  # from here on nothing is read for a while
        visitor = opened.enter_context(_sent(port, GET))
        for _ in range(150):
            flood = opened.enter_context(socket.socket())
            flood.setblocking(False)
            flood.connect_ex(("127.0.0.1", port))
        assert visitor.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (SLOW["silent"], b""),
        (SLOW["half a head"], b"HTTP/1.1 408"),
        (SLOW["one byte of a body"], b"HTTP/1.1 408"),
        (GET + SLOW["half a head"], b"HTTP/1.1 200"),
    ],
    ids=["silent", "half a head", "one byte of a body", "second request"],
)
def test_a_request_that_does_not_arrive_in_time_is_given_up(text: bytes, answer: bytes) -> None:
    with _serving(Limits(seconds=0.3)) as port, _sent(port, text) as connection:
        received = _received(connection)
    assert received.startswith(answer)
    assert bool(received) == bool(answer)


def test_bytes_now_and_then_are_no_way_round_the_deadline() -> None:
    with _serving(Limits(seconds=1)) as port, _sent(port, SLOW["one byte of a body"]) as connection:
        begun = time.monotonic()
        with pytest.raises(OSError, match=r"reset|pipe"):
            while time.monotonic() - begun < 10:
                connection.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - begun < 5


def test_an_answer_that_is_not_taken_in_time_is_given_up() -> None:
    large = 8_000_000  # bytes, more than the kernel keeps for a client
    request = SLOW["never reading"].replace(b"300000", str(large).encode())
    with _serving(Limits(seconds=0.5)) as port, _sent(port, request) as connection:
        time.sleep(1.5)
        assert len(_received(connection)) < large


def test_too_many_of_one_address_are_told_so() -> None:
    with _serving(Limits(of_address=5)) as port, ExitStack() as opened:
        slow = [opened.enter_context(_sent(port, SLOW["half a head"])) for _ in range(8)]
        other = opened.enter_context(_sent(port, SLOW["half a head"], "127.0.0.2"))
        time.sleep(0.5)
        closed = []
        for connection in (*slow, other):
            connection.setblocking(False)
            try:
                closed.append(connection.recv(1000).split(b"\r\n")[0])
            except BlockingIOError:
                closed.append(b"open")
    assert sorted(closed[:8]) == [b"HTTP/1.1 503 Service Unavailable"] * 3 + [b"open"] * 5
    assert closed[8] == b"open"
