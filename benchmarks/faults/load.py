"""Load on the live page: ``python -m benchmarks.faults.load --walks 2000 --out FILE``.

The page of packaged weights is served by a process of its own. One visitor asks for walks; then several at
once; then the same visitors while others hold connections open whose headers never end, and replace those
that the server gives up, a few at a time (``spread``) or all of them every second (``bursts``). Every request
has a connection of its own and is made once. Walks are taken one after the other; times are ratios to those
of the single visitor.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.machine import this_machine
from scenemem.formats.atomic import atomic_file

SINGLE = 100
"""Walks of the single visitor."""

WAYS = {"spread": (20, 1), "bursts": (1, 4)}
"""How often in a second connections are replaced, and the part of the walks that is taken: one of so many."""

_HALF_SENT = b"GET / HTTP/1.1\r\nHost: local"
_PATIENCE = 60.0  # seconds until a visitor gives up
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/")


def main() -> None:
    """Measure, print what came out, and leave with 1 when a request of the spread load was not answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="weights:basic-houses", help="who walks")
    parser.add_argument(
        "--walks",
        type=int,
        default=2000,
        help="while connections are held and replaced a few at a time; a quarter of them in bursts",
    )
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--held", type=int, default=1100, help="connections with half-sent headers")
    parser.add_argument("--out", type=Path, help="also write what came out to this file, as JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(chosen.run, chosen.walks, chosen.visitors, chosen.held, Path(place) / "log")
    report = {"date": date.today().isoformat(), "machine": this_machine(), "run": chosen.run, **found}
    print(json.dumps(report))
    if chosen.out is not None:
        with atomic_file(chosen.out) as partial:
            partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(found["spread"]["answered"] < chosen.walks)


def measure(run: str, walks: int, visitors: int, held: int, log: Path) -> dict[str, Any]:
    """Serve a run and put load on it."""
    with serving(["serve", run, "--port", "0", "--no-open"], log) as page:
        wishes = page.wishes()
        page.ask(wishes[:SINGLE], 1)  # warms up
        single = page.ask(wishes[:SINGLE], 1)
        crowd = page.ask(list(islice(cycle(wishes), max(SINGLE, walks // 10))), visitors)
        usual = statistics.median(single.seconds)
        found = {"single": single.summary(usual), "crowd": crowd.summary(usual)}
        for name, (turns, parts) in WAYS.items():
            before = page.megabytes()
            with holding(page.port, held, turns) as opened:
                asked = page.ask(list(islice(cycle(wishes), walks // parts)), visitors)
            memory = {"megabytes_before_and_after": [before, page.megabytes()]}
            found[name] = {**asked.summary(usual), "connections_opened": len(opened), **memory}
    facts = {"visitors": visitors, "connections_held": held, "log_bytes": log.stat().st_size}
    return {**facts, **found}


@dataclass(frozen=True)
class Asked:
    """Requests for walks, and how long the answers took."""

    requests: int
    seconds: Sequence[float]  # of those that were answered
    failures: Sequence[str] = ()  # what became of the others

    def summary(self, usual: float) -> dict[str, Any]:
        """Counts, and times as ratios."""
        middle, worst = statistics.median(self.seconds), max(self.seconds)
        ratios = {"median": round(middle / usual, 2), "worst": round(worst / usual, 2)}
        counts = {"requests": self.requests, "answered": len(self.seconds)}
        return {**counts, "failures": dict(Counter(self.failures)), "times_single": ratios}


@dataclass(frozen=True)
class Page:
    """A live page that is up."""

    port: int
    process: int

    def megabytes(self) -> float:
        """Resident memory of the server."""
        status = Path(f"/proc/{self.process}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return round(int(found[1]) / 1024, 1)

    def wishes(self) -> list[bytes]:
        """Requests for walks: the examples of all houses."""
        found = []
        for house in json.loads(self._answer("GET", "/api/session"))["houses"]:
            view = json.loads(self._answer("GET", f"/api/houses/{house['house']}"))
            found += [
                {
                    "house": house["house"],
                    "start": view["scene"]["places"][example["start"]]["id"],
                    "instruction": example["text"],
                }
                for example in view["examples"]
            ]
        return [json.dumps(wish).encode() for wish in found]

    def ask(self, wishes: Sequence[bytes], visitors: int) -> Asked:
        """Let visitors ask for walks, each for one after the other."""
        with ThreadPoolExecutor(visitors) as crowd:
            found = list(crowd.map(self._walk, wishes))
        seconds = [each for each in found if isinstance(each, float)]
        return Asked(len(wishes), seconds, [each for each in found if isinstance(each, str)])

    def _walk(self, wish: bytes) -> float | str:
        """Ask for a walk and wait for its end  ->  seconds, or what came instead of a good answer."""
        started = time.monotonic()
        try:
            answer = self._answer("POST", "/api/walks", wish)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        return (
            time.monotonic() - started
            if b"event: ended\n" in answer
            else answer[:80].decode("utf-8", "replace")
        )

    def _answer(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return connection.getresponse().read()
        finally:
            connection.close()


@contextmanager
def serving(words: Sequence[str], log: Path) -> Iterator[Page]:
    """A live page in a process of its own; what it says goes into a file."""
    with log.open("wb") as target:
        command = [sys.executable, "-m", "scenemem", *words]
        process = subprocess.Popen(command, stdout=target, stderr=target)
    try:
        while (found := _ADDRESS.search(log.read_text())) is None:
            if process.poll() is not None:
                sys.exit(f"the server ended: {log.read_text()}")
            time.sleep(0.1)
        yield Page(int(found[1]), process.pid)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()


@contextmanager
def holding(port: int, count: int, turns: int) -> Iterator[list[float]]:
    """Connections with half-sent headers; ``count`` may be replaced in a second, in so many turns.

    Yields the times at which connections were opened.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    over, opened = threading.Event(), list[float]()

    def hold() -> None:
        held: list[socket.socket] = []
        while True:
            held = [connection for connection in held if not _closed(connection)]
            for _ in range(min(count - len(held), -(-count // turns))):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE))
                held[-1].sendall(_HALF_SENT)
                opened.append(time.monotonic())
            if over.wait(1.0 / turns):
                break
        for connection in held:
            connection.close()

    attack = threading.Thread(target=hold)
    attack.start()
    try:
        yield opened
    finally:
        over.set()
        attack.join()


def _closed(connection: socket.socket) -> bool:
    """Whether the server has given up a connection, on which it says nothing else."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if poll.poll(0):
        connection.close()
        return True
    return False


if __name__ == "__main__":
    main()
