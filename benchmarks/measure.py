"""Measures repeatable work: speed, counted arithmetic, share of the machine, and where the time goes."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import GIGA, Options, now, peak_megabytes, reset_peak, square_gigaflops
from scenemem.agents import walker
from scenemem.features.store import Environment
from scenemem.learning import trainer
from scenemem.learning.augmentation import BackTranslation
from scenemem.ssm.graph import SceneMemory
from scenemem.ssm.reading import MessagePassing

REFERENCE_GIGAFLOPS = 68.0
"""GFLOP/s of a square product on the core of the reference speeds; speeds are normalised to it."""

PARTS = (
    *("rollout", "memory", "features", "encoder", "updater", "grounding", "reader", "reasoning", "scores"),
    *("policy", "speaker", "backward", "optimiser", "other"),
)
"""The parts of a step, in the order of its work; README.md lists what belongs to each."""

_FUNCTIONS: tuple[tuple[Any, str, str], ...] = (
    *((module, "collect", "rollout") for module in (walker, trainer)),
    *((SceneMemory, name, "memory") for name in ("__init__", "visit", "write", "towards")),
    *((Environment, name, "features") for name in ("panorama", "candidates")),
    *((walker.AgentPolicy, name, "policy") for name in ("observe", "decide")),
    (BackTranslation, "draw", "speaker"),
    (torch.autograd, "backward", "backward"),
    (torch.nn.utils, "clip_grad_norm_", "optimiser"),
    *((torch.optim.AdamW, name, "optimiser") for name in ("step", "zero_grad")),
)

Shape = tuple[int, ...]
Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""A part and one of its functions  ->  the function that is called instead."""


