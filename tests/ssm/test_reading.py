"""Grounding and reading (section 3.2, Eqs. 5 to 9) against plain loops, and what must change nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from scenemem.agents.build import DataSizes
from scenemem.models import navigator
from scenemem.models.navigator import Instructions, tiled
from scenemem.ssm.reading import (
    FineGrainedGrounding,
    Grounded,
    MemoryReader,
    MessagePassing,
    OrientationRead,
    SSMConfig,
    VisualRead,
)
from scenemem.world.graph import NONE, angle_feature
from tests.agents.helpers import known_graph
from tests.ssm import reference
from tests.ssm.helpers import MASK, VISUAL, WIDTH, Moment, randn, trained

NODE_WIDTH, WORDS = 7, 5
close = torch.testing.assert_close


@pytest.fixture
def words() -> Instructions:
    """Three texts of 5, 2 and 4 words; the padding holds something."""
    mask = torch.arange(WORDS) < torch.tensor([5, 2, 4]).unsqueeze(1)
    return Instructions(randn(3, WORDS, WIDTH), mask, randn(3, WIDTH), randn(3, WIDTH), mask.long())


@pytest.fixture
def grounding() -> FineGrainedGrounding:
    torch.manual_seed(1)
    found: FineGrainedGrounding = trained(FineGrainedGrounding(WIDTH))
    return found


def test_both_states_are_equations_5_and_6(grounding: FineGrainedGrounding, words: Instructions) -> None:
    """The attention over the words, for viewers, is the one the states are made with."""
    state = randn(3, WIDTH)
    grounded, attention = grounding(state, words), grounding.word_attention(state, words)
    assert set(attention) == {"perception", "action"}
    weights = {f"grounding.{name}": value.numpy() for name, value in grounding.state_dict().items()}
    kinds: tuple[Any, ...] = ("perception", "action")
    for row, kind in itertools.product(range(3), kinds):
        own = words.context[row][words.mask[row]]
        plain = reference.aware_state(weights, kind, own.numpy(), state[row].numpy())
        close(getattr(grounded, kind)[row], torch.from_numpy(plain))
        share = (own @ getattr(grounding, kind).query.weight @ state[row]).softmax(0)
        close(attention[kind][row], pad(share, (0, WORDS - len(own))))
    assert torch.equal(grounded.both, torch.cat([grounded.perception, grounded.action], dim=1))


# node by node


def _ways(moment: Moment, row: int, place: int, *, visited: bool | None = None) -> list[int]:
    """The slots of a place that lead somewhere; with ``visited`` only to visited or unvisited places."""
    neighbours = moment.environment.world.neighbour[place].tolist()
    return [
        slot
        for slot, there in enumerate(neighbours)
        if there != NONE and visited in (None, there in moment.walks[row])
    ]


def _attended(rows: Tensor, query: Tensor) -> Tensor:
    """Softmax attention over rows (n, W); 0 where there is none  ->  (W,)"""
    return (rows @ query).softmax(dim=0) @ rows


def _plain_view(moment: Moment, read: VisualRead, row: int, place: int, views: str) -> Tensor:
    """Eq. 7 for one node."""
    panorama = moment.environment.panorama(torch.tensor(place)) * MASK
    slots = _ways(moment, row, place, visited=False if views == "unvisited" else None)
    looking = moment.environment.world.neighbour_view[place, slots].tolist()
    seen = panorama if views == "all" else panorama[looking]
    return _attended(seen, read.query.weight @ moment.grounded.perception[row])


def _plain_direction(moment: Moment, read: OrientationRead, row: int, place: int, edges: str) -> Tensor:
    """Eq. 8 for one node, over tiled angles as the agent sees them."""
    world = moment.environment.world
    slots = _ways(moment, row, place, visited=True if edges == "visited" else None)
    heading = world.neighbour_heading[place, slots] - moment.heading[row]
    seen = angle_feature(heading, world.neighbour_elevation[place, slots])
    return _attended(seen, read.query.weight @ moment.grounded.action[row])


@pytest.mark.parametrize("views", ["navigable", "unvisited", "all"])
def test_reading_views_is_equation_7(views: Any, moment: Moment) -> None:
    read = trained(VisualRead(WIDTH, VISUAL, views))
    seen = read(moment.grounded.perception, MASK, moment.graph)
    for state, (row, _, place) in enumerate(moment.states):
        close(seen[state] * MASK, _plain_view(moment, read, row, place, views))


@pytest.mark.parametrize("edges", ["visited", "all"])
def test_reading_edges_is_equation_8(edges: Any, moment: Moment) -> None:
    """Directions are stored absolute and read relative to the heading of the agent."""
    read = trained(OrientationRead(WIDTH, edges))
    found = read(moment.grounded.action, moment.heading, moment.graph)
    assert found.shape == (len(moment.states), 4)
    for state, (row, _, place) in enumerate(moment.states):
        close(tiled(found[state]), _plain_direction(moment, read, row, place, edges))
    assert bool(found[-1].any()) == (edges == "all"), "the first node of a walk has no edge and reads 0"


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_messages_are_passed_as_by_a_loop_over_nodes(steps: int, moment: Moment) -> None:
    """A memory of one node gets zeros as its messages."""
    messages, world = trained(MessagePassing(NODE_WIDTH, steps)), moment.environment.world
    weights = {name: value.numpy() for name, value in messages.state_dict().items()}
    states = randn(len(moment.states), NODE_WIDTH)
    found, rows = messages(states, moment.graph), moment.graph.row
    for row, walk in enumerate(moment.walks):
        known = known_graph(world, walk)
        state = dict(zip(known, states[rows == row].numpy(), strict=True))
        for _ in range(steps):
            state = reference.one_iteration(weights, "update", state, {v: [*known[v]] for v in known})
        close(found[rows == row], torch.from_numpy(np.stack([*state.values()])))


def test_no_steps_is_no_message_passing(moment: Moment) -> None:
    nothing, states = MessagePassing(NODE_WIDTH, 0), randn(len(moment.states), NODE_WIDTH)
    assert list(nothing.parameters()) == []
    assert nothing(states, moment.graph) is states


# the whole reader


def _reader(**settings: Any) -> MemoryReader:
    torch.manual_seed(2)
    made = {"width": WIDTH, "node_width": NODE_WIDTH, "reasoning_steps": 2, **settings}
    reader: MemoryReader = trained(MemoryReader(SSMConfig(**made), DataSizes(9, VISUAL)))
    return reader


@pytest.fixture(params=[{}, {"reasoning_steps": 0}, {"views": "all", "edges": "all"}], ids=str)
def reader(request: pytest.FixtureRequest) -> MemoryReader:
    return _reader(**request.param)


@pytest.mark.parametrize("kept", [2**21, 0])
def test_every_memory_is_read_and_learns_by_itself(
    kept: int, reader: MemoryReader, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients do not depend on which memories stand beside, nor on their order.

    Large memories are read again for the gradient.
    """
    visual, orientation = moment.ask(reader)
    close(moment.only([2, 0, 1]).ask(reader), (visual[[2, 0, 1]], orientation[[2, 0, 1]]))
    queries = [
        state.clone().requires_grad_() for state in (moment.grounded.perception, moment.grounded.action)
    ]
    learned = [*queries, *reader.parameters()]
    learning = replace(moment, grounded=Grounded(*queries))
    upstream, calls = [torch.randn_like(visual), torch.randn_like(orientation)], list[nn.Module]()
    alone = [learning.only([row]).ask(reader) for row in range(3)]
    joined = [
        torch.cat([pad(part, (0, 0, 0, 5 - part.shape[1])) for part in parts])
        for parts in zip(*alone, strict=True)
    ]
    close(joined, [visual, orientation])
    expected = torch.autograd.grad(joined, learned, upstream)
    monkeypatch.setattr(navigator, "_KEPT", kept)
    reader.visual_read.register_forward_pre_hook(lambda module, _: calls.append(module))
    reader.visual_messages.register_forward_pre_hook(lambda module, _: calls.append(module))
    close(torch.autograd.grad(learning.ask(reader), learned, upstream), expected)
    again = [reader.visual_read, reader.visual_messages][: 1 + bool(reader.visual_messages.steps)]
    assert sorted(map(id, calls[2:])) == sorted(id(module) for module in again if not kept)
