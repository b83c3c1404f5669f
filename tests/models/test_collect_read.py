from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from scenemem.models.collect_read import (
    CollectRead,
    Graphs,
    MessagePassing,
    OrientationRead,
    Places,
    VisualRead,
)
from scenemem.models.grounding import Grounded
from scenemem.world.geometry import ANGLE_WIDTH, VIEWS, angle_feature

LANES, TIMES, NODES, SLOTS, VISUAL, WIDTH, STREAM = 3, 2, 5, 4, 6, 8, 7


@dataclass(frozen=True)
class Setting:
    """Random memories of three lanes, asked at four moments; lane 2 knows one node only."""

    grounded: Grounded
    heading: Tensor  # (B, T)
    edge_heading: Tensor  # (B, N, K)
    edge_elevation: Tensor  # (B, N, K)
    places: Places
    graphs: Graphs
    feature_mask: Tensor  # (D,)

    def read(self, reader: CollectRead) -> tuple[Tensor, Tensor]:
        visual, orientation = reader(self.grounded, self.places, self.heading, self.feature_mask, self.graphs)
        return visual, orientation


@pytest.fixture
def setting() -> Setting:
    torch.manual_seed(0)
    heading = torch.rand(LANES, NODES, SLOTS) * 2 * math.pi
    elevation = torch.rand(LANES, NODES, SLOTS) - 0.5
    exists = torch.arange(SLOTS) < torch.randint(1, SLOTS + 1, (LANES, NODES, 1))
    places = Places(
        panoramas=torch.randn(LANES, NODES, VIEWS, VISUAL),
        directions=angle_feature(heading, elevation, width=4),
        exists=exists,
        views=torch.randint(0, VIEWS, (LANES, NODES, SLOTS)),
    )
    linked = torch.rand(LANES, NODES, NODES).triu(1) > 0.5
    lane, count = torch.tensor([0, 1, 2, 1]), torch.tensor([4, 3, 1, 5])
    graphs = Graphs(lane, torch.tensor([0, 1, 0, 0]), (linked | linked.transpose(1, 2))[lane], count)
    grounded = Grounded(torch.randn(LANES, TIMES, WIDTH), torch.randn(LANES, TIMES, WIDTH))
    mask = torch.tensor([1.5, 0.0, 1.5, 1.5, 1.5, 0.0])
    return Setting(grounded, torch.rand(LANES, TIMES) * 2 * math.pi, heading, elevation, places, graphs, mask)


@pytest.fixture(params=[0, 1, 3])
def reader(request: pytest.FixtureRequest) -> CollectRead:
    torch.manual_seed(1)
    return CollectRead(WIDTH, VISUAL, STREAM, request.param)


