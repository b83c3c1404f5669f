from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from scenemem.features.store import Places
from scenemem.models import reading
from scenemem.models.navigator import Grounded, Packing
from scenemem.ssm.reading import (
    CollectRead,
    MemoryGraph,
    MessagePassing,
    OrientationMessages,
    OrientationRead,
    VisualRead,
    tiled,
)
from scenemem.world.graph import ANGLE_WIDTH, NONE, VIEWS, angle_feature
from tests.models.helpers import one_per_episode

SLOTS, VISUAL, WIDTH, NODE_WIDTH = 4, 6, 8, 7
SIZES = [4, 5, 2]  # places of each episode
NODES = max(SIZES)
MEMORIES = 4


@dataclass(frozen=True)
class Setting:
    """Random places of three episodes, as four memories hold them; memory 2 knows one node only."""

    grounded: Grounded  # (R, H)
    heading: Tensor  # (R,)
    edge_heading: Tensor  # (P, K)
    edge_elevation: Tensor  # (P, K)
    graph: MemoryGraph
    feature_mask: Tensor  # (D,)

    def read(self, reader: CollectRead) -> tuple[Tensor, Tensor]:
        visual, orientation = reader(self.grounded, self.heading, self.feature_mask, self.graph)
        return visual, orientation

    @property
    def panoramas(self) -> Tensor:
        """(P, 36, D)"""
        return self.graph.places.lookup(torch.arange(sum(SIZES)))

    def visual_read(self, read: VisualRead) -> Tensor:
        """What every node state is read as  ->  (S, D)"""
        seen: Tensor = read(self.grounded.perception, self.feature_mask, self.graph)
        return seen

    def with_places(self, places: Places) -> Setting:
        return replace(self, graph=replace(self.graph, places=places))

    def only(self, memories: list[int]) -> Setting:
        """Some of the memories."""
        graph, row = self.graph, torch.tensor(memories)
        packing = graph.packing
        return replace(
            self,
            grounded=Grounded(self.grounded.perception[row], self.grounded.action[row]),
            heading=self.heading[row],
            graph=replace(
                graph,
                packing=replace(packing, episode=packing.episode[row], step=packing.step[row]),
                viewpoint=graph.viewpoint[row],
                edge=graph.edge[row],
                count=graph.count[row],
                here=graph.here[row],
                walk=graph.walk[row],
            ),
        )

    def known(self) -> list[tuple[int, int, int]]:
        """Memory, node and place of all nodes that are known."""
        graph = self.graph
        first = graph.places.first.tolist()
        return [
            (row, node, first[episode] + node)
            for row, (episode, count) in enumerate(
                zip(graph.packing.episode.tolist(), graph.count.tolist(), strict=True)
            )
            for node in range(count)
        ]


def _no_open_ways() -> Tensor:
    raise AssertionError("nothing here needs the open ways")


def _no_column(name: str) -> Tensor:
    raise AssertionError(f"nothing here needs column '{name}'")


@pytest.fixture
def setting() -> Setting:
    torch.manual_seed(0)
    number = sum(SIZES)
    heading = torch.rand(number, SLOTS, dtype=torch.float64) * 2 * math.pi
    elevation = torch.rand(number, SLOTS, dtype=torch.float64) - 0.5
    places = Places(
        episode=torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES)),
        first=torch.tensor([0, *SIZES[:-1]]).cumsum(0),
        lookup=torch.randn(number, VIEWS, VISUAL, dtype=torch.float64).__getitem__,
        directions=angle_feature(heading, elevation, width=4),
        exists=torch.arange(SLOTS) < torch.randint(1, SLOTS + 1, (number, 1)),
        views=torch.randint(0, VIEWS, (number, SLOTS)),
        leads_to=torch.full((number, SLOTS), NONE),
        candidates=lambda: torch.empty(0),
    )
    linked = torch.rand(len(SIZES), NODES, NODES).triu(1) > 0.5
    packing = Packing(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 0, 0]), len(SIZES), 2)
    count = torch.tensor([4, 3, 1, 5])
    known = torch.arange(NODES) < count.unsqueeze(1)
    graph = MemoryGraph(
        places=places,
        packing=packing,
        viewpoint=torch.zeros(MEMORIES, NODES, dtype=torch.long),
        edge=(linked | linked.mT)[packing.episode] & known.unsqueeze(2) & known.unsqueeze(1),
        count=count,
        here=torch.tensor([3, 0, 0, 2]),
        walk=torch.zeros(MEMORIES, NODES),
        open_lookup=_no_open_ways,
        column_lookup=_no_column,
    )
    return Setting(
        Grounded(*torch.randn(2, MEMORIES, WIDTH, dtype=torch.float64)),
        torch.rand(MEMORIES, dtype=torch.float64) * 2 * math.pi,
        heading,
        elevation,
        graph,
        torch.tensor([1.5, 0.0, 1.5, 1.5, 1.5, 0.0], dtype=torch.float64),
    )


