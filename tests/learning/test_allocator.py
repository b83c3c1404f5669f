"""Freed memory is used again instead of being asked for page by page."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from scenemem.processes import keep_freed_memory

_FAULTS = """
import resource, sys, torch
from scenemem.processes import keep_freed_memory
if "keep" in sys.argv: assert keep_freed_memory()
def step():
    kept = [torch.ones(10_000_000 - 1_000 * number) for number in range(3)]  # 40 MB each
    kept.append(kept[0] + 1)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
before = faults()
for _ in range(10): step()
print(faults() - before)
"""


def _faults(*words: str) -> int:
    done = subprocess.run(  # its own process: the setting cannot be taken back
        [sys.executable, "-c", _FAULTS, *words], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_a_block_that_was_freed_costs_no_page_faults_again() -> None:
    kept, plain = _faults("keep"), _faults()
    assert kept < max(plain / 4, 1000), "a page fault for every page of 160 MB, ten times"


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_name: str) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert not keep_freed_memory()
