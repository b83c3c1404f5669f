from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from scenemem.models.collect_read import (
    CollectRead,
    Graphs,
    MessagePassing,
    OrientationMessages,
    OrientationRead,
    Places,
    VisualRead,
)
from scenemem.models.seating import Seating, alone
from torch import Tensor, nn
from torch.nn.functional import pad

from scenemem.models import collect_read
from scenemem.world.graph import rotated
from scenemem.models.reading import tiled
from scenemem.models.language import Grounded
from scenemem.world.graph import ANGLE_WIDTH, VIEWS, angle_feature

SLOTS, VISUAL, WIDTH, STREAM = 4, 6, 8, 7
SIZES = [4, 5, 2]  # places of each lane
NODES = max(SIZES)
MOMENTS = 4


@dataclass(frozen=True)
class Setting:
    """Random memories of three lanes, asked at four moments; moment 2 knows one node only."""

    grounded: Grounded  # (R, H)
    heading: Tensor  # (R,)
    edge_heading: Tensor  # (P, K)
    edge_elevation: Tensor  # (P, K)
    places: Places
    graphs: Graphs
    feature_mask: Tensor  # (D,)

    def read(self, reader: CollectRead) -> tuple[Tensor, Tensor]:
        visual, orientation = reader(self.grounded, self.places, self.heading, self.feature_mask, self.graphs)
        return visual, orientation

    @property
    def panoramas(self) -> Tensor:
        """(P, 36, D)"""
        return self.places.look(torch.arange(sum(SIZES)))

    def seen(self, read: VisualRead) -> Tensor:
        """What every known node is read as  ->  (S, D)"""
        row, node = self.graphs.states()
        place = self.places.first[self.graphs.seating.lane[row]] + node
        seen: Tensor = read(self.grounded.perception, self.feature_mask, self.places.look, row, place)
        return seen

    def only(self, moments: list[int]) -> Setting:
        """The same memories, asked at some of the moments."""
        seating, row = self.graphs.seating, torch.tensor(moments)
        return replace(
            self,
            grounded=self.grounded.at(row),
            heading=self.heading[row],
            graphs=Graphs(
                replace(seating, lane=seating.lane[row], tick=seating.tick[row]),
                self.graphs.edge[row],
                self.graphs.count[row],
            ),
        )

    def known(self) -> list[tuple[int, int, int, int]]:
        """Moment, node, place and tick of all nodes that are known."""
        seating, first = self.graphs.seating, self.places.first.tolist()
        return [
            (row, node, first[lane] + node, tick)
            for row, (lane, tick, count) in enumerate(
                zip(seating.lane.tolist(), seating.tick.tolist(), self.graphs.count.tolist(), strict=True)
            )
            for node in range(count)
        ]


@pytest.fixture
def setting() -> Setting:
    torch.manual_seed(0)
    number = sum(SIZES)
    heading, elevation = torch.rand(number, SLOTS) * 2 * math.pi, torch.rand(number, SLOTS) - 0.5
    places = Places(
        lane=torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES)),
        first=torch.tensor([0, *SIZES[:-1]]).cumsum(0),
        look=torch.randn(number, VIEWS, VISUAL).__getitem__,
        directions=angle_feature(heading, elevation, width=4),
        exists=torch.arange(SLOTS) < torch.randint(1, SLOTS + 1, (number, 1)),
        views=torch.randint(0, VIEWS, (number, SLOTS)),
    )
    linked = torch.rand(len(SIZES), NODES, NODES).triu(1) > 0.5
    seating = Seating(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 0, 0]), len(SIZES), 2)
    graphs = Graphs(seating, (linked | linked.mT)[seating.lane], torch.tensor([4, 3, 1, 5]))
    grounded = Grounded(torch.randn(MOMENTS, WIDTH), torch.randn(MOMENTS, WIDTH))
    mask = torch.tensor([1.5, 0.0, 1.5, 1.5, 1.5, 0.0])
    return Setting(grounded, torch.rand(MOMENTS) * 2 * math.pi, heading, elevation, places, graphs, mask)


@pytest.fixture(params=[0, 1, 3])
def reader(request: pytest.FixtureRequest) -> CollectRead:
    torch.manual_seed(1)
    return CollectRead(WIDTH, VISUAL, STREAM, request.param)