@pytest.fixture(params=[0, 1, 3])
def reader(request: pytest.FixtureRequest) -> CollectRead:
    torch.manual_seed(1)
    return CollectRead(WIDTH, VISUAL, NODE_WIDTH, request.param, views="all", edges="all").double()


def test_node_states_stand_memory_after_memory_each_with_its_place(setting: Setting) -> None:
    row, node = setting.graph.states
    found = zip(row.tolist(), node.tolist(), setting.graph.place.tolist(), strict=True)
    assert list(found) == setting.known()


def test_padded_states_stand_at_their_memory_and_node_and_zeros_elsewhere(setting: Setting) -> None:
    states = torch.randn(len(setting.known()), 3, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(MEMORIES, NODES, 3, dtype=torch.float64)
    for state, (row, node, _) in zip(states, setting.known(), strict=True):
        expected[row, node] = state.detach()
    padded = setting.graph.padded(states)
    assert torch.equal(padded, expected)
    upstream = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(padded, states, upstream)
    assert torch.equal(gradient, upstream[setting.graph.states])


def test_memories_attend_to_the_views_of_each_of_their_nodes(setting: Setting) -> None:
    query = torch.randn(MEMORIES, VISUAL, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(MEMORIES, NODES, VISUAL, dtype=torch.float64)
    for row, node, place in setting.known():
        views = setting.panoramas[place]
        share = torch.stack([view @ query[row] for view in views]).softmax(0)
        expected[row, node] = share @ views
    attended = setting.graph.attend(query)
    torch.testing.assert_close(attended, expected)
    upstream = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(attended, query, upstream), torch.autograd.grad(expected, query, upstream)
    )


def test_candidate_slots_are_scored_by_their_view_and_by_their_direction(setting: Setting) -> None:
    """Apart from each other, with absolute directions; 0 at nodes that are not known."""
    visual = torch.randn(MEMORIES, VISUAL, dtype=torch.float64, requires_grad=True)
    orientation = torch.randn(MEMORIES, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.zeros(MEMORIES, NODES, SLOTS, 2, dtype=torch.float64)
    places = setting.graph.places
    for row, node, place in setting.known():
        for slot in range(SLOTS):
            view = setting.panoramas[place, int(places.views[place, slot])]
            expected[row, node, slot, 0] = view @ visual[row]
            expected[row, node, slot, 1] = places.directions[place, slot] @ orientation[row]
    scores = setting.graph.slot_scores(visual, orientation)
    torch.testing.assert_close(scores, expected)
    upstream, learned = torch.randn_like(expected), [visual, orientation]
    torch.testing.assert_close(
        torch.autograd.grad(scores, learned, upstream), torch.autograd.grad(expected, learned, upstream)
    )


def test_open_ways_are_looked_up_once_and_only_when_needed(setting: Setting) -> None:
    ways, lookups = torch.rand(MEMORIES, NODES, SLOTS) > 0.5, []

    def lookup() -> Tensor:
        lookups.append(1)
        return ways

    graph = replace(setting.graph, open_lookup=lookup)
    graph.attend(torch.randn(MEMORIES, VISUAL, dtype=torch.float64))
    assert lookups == []
    assert graph.open is ways
    assert graph.open is ways
    assert lookups == [1]


def test_columns_are_looked_up_by_their_name(setting: Setting) -> None:
    columns = {"first": torch.zeros(MEMORIES, NODES, 1), "second": torch.ones(MEMORIES, NODES, 2)}
    graph = replace(setting.graph, column_lookup=columns.__getitem__)
    assert graph.column("second") is columns["second"]
    assert graph.column("first") is columns["first"]


def test_reading_views_is_attention_over_each_panorama(setting: Setting) -> None:
    read = VisualRead(WIDTH, VISUAL, "all").double()
    seen = setting.visual_read(read)
    for state, (row, _, place) in enumerate(setting.known()):
        query = read.query.weight @ setting.grounded.perception[row]
        views = setting.panoramas[place] * setting.feature_mask
        share = torch.stack([view @ query for view in views]).softmax(0)
        plain = sum((s * v for s, v in zip(share, views, strict=True)), torch.zeros(VISUAL))
        torch.testing.assert_close(seen[state] * setting.feature_mask, plain)


def _plain_orientation(setting: Setting, query: Tensor, row: int, place: int) -> Tensor:
    """Eq. 8 for one node of one memory: attention over its edges, as the agent sees them."""
    edges = [
        angle_feature(
            setting.edge_heading[place, slot] - setting.heading[row], setting.edge_elevation[place, slot]
        )
        for slot in range(SLOTS)
        if setting.graph.places.exists[place, slot]
    ]
    share = torch.stack([edge @ query for edge in edges]).softmax(0)
    return sum((s * e for s, e in zip(share, edges, strict=True)), torch.zeros(ANGLE_WIDTH))


def test_reading_edges_is_attention_over_directions_relative_to_the_agent(setting: Setting) -> None:
    read = OrientationRead(WIDTH, "all").double()
    found = read(setting.grounded.action, setting.heading, setting.graph)
    assert found.shape == (len(setting.known()), 4)
    for state, (row, _, place) in enumerate(setting.known()):
        plain = _plain_orientation(setting, read.query.weight @ setting.grounded.action[row], row, place)
        torch.testing.assert_close(tiled(found[state]), plain)


def test_a_place_without_edges_is_read_as_zero(setting: Setting) -> None:
    places = setting.graph.places
    nowhere = setting.with_places(replace(places, exists=torch.zeros_like(places.exists)))
    read = OrientationRead(WIDTH, "all").double()
    assert not read(setting.grounded.action, setting.heading, nowhere.graph).any()


def _states(graph: MemoryGraph, width: int) -> tuple[list[Tensor], Tensor]:
    """Random states of all known nodes, memory by memory, and the memory each belongs to."""
    states = [torch.randn(count, width, dtype=torch.float64) for count in graph.count.tolist()]
    return states, graph.states[0]


def test_the_sum_over_neighbours_is_a_product_with_the_edges(setting: Setting) -> None:
    """Its values and its gradient, in memories that know different numbers of nodes."""
    states, rows = _states(setting.graph, NODE_WIDTH)
    known = torch.cat(states).requires_grad_()
    total = setting.graph.neighbours.sum(known)
    for row, count in enumerate(setting.graph.count.tolist()):
        edge = setting.graph.edge[row, :count, :count].double()
        torch.testing.assert_close(total[rows == row], edge @ known[rows == row])
    assert torch.autograd.gradcheck(setting.graph.neighbours.sum, known)


def test_nodes_without_neighbours_get_nothing(setting: Setting) -> None:
    """As at the first decision of an episode, when every memory knows one node."""
    graph = replace(setting.graph, edge=torch.zeros_like(setting.graph.edge))
    states = torch.cat(_states(graph, NODE_WIDTH)[0]).requires_grad_()
    total = graph.neighbours.sum(states)
    assert total.shape == states.shape
    assert not total.any()
    (gradient,) = torch.autograd.grad(total.sum(), states)
    assert not gradient.any()


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_messages_are_passed_as_by_a_loop_over_nodes(steps: int, setting: Setting) -> None:
    messages = MessagePassing(NODE_WIDTH, steps).double()
    assert isinstance(messages.update, nn.GRUCell)
    graph = setting.graph
    states, rows = _states(graph, NODE_WIDTH)
    passed = messages(torch.cat(states), graph.neighbours)

    for row, memory in enumerate(states):
        state = list(memory)
        for _ in range(steps):
            sent = [
                sum(
                    (state[u] for u in range(len(state)) if graph.edge[row, v, u]),
                    torch.zeros(NODE_WIDTH, dtype=torch.float64),
                )
                for v in range(len(state))
            ]
            state = [messages.update(sent[v], state[v]) for v in range(len(state))]
        torch.testing.assert_close(passed[rows == row], torch.stack(state))


def test_large_states_keep_no_gates_but_learn_the_same(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, neighbours = MessagePassing(NODE_WIDTH, 3).double(), setting.graph.neighbours
    states = torch.cat(_states(setting.graph, NODE_WIDTH)[0]).requires_grad_()

    def learned() -> tuple[tuple[Tensor, ...], int]:
        """Gradients, and the numbers kept for them."""
        kept = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = messages(states, neighbours).square().sum()
        return torch.autograd.grad(loss, [states, *messages.parameters()]), sum(kept)

    gradients, kept = learned()
    monkeypatch.setattr(reading, "_LARGE", 0)
    again, less = learned()
    torch.testing.assert_close(again, gradients)
    assert less < kept


def test_no_steps_is_no_message_passing(setting: Setting) -> None:
    nothing = MessagePassing(NODE_WIDTH, 0)
    states, _ = _states(setting.graph, NODE_WIDTH)
    assert list(nothing.parameters()) == []
    assert torch.equal(nothing(torch.cat(states), setting.graph.neighbours), torch.cat(states))


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [32, ANGLE_WIDTH])
def test_messages_about_directions_are_messages_of_tiled_states(
    width: int, steps: int, setting: Setting
) -> None:
    """The first step is folded; the values and all gradients stay those of the plain one."""
    folded, plain = OrientationMessages(width, steps).double(), MessagePassing(width, steps).double()
    plain.load_state_dict(folded.state_dict())
    memories, _ = _states(setting.graph, 4)
    neighbours = setting.graph.neighbours
    states = torch.cat(memories).requires_grad_()
    passed = folded(states, neighbours)
    expected = plain(tiled(states, width), neighbours)
    torch.testing.assert_close(passed, expected)

    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad(passed, [states, *folded.parameters()], upstream)
    assert len(gradients) == (5 if steps else 1)
    torch.testing.assert_close(
        gradients, torch.autograd.grad(expected, [states, *plain.parameters()], upstream)
    )


def test_without_message_passing_the_nodes_are_what_was_read(setting: Setting) -> None:
    reader = CollectRead(WIDTH, VISUAL, NODE_WIDTH, steps=0, views="all", edges="all").double()
    visual, orientation = setting.read(reader)
    seen = setting.visual_read(reader.visual_read)
    for state, (row, node, place) in enumerate(setting.known()):
        read = reader.project(seen[state] * setting.feature_mask)
        torch.testing.assert_close(visual[row, node], read)
        query = reader.orientation_read.query.weight @ setting.grounded.action[row]
        torch.testing.assert_close(orientation[row, node], _plain_orientation(setting, query, row, place))


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="steps must be 0 or more, got -1; use 0 to switch message passing"):
        MessagePassing(NODE_WIDTH, -1)


def test_the_paper_keeps_the_width_of_the_features() -> None:
    assert isinstance(CollectRead(WIDTH, VISUAL, VISUAL, 1).project, nn.Identity)
    assert isinstance(CollectRead(WIDTH, VISUAL, NODE_WIDTH, 1).project, nn.Linear)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(("chosen", "width"), [({}, ANGLE_WIDTH), ({"orientation_width": 32}, 32)])
def test_orientation_states_are_128_wide_unless_chosen(
    chosen: dict[str, int], width: int, steps: int, setting: Setting
) -> None:
    visual, orientation = setting.read(
        CollectRead(WIDTH, VISUAL, NODE_WIDTH, steps, views="all", edges="all", **chosen).double()
    )
    assert visual.shape == (MEMORIES, NODES, NODE_WIDTH)
    assert orientation.shape == (MEMORIES, NODES, width)


def test_renumbering_nodes_renumbers_their_states(reader: CollectRead, setting: Setting) -> None:
    """Memory 3 knows all five nodes of episode 1, places 4 to 8; number them differently."""
    one, names = setting.only([3]), torch.tensor([3, 0, 4, 1, 2])
    order = torch.arange(sum(SIZES))
    order[4:9] = 4 + names
    places = setting.graph.places
    renumbered = replace(
        one,
        graph=replace(
            one.graph,
            places=replace(
                places,
                lookup=setting.panoramas[order].__getitem__,
                directions=places.directions[order],
                exists=places.exists[order],
                views=places.views[order],
            ),
            edge=one.graph.edge[:, names][:, :, names],
        ),
    )
    visual, orientation = one.read(reader)
    torch.testing.assert_close(renumbered.read(reader), (visual[:, names], orientation[:, names]))


def test_the_order_of_candidate_slots_does_not_matter(reader: CollectRead, setting: Setting) -> None:
    order, places = torch.tensor([2, 0, 3, 1]), setting.graph.places
    reordered = replace(
        places,
        directions=places.directions[:, order],
        exists=places.exists[:, order],
        views=places.views[:, order],
    )
    torch.testing.assert_close(setting.with_places(reordered).read(reader), setting.read(reader))


def test_only_known_nodes_and_real_edges_matter(reader: CollectRead, setting: Setting) -> None:
    """Memory 1 knows 3 nodes of episode 1; what comes later may hold anything."""
    setting = setting.only([1])
    panoramas, directions = setting.panoramas.clone(), setting.graph.places.directions.clone()
    elsewhere = torch.ones(sum(SIZES), dtype=torch.bool)
    elsewhere[4:7] = False
    panoramas[elsewhere], directions[elsewhere] = 40.0, -3.0
    directions[~setting.graph.places.exists] = 9.0
    garbage = setting.with_places(
        replace(setting.graph.places, lookup=panoramas.__getitem__, directions=directions)
    )
    expected = setting.read(reader)
    torch.testing.assert_close(garbage.read(reader), expected)
    assert not expected[0][:, 3:].any()
    assert not expected[1][:, 3:].any()


def test_a_dropped_column_can_hold_anything(reader: CollectRead, setting: Setting) -> None:
    panoramas = setting.panoramas.clone()
    panoramas[..., setting.feature_mask == 0] = 30.0
    garbage = setting.with_places(replace(setting.graph.places, lookup=panoramas.__getitem__))
    torch.testing.assert_close(garbage.read(reader), setting.read(reader))


def test_room_for_more_nodes_and_steps_changes_nothing(reader: CollectRead, setting: Setting) -> None:
    graph = setting.graph
    roomy = replace(
        graph,
        packing=replace(graph.packing, steps=graph.packing.steps + 2),
        edge=pad(graph.edge, (0, 2, 0, 2), value=False),
    )
    visual, orientation = setting.read(reader)
    expected = pad(visual, (0, 0, 0, 2)), pad(orientation, (0, 0, 0, 2))
    torch.testing.assert_close(replace(setting, graph=roomy).read(reader), expected)


@pytest.mark.parametrize("memories", [[2, 3, 0, 1], [0], [1], [2], [3]])
def test_every_memory_is_read_by_itself(memories: list[int], reader: CollectRead, setting: Setting) -> None:
    visual, orientation = setting.read(reader)
    torch.testing.assert_close(setting.only(memories).read(reader), (visual[memories], orientation[memories]))


def test_memories_that_are_read_now_are_episodes_of_one_step(reader: CollectRead, setting: Setting) -> None:
    """Acting reads memories 0, 1 and 2 of episodes 0, 1 and 2 at once; learning reads whole walks."""
    now = setting.only([0, 1, 2])
    acting = replace(now, graph=replace(now.graph, packing=one_per_episode(3, now.heading.device)))
    torch.testing.assert_close(acting.read(reader), now.read(reader))


def test_what_reads_a_memory_learns_from_it(reader: CollectRead, setting: Setting) -> None:
    """The gradients of the states that query are those of reading memory by memory."""
    queries = [
        state.clone().requires_grad_() for state in (setting.grounded.perception, setting.grounded.action)
    ]
    learning = replace(setting, grounded=Grounded(*queries))
    upstream = [torch.randn_like(states) for states in setting.read(reader)]
    learned = [*queries, *reader.parameters()]
    together = torch.autograd.grad(learning.read(reader), learned, upstream)
    alone = [learning.only([row]).read(reader) for row in range(MEMORIES)]
    joined = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    torch.testing.assert_close(together, torch.autograd.grad(joined, learned, upstream))


def test_a_memory_of_one_node_gets_no_messages(setting: Setting) -> None:
    reader = CollectRead(WIDTH, VISUAL, VISUAL, steps=2, views="all").double()
    visual, _ = setting.read(reader)  # memory 2 knows one node, place 9
    number = setting.known().index((2, 0, 9))
    state = setting.visual_read(reader.visual_read)[number] * setting.feature_mask
    update = reader.visual_messages.update
    assert update is not None
    for _ in range(2):
        state = update(torch.zeros(VISUAL, dtype=torch.float64), state)
    torch.testing.assert_close(visual[2, 0], state)
