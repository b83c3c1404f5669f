"""One thread that does what visitors of the live page ask for, in turn, with a bounded queue before it.

Networks are shared by all visitors and watched with hooks while they walk, so only one rollout runs at a
time; visitors who wait for the same agent walk side by side in it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

Wish = TypeVar("Wish")


class BusyError(Exception):
    """The queue is full; try again later."""


class AbandonedError(Exception):
    """Raised inside a rollout that nobody waits for any more."""


@dataclass(eq=False)
class Job(Generic[Wish]):
    """Something to do for one visitor."""

    key: Hashable  # jobs with the same key can be done together
    wish: Wish
    tell: Callable[[Any], None]  # called from the thread with every result as it comes
    fail: Callable[[Exception], None]  # called from the thread instead of the last result
    told: int = 0  # results so far
    _left: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """The visitor is gone."""
        self._left.set()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this any more."""
        return self._left.is_set()

    def report(self, number: int, result: object) -> None:
        """Tell result ``number`` once, however often it is computed."""
        if number >= self.told and not self.cancelled:
            self.told = number + 1
            self.tell(result)


Work = Callable[[Sequence[Job[Wish]]], None]
"""Does jobs of one key and reports to each of them."""


class Bench(Generic[Wish]):
    """Runs jobs one batch at a time.

    Args:
        work: does a batch; may raise ``AbandonedError`` when all of its jobs are cancelled.
        waiting: jobs that may wait; more are refused.
        together: jobs in one batch at most.
    """

    def __init__(self, work: Work[Wish], *, waiting: int, together: int) -> None:
        self._work = work
        self._most_waiting = waiting
        self._together = together
        self._queue: deque[Job[Wish]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="live-bench", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[Job[Wish]]) -> None:
        """Queue all of these jobs or none.

        Raises:
            BusyError: there is no space for them.
        """
        with self._changed:
            self._queue = deque(job for job in self._queue if not job.cancelled)
            if self._closed or len(self._queue) + len(jobs) > self._most_waiting:
                raise BusyError
            self._queue.extend(jobs)
            self._changed.notify()

    def close(self) -> None:
        """Finish what is being done, refuse the rest."""
        with self._changed:
            self._closed = True
            left, self._queue = self._queue, deque()
            self._changed.notify()
        for job in left:
            job.fail(BusyError())
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while jobs := self._next():
            self._do(jobs)

    def _next(self) -> list[Job[Wish]]:
        """The oldest job and those that can be done with it; nothing when closed."""
        with self._changed:
            while not self._closed:
                waiting = [job for job in self._queue if not job.cancelled]
                chosen = [job for job in waiting if job.key == waiting[0].key][: self._together]
                self._queue = deque(job for job in waiting if job not in chosen)
                if chosen:
                    return chosen
                self._changed.wait()
            return []

    def _do(self, jobs: Sequence[Job[Wish]]) -> None:
        try:
            self._work(jobs)
        except AbandonedError:
            pass
        except Exception as error:
            if len(jobs) > 1:  # one visitor's trouble must not be another's
                for job in jobs:
                    self._do([job])
                return
            log.warning("a job of the live page failed", exc_info=error)
            jobs[0].fail(error)
