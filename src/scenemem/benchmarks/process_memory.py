"""The largest memory this process held, measured from a chosen moment on where the system allows it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

MEGABYTE = 1e6
_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """Give unused memory back and forget the peak so far; does nothing where the system cannot."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with suppress(OSError):
        _RESET.write_text("5")


def peak_megabytes() -> float | None:
    """Peak resident memory, pages of mapped files included; None where the system does not tell."""
    peak = _status("VmHWM:")
    if peak is not None:
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGABYTE


def resident_megabytes() -> float | None:
    """Resident memory now; None where the system does not tell."""
    return _status("VmRSS:")


def _status(field: str) -> float | None:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024 / MEGABYTE
    return None
