"""A file server on 127.0.0.1 that can misbehave in every way a download has to survive."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """A file, and how often its server lets a visitor down before it behaves."""

    content: bytes
    cut: int = 0  # answers that end in the middle
    stall: int = 0  # answers that stop in the middle and keep the connection open
    busy: int = 0  # answers 503
    status: int = 200
    ranges: bool = True  # whether it can send the rest of a file
    shift: int = 0  # it sends a piece that begins so many bytes later than asked for
    length: bool = True  # whether it says how long the file is
    pause: float = 0.0  # seconds between two pieces
    asked: list[str | None] = field(default_factory=list)  # the Range header of every request


@contextmanager
def serving(files: dict[str, Served]) -> Iterator[str]:
    """Serve files by their paths; yields the address of the server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            file = files.get(self.path)
            if file is None or file.status != 200:
                self.send_error(404 if file is None else file.status)
                return
            file.asked.append(self.headers["Range"])
            if file.busy:
                file.busy -= 1
                self.send_error(503)
                return
            self._send(file)

        def _send(self, file: Served) -> None:
            begin, wanted = 0, self.headers["Range"]
            if wanted and file.ranges:
                begin = int(wanted.removeprefix("bytes=").removesuffix("-")) + file.shift
                if begin >= len(file.content):
                    self.send_error(416)
                    return
            rest = file.content[begin:]
            # counted before the visitor hears anything, who may leave at once and come back
            stalls, cuts = file.stall > 0, file.stall == 0 and file.cut > 0
            file.stall -= stalls
            file.cut -= cuts
            self.send_response(206 if wanted and file.ranges else 200)
            if wanted and file.ranges:
                self.send_header(
                    "Content-Range", f"bytes {begin}-{len(file.content) - 1}/{len(file.content)}"
                )
            if file.length:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if cuts or stalls:
                self.wfile.write(rest[: len(rest) // 2])
                self.wfile.flush()
                if stalls:
                    time.sleep(1.0)
                return
            for start in range(0, len(rest), 1 + len(rest) // 4):
                self.wfile.write(rest[start : start + 1 + len(rest) // 4])
                self.wfile.flush()
                time.sleep(file.pause)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
