"""Agents that have learnt nothing yet but decide all the same, and a trace made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem.agents.walker import Sample, TrainedAgent
from scenemem.formats.folder import DataFolder
from scenemem.formats.traces import (
    Attention,
    Decision,
    Ending,
    Memory,
    Move,
    Option,
    Place,
    Scene,
    Scores,
    Task,
    Trace,
    Way,
    Word,
)
from scenemem.presets import PRESETS, Preset
from scenemem.runs.experiment import Experiment, new_experiment
from scenemem.runs.folder import RunFolder
from scenemem.runs.training import Settings, run_training


def small_preset(name: str, **settings: Any) -> Preset[Any]:
    """A preset whose network is tiny."""
    preset = PRESETS[name]
    nodes = {"node_width": None} if hasattr(preset.model, "node_width") else {}
    return replace(
        preset,
        model=replace(preset.model, width=16, word_width=8, **nodes, **settings),
        data=replace(preset.data, min_count=1),
    )


@pytest.fixture(scope="session")
def trained_runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Tiny agents, trained for a few iterations; tests leave them as they are."""
    root = tmp_path_factory.mktemp("trained")
    runs = {name: RunFolder(root / f"{name}-0") for name in ("ssm", "basic")}
    for name, run in runs.items():
        preset = small_preset(name)
        short = replace(
            preset,
            learning=replace(preset.learning, iterations=8, batch=4),
            selection=replace(preset.selection, every=8, save_every=8),
        )
        run_training(Settings(name, short), DataFolder(tiny_trainable), run)
    return runs


@pytest.fixture
def experiment(tiny_trainable: Path) -> Callable[..., Experiment]:
    """Makes an agent of a preset; it samples, so that it goes back and stops now and then."""

    def make(name: str, seed: int = 0, **settings: Any) -> Experiment:
        made = new_experiment(small_preset(name, **settings), DataFolder(tiny_trainable), seed)
        pick = Sample(torch.Generator().manual_seed(seed))
        made.agent.walk = partial(TrainedAgent.walk, made.agent, pick=pick)  # type: ignore[method-assign]
        return made

    return make


WORDS = (Word("Go"), Word("past", " "), Word("the", " "), Word("sofa", " "), Word("!", known=False))


def _option(place: int, chance: float, node: int | None, heading: float | None = None, **more: Any) -> Option:
    names = {None: None, 0.0: "north", 1.57: "east", 3.14: "south"}
    fields = {"logit": 1.0, "walk": 2.0, "visual": 2.0, "geometric": 1.0, **more}
    return Option(place, chance, node=node, heading=heading, compass=names[heading], **fields)


@pytest.fixture
def turning_back() -> Trace:
    """Two floors: 0 - 1 - 2 in a row on the lower, 3 beside 1, 4 upstairs of 3, where the goal is.

    The agent goes 0, 1, 2, a dead end, turns back to 1 because of what it saw there, attends to other words
    when it has arrived, goes on to 3 and 4 and stops.
    """
    spots = [(0.0, 0.0, 0), (2.0, 0.0, 0), (4.0, 0.0, 0), (2.0, 2.0, 0), (2.0, 4.0, 1)]
    places = tuple(
        Place(f"v{n}", x, y, 1.5 + 3 * floor, floor, to_goal)
        for n, ((x, y, floor), to_goal) in enumerate(zip(spots, (7.6, 5.6, 7.6, 3.6, 0.0), strict=True))
    )
    sofa = Attention((0.0, 0.1, 0.2, 0.7, 0.0), (0.6, 0.3, 0.1, 0.0, 0.0))
    arrived = Attention((0.0, 0.6, 0.1, 0.1, 0.0), (0.1, 0.1, 0.1, 0.6, 0.0))
    over = Attention((0.02,) * 5, (0.02,) * 5)

    def first_of(attention: Attention, *options: Option, kind: str = "action") -> Decision:
        return Decision(kind, options, 0, (1.0, 0.5), attention)

    east = first_of(sofa, _option(1, 0.9, 0, 1.57), _option(0, 0.1, 0, stop=True))
    on = first_of(sofa, _option(2, 0.6, 1, 1.57), _option(3, 0.4, 1, 0.0))
    there, here = _option(1, 0.8, 1, logit=3.0, visual=2.5), _option(2, 0.2, 2, visual=0.5, walk=0.0)
    back = first_of(sofa, there, here, kind="frontier")
    north = first_of(arrived, _option(3, 0.75, 1, 0.0), _option(1, 0.25, 1, stop=True))
    up = first_of(over, _option(4, 1.0, 3, 0.0))
    stop = first_of(over, _option(4, 1.0, 4, stop=True))
    walks: list[tuple[tuple[int, ...], tuple[Decision, ...]]] = [
        ((0, 1), (east,)),
        ((1, 2), (on,)),
        ((2, 1, 3), (back, north)),
        ((3, 4), (up,)),
        ((4,), (stop,)),
    ]
    nodes, edges = (0, 1, 2, 3, 4), ((0, 1), (1, 2), (1, 3), (3, 4))
    to_3, to_4 = Way(1, 3, 0.0, 0.0, "north"), Way(3, 4, 0.0, 0.7, "north")
    memories = [
        Memory(0, nodes[:1], (True,), (), (Way(0, 1, 1.57, 0.0, "east"),)),
        Memory(1, nodes[:2], (False, True), edges[:1], (Way(1, 2, 1.57, 0.0, "east"), to_3)),
        Memory(2, nodes[:3], (False, True, False), edges[:2], (to_3,)),
        Memory(3, nodes[:4], (False, False, False, True), edges[:3], (to_4,)),
        Memory(4, nodes, (False,) * 5, edges, ()),
    ]
    return Trace(
        agent="ssm",
        task=Task("tiny val_unseen", "7_0", "Go past the sofa!", WORDS, 0, 4, (0, 1, 3, 4)),
        scene=Scene("house", (1.5, 4.5), places, edges),
        moves=tuple(
            Move(1.57, walk, decisions, memory, places[walk[0]].to_goal)
            for (walk, decisions), memory in zip(walks, memories, strict=True)
        ),
        ending=Ending(True, 4, memories[-1], 0.0, Scores(11.6, 0.0, 1.0, 1.0, 0.66, 0.66, 0.7, 0.8, 0.8)),
    )
