"""Stopping a training on request: the step is finished and saved, then the program ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from scenemem.errors import Interrupted
from scenemem.processes import ENDING, handling


class StopRequest:
    """Catches Ctrl-C and signals that ask the program to end, until the work comes to a good place to stop.

    A second one ends the program at once. Used as a context manager; outside of the main thread nothing is
    caught.
    """

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal that came
        self._at_once = False
        self._stack = ExitStack()

    def __enter__(self) -> StopRequest:
        self._stack.enter_context(handling(dict.fromkeys((signal.SIGINT, *ENDING), self._ask)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def came(self) -> bool:
        """Whether somebody asked."""
        return self.number is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise ``Interrupted`` right away inside of this block, whose work may be thrown away."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.came or self._at_once:
            self.number = number
            raise Interrupted("interrupted; the last checkpoint is kept, continue with --resume", number)
        self.number = number
