"""What a training step needs of torch: python -m benchmarks.operations ssm --data DIR --features NAME

Every operation below autograd is counted, and every one that makes the host wait for the device: on a
graphics card the first cost a launch each, and the second stop the host from launching ahead. Both are
counted on any device, by part of the step, and with ``--lines`` by the line of code they come from.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import tyro
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import scenemem
from benchmarks import workload
from benchmarks.machine import Case, Options, command
from benchmarks.measure import PARTS, watched
from benchmarks.workload import Mode, Width, Workload, preset_at
from scenemem.agents.rollout import Recorder, Rollout

_PACKAGE = str(Path(scenemem.__file__).parent)
_WAITS = {
    *("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2", "unique_dim"),
    *("unique_consecutive", "bincount", "repeat_interleave"),
}
"""Operations whose result, or its size, the host needs before it can go on."""
LAUNCH_SECONDS = 5e-6
"""What launching an operation costs the host of a graphics card, about: the least a step can take there."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that wait where an index is a mask, because its true entries have to be counted."""


def waits(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operation makes the host wait for the device."""
    if name in _WAITS:
        return True
    indices = args[1] if name in _INDEXING else ()
    return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


class WaitCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Inside its block, operations and synchronisations are counted by part of the step and by line.

    Copies to the host count as synchronisations on any device, on a processor as well, where they are free.
    """

    def __init__(self, *, lines: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.walk_operations = self.walk_waits = 0  # those between reset and the end of the walks
        self.operations_at: Counter[str] = Counter()
        self.waits_at: Counter[str] = Counter()
        self._lines = lines
        self._running = ["other"]

    @contextmanager
    def counting(self, network: nn.Module) -> Iterator[None]:
        """Count what happens inside the block; what decides for a measured agent is not counted."""

        def copied(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                self._count(waiting=1)
                return function(*args, **kwargs)

            return run

        with ExitStack() as undo:
            for name in ("cpu", "tolist"):
                undo.enter_context(patch.object(Tensor, name, copied(getattr(Tensor, name))))
            by_habit = self.counted("habit", workload.choose_by_habit)
            undo.enter_context(patch.object(workload, "choose_by_habit", by_habit))
            undo.enter_context(watched(network, self.counted))
            undo.enter_context(self)
            yield
        del self.operations["habit"], self.waits["habit"]

    def counted(self, part: str, function: Any) -> Any:
        """``function``, whose operations count for ``part``."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._running.pop()

        return run

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the call, then do it."""
        self._count(operations=1, waiting=waits(func.overloadpacket.__name__, args))
        return func(*args, **(kwargs or {}))

    def _count(self, *, operations: int = 0, waiting: int = 0) -> None:
        part = self._running[-1]
        self.operations[part] += operations
        self.waits[part] += waiting
        if "rollout" in self._running and part != "habit":
            self.walk_operations += operations
            self.walk_waits += waiting
        if self._lines and part != "habit":
            line = _line()
            self.operations_at[line] += operations
            self.waits_at[line] += waiting


def _line() -> str:
    """The innermost line of the package that is running."""
    for frame, number in traceback.walk_stack(sys._getframe(3)):
        if (file := frame.f_code.co_filename).startswith(_PACKAGE):
            return f"{file[len(_PACKAGE) + 1 :]}:{number}"
    return "torch"


@dataclass(frozen=True)
class OperationOptions(Options):
    """Count the operations and synchronisations of a training step."""

    preset: Annotated[str, tyro.conf.Positional] = "ssm"
    """which agent"""
    mode: Mode = "mixed"
    """how it walks"""
    width: Width = "everyday"
    """everyday takes the preset as it is, paper gives it the sizes of the paper"""
    lines: int = 0
    """also show so many lines of code with the most"""


def count_operations(options: OperationOptions) -> list[Case]:
    """One case: a step of one mode, its operations and synchronisations by part."""
    load = Workload(preset_at(options.preset, options.width), options)
    load.run(options.mode, 1)  # what is computed once is not counted
    counter, steps = WaitCounter(lines=options.lines > 0), list[int]()
    finished = Recorder.finished

    def counted(recorder: Recorder, *args: Any, **kwargs: Any) -> Rollout:
        rollout = finished(recorder, *args, **kwargs)
        steps.append(rollout.alive.shape[1])
        return rollout

    with patch.object(Recorder, "finished", counted), counter.counting(load.agent.network):
        load.run(options.mode, 1)
    walk = sum(steps)
    every, waited = sum(counter.operations.values()), sum(counter.waits.values())
    totals = {
        "steps_of_the_walk": walk,
        "operations": every,
        "synchronisations": waited,
        "operations_per_step_of_the_walk": counter.walk_operations / walk,
        "synchronisations_per_step_of_the_walk": counter.walk_waits / walk,
        "launch_seconds": every * LAUNCH_SECONDS,
    }
    parts = {
        part: {"operations": counter.operations[part], "synchronisations": counter.waits[part]}
        for part in PARTS
    }
    if options.lines:
        for line, number in counter.operations_at.most_common(options.lines):
            waited_there = counter.waits_at[line]
            print(f"{number:6d} operations, {waited_there:4d} synchronisations  {line}", file=sys.stderr)
    return [
        {
            "preset": options.preset,
            "mode": options.mode,
            "width": options.width,
            "batch": options.batch,
            "modes": {"step": totals, **parts},
        }
    ]


if __name__ == "__main__":
    command(OperationOptions, count_operations)
