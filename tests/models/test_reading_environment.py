"""Reads and scores of real memories in a small world, against what its tables and its store say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scenemem.features.store import Environment, open_store
from scenemem.models.navigator import Grounded
from scenemem.ssm.graph import SceneMemory
from scenemem.ssm.reading import ActionScore, CollectRead, GlobalScore, MemoryGraph
from scenemem.world.build import load_world
from scenemem.world.graph import World, angle_feature, view_heading
from tests.models.helpers import one_per_episode

WIDTH, NODE_WIDTH, STEPS = 6, 5, 2
WALKS = {  # of different scans and lengths; the second goes back, the last has just begun
    "grid": ["g00", "g10", "g11", "g01", "g02"],
    "spiral": ["s3", "s4", "s0", "s4"],
    "yard": ["g11"],
}


@pytest.fixture(scope="module")
def environment(tiny_trainable: Path) -> Environment:
    world = load_world(tiny_trainable / "connectivity", cache=False)
    return Environment(world, open_store(tiny_trainable / "features" / "tiny.npy", world))


@dataclass(frozen=True)
class Setting:
    """Three agents at the end of their walks, and what they remember."""

    environment: Environment
    walks: list[list[int]]
    view: Tensor  # (B,) faced
    graph: MemoryGraph
    grounded: Grounded  # (B, H)
    feature_mask: Tensor  # (D,)

    @property
    def world(self) -> World:
        return self.environment.world

    @property
    def heading(self) -> Tensor:
        """(B,)"""
        return view_heading(self.view)

    @property
    def here(self) -> Tensor:
        """(B,) viewpoints"""
        return torch.tensor([walk[-1] for walk in self.walks])

    def visited(self, episode: int) -> list[int]:
        """Every viewpoint once, by its first visit."""
        return list(dict.fromkeys(self.walks[episode]))


@pytest.fixture
def setting(environment: Environment) -> Setting:
    torch.manual_seed(0)
    world = environment.world
    walks = [[world.index_of(scan, name) for name in names] for scan, names in WALKS.items()]
    memory = SceneMemory(world, len(walks), 8)
    for step in range(max(map(len, walks))):
        active = [episode for episode, walk in enumerate(walks) if step < len(walk)]
        memory.visit(torch.tensor([walks[episode][step] for episode in active]), torch.tensor(active))
    episodes, nodes = torch.arange(len(walks)), int(memory.count.max())
    graph = MemoryGraph(
        places=environment.places(memory.node[:, :nodes]),
        packing=one_per_episode(len(walks), memory.node.device),
        viewpoint=memory.node[:, :nodes],
        edge=memory.edge[:, :nodes, :nodes],
        count=memory.count,
        here=memory.here,
        walk=memory.walk[episodes, memory.here, :nodes],
        open_lookup=lambda: memory.subnode[:, :nodes],
        column_lookup=lambda name: memory.columns[name][:, :nodes],
    )
    return Setting(
        environment,
        walks,
        torch.tensor([14, 3, 29]),
        graph,
        Grounded(*torch.randn(2, len(walks), WIDTH)),
        torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 2.0]),
    )


def test_places_are_what_the_world_and_the_store_say_about_the_nodes(setting: Setting) -> None:
    places, world = setting.graph.places, setting.world
    visited = [(episode, place) for episode in range(len(WALKS)) for place in setting.visited(episode)]
    assert places.episode.tolist() == [episode for episode, _ in visited]
    assert places.first.tolist() == [0, 5, 8]
    order = torch.tensor([8, 2, 2, 6])
    viewpoint = torch.tensor([place for _, place in visited])
    assert torch.equal(places.lookup(order), setting.environment.store.gather(viewpoint[order]))
    assert torch.equal(places.exists, world.neighbour_mask[viewpoint])
    assert torch.equal(places.views, world.neighbour_view[viewpoint])
    directions = angle_feature(world.neighbour_heading[viewpoint], world.neighbour_elevation[viewpoint], 4)
    assert torch.equal(places.directions[places.exists], directions[places.exists])
    assert not places.directions[~places.exists].any()


def test_candidates_look_as_from_where_the_agent_faces(setting: Setting) -> None:
    world, here = setting.world, setting.here
    seen = setting.environment.candidates(here, setting.view)
    assert torch.equal(seen.mask, world.neighbour_mask[here])
    for row, slot in seen.mask.nonzero().tolist():
        edge = (here[row], slot)
        panorama = setting.environment.panorama(here[row])
        assert torch.equal(seen.visual[row, slot], panorama[world.neighbour_view[edge]])
        relative = world.neighbour_heading[edge] - setting.heading[row]
        direction = angle_feature(relative, world.neighbour_elevation[edge], width=4)
        torch.testing.assert_close(seen.orientation[row, slot], direction)
    assert not seen.orientation[~seen.mask].any()


def _read(reader: CollectRead, setting: Setting, episode: int, place: int) -> tuple[Tensor, Tensor]:
    """Eqs. 7 and 8 with all views and all ways for one viewpoint, from the tables of the world."""
    world, grounded = setting.world, setting.grounded
    views = setting.environment.store.gather(torch.tensor(place)) * setting.feature_mask
    by_view = views @ reader.visual_read.query.weight @ grounded.perception[episode]
    real = world.neighbour_mask[place]
    relative = world.neighbour_heading[place][real] - setting.heading[episode]
    edges = angle_feature(relative, world.neighbour_elevation[place][real])
    by_direction = edges @ reader.orientation_read.query.weight @ grounded.action[episode]
    return reader.project(by_view.softmax(0) @ views), by_direction.softmax(0) @ edges


def test_memories_are_read_by_equations_7_to_9(setting: Setting) -> None:
    """Messages go between visited places that are neighbours in the world."""
    reader = CollectRead(WIDTH, setting.environment.width, NODE_WIDTH, STEPS, views="all", edges="all")
    found = reader(setting.grounded, setting.heading, setting.feature_mask, setting.graph)
    for episode in range(len(WALKS)):
        visited = setting.visited(episode)
        linked = torch.tensor([[b in setting.world.neighbour[a].tolist() for b in visited] for a in visited])
        read = [_read(reader, setting, episode, place) for place in visited]
        passes = (reader.visual_messages, reader.orientation_messages)
        for nodes, states, messages in zip(found, zip(*read, strict=True), passes, strict=True):
            state, update = torch.stack(states), messages.update
            assert update is not None
            for _ in range(STEPS):
                state = update(linked.float() @ state, state)
            torch.testing.assert_close(nodes[episode, : len(visited)], state, atol=1e-5, rtol=1e-4)
            assert not nodes[episode, len(visited) :].any()


def test_the_ways_from_here_score_alike_as_candidates_and_as_slots_of_the_memory(setting: Setting) -> None:
    """Candidates have relative directions, memories absolute ones; parent nodes say nothing here."""
    visual = setting.environment.width
    actions, anywhere = ActionScore(WIDTH, visual), GlobalScore(WIDTH, visual, NODE_WIDTH)
    torch.nn.init.normal_(actions.stop.visual)
    torch.nn.init.normal_(actions.stop.orientation)
    anywhere.load_state_dict(actions.state_dict(), strict=False)
    (rows, nodes), slots = setting.graph.edge.shape[:2], setting.world.neighbour.shape[1]
    silent = torch.zeros(rows, nodes, NODE_WIDTH), torch.zeros(rows, nodes, 128)
    logits = anywhere(setting.grounded, silent, setting.heading, setting.feature_mask, setting.graph)
    of_here = logits[:, :-1].view(rows, nodes, slots)[torch.arange(rows), setting.graph.here]
    seen = setting.environment.candidates(setting.here, setting.view)
    expected = actions(setting.grounded, seen, setting.feature_mask)
    torch.testing.assert_close(of_here[seen.mask], expected[:, :-1][seen.mask], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(logits[:, -1], expected[:, -1])
