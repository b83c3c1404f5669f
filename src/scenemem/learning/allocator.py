"""How the C library manages freed memory: keep it, instead of giving it back after every training step."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_LARGEST_KEPT = 64 * 2**20
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let the memory of freed blocks up to 64 MB be used again; whether the C library can (glibc can).

    By default glibc requests every block above 32 MB from the system and returns it when it is freed, so that a
    training step with a large batch begins with ten thousands of page faults, a tenth of its time.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        # a fixed threshold first: memory that is never returned alone would map every small block instead
        return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _NEVER))
    return False
