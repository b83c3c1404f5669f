"""The server under load: half-sent requests, too many connections, a log that could grow for ever."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from scenemem.viewer import live_guards
from scenemem.viewer.live_guards import Guards
from scenemem.viewer.live_server import LogLimit, live_server


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        message = await receive()
        if message["body"] == b"busy":
            time.sleep(1)  # the whole server waits
        await PlainTextResponse(message["body"])(scope, receive, send)


@contextmanager
def _serving(**options: float) -> Iterator[int]:
    """The port of a server."""
    server = live_server(Guards(_echo, local=True), **options)  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def _half_sent(port: int, text: bytes = b"GET / HTTP/1.1\r\nHost: local") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(text)
    return connection


def _closed(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_half_sent_requests_do_not_keep_visitors_out() -> None:
    with _serving(most_connections=20) as port, ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(_half_sent(port))
        for _ in range(3):
            answer = httpx.post(f"http://127.0.0.1:{port}/", content=b"hello", timeout=5)
            assert (answer.status_code, answer.text) == (200, "hello")


def test_half_sent_requests_go_before_visitors_who_have_said_nothing_yet() -> None:
    request = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello"
    with _serving(most_connections=60) as port, ExitStack() as opened:
        visitor = opened.enter_context(_half_sent(port, b""))
        for _ in range(120):
            opened.enter_context(_half_sent(port))
            time.sleep(0.005)  # the server reads one before the next one comes
        visitor.sendall(request)
        visitor.settimeout(5)
        assert visitor.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_flood_does_not_close_visitors_whose_request_has_arrived() -> None:
    with _serving(most_connections=64) as port, ExitStack() as opened:
        busy = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\nbusy"
        opened.enter_context(_half_sent(port, busy))
        time.sleep(0.3)  # from here on nothing is read for a while
        visitor = opened.enter_context(_half_sent(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
        for _ in range(150):
            flood = opened.enter_context(socket.socket())
            flood.setblocking(False)
            flood.connect_ex(("127.0.0.1", port))
        visitor.settimeout(10)
        assert visitor.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "before", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["first", "second"]
)
def test_a_request_whose_headers_never_end_is_given_up(before: bytes) -> None:
    with (
        _serving(header_seconds=0.3) as port,
        _half_sent(port, before + b"GET / HTTP/1.1\r\nHo") as connection,
    ):
        assert _closed(connection, 5)


def test_a_connection_that_says_nothing_is_given_up() -> None:
    with _serving(header_seconds=0.3) as port, _half_sent(port, b"") as connection:
        assert _closed(connection, 5)


def test_a_body_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_guards, "BODY_SECONDS", 0.3)
    begin = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc"
    with _serving() as port, _half_sent(port, begin) as connection:
        connection.settimeout(5)
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_the_log_ends() -> None:
    limit = LogLimit(2)
    records = [logging.LogRecord("a", 30, "f", 1, "told %d", (n,), None) for n in range(4)]
    assert [limit.filter(record) for record in records] == [True, True, False, False]
    assert records[1].getMessage() == "told 1 (further messages are left out)"
