"""The batched agent against a plain one: one episode at a time, vector by vector, straight from the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import networkx as nx
import numpy as np
import pytest
import torch
from scenemem.agents.collect import collect
from scenemem.agents.grounded import MemoryConfig
from scenemem.agents.network import NetworkConfig
from scenemem.agents.policy import NetworkPolicy, take_best
from scenemem.agents.sight import Sight
from scenemem.models.decision import WeighedScore
from scenemem.models.navigator import LookAround
from torch import Tensor, nn

from scenemem.agents.rollout import Kind, Rollout
from scenemem.agents.ssm import FrontierNetwork
from scenemem.features.store import open_store
from scenemem.formats.connectivity import Scan, connectivity_files, read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import write_store
from scenemem.models.language import FineGrainedGrounding, TextualAttention
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes
from scenemem.tasks.vocabulary import PAD, Vocabulary
from scenemem.world.build import build_world
from scenemem.world.graph import World

VISUAL, WIDTH, ROUNDS, MAX_TICKS, MAX_WORDS = 24, 64, 15, 40, 80
NORTH_STEP = math.pi / 6


@dataclass(frozen=True)
class Decision:
    """What could be chosen, how it scored, what was chosen: nodes by number, neighbours by slot."""

    kind: Kind
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
    jumps: int = 0  # frontiers elsewhere that were gone to

    @property
    def nodes(self) -> list[int]:
        """Visited places in the order of their first visit."""
        return list(self.memory.nodes)


class PlainSsm:
    """The paper's agent, slow and obvious."""

    def __init__(self, network: FrontierNetwork, sight: Sight) -> None:
        self.network = network
        self.position = sight.world.position.tolist()
        self.neighbours = [[n for n in row if n >= 0] for row in sight.world.neighbour.tolist()]
        self.stop = sight.world.neighbour.shape[1]
        self.features = [sight.panorama(torch.tensor(v)) for v in range(len(self.neighbours))]  # (36, D)
        self.tiles: dict[tuple[float, float], Tensor] = {}

    def walk(self, tokens: list[int], start: int, heading: float) -> Walk:
        words, hidden, cell = self.encoded(tokens)
        facing = round(heading / NORTH_STEP) % 12 + 12
        walk = Walk(words, hidden, cell, start, facing)
        self.arrive(walk)
        for _ in range(ROUNDS):
            self.go_to_frontier(walk)
            if len(walk.viewpoints) == MAX_TICKS:
                break
            place = self.chosen_sub_node(walk)
            if place is None:
                break
            if self.network.memory.revisits:
                walk.kept.pop(place, None)  # a hop is part of the way, so the place is seen anew
            self.hop(walk, place)
            if len(walk.viewpoints) == MAX_TICKS:
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
        if not (self.network.memory.recalls and walk.here in walk.kept):
            walk.kept[walk.here] = (*self.observed(walk), walk.view)
        walk.hidden, walk.cell, walk.view = walk.kept[walk.here]

    def go_to_frontier(self, walk: Walk) -> None:
        frontiers = [v for v in walk.nodes if self.sub_nodes(walk, v)]
        options = [v for v in walk.nodes if v in frontiers or v == walk.here]
        if len(options) == 1:
            return
        read = self.read_memory(walk)
        p, a = self.grounded(walk)
        scores = [float(self.scored(self.network.frontier_score, p, a, *read[v])) for v in options]
        target = options[scores.index(max(scores))]
        numbers = [walk.nodes.index(v) for v in options]
        walk.decisions.append(Decision("frontier", numbers, scores, walk.nodes.index(target)))
        walk.jumps += target != walk.here
        for place in nx.shortest_path(walk.memory, walk.here, target, weight="metres")[1:]:
            self.hop(walk, place)
            if len(walk.viewpoints) == MAX_TICKS:
                return

    def chosen_sub_node(self, walk: Walk) -> int | None:
        """Eq. 14; None stops."""
        p, a = self.grounded(walk)
        revisits = self.network.memory.revisits
        places = self.neighbours[walk.here] if revisits else self.sub_nodes(walk, walk.here)
        seen = [
            (
                self.features[walk.here][self.view_towards(walk.here, place)],
                self.orientation(walk.here, place, walk.view),
            )
            for place in places
        ]
        seen.append((self.network.stop.visual, self.network.stop.orientation))
        scores = [float(self.scored(self.network.action_score, p, a, f, r)) for f, r in seen]
        scores[-1] += self.stop_fits(walk)
        options = [self.neighbours[walk.here].index(place) for place in places] + [self.stop]
        best = scores.index(max(scores))
        walk.decisions.append(Decision("action", options, scores, options[best]))
        return places[best] if best < len(places) else None

    def stop_fits(self, walk: Walk) -> float:
        """How well stopping fits what the memory says about here; 0 without the option."""
        if self.network.stop_read is None:
            return 0.0
        p, a = self.grounded(walk)
        seen, felt = self.read_memory(walk)[walk.here]
        stop = self.network.stop_read
        return float(seen @ stop.ask_visual(p) + felt @ stop.ask_orientation(a))

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

    # what is thought

    def encoded(self, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        encoder = self.network.encoder
        words = encoder.embedding(torch.tensor(tokens))
        ahead = encoder.forward_lstm(words)[0]
        back = encoder.backward_lstm(words.flip(0))[0].flip(0)
        context = torch.cat([ahead, back], dim=1)
        hidden = torch.tanh(encoder.begin_hidden(context.max(dim=0).values))
        return context, hidden, encoder.begin_cell(torch.cat([ahead[-1], back[0]]))

    def observed(self, walk: Walk) -> tuple[Tensor, Tensor]:
        """Eq. 1: look around, update, listen."""
        navigator = self.network.navigator
        assert isinstance(navigator.look, LookAround)
        directions = [
            self.tiled((v % 12 - walk.view % 12) * NORTH_STEP, (v // 12 - 1) * NORTH_STEP) for v in range(36)
        ]
        views = torch.cat([self.features[walk.here], torch.stack(directions)], dim=1)
        query = torch.cat([navigator.look.ask_visual(walk.hidden), navigator.look.ask_angle(walk.hidden)])
        seen = attended(views, query)
        pose = self.tiled(walk.view % 12 * NORTH_STEP, (walk.view // 12 - 1) * NORTH_STEP)
        entered = torch.cat([torch.tanh(navigator.pose(pose)), seen])
        hidden, cell = navigator.lstm(entered, (walk.hidden, walk.cell))
        heard = attended(walk.words, navigator.listen(hidden))
        return torch.tanh(navigator.join(torch.cat([heard, hidden]))), cell

    def grounded(self, walk: Walk) -> tuple[Tensor, Tensor]:
        """Eqs. 5 and 6: h^p and h^a."""
        grounding = self.network.grounding
        assert isinstance(grounding, FineGrainedGrounding)

        def stream(attention: TextualAttention) -> Tensor:
            heard = attended(walk.words, attention.query(walk.hidden))
            joined: Tensor = attention.join(torch.cat([walk.hidden, heard]))
            return joined

        return stream(grounding.perception), stream(grounding.action)

    def read_memory(self, walk: Walk) -> dict[int, tuple[Tensor, Tensor]]:
        """Eqs. 7 to 9: the visual and the orientation state of every node."""
        read, (p, a) = self.network.read, self.grounded(walk)
        seen, felt = {}, {}
        for v in walk.nodes:
            seen[v] = read.narrow(attended(self.features[v], read.visual_read.query(p)))
            edges = torch.stack([self.orientation(v, u, walk.view) for u in self.neighbours[v]])
            felt[v] = attended(edges, read.orientation_read.query(a))
        for _ in range(self.network.memory.reasoning_steps):
            seen = passed_on(walk.memory, seen, read.visual_messages.update)
            felt = passed_on(walk.memory, felt, read.orientation_messages.update)
        return {v: (seen[v], felt[v]) for v in walk.nodes}

    @staticmethod
    def scored(score: WeighedScore, p: Tensor, a: Tensor, f: Tensor, r: Tensor) -> Tensor:
        """Eqs. 13 and 14."""
        weight: Tensor = score.weigh(torch.cat([p, a]))
        return torch.stack([f @ score.ask_visual(p), r @ score.ask_orientation(a)]) @ weight


def attended(rows: Tensor, query: Tensor) -> Tensor:
    """rows: (n, W)  query: (W,)  ->  (W,)"""
    return (rows @ query).softmax(dim=0) @ rows


def passed_on(memory: nx.Graph, states: dict[int, Tensor], update: nn.GRUCell | None) -> dict[int, Tensor]:
    assert update is not None
    nothing = torch.zeros_like(next(iter(states.values())))
    return {v: update(sum((states[u] for u in memory[v]), nothing), states[v]) for v in states}


# the comparison


@dataclass(frozen=True)
class Setting:
    """A world with random features, and episodes to walk in it."""

    sight: Sight
    episodes: EpisodeSet
    vocabulary: Vocabulary


def _setting(world: World, episodes: EpisodeSet, folder: Path) -> Setting:
    random = np.random.default_rng(0)
    rows = (random.normal(size=(36, VISUAL)) for _ in world.names)
    write_store(folder / "random.npy", world.names, rows, width=VISUAL, source="", encoder="random")
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    return Setting(Sight(world, open_store(folder / "random.npy", world)), episodes, vocabulary)


def _network(
    stream: int | None, words: int, *, recalls: bool = False, stop_reads: bool = False, revisits: bool = False
) -> FrontierNetwork:
    """Random weights, large enough for clear decisions."""
    torch.manual_seed(4)
    config = NetworkConfig(word_width=16, width=WIDTH)
    memory = MemoryConfig(
        stream=stream, reasoning_steps=3, recalls=recalls, stop_reads=stop_reads, revisits=revisits
    )
    network = FrontierNetwork(config, memory, words, PAD, VISUAL, ROUNDS)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.12)
    nn.init.zeros_(network.stop.visual)  # stopping then scores 0, so that walks are long enough to jump
    nn.init.zeros_(network.stop.orientation)
    return network.eval()


@torch.no_grad()
def _batched(network: FrontierNetwork, setting: Setting) -> tuple[Rollout, list[list[Decision]]]:
    """The rollout of all episodes together, and what every lane decided."""
    asked: list[Tensor] = []

    def listen_and_take_best(logits: Tensor) -> Tensor:
        asked.append(logits)
        return take_best(logits)

    episodes, world = setting.episodes, setting.sight.world
    lanes = len(episodes)
    instructions = network.encoder(*setting.vocabulary.encode_batch(episodes.texts, MAX_WORDS))
    unrolling = network.unrolling(setting.sight, instructions, network.noise(lanes))
    acting = network.acting(setting.sight, unrolling)
    policy = NetworkPolicy(acting, listen_and_take_best)
    space = network.space(world, lanes, ROUNDS)
    rollout = collect(world, episodes, space, policy, max_ticks=MAX_TICKS)

    decided: list[dict[int, Decision]] = [{} for _ in range(lanes)]
    for kind, table in rollout.decisions.items():
        for order in sorted(set(table.order.tolist())):
            rows = (table.order == order).nonzero().squeeze(1).tolist()
            for row, logits in zip(rows, asked[order], strict=True):
                options = table.options[row].nonzero().squeeze(1)
                decided[int(table.lane[row])][order] = Decision(
                    kind, options.tolist(), logits[options].tolist(), int(table.choice[row])
                )
    return rollout, [[found[order] for order in sorted(found)] for found in decided]


@torch.no_grad()
def _compare(network: FrontierNetwork, setting: Setting) -> tuple[int, int]:
    """Walk every episode both ways; returns how many frontiers were jumped to and how many lanes cut off."""
    rollout, decided = _batched(network, setting)
    plain = PlainSsm(network, setting.sight)
    jumps = 0
    for lane, text in enumerate(setting.episodes.texts):
        tokens = setting.vocabulary.encode(text, MAX_WORDS)
        start, heading = int(setting.episodes.start[lane]), float(setting.episodes.heading[lane])
        walk = plain.walk(tokens, start, heading)
        assert rollout.viewpoint[lane, : int(rollout.ticks[lane])].tolist() == walk.viewpoints
        for seen, expected in zip(decided[lane], walk.decisions, strict=True):
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
    ("stream", "options"),
    [
        (None, {}),
        (16, {}),
        (16, {"recalls": True}),
        (16, {"recalls": True, "stop_reads": True}),
        (16, {"recalls": True, "stop_reads": True, "revisits": True}),
    ],
    ids=["paper", "narrow", "recalls", "stop reads", "revisits"],
)


@variants
def test_thirty_episodes_of_the_tiny_world(
    tiny_data: Path, tmp_path: Path, stream: int | None, options: dict[str, bool]
) -> None:
    world = build_world(_uneven(read_scan(file)) for file in connectivity_files(tiny_data / "connectivity"))
    file = tiny_data / "r2r" / "R2R_train.json"
    episodes = bind_episodes(world, read_episodes(file), file, name="tiny")
    setting = _setting(world, episodes.select(range(0, 90, 3)), tmp_path)
    jumps, _ = _compare(_network(stream, len(setting.vocabulary), **options), setting)
    assert jumps > 20


@pytest.mark.real_data
@variants
def test_two_hundred_real_episodes(
    real_data: Path, tmp_path: Path, stream: int | None, options: dict[str, bool]
) -> None:
    file = real_data / "r2r" / "R2R_val_unseen.json"
    records = read_episodes(file)
    scans = sorted({record.scan for record in records})
    world = build_world(read_scan(real_data / "connectivity" / f"{scan}_connectivity.json") for scan in scans)
    episodes = bind_episodes(world, records, file, name="r2r val_unseen")
    setting = _setting(world, episodes.select(torch.linspace(0, len(episodes) - 1, 200).long()), tmp_path)
    assert len(set(setting.episodes.scan.tolist())) == len(scans)
    jumps, cut_off = _compare(_network(stream, len(setting.vocabulary), **options), setting)
    assert jumps > 100
    assert cut_off > 0, "some walks end because their time is up"
