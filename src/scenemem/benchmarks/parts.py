"""Where the time of a step goes: the parts of a run are timed from outside, the code itself is unchanged."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from scenemem.agents.collect import collect
from scenemem.agents.policy import NetworkPolicy
from scenemem.agents.rollout import Rollout
from scenemem.agents.trained import TrainedAgent
from scenemem.benchmarks.clock import now
from scenemem.memory.scene_memory import SceneMemory
from scenemem.simulator.panorama import Simulator

PARTS = {
    "world": "the rollout loop: action spaces, labels, distances, simulator, recording",
    "memory": "writing and asking the scene memory",
    "sight": "gathering view features and directions",
    "encoder": "reading the instructions",
    "navigator": "the recurrent state",
    "grounding": "perception- and action-aware states",
    "read": "reading the nodes of the memory",
    "reasoning": "message passing between the nodes",
    "decision": "scoring and choosing options, the critic",
    "backward": "all gradients",
    "optimiser": "clipping and stepping",
    "other": "everything else: losses, batches, dropout masks",
}
"""The parts of a run, in the order of its work."""

# modules and methods of a network -> part; what a network does not have is left out
_MODULES = {
    "encoder": "encoder",
    "navigator": "navigator",
    "grounding": "grounding",
    "read": "read",
    "read.visual_messages": "reasoning",
    "read.orientation_messages": "reasoning",
    "action_score": "decision",
    "frontier_score": "decision",
    "anywhere_score": "decision",
    "stop_read": "decision",
    "score": "decision",
    "stop": "decision",
    "hints": "decision",
    "critic": "decision",
}
_NETWORK_METHODS = {
    "unrolling": "navigator",
    "acting": "navigator",
    "judge": "navigator",
    "ground": "grounding",
    "ground_readers": "grounding",
    "decision_logits": "decision",
    "score_actions": "decision",
}

Function = Callable[..., Any]
Place = tuple[Any, str, str]
"""An object, the name of one of its functions, and the part that function belongs to."""


class PartClock:
    """Sums up the time spent in every part; time in an inner part does not count for the outer one."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.observations = 0  # of all rollouts
        self._running = ["other"]
        self._since = now()

    @property
    def part(self) -> str:
        """The part that is running now."""
        return self._running[-1]

    def shares(self) -> dict[str, float]:
        """The share of every part in the time since the clock was made."""
        self._count()
        whole = sum(self.seconds.values())
        return {part: seconds / whole for part, seconds in self.seconds.items()}

    def timed(self, part: str, function: Function) -> Function:
        """``function``, with its time counted for ``part``."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._count()
                self._running.pop()

        return counted

    def _count(self) -> None:
        read = now()
        self.seconds[self._running[-1]] += read - self._since
        self._since = read


@contextmanager
def watched_parts(agent: TrainedAgent, optimiser: torch.optim.Optimizer | None = None) -> Iterator[PartClock]:
    """Inside the block, a clock follows what ``agent`` (and the optimiser that trains it) does."""
    clock = PartClock()

    def counted_collect(*args: Any, **kwargs: Any) -> Rollout:
        rollout = collect(*args, **kwargs)
        clock.observations += int(rollout.ticks.sum())
        return rollout

    with ExitStack() as undo:
        for module in _importers_of_collect():
            undo.enter_context(replaced(module, "collect", clock.timed("world", counted_collect)))
        for owner, name, part in _places(agent, optimiser):
            undo.enter_context(replaced(owner, name, clock.timed(part, getattr(owner, name))))
        yield clock


def _places(agent: TrainedAgent, optimiser: torch.optim.Optimizer | None) -> Iterator[Place]:
    yield Simulator, "step", "world"
    yield from ((SceneMemory, name, "memory") for name in ("__init__", *_functions(SceneMemory, object)))
    yield from ((agent.sight, name, "sight") for name in _functions(type(agent.sight), object))
    yield NetworkPolicy, "observe", "navigator"
    yield NetworkPolicy, "answer", "decision"
    for name, part in _NETWORK_METHODS.items():
        if hasattr(agent.network, name):
            yield agent.network, name, part
    for path, part in _MODULES.items():
        inner = _inner_module(agent.network, path)
        if inner is not None:
            yield from ((inner, name, part) for name in _functions(type(inner), nn.Module))
    yield torch.autograd, "backward", "backward"
    yield torch.nn.utils, "clip_grad_norm_", "optimiser"
    if optimiser is not None:
        yield optimiser, "step", "optimiser"
        yield optimiser, "zero_grad", "optimiser"


def _importers_of_collect() -> list[ModuleType]:
    """Every module that calls the rollout loop by its own name for it."""
    ours = [module for name, module in sys.modules.items() if name.startswith("scenemem.")]
    return [m for m in ours if m.__name__ != __name__ and vars(m).get("collect") is collect]


def _functions(kind: type, base: type) -> list[str]:
    """The public functions ``kind`` has beyond those of ``base``."""
    own = [line for line in kind.__mro__ if not issubclass(base, line)]
    return list(
        dict.fromkeys(
            name
            for line in own
            for name, value in vars(line).items()
            if inspect.isfunction(value) and not name.startswith("_")
        )
    )


def _inner_module(network: nn.Module, path: str) -> nn.Module | None:
    found: Any = network
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, nn.Module) else None


@contextmanager
def replaced(owner: Any, name: str, function: Function) -> Iterator[None]:
    """``owner.name`` is ``function`` inside the block."""
    own = vars(owner)
    before = own.get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
