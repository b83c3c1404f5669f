"""What a process owes the system: it ends when asked, leaves no worker behind, and reuses freed memory."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from scenemem.errors import Interrupted

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a program to end: of a scheduler or ``kill``, and of a terminal that was closed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_LARGEST_KEPT = 64 * 2**20
_NEVER = 2**31 - 1


def end_with_parent() -> None:
    """End this worker as soon as the process that started it is gone, however that ended.

    Without it a worker whose parent was killed waits for work forever.
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


def keep_freed_memory() -> bool:
    """Let the memory of freed blocks up to 64 MB be used again; whether the C library can (glibc can).

    By default glibc requests every block above 32 MB from the system and returns it when it is freed, so that
    a training step with a large batch begins with ten thousands of page faults, a tenth of its time.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        # a fixed threshold first: memory that is never returned alone would map every small block instead
        return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _NEVER))
    return False