def _close(seen: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for a, b in zip(seen, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_reading_views_is_attention_over_each_panorama(setting: Setting) -> None:
    read = VisualRead(WIDTH, VISUAL)
    seen = read(setting.grounded.perception, setting.places.panoramas, setting.feature_mask)
    for lane in range(LANES):
        for time in range(TIMES):
            asked = read.query.weight @ setting.grounded.perception[lane, time]
            for node in range(NODES):
                views = setting.places.panoramas[lane, node] * setting.feature_mask
                share = torch.stack([view @ asked for view in views]).softmax(0)
                plain = sum((s * v for s, v in zip(share, views, strict=True)), torch.zeros(VISUAL))
                torch.testing.assert_close(seen[lane, time, node], plain)


def test_reading_edges_is_attention_over_directions_relative_to_the_agent(setting: Setting) -> None:
    read = OrientationRead(WIDTH)
    felt = read(setting.grounded.action, setting.places.directions, setting.places.exists, setting.heading)
    for lane in range(LANES):
        for time in range(TIMES):
            asked = read.query.weight @ setting.grounded.action[lane, time]
            for node in range(NODES):
                edges = [
                    angle_feature(
                        setting.edge_heading[lane, node, slot] - setting.heading[lane, time],
                        setting.edge_elevation[lane, node, slot],
                    )
                    for slot in range(SLOTS)
                    if setting.places.exists[lane, node, slot]
                ]
                share = torch.stack([edge @ asked for edge in edges]).softmax(0)
                plain = sum((s * e for s, e in zip(share, edges, strict=True)), torch.zeros(ANGLE_WIDTH))
                torch.testing.assert_close(felt[lane, time, node], plain, atol=1e-5, rtol=1e-4)


def test_a_place_without_edges_is_read_as_zero(setting: Setting) -> None:
    nowhere = torch.zeros_like(setting.places.exists)
    felt = OrientationRead(WIDTH)(
        setting.grounded.action, setting.places.directions, nowhere, setting.heading
    )
    assert not felt.any()


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_messages_are_passed_as_by_a_loop_over_nodes(rounds: int, setting: Setting) -> None:
    messages = MessagePassing(STREAM, rounds)
    assert isinstance(messages.update, nn.GRUCell)
    graphs = setting.graphs
    states: list[Tensor] = []
    where: list[tuple[int, int]] = []
    for row, count in enumerate(graphs.count.tolist()):
        states.append(torch.randn(count, STREAM))
        where.extend((row, node) for node in range(count))
    rows, nodes = torch.tensor(where).unbind(1)
    passed = messages(torch.cat(states), graphs.edge, rows, nodes)

    for row, memory in enumerate(states):
        state = list(memory)
        for _ in range(rounds):
            sent = [
                sum((state[u] for u in range(len(state)) if graphs.edge[row, v, u]), torch.zeros(STREAM))
                for v in range(len(state))
            ]
            state = [messages.update(sent[v], state[v]) for v in range(len(state))]
        torch.testing.assert_close(passed[rows == row], torch.stack(state))


def test_no_rounds_is_no_message_passing(setting: Setting) -> None:
    nothing = MessagePassing(STREAM, 0)
    states = torch.randn(2, STREAM)
    assert list(nothing.parameters()) == []
    assert nothing(states, setting.graphs.edge, torch.tensor([0, 1]), torch.tensor([0, 2])) is states


def test_without_rounds_the_nodes_are_what_was_read(setting: Setting) -> None:
    reader = CollectRead(WIDTH, VISUAL, STREAM, rounds=0)
    visual, orientation = setting.read(reader)
    seen = reader.narrow(
        reader.visual_read(setting.grounded.perception, setting.places.panoramas, setting.feature_mask)
    )
    for row, (lane, time, count) in enumerate(
        zip(setting.graphs.lane, setting.graphs.tick, setting.graphs.count, strict=True)
    ):
        torch.testing.assert_close(visual[row, :count], seen[lane, time, :count])
    assert orientation.shape == (4, NODES, ANGLE_WIDTH)


def test_a_negative_number_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds must be 0 or more, got -1; use 0 to switch message passing"):
        MessagePassing(STREAM, -1)


def test_the_paper_keeps_the_width_of_the_features() -> None:
    assert isinstance(CollectRead(WIDTH, VISUAL, VISUAL, 1).narrow, nn.Identity)
    assert isinstance(CollectRead(WIDTH, VISUAL, STREAM, 1).narrow, nn.Linear)


def test_renaming_nodes_renames_their_states(reader: CollectRead, setting: Setting) -> None:
    """Moment 3 knows all five nodes of lane 1; number them differently."""
    one = replace(
        setting.graphs,
        lane=torch.tensor([1]),
        tick=torch.tensor([0]),
        edge=setting.graphs.edge[3:],
        count=torch.tensor([5]),
    )
    names = torch.tensor([3, 0, 4, 1, 2])
    renamed = replace(
        setting,
        places=Places(
            *(
                tensor[:, names]
                for tensor in (
                    setting.places.panoramas,
                    setting.places.directions,
                    setting.places.exists,
                    setting.places.views,
                )
            )
        ),
        graphs=replace(one, edge=one.edge[:, names][:, :, names]),
    )
    visual, orientation = replace(setting, graphs=one).read(reader)
    _close(renamed.read(reader), (visual[:, names], orientation[:, names]))


def test_the_order_of_neighbour_slots_does_not_matter(reader: CollectRead, setting: Setting) -> None:
    order = torch.tensor([2, 0, 3, 1])
    places = replace(
        setting.places,
        directions=setting.places.directions[:, :, order],
        exists=setting.places.exists[:, :, order],
        views=setting.places.views[:, :, order],
    )
    _close(replace(setting, places=places).read(reader), setting.read(reader))


def test_only_known_nodes_and_real_edges_matter(reader: CollectRead, setting: Setting) -> None:
    """Moment 1 knows 3 nodes of lane 1; what comes later may hold anything, also edges to it."""
    graphs = replace(
        setting.graphs,
        lane=setting.graphs.lane[1:2],
        tick=setting.graphs.tick[1:2],
        edge=setting.graphs.edge[1:2],
        count=setting.graphs.count[1:2],
    )
    setting = replace(setting, graphs=graphs)
    panoramas, directions = setting.places.panoramas.clone(), setting.places.directions.clone()
    panoramas[:, 3:], directions[:, 3:] = 40.0, -3.0
    directions[~setting.places.exists] = 9.0
    edge = graphs.edge.clone()
    edge[:, 3:], edge[:, :, 3:] = True, True
    garbage = replace(
        setting,
        places=replace(setting.places, panoramas=panoramas, directions=directions),
        graphs=replace(graphs, edge=edge),
    )
    expected, seen = setting.read(reader), garbage.read(reader)
    _close(seen, expected)
    assert not expected[0][:, 3:].any()
    assert not expected[1][:, 3:].any()


def test_a_dropped_column_can_hold_anything(reader: CollectRead, setting: Setting) -> None:
    panoramas = setting.places.panoramas.clone()
    panoramas[..., setting.feature_mask == 0] = 30.0
    garbage = replace(setting, places=replace(setting.places, panoramas=panoramas))
    _close(garbage.read(reader), setting.read(reader))


def test_every_moment_is_read_as_if_alone(reader: CollectRead, setting: Setting) -> None:
    visual, orientation = setting.read(reader)
    graphs = setting.graphs
    for row in range(len(graphs.lane)):
        one = slice(row, row + 1)
        alone = Graphs(graphs.lane[one], graphs.tick[one], graphs.edge[one], graphs.count[one])
        _close(replace(setting, graphs=alone).read(reader), (visual[one], orientation[one]))


def test_a_memory_of_one_node_listens_to_nobody(setting: Setting) -> None:
    reader = CollectRead(WIDTH, VISUAL, VISUAL, rounds=2)
    visual, _ = setting.read(reader)  # moment 2 knows one node
    state = reader.visual_read(setting.grounded.perception, setting.places.panoramas, setting.feature_mask)[
        2, 0, 0
    ]
    update = reader.visual_messages.update
    assert update is not None
    for _ in range(2):
        state = update(torch.zeros(VISUAL), state)
    torch.testing.assert_close(visual[2, 0], state)
