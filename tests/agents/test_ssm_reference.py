"""The batched agent against a plain one: one episode at a time, vector by vector, straight from the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.build import DataSizes
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionType, Rollout
from scenemem.agents.walker import TrainedAgent, WalkConfig, take_best
from scenemem.features.store import Environment
from scenemem.formats.connectivity import Scan, connectivity_files, read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.models.navigator import FineGrainedGrounding, LSTMUpdater, PanoramaQuery, TextualAttention
from scenemem.ssm.agent import SSM, SSMConfig
from scenemem.ssm.reading import ActionScore, FrontierScore
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import build_world
from scenemem.world.graph import World

VISUAL, WIDTH, MAX_DECISIONS, MAX_STEPS, MAX_WORDS = 24, 64, 15, 14, 80
NORTH_STEP = math.pi / 6


@dataclass(frozen=True)
class Decision:
    """What could be chosen, how it scored, what was chosen: nodes by number, neighbours by slot."""

    kind: DecisionType
    options: list[int]
    scores: list[float]
    choice: int


@dataclass
class Walk:
    """One episode under way: where it went and what it remembers."""

    words: Tensor  # (L, H)
    hidden: Tensor  # (H,)
    cell: Tensor  # (H,)
    here: int
    view: int
    viewpoints: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    memory: nx.Graph = field(default_factory=nx.Graph)  # visited places and the edges between them
    kept: dict[int, tuple[Tensor, Tensor, int]] = field(default_factory=dict)  # state and view at each place
    remembered: dict[int, dict[int | None, float]] = field(default_factory=dict)  # log p when last there
    jumps: int = 0  # frontiers elsewhere that were gone to

    @property
    def nodes(self) -> list[int]:
        """Visited places in the order of their first visit."""
        return list(self.memory.nodes)


class PlainSSM:
    """The paper's agent, slow and obvious."""

    def __init__(self, network: SSM, environment: Environment) -> None:
        self.network = network
        self.position = environment.world.position.tolist()
        self.neighbours = [[n for n in row if n >= 0] for row in environment.world.neighbour.tolist()]
        self.stop = environment.world.neighbour.shape[1]
        places = torch.arange(len(self.neighbours))
        self.features = list(environment.panorama(places))  # (36, D) each
        self.tiles: dict[tuple[float, float], Tensor] = {}

    def walk(self, tokens: list[int], start: int, heading: float) -> Walk:
        words, hidden, cell = self.encoded(tokens)
        facing = round(heading / NORTH_STEP) % 12 + 12
        walk = Walk(words, hidden, cell, start, facing)
        self.arrive(walk)
        for _ in range(MAX_DECISIONS):
            self.go_to_frontier(walk)
            if len(walk.viewpoints) == MAX_STEPS:
                break
            place = self.chosen_sub_node(walk)
            if place is None:
                break
            if self.network.config.allow_revisits:
                walk.kept.pop(place, None)  # a hop is part of the way, so the place is seen anew
            self.hop(walk, place)
            if len(walk.viewpoints) == MAX_STEPS:
                break
        return walk

    # moving

    def hop(self, walk: Walk, place: int) -> None:
        walk.view = self.view_towards(walk.here, place)
        walk.here = place
        self.arrive(walk)

    def arrive(self, walk: Walk) -> None:
        """Remember the place and update the state by what is seen there."""
        walk.viewpoints.append(walk.here)
        walk.memory.add_node(walk.here)
        for place in self.neighbours[walk.here]:
            if place in walk.memory:
                metres = math.dist(self.position[walk.here], self.position[place])
                walk.memory.add_edge(walk.here, place, metres=metres)
        if not (self.network.config.restore_state and walk.here in walk.kept):
            walk.kept[walk.here] = (*self.observed(walk), walk.view)
        walk.hidden, walk.cell, walk.view = walk.kept[walk.here]
        places = [*self.neighbours[walk.here], None]  # None stops
        chances = torch.tensor(self.action_scores(walk, places)).log_softmax(dim=0).tolist()
        walk.remembered[walk.here] = dict(zip(places, chances, strict=True))

    def go_to_frontier(self, walk: Walk) -> None:
        frontiers = [v for v in walk.nodes if self.sub_nodes(walk, v)]
        options = [v for v in walk.nodes if v in frontiers or v == walk.here]
        if len(options) == 1:
            return
        read = self.read_memory(walk)
        p, a = self.grounded(walk)
        scores = [
            float(self.scored(self.network.frontier_score, p, a, *read[v])) + self.hint(walk, v)
            for v in options
        ]
        target = options[scores.index(max(scores))]
        numbers = [walk.nodes.index(v) for v in options]
        walk.decisions.append(Decision(FRONTIER, numbers, scores, walk.nodes.index(target)))
        walk.jumps += target != walk.here
        for place in nx.shortest_path(walk.memory, walk.here, target, weight="metres")[1:]:
            self.hop(walk, place)
            if len(walk.viewpoints) == MAX_STEPS:
                return

    def chosen_sub_node(self, walk: Walk) -> int | None:
        """Eq. 14; None stops."""
        places = [*self.open_ways(walk, walk.here), None]
        scores = self.action_scores(walk, places)
        scores[-1] += self.stop_fits(walk)
        options = [
            self.stop if place is None else self.neighbours[walk.here].index(place) for place in places
        ]
        best = scores.index(max(scores))
        walk.decisions.append(Decision(ACTION, options, scores, options[best]))
        return places[best]

    def action_scores(self, walk: Walk, places: list[int | None]) -> list[float]:
        """What the views of here say about going to ``places``, or stopping."""
        p, a = self.grounded(walk)
        stop = self.network.actions.stop
        seen = [
            (stop.visual, stop.orientation)
            if place is None
            else (
                self.features[walk.here][self.view_towards(walk.here, place)],
                self.orientation(walk.here, place, walk.view),
            )
            for place in places
        ]
        return [float(self.scored(self.network.actions, p, a, f, r)) for f, r in seen]

    def hint(self, walk: Walk, place: int) -> float:
        """What plain facts say about a frontier; 0 without the option."""
        hints, remembered = self.network.hints, walk.remembered[place]
        if hints is None:
            return 0.0
        metres = nx.shortest_path_length(walk.memory, walk.here, place, weight="metres")
        age = len(walk.nodes) - 1 - walk.nodes.index(place)
        best = max((remembered[there] for there in self.open_ways(walk, place)), default=-10.0)
        facts = [float(place == walk.here), metres / 10, age / 10, max(best, -10.0)]
        facts.append(max(remembered[None], -10.0))
        return float(hints.score(torch.tanh(hints.state(walk.hidden) + hints.facts(torch.tensor(facts)))))

    def stop_fits(self, walk: Walk) -> float:
        """How well stopping fits what the memory says about here; 0 without the option."""
        if self.network.stop_from_memory is None:
            return 0.0
        p, a = self.grounded(walk)
        views, directions = self.read_memory(walk)[walk.here]
        stop = self.network.stop_from_memory
        return float(views @ stop.query_visual(p) + directions @ stop.query_orientation(a))

    def open_ways(self, walk: Walk, place: int) -> list[int]:
        return self.neighbours[place] if self.network.config.allow_revisits else self.sub_nodes(walk, place)

    def sub_nodes(self, walk: Walk, place: int) -> list[int]:
        return [n for n in self.neighbours[place] if n not in walk.memory]

    # where things are

    def angles(self, here: int, there: int) -> tuple[float, float]:
        east, north, up = (b - a for a, b in zip(self.position[here], self.position[there], strict=True))
        return math.atan2(east, north), math.atan2(up, math.hypot(east, north))

    def view_towards(self, here: int, there: int) -> int:
        """The one of the 36 views whose centre is nearest."""
        heading, elevation = self.angles(here, there)

        def off(view: int) -> float:
            turn = (heading - view % 12 * NORTH_STEP + math.pi) % (2 * math.pi) - math.pi
            return math.hypot(turn, elevation - (view // 12 - 1) * NORTH_STEP)

        return min(range(36), key=off)

    def orientation(self, here: int, there: int, view: int) -> Tensor:
        """r of the edge from ``here`` to ``there`` for an agent that faces ``view``  ->  (128,)"""
        heading, elevation = self.angles(here, there)
        return self.tiled(heading - view % 12 * NORTH_STEP, elevation)

    def tiled(self, heading: float, elevation: float) -> Tensor:
        if (heading, elevation) not in self.tiles:
            four = [math.cos(heading), math.sin(heading), math.cos(elevation), math.sin(elevation)]
            self.tiles[heading, elevation] = torch.tensor(four * 32)
        return self.tiles[heading, elevation]

    # states and scores

    def encoded(self, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        encoder = self.network.encoder
        words = encoder.embedding(torch.tensor(tokens))
        ahead = encoder.forward_lstm(words)[0]
        back = encoder.backward_lstm(words.flip(0))[0].flip(0)
        context = torch.cat([ahead, back], dim=1)
        hidden = torch.tanh(encoder.initial_hidden(context.max(dim=0).values))
        return context, hidden, encoder.initial_cell(torch.cat([ahead[-1], back[0]]))

    def observed(self, walk: Walk) -> tuple[Tensor, Tensor]:
        """Eq. 1: attend to the panorama, update, attend to the words."""
        updater = self.network.updater
        assert isinstance(updater, LSTMUpdater)
        assert isinstance(updater.view_query, PanoramaQuery)
        directions = [
            self.tiled((v % 12 - walk.view % 12) * NORTH_STEP, (v // 12 - 1) * NORTH_STEP) for v in range(36)
        ]
        views = torch.cat([self.features[walk.here], torch.stack(directions)], dim=1)
        query = torch.cat([updater.view_query.visual(walk.hidden), updater.view_query.angle(walk.hidden)])
        pose = self.tiled(walk.view % 12 * NORTH_STEP, (walk.view // 12 - 1) * NORTH_STEP)
        lstm_input = torch.cat([torch.tanh(updater.pose(pose)), attended(views, query)])
        hidden, cell = updater.lstm(lstm_input, (walk.hidden, walk.cell))
        words = attended(walk.words, updater.word_query(hidden))
        return torch.tanh(updater.join(torch.cat([words, hidden]))), cell

    def grounded(self, walk: Walk) -> tuple[Tensor, Tensor]:
        """Eqs. 5 and 6: h^p and h^a."""
        grounding = self.network.grounding
        assert isinstance(grounding, FineGrainedGrounding)

        def stream(attention: TextualAttention) -> Tensor:
            words = attended(walk.words, attention.query(walk.hidden))
            joined: Tensor = attention.join(torch.cat([walk.hidden, words]))
            return joined

        return stream(grounding.perception), stream(grounding.action)

    def read_memory(self, walk: Walk) -> dict[int, tuple[Tensor, Tensor]]:
        """Eqs. 7 to 9: the visual and the orientation state of every node."""
        reader, (p, a) = self.network.reader, self.grounded(walk)
        views, directions = {}, {}
        for v in walk.nodes:
            seen = [self.features[v][self.view_towards(v, u)] for u in self.neighbours[v]]
            views[v] = reader.project(attended(seen, reader.visual_read.query(p)))
            edges = [self.orientation(v, u, walk.view) for u in self.neighbours[v] if u in walk.memory]
            directions[v] = attended(edges, reader.orientation_read.query(a))
        for _ in range(self.network.config.reasoning_steps):
            views = passed_on(walk.memory, views, reader.visual_messages.update)
            directions = passed_on(walk.memory, directions, reader.orientation_messages.update)
        return {v: (views[v], directions[v]) for v in walk.nodes}

    @staticmethod
    def scored(score: ActionScore | FrontierScore, p: Tensor, a: Tensor, f: Tensor, r: Tensor) -> Tensor:
        """Eqs. 13 and 14."""
        weight: Tensor = score.mix(torch.cat([p, a]))
        return torch.stack([f @ score.query_visual(p), r @ score.query_orientation(a)]) @ weight


def attended(rows: Tensor | Sequence[Tensor], query: Tensor) -> Tensor:
    """rows: n of (W,)  query: (W,)  ->  (W,), 0 without a row"""
    if not len(rows):
        return torch.zeros_like(query)
    table = torch.stack(tuple(rows))
    return (table @ query).softmax(dim=0) @ table


def passed_on(memory: nx.Graph, states: dict[int, Tensor], update: nn.GRUCell | None) -> dict[int, Tensor]:
    assert update is not None
    nothing = torch.zeros_like(next(iter(states.values())))
    return {v: update(sum((states[u] for u in memory[v]), nothing), states[v]) for v in states}


# the comparison


@dataclass(frozen=True)
class Setting:
    """A world with random features, and episodes to walk in it."""

    environment: Environment
    episodes: EpisodeSet
    vocabulary: Vocabulary


MakeSetting = Callable[[World, EpisodeSet], Setting]


@pytest.fixture
def make_setting(random_environment: Callable[[World, int], Environment]) -> MakeSetting:
    def make(world: World, episodes: EpisodeSet) -> Setting:
        vocabulary = Vocabulary.build(episodes.texts, min_count=1)
        return Setting(random_environment(world, VISUAL), episodes, vocabulary)

    return make


def _network(words: int, seed: int, **settings: Any) -> SSM:
    """Random weights, large enough for clear decisions."""
    torch.manual_seed(seed)
    config = SSMConfig(word_width=16, width=WIDTH, reasoning_steps=3, **settings)
    network = SSM.build(config, DataSizes(words, VISUAL))
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.12)
    # stopping then scores 0, so that walks are long enough to jump
    nn.init.zeros_(network.actions.stop.visual)
    nn.init.zeros_(network.actions.stop.orientation)
    return network.eval()


def _batched(network: SSM, setting: Setting) -> tuple[Rollout, list[list[Decision]]]:
    """The rollout of all episodes together, and what every episode decided."""
    scores: list[Tensor] = []

    def keep_and_take_best(logits: Tensor, episode: Tensor) -> Tensor:
        scores.append(logits)
        return take_best(logits, episode)

    limits = WalkConfig(MAX_DECISIONS, MAX_STEPS, MAX_WORDS)
    agent = TrainedAgent(network, setting.environment, setting.vocabulary, limits)
    rollout = agent.walk(setting.episodes, keep_and_take_best)

    decided: list[dict[int, Decision]] = [{} for _ in setting.episodes.texts]
    for kind, table in rollout.decisions.items():
        for order in sorted(set(table.order.tolist())):
            rows = (table.order == order).nonzero().squeeze(1).tolist()
            for row, logits in zip(rows, scores[order], strict=True):
                options = table.options[row].nonzero().squeeze(1)
                decided[int(table.episode[row])][order] = Decision(
                    kind, options.tolist(), logits[options].tolist(), int(table.choice[row])
                )
    return rollout, [[found[order] for order in sorted(found)] for found in decided]


@torch.no_grad()
def _compare(network: SSM, setting: Setting) -> tuple[int, int]:
    """Walk every episode both ways; returns how many frontiers were jumped to and how many walks cut off."""
    rollout, decided = _batched(network, setting)
    plain = PlainSSM(network, setting.environment)
    jumps = 0
    for episode, text in enumerate(setting.episodes.texts):
        tokens = setting.vocabulary.encode(text, MAX_WORDS)
        start, heading = int(setting.episodes.start[episode]), float(setting.episodes.heading[episode])
        walk = plain.walk(tokens, start, heading)
        assert rollout.viewpoint[episode, : int(rollout.length[episode])].tolist() == walk.viewpoints
        for seen, expected in zip(decided[episode], walk.decisions, strict=True):
            assert (seen.kind, seen.options, seen.choice) == (
                expected.kind,
                expected.options,
                expected.choice,
            )
            assert seen.scores == pytest.approx(expected.scores, abs=1e-4)
        jumps += walk.jumps
    return jumps, int((~rollout.stopped).sum())


def _uneven(scan: Scan) -> Scan:
    """The same scan with every place moved a little, so that no two ways are equally long."""
    random = np.random.default_rng(1)

    def moved(pose: tuple[float, ...]) -> tuple[float, ...]:
        x, y, z = random.normal(scale=0.1, size=3).tolist()
        return (*pose[:3], pose[3] + x, *pose[4:7], pose[7] + y, *pose[8:11], pose[11] + z, *pose[12:])

    viewpoints = tuple(msgspec.structs.replace(v, pose=moved(v.pose)) for v in scan.viewpoints)
    return msgspec.structs.replace(scan, viewpoints=viewpoints)


variants = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"node_width": 16},
        {"node_width": 16, "restore_state": True},
        {"node_width": 16, "restore_state": True, "stop_from_memory": True},
        {"node_width": 16, "restore_state": True, "stop_from_memory": True, "allow_revisits": True},
        {"hints": True},
        {"node_width": 16, "restore_state": True, "stop_from_memory": True, "hints": True},
        {"hints": True, "restore_state": True, "allow_revisits": True},
    ],
    ids=[
        "paper",
        "narrow",
        "restores",
        "stop from memory",
        "revisits",
        "hints",
        "ours",
        "hints and revisits",
    ],
)


@variants
def test_thirty_episodes_of_the_tiny_world(
    tiny_data: Path, make_setting: MakeSetting, settings: dict[str, Any]
) -> None:
    world = build_world(_uneven(read_scan(file)) for file in connectivity_files(tiny_data / "connectivity"))
    file = tiny_data / "r2r" / "R2R_train.json"
    episodes = bind_episodes(world, read_episodes(file), file, name="tiny")
    setting = make_setting(world, episodes.select(range(0, 90, 3)))
    jumps, _ = _compare(_network(len(setting.vocabulary), 4, **settings), setting)
    assert jumps > 10


@pytest.mark.real_data
@variants
def test_two_hundred_real_episodes(
    real_data: Path, make_setting: MakeSetting, settings: dict[str, Any]
) -> None:
    file = real_data / "r2r" / "R2R_val_unseen.json"
    records = read_episodes(file)
    scans = sorted({record.scan for record in records})
    world = build_world(read_scan(real_data / "connectivity" / f"{scan}_connectivity.json") for scan in scans)
    episodes = bind_episodes(world, records, file, name="r2r val_unseen")
    setting = make_setting(world, episodes.select(torch.linspace(0, len(episodes) - 1, 200).long()))
    assert len(set(setting.episodes.scan.tolist())) == len(scans)
    jumps, cut_off = _compare(_network(len(setting.vocabulary), 3, **settings), setting)
    assert jumps > 50
    if "restore_state" in settings:
        assert cut_off > 0, "some walks end because their time is up"
