"""Signals and worker processes: a program that is asked to end tidies up, and leaves no worker behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from scenemem.errors import Interrupted

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a program to end: of a scheduler or ``kill``, and of a terminal that was closed."""


def end_with_parent() -> None:
    """End this worker as soon as the process that started it is gone, however that ended.

    Called in the worker, for example as the ``initializer`` of a pool. Without it a worker whose parent was
    killed waits for work forever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


@contextmanager
def ending_raises() -> Iterator[None]:
    """Let the signals of ``ENDING`` raise ``Interrupted``, so that everything open is closed and tidied up.

    Signals that are ignored stay ignored (``nohup``), and those with another handler keep it.
    """

    def raise_(number: int, _frame: FrameType | None) -> None:
        raise Interrupted("interrupted; nothing was left half-written", number)

    with handling(dict.fromkeys(ENDING, raise_)):
        yield


@contextmanager
def handling(handlers: dict[int, Any]) -> Iterator[None]:
    """Handle signals for a while; only the main thread can, elsewhere nothing changes."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