def test_the_node_states_there_are_stand_moment_after_moment(setting: Setting) -> None:
    row, node = setting.graphs.states()
    assert list(zip(row.tolist(), node.tolist(), strict=True)) == [known[:2] for known in setting.known()]


def test_reading_views_is_attention_over_each_panorama(setting: Setting) -> None:
    read = VisualRead(WIDTH, VISUAL)
    seen = setting.seen(read)
    for state, (row, _, place, _) in enumerate(setting.known()):
        asked = read.query.weight @ setting.grounded.perception[row]
        views = setting.panoramas[place] * setting.feature_mask
        share = torch.stack([view @ asked for view in views]).softmax(0)
        plain = sum((s * v for s, v in zip(share, views, strict=True)), torch.zeros(VISUAL))
        torch.testing.assert_close(seen[state] * setting.feature_mask, plain)


def _plain_orientation(setting: Setting, asked: Tensor, row: int, place: int) -> Tensor:
    """Eq. 8 for one node at one moment: attention over its edges, as the agent sees them."""
    edges = [
        angle_feature(
            setting.edge_heading[place, slot] - setting.heading[row], setting.edge_elevation[place, slot]
        )
        for slot in range(SLOTS)
        if setting.places.exists[place, slot]
    ]
    share = torch.stack([edge @ asked for edge in edges]).softmax(0)
    return sum((s * e for s, e in zip(share, edges, strict=True)), torch.zeros(ANGLE_WIDTH))


def test_reading_edges_is_attention_over_directions_relative_to_the_agent(setting: Setting) -> None:
    read = OrientationRead(WIDTH)
    felt = read(setting.grounded.action, setting.places, setting.heading, setting.graphs.seating)
    for row, _, place, tick in setting.known():
        plain = _plain_orientation(setting, read.query.weight @ setting.grounded.action[row], row, place)
        relative = tiled(rotated(felt[place, tick], setting.heading[row]))
        torch.testing.assert_close(relative, plain, atol=1e-5, rtol=1e-4)


def test_a_place_without_edges_is_read_as_zero(setting: Setting) -> None:
    nowhere = replace(setting.places, exists=torch.zeros_like(setting.places.exists))
    felt = OrientationRead(WIDTH)(setting.grounded.action, nowhere, setting.heading, setting.graphs.seating)
    assert not felt.any()


def _states(graphs: Graphs, width: int) -> tuple[list[Tensor], Tensor]:
    """Random states of all known nodes, moment by moment, and the moment each belongs to."""
    return [torch.randn(count, width) for count in graphs.count.tolist()], graphs.states()[0]


def test_the_sum_over_neighbours_is_a_product_with_the_edges(setting: Setting) -> None:
    """Its values and its gradient, at moments that know different numbers of nodes."""
    states, rows = _states(setting.graphs, STREAM)
    known = torch.cat(states).double().requires_grad_()
    total = setting.graphs.neighbours().sum(known)
    for row, count in enumerate(setting.graphs.count.tolist()):
        edge = setting.graphs.edge[row, :count, :count].double()
        torch.testing.assert_close(total[rows == row], edge @ known[rows == row])
    assert torch.autograd.gradcheck(setting.graphs.neighbours().sum, known)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_messages_are_passed_as_by_a_loop_over_nodes(rounds: int, setting: Setting) -> None:
    messages = MessagePassing(STREAM, rounds)
    assert isinstance(messages.update, nn.GRUCell)
    graphs = setting.graphs
    states, rows = _states(graphs, STREAM)
    passed = messages(torch.cat(states), graphs.neighbours())

    for row, memory in enumerate(states):
        state = list(memory)
        for _ in range(rounds):
            sent = [
                sum((state[u] for u in range(len(state)) if graphs.edge[row, v, u]), torch.zeros(STREAM))
                for v in range(len(state))
            ]
            state = [messages.update(sent[v], state[v]) for v in range(len(state))]
        torch.testing.assert_close(passed[rows == row], torch.stack(state))


