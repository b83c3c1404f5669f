"""Grounding and reading (section 3.2, Eqs. 5 to 9) against plain loops, and what must change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.agents.build import DataSizes
from scenemem.models import navigator
from scenemem.models.navigator import Instructions, tiled
from scenemem.ssm.graph import (
    FineGrainedGrounding,
    Grounded,
    MemoryGraph,
    MemoryReader,
    MessagePassing,
    OrientationRead,
    SSMConfig,
    TextualAttention,
    VisualRead,
)
from scenemem.world.graph import NONE, angle_feature
from tests.ssm.helpers import MASK, VISUAL, WIDTH, Moment, randn, trained

NODE_WIDTH, WORDS = 7, 5
close = torch.testing.assert_close


@pytest.fixture
def words() -> Instructions:
    """Three texts of 5, 2 and 4 words; the padding holds something."""
    mask = torch.arange(WORDS) < torch.tensor([5, 2, 4]).unsqueeze(1)
    return Instructions(randn(3, WORDS, WIDTH), mask, randn(3, WIDTH), randn(3, WIDTH))


@pytest.fixture
def grounding() -> FineGrainedGrounding:
    torch.manual_seed(1)
    found: FineGrainedGrounding = trained(FineGrainedGrounding(WIDTH))
    return found


def _plain_stream(attention: TextualAttention, state: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs. 5 and 6 for one state and the words of one text: the grounded state, and the weights."""
    scores = torch.stack([word @ (attention.query.weight @ state) for word in words])
    share = scores.exp() / scores.exp().sum()
    attended = torch.stack([alpha * word for alpha, word in zip(share, words, strict=True)]).sum(dim=0)
    return attention.join.weight @ torch.cat([state, attended]), share


def test_both_states_are_equations_5_and_6(grounding: FineGrainedGrounding, words: Instructions) -> None:
    """The attention over the words, for viewers, is the one the states are made with."""
    state = randn(3, WIDTH)
    grounded, attention = grounding(state, words), grounding.word_attention(state, words)
    assert set(attention) == {"perception", "action"}
    for row in range(3):
        own = words.context[row][words.mask[row]]
        for name in ("perception", "action"):
            plain, share = _plain_stream(getattr(grounding, name), state[row], own)
            close(getattr(grounded, name)[row], plain)
            close(attention[name][row], pad(share, (0, WORDS - len(own))))
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


def _passed(messages: Any, graph: MemoryGraph, row: int, states: Tensor) -> Tensor:
    """Eq. 9 for one memory, node by node."""
    state = list(states)
    for _ in range(messages.steps):
        nothing = torch.zeros_like(state[0])
        sent = [
            sum((state[u] for u in range(len(state)) if graph.edge[row, v, u]), nothing)
            for v in range(len(state))
        ]
        state = [messages.update(sent[v], state[v]) for v in range(len(state))]
    return torch.stack(state)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_messages_are_passed_as_by_a_loop_over_nodes(steps: int, moment: Moment) -> None:
    """A memory of one node gets zeros as its messages."""
    messages, graph = trained(MessagePassing(NODE_WIDTH, steps)), moment.graph
    states = randn(len(moment.states), NODE_WIDTH)
    found = messages(states, graph)
    for row in range(3):
        close(found[graph.row == row], _passed(messages, graph, row, states[graph.row == row]))


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


def test_every_memory_is_read_and_learns_by_itself(reader: MemoryReader, moment: Moment) -> None:
    """Values and gradients do not depend on which memories stand beside, nor on their order."""
    visual, orientation = moment.ask(reader)
    close(moment.only([2, 0, 1]).ask(reader), (visual[[2, 0, 1]], orientation[[2, 0, 1]]))
    queries = [
        state.clone().requires_grad_() for state in (moment.grounded.perception, moment.grounded.action)
    ]
    learned = [*queries, *reader.parameters()]
    learning = replace(moment, grounded=Grounded(*queries))
    upstream = [torch.randn_like(visual), torch.randn_like(orientation)]
    together = torch.autograd.grad(learning.ask(reader), learned, upstream)
    alone = [learning.only([row]).ask(reader) for row in range(3)]
    joined = [
        torch.cat([pad(part, (0, 0, 0, 5 - part.shape[1])) for part in parts])
        for parts in zip(*alone, strict=True)
    ]
    close(joined, [visual, orientation])
    close(together, torch.autograd.grad(joined, learned, upstream))


def test_large_memories_are_read_again_for_the_gradient_and_learn_the_same(
    reader: MemoryReader, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned() -> tuple[list[Tensor], int]:
        """Values and gradients, and the numbers kept for them."""
        kept = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        queries = [
            state.clone().requires_grad_() for state in (moment.grounded.perception, moment.grounded.action)
        ]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            nodes = replace(moment, grounded=Grounded(*queries)).ask(reader)
        loss = nodes[0].square().sum() + nodes[1].square().sum()
        return [*nodes, *torch.autograd.grad(loss, [*queries, *reader.parameters()])], sum(kept)

    expected, kept = learned()
    monkeypatch.setattr(navigator, "_KEPT", 0)
    found, less = learned()
    close(found, expected)
    assert less < 0.8 * kept or not reader.visual_messages.steps  # which has little to keep