def _product(left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    """(..., m, k), (..., k, n); a vector is a matrix of one column."""
    return 2 * prod(left) * (right[-1] if len(right) > 1 else 1)


def _added_product(_sum: Shape, left: Shape, right: Shape, *_: Any, **__: Any) -> int:
    return _product(left, right)


def _lstm(entered: Shape, from_input: Shape, from_state: Shape, *_: Any, **__: Any) -> int:
    """entered: (L, B, k)  from_input: (gates, k)  from_state: (gates, H)"""
    return 2 * prod(entered[:-1]) * (prod(from_input) + prod(from_state))


_aten = torch.ops.aten
# products that run on processors and that torch's own counter leaves out
_FORMULAS: dict[Any, Callable[..., float]] = {
    _aten.mv: _product,
    _aten.dot: _product,
    **{
        getattr(_aten, name): _added_product
        for name in ("addmm_", "_addmm_activation", "addmv", "addmv_", "baddbmm_", "addbmm")
    },
    _aten.mkldnn_rnn_layer: _lstm,
    _aten.mkldnn_rnn_layer_backward: lambda *shapes, **_: 2 * _lstm(*shapes),
}


def flop_counter() -> FlopCounterMode:
    """Inside its block, matrix products are counted as they are executed, 2 m k n each."""
    return FlopCounterMode(display=False, custom_mapping=_FORMULAS)


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Inside its block, every operation that torch executes below autograd is counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the call, then do it."""
        self.count += 1
        return func(*args, **(kwargs or {}))


class PartClock:
    """Sums up the time by part; what an inner part takes does not count for the outer one.

    The speaker is one part with everything it calls.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._running = ["other"]
        self._device = device
        self._since = now(device)

    def shares(self) -> dict[str, float]:
        """The share of every part in the time since the clock was made."""
        self._count()
        whole = sum(self._spent.values())
        return {part: seconds / whole for part, seconds in self._spent.items()}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time counts for ``part``."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._running[-1] == "speaker":
                return function(*args, **kwargs)
            self._count()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._count()
                self._running.pop()

        return counted

    def _count(self) -> None:
        read = now(self._device)
        self._spent[self._running[-1]] += read - self._since
        self._since = read


@contextmanager
def watched(network: nn.Module, wrap: Wrap) -> Iterator[None]:
    """Inside the block, the functions of all parts, and the modules of ``network``, are wrapped."""
    places = list(_FUNCTIONS)
    for name, module in network.named_children():
        places.append((module, "forward", name if name in PARTS else "scores"))
    reasoning = (module for module in network.modules() if isinstance(module, MessagePassing))
    places += [(module, "forward", "reasoning") for module in reasoning]
    with ExitStack() as undo:
        for owner, name, part in places:
            undo.enter_context(patch.object(owner, name, wrap(part, getattr(owner, name))))
        yield


@dataclass(frozen=True)
class Amount:
    """How much work was done."""

    episodes: int  # or paths, or pairs: whatever is counted
    steps: int
    observations: int = 0


Work = Callable[[], Amount]
"""Does the same work each time it is called."""


@dataclass(frozen=True)
class Speed:
    """How fast a piece of work is done; medians over the repetitions."""

    episodes: int  # in one repetition
    steps: int
    repeats: int
    cpus: float  # processors in use meanwhile; below 1 others had them, or the disk was waited for
    steps_per_second: float
    episodes_per_second: float
    normalised_episodes_per_second: float  # on a machine whose square product reaches 68 GFLOP/s
    observations_per_episode: float  # which the cost of a walk depends on
    gigaflops_per_episode: float  # counted
    gigaflops_per_second: float  # achieved
    square_gigaflops_per_second: float  # of a large square product, measured around every repetition
    utilisation: float  # achieved / square
    operations_per_step: float  # torch operations, counted below autograd
    peak_megabytes: float | None
    parts: dict[str, float]  # share of the time


class _Timing(NamedTuple):
    seconds: float
    square: float
    cpus: float


def repeatable(run: Callable[[int], Amount], options: Options) -> Work:
    """``run`` with as many steps as fit into ``options.seconds``, at least one; warms up."""
    begun = now(options.device)
    run(1)
    steps = max(1, round(options.seconds / max(now(options.device) - begun, 1e-9)))
    return lambda: run(steps)


def measure(works: Mapping[str, Work], network: nn.Module, options: Options) -> dict[str, Speed]:
    """Time all works, which are warm already, in turn; then time their parts, weigh and count each once."""
    timings: dict[str, list[_Timing]] = {name: [] for name in works}
    for number in range(options.repeats):
        print(f"  repetition {number + 1} of {options.repeats}: {', '.join(works)}", file=sys.stderr)
        for name, work in works.items():
            timings[name].append(_timed(work, options.device))
    return {name: _speed(work, network, timings[name], options.device) for name, work in works.items()}


def _timed(work: Work, device: str) -> _Timing:
    before = square_gigaflops(device)
    begun, cpu, wall = now(device), time.process_time(), time.perf_counter()
    work()
    seconds, cpu, wall = now(device) - begun, time.process_time() - cpu, time.perf_counter() - wall
    # the speed of a machine drifts: what its product reaches is measured on both sides of the work
    return _Timing(seconds, (before + square_gigaflops(device)) / 2, cpu / wall)


def _speed(work: Work, network: nn.Module, timings: list[_Timing], device: str) -> Speed:
    clock = PartClock(device)
    with watched(network, clock.timed):
        work()
    shares = clock.shares()
    # apart from the timing: memory given back has to be allocated again, as never in a running training
    reset_peak(device)
    work()
    peak = peak_megabytes(device)
    with flop_counter() as products, OperationCounter() as operations:
        done = work()
    gigaflops = products.get_total_flops() / GIGA

    def median(number: Callable[[_Timing], float]) -> float:
        return statistics.median(map(number, timings))

    return Speed(
        episodes=done.episodes,
        steps=done.steps,
        repeats=len(timings),
        cpus=median(lambda timing: timing.cpus),
        steps_per_second=median(lambda timing: done.steps / timing.seconds),
        episodes_per_second=median(lambda timing: done.episodes / timing.seconds),
        # compared repetition by repetition: whatever slows the machine down for a while slows both
        normalised_episodes_per_second=median(
            lambda timing: done.episodes / timing.seconds * REFERENCE_GIGAFLOPS / timing.square
        ),
        observations_per_episode=done.observations / done.episodes,
        gigaflops_per_episode=gigaflops / done.episodes,
        gigaflops_per_second=median(lambda timing: gigaflops / timing.seconds),
        square_gigaflops_per_second=median(lambda timing: timing.square),
        utilisation=median(lambda timing: gigaflops / timing.seconds / timing.square),
        operations_per_step=operations.count / done.steps,
        peak_megabytes=peak,
        parts=shares,
    )