def test_large_states_keep_no_gates_but_learn_the_same(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, neighbours = MessagePassing(STREAM, 3), setting.graphs.neighbours()
    states = torch.cat(_states(setting.graphs, STREAM)[0]).requires_grad_()

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
    monkeypatch.setattr(collect_read, "_LARGE", 0)
    again, less = learned()
    torch.testing.assert_close(again, gradients)
    assert less < kept


def test_no_rounds_is_no_message_passing(setting: Setting) -> None:
    nothing = MessagePassing(STREAM, 0)
    states, _ = _states(setting.graphs, STREAM)
    assert list(nothing.parameters()) == []
    assert torch.equal(nothing(torch.cat(states), setting.graphs.neighbours()), torch.cat(states))


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [32, ANGLE_WIDTH])
def test_messages_about_directions_are_messages_of_tiled_states(
    width: int, rounds: int, setting: Setting
) -> None:
    """The first round is folded; the values and all gradients stay those of the plain one."""
    folded, plain = OrientationMessages(width, rounds).double(), MessagePassing(width, rounds).double()
    plain.load_state_dict(folded.state_dict())
    memories, _ = _states(setting.graphs, 4)
    neighbours = setting.graphs.neighbours()
    states = torch.cat(memories).double().requires_grad_()
    passed = folded(states, neighbours)
    expected = plain(tiled(states, width), neighbours)
    torch.testing.assert_close(passed, expected)

    matters = torch.randn_like(expected)
    gradients = torch.autograd.grad((passed * matters).sum(), [states, *folded.parameters()])
    wanted = torch.autograd.grad((expected * matters).sum(), [states, *plain.parameters()])
    assert len(gradients) == (5 if rounds else 1)
    torch.testing.assert_close(gradients, wanted)


def test_without_rounds_the_nodes_are_what_was_read(setting: Setting) -> None:
    reader = CollectRead(WIDTH, VISUAL, STREAM, rounds=0)
    visual, orientation = setting.read(reader)
    seen = setting.seen(reader.visual_read)
    for state, (row, node, place, _) in enumerate(setting.known()):
        read = reader.narrow(seen[state] * setting.feature_mask)
        torch.testing.assert_close(visual[row, node], read)
        asked = reader.orientation_read.query.weight @ setting.grounded.action[row]
        plain = _plain_orientation(setting, asked, row, place)
        torch.testing.assert_close(orientation[row, node], plain, atol=1e-5, rtol=1e-4)


def test_a_negative_number_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="rounds must be 0 or more, got -1; use 0 to switch message passing"):
        MessagePassing(STREAM, -1)


def test_the_paper_keeps_the_width_of_the_features() -> None:
    assert isinstance(CollectRead(WIDTH, VISUAL, VISUAL, 1).narrow, nn.Identity)
    assert isinstance(CollectRead(WIDTH, VISUAL, STREAM, 1).narrow, nn.Linear)


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize(("chosen", "width"), [({}, ANGLE_WIDTH), ({"orientation": 32}, 32)])
def test_orientation_states_are_128_wide_unless_chosen(
    chosen: dict[str, int], width: int, rounds: int, setting: Setting
) -> None:
    visual, orientation = setting.read(CollectRead(WIDTH, VISUAL, STREAM, rounds, **chosen))
    assert visual.shape == (MOMENTS, NODES, STREAM)
    assert orientation.shape == (MOMENTS, NODES, width)


def test_renaming_nodes_renames_their_states(reader: CollectRead, setting: Setting) -> None:
    """Moment 3 knows all five nodes of lane 1, places 4 to 8; number them differently."""
    one, names = setting.only([3]), torch.tensor([3, 0, 4, 1, 2])
    order = torch.arange(sum(SIZES))
    order[4:9] = 4 + names
    places = setting.places
    renamed = replace(
        one,
        places=replace(
            places,
            look=setting.panoramas[order].__getitem__,
            directions=places.directions[order],
            exists=places.exists[order],
            views=places.views[order],
        ),
        graphs=replace(one.graphs, edge=one.graphs.edge[:, names][:, :, names]),
    )
    visual, orientation = one.read(reader)
    torch.testing.assert_close(renamed.read(reader), (visual[:, names], orientation[:, names]))


def test_the_order_of_neighbour_slots_does_not_matter(reader: CollectRead, setting: Setting) -> None:
    order = torch.tensor([2, 0, 3, 1])
    places = replace(
        setting.places,
        directions=setting.places.directions[:, order],
        exists=setting.places.exists[:, order],
        views=setting.places.views[:, order],
    )
    torch.testing.assert_close(replace(setting, places=places).read(reader), setting.read(reader))


def test_only_known_nodes_and_real_edges_matter(reader: CollectRead, setting: Setting) -> None:
    """Moment 1 knows 3 nodes of lane 1; what comes later may hold anything, also edges to it."""
    setting = setting.only([1])
    panoramas, directions = setting.panoramas.clone(), setting.places.directions.clone()
    elsewhere = torch.ones(sum(SIZES), dtype=torch.bool)
    elsewhere[4:7] = False
    panoramas[elsewhere], directions[elsewhere] = 40.0, -3.0
    directions[~setting.places.exists] = 9.0
    edge = setting.graphs.edge.clone()
    edge[:, 3:], edge[:, :, 3:] = True, True
    garbage = replace(
        setting,
        places=replace(setting.places, look=panoramas.__getitem__, directions=directions),
        graphs=replace(setting.graphs, edge=edge),
    )
    expected, seen = setting.read(reader), garbage.read(reader)
    torch.testing.assert_close(seen, expected)
    assert not expected[0][:, 3:].any()
    assert not expected[1][:, 3:].any()


def test_a_dropped_column_can_hold_anything(reader: CollectRead, setting: Setting) -> None:
    panoramas = setting.panoramas.clone()
    panoramas[..., setting.feature_mask == 0] = 30.0
    garbage = replace(setting, places=replace(setting.places, look=panoramas.__getitem__))
    torch.testing.assert_close(garbage.read(reader), setting.read(reader))


def test_room_for_more_nodes_and_moments_changes_nothing(reader: CollectRead, setting: Setting) -> None:
    graphs = setting.graphs
    roomy = Graphs(
        replace(graphs.seating, ticks=graphs.seating.ticks + 2), pad(graphs.edge, (0, 2, 0, 2)), graphs.count
    )
    visual, orientation = setting.read(reader)
    expected = pad(visual, (0, 0, 0, 2)), pad(orientation, (0, 0, 0, 2))
    torch.testing.assert_close(replace(setting, graphs=roomy).read(reader), expected)


@pytest.mark.parametrize("moments", [[2, 3, 0, 1], [0], [1], [2], [3]])
def test_every_moment_is_read_as_if_alone(moments: list[int], reader: CollectRead, setting: Setting) -> None:
    visual, orientation = setting.read(reader)
    torch.testing.assert_close(setting.only(moments).read(reader), (visual[moments], orientation[moments]))


def test_memories_that_are_read_now_are_lanes_of_their_own(reader: CollectRead, setting: Setting) -> None:
    """Acting reads the moments 0, 1 and 2 of lanes 0, 1 and 2 at once; learning reads whole walks."""
    now = setting.only([0, 1, 2])
    acting = replace(now, graphs=replace(now.graphs, seating=alone(3, now.heading.device)))
    torch.testing.assert_close(acting.read(reader), now.read(reader))


def test_what_reads_a_memory_learns_from_it(reader: CollectRead, setting: Setting) -> None:
    """The gradients of the states that ask are those of reading moment by moment."""
    asks = [ask.clone().requires_grad_() for ask in setting.grounded.asks]
    asking = replace(setting, grounded=Grounded(*asks))
    expected = setting.read(reader)
    matters = [torch.randn_like(states) for states in expected]

    def learned(states: tuple[Tensor, Tensor], rows: slice) -> Tensor:
        return torch.stack([(s * m[rows]).sum() for s, m in zip(states, matters, strict=True)]).sum()

    everything = [*asks, *reader.parameters()]
    together = torch.autograd.grad(learned(asking.read(reader), slice(None)), everything)
    one_by_one = [learned(asking.only([row]).read(reader), slice(row, row + 1)) for row in range(MOMENTS)]
    apart = torch.autograd.grad(torch.stack(one_by_one).sum(), everything)
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


def test_a_memory_of_one_node_listens_to_nobody(setting: Setting) -> None:
    reader = CollectRead(WIDTH, VISUAL, VISUAL, rounds=2)
    visual, _ = setting.read(reader)  # moment 2 knows one node, place 9
    number = setting.known().index((2, 0, 9, 0))
    state = setting.seen(reader.visual_read)[number] * setting.feature_mask
    update = reader.visual_messages.update
    assert update is not None
    for _ in range(2):
        state = update(torch.zeros(VISUAL), state)
    torch.testing.assert_close(visual[2, 0], state)
