"""Traces recorded while an agent walks: a watcher that sees how it decides, move by move.

This is the only module of the viewer that touches agents; everything else works on the records it makes.
Shape letters: B episodes, M episodes that decide at once, O options, L words, V viewpoints of a scan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, Observations
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL
from scenemem.agents.walker import Decided, TrainedAgent
from scenemem.evaluation.metrics import Metrics, measure
from scenemem.formats.traces import (
    Attention,
    Decision,
    Ending,
    Memory,
    Move,
    Option,
    Origin,
    Place,
    Scene,
    Scores,
    Task,
    Trace,
    Way,
    Word,
)
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary, split_words
from scenemem.viewer.narration import DrawnWalk, Rooms, compass
from scenemem.world.graph import NONE, Pose, World

OnMove = Callable[[int, Move], None]
"""Called with the index of an episode and its finished move, as soon as the agent goes on or ends."""

_MARKS = 2  # the begin and the end mark an agent reads besides the words
_LEVEL = 0.6  # metres; viewpoints this close in height make one floor
_STOREY = 1.8  # metres; floors are at least this far apart
_LEAST = 0.05  # share of the viewpoints a floor has; fewer are stairs or landings


@dataclass(frozen=True, eq=False)
class TracedAgent:
    """An agent, what it is called and the split it walks."""

    name: str
    agent: TrainedAgent
    episodes: EpisodeSet
    origin: Origin | None = None  # of its traces

    def trace(self, instruction_ids: Sequence[str]) -> list[Trace]:
        """Walk the episodes of some instructions."""
        if not instruction_ids:
            return []
        episodes = self.episodes.select([self.episodes.row_of(name) for name in instruction_ids])
        traces = trace_episodes(self.agent, episodes, name=self.name)
        return [msgspec.structs.replace(trace, origin=self.origin) for trace in traces]

    def walks(self, instruction_ids: Sequence[str], rooms: Rooms) -> list[DrawnWalk]:
        """The same with the words of pages."""
        return [DrawnWalk.of(trace, rooms(trace.scene)) for trace in self.trace(instruction_ids)]


def open_traces(agent: TrainedAgent, episodes: EpisodeSet, *, name: str = "agent") -> list[Trace]:
    """Traces before the first move: the task and the scene."""
    world, traces = agent.environment.world, []
    for row, text in enumerate(episodes.texts):
        task = open_task(world, episodes, row, _words(text, agent.vocabulary, agent.limits.max_words))
        scene = open_scene(world, int(episodes.scan[row]), int(episodes.goal[row]))
        traces.append(Trace(name, task, scene))
    return traces


@torch.no_grad()
def trace_episodes(
    agent: TrainedAgent, episodes: EpisodeSet, on_move: OnMove | None = None, *, name: str = "agent"
) -> list[Trace]:
    """Walk the episodes exactly as ``agent.walk`` does and record every move; goals may be secret."""
    recorder = _TraceRecorder(open_traces(agent, episodes, name=name), on_move)
    rollout = agent.walk(episodes, watcher=recorder)
    metrics = None
    if episodes.has_goals:
        metrics = measure(agent.environment.world, rollout.walked, episodes.path)
    return recorder.finished(metrics)


class _TraceRecorder:
    """Records, per episode, what was known and how it was decided."""

    def __init__(self, opened: Sequence[Trace], on_move: OnMove | None) -> None:
        self._space: ActionSpace  # known from the first observation on
        self._opened, self._on_move = opened, on_move
        self._moves: list[list[Move]] = [[] for _ in opened]
        self._open: list[Move | None] = [None] * len(opened)

    def observed(self, observations: Observations, _pose: Pose, space: ActionSpace, /) -> None:
        """Note where the episodes stand."""
        self._space = space
        places = space.world.local[observations.viewpoint].tolist()
        for episode, place in zip(observations.episode.tolist(), places, strict=True):
            move = self._open[episode]
            if move is not None:
                self._open[episode] = msgspec.structs.replace(move, walk=(*move.walk, place))

    def decided(self, decided: Decided, /) -> None:
        """Note what could be chosen, and what was."""
        for row, episode in enumerate(decided.request.episode.tolist()):
            decision = _decision(decided, row, len(self._opened[episode].task.words))
            move = self._open[episode]
            before = [] if move is None else [one.kind for one in move.decisions]
            if move is not None and before == [FRONTIER.name] and decided.request.type == ACTION:
                decisions = (*move.decisions, decision)  # a neighbour of the frontier just chosen
                self._open[episode] = msgspec.structs.replace(move, decisions=decisions)
            else:
                self._close(episode)
                self._open[episode] = self._begin(episode, decided, decision)

    def finished(self, metrics: Metrics | None) -> list[Trace]:
        """The whole traces, when every episode has ended."""
        traces = []
        for episode, opened in enumerate(self._opened):
            self._close(episode)
            moves = self._moves[episode]
            place = moves[-1].walk[-1] if moves else opened.task.start
            ending = Ending(
                stopped=bool(moves) and moves[-1].stops,
                place=place,
                memory=_memory(self._space, episode),
                to_goal=opened.scene.places[place].to_goal,
                scores=None if metrics is None else scores_of(metrics, episode),
            )
            traces.append(Trace(opened.agent, opened.task, opened.scene, tuple(moves), ending))
        return traces

    def _begin(self, episode: int, decided: Decided, decision: Decision) -> Move:
        pose, space = decided.pose, decided.space
        place, heading = int(space.world.local[pose.viewpoint[episode]]), float(pose.heading[episode])
        to_goal = self._opened[episode].scene.places[place].to_goal
        return Move(round(heading, 4), (place,), (decision,), _memory(space, episode), to_goal)

    def _close(self, episode: int) -> None:
        move, self._open[episode] = self._open[episode], None
        if move is not None:
            self._moves[episode].append(move)
            if self._on_move is not None:
                self._on_move(episode, move)


def _memory(space: ActionSpace, episode: int) -> Memory | None:
    """What an agent remembers now; None in a space without a memory."""
    if space.memory is None:
        return None
    memory, local = space.memory, space.world.local
    count = int(memory.count[episode])
    nodes = memory.node[episode, :count]
    ways = memory.subnode[episode, :count].nonzero().tolist()
    return Memory(
        here=int(memory.here[episode]),
        nodes=tuple(local[nodes].tolist()),
        frontier=tuple(memory.frontier[episode, :count].tolist()),
        edges=tuple((a, b) for a, b in memory.edge[episode].nonzero().tolist() if a < b),
        ways=tuple(_way(space.world, node, (int(nodes[node]), slot)) for node, slot in ways),
    )


def _way(world: World, node: int, hop: tuple[int, int]) -> Way:
    heading, elevation = float(world.neighbour_heading[hop]), float(world.neighbour_elevation[hop])
    place = int(world.local[world.neighbour[hop]])
    return Way(node, place, round(heading, 4), round(elevation, 4), compass(heading))


def _decision(decided: Decided, row: int, words: int) -> Decision:
    """One decision as plain numbers; of the episode in ``row``, whose instruction has ``words`` words."""
    request, explanation = decided.request, decided.explanation
    numbers = request.options[row].nonzero().squeeze(1).tolist()
    mix = explanation.mix.get(request.type)  # (M, 2)
    return Decision(
        kind=request.type.name,
        options=tuple(_option(decided, row, number) for number in numbers),
        choice=numbers.index(int(decided.choice[row])),
        weights=None if mix is None else _pair(mix[row]),
        attention=_attention(decided, row, words),
        numbers={name: round(float(values[row]), 4) for name, values in explanation.numbers.items()},
    )


def _option(decided: Decided, row: int, number: int) -> Option:
    request, logits = decided.request, decided.logits[row]
    stops = bool(request.stops(torch.tensor(number)))
    name = request.type.name_of(number, request.options.shape[1])
    node, walk, heading = _destination(decided, row, number, stops=stops, named=name is not None)
    visual, geometric = None, None
    confidence = decided.explanation.confidence.get(request.type)  # (M, O, 2)
    if confidence is not None and number < confidence.shape[1]:
        visual, geometric = _pair(confidence[row, number])
    return Option(
        place=int(decided.space.world.local[request.viewpoint[row, number]]),
        probability=round(float(logits.softmax(dim=-1)[number]), 5),
        logit=round(float(logits[number]), 4),
        stop=stops,
        node=node,
        walk=None if walk is None else round(walk, 2),
        heading=None if heading is None else round(heading, 4),
        compass=None if heading is None else compass(heading),
        name=name,
        visual=visual,
        geometric=geometric,
    )


def _attention(decided: Decided, row: int, words: int) -> Attention | None:
    """The attention on the words of an instruction, without the begin and the end mark."""
    found = decided.explanation.words
    if "perception" not in found or "action" not in found:
        return None
    shares = (found[name][row, 1 : words + 1].tolist() for name in ("perception", "action"))
    perception, action = (tuple(round(share, 4) for share in row) for row in shares)
    return Attention(perception, action)


def _destination(
    decided: Decided, row: int, number: int, *, stops: bool, named: bool
) -> tuple[int | None, float | None, float | None]:
    """How to get to what an option offers.

    Returns:
        the node it belongs to; metres to walk, None when the agent counts hops; the heading of the last hop.
    """
    request, memory, world = decided.request, decided.space.memory, decided.space.world
    episode = int(request.episode[row])
    if memory is None:
        hop = int(request.viewpoint[row, -1]), number  # the last option is to stop here
        if named or stops:
            return None, None if named else 0.0, None
        return None, float(world.neighbour_length[hop]), float(world.neighbour_heading[hop])
    stands = int(memory.here[episode])
    if stops:
        return stands, 0.0, None
    node, slot = (number, None) if request.type.over_nodes else (stands, number)
    if named:  # leads to a place it remembers
        node, slot = int((memory.node[episode] == request.viewpoint[row, number]).int().argmax()), None
    if request.type == GLOBAL:
        node, slot = divmod(number, world.neighbour.shape[1])
    metres, before = memory.walk_cost == "metres", float(memory.walk[episode, stands, node])
    if slot is None:
        return node, before if metres else None, None
    hop = int(memory.node[episode, node]), slot
    walk = before + float(world.neighbour_length[hop]) if metres or node == stands else None
    return node, walk, float(world.neighbour_heading[hop])


def _pair(values: Tensor) -> tuple[float, float]:
    first, second = values.tolist()
    return round(first, 4), round(second, 4)


def scores_of(metrics: Metrics, episode: int) -> Scores:
    """The metrics of one walk."""
    values = {name: float(getattr(metrics, name)[episode]) for name in Scores.__struct_fields__}
    return Scores(**{name: round(value, 4) for name, value in values.items()})


def open_scene(world: World, scan: int, goal: int) -> Scene:
    """All viewpoints of a scan and how far each is from the goal (a viewpoint, or -1)."""
    viewpoints = (world.scan_of == scan).nonzero().squeeze(1)
    position = world.position[viewpoints].cpu()
    heights, floors = _floors(position[:, 2])
    left: list[float | None] = [None] * len(viewpoints)
    if goal != NONE:
        metres = world.geodesic(viewpoints, torch.tensor(goal, device=world.device)).tolist()
        left = [round(value, 3) if math.isfinite(value) else None for value in metres]
    neighbour = world.neighbour[viewpoints]
    place, slot = (neighbour != NONE).nonzero().unbind(1)
    pairs = zip(place.tolist(), world.local[neighbour[place, slot]].tolist(), strict=True)
    return Scene(
        scan=world.scans[scan],
        floors=tuple(round(height, 3) for height in heights),
        places=tuple(
            Place(world.viewpoints[number], round(x, 3), round(y, 3), round(z, 3), floor, to_goal)
            for number, (x, y, z), floor, to_goal in zip(
                viewpoints.tolist(), position.tolist(), floors, left, strict=True
            )
        ),
        edges=tuple((a, b) for a, b in pairs if a < b),
    )


def open_task(world: World, episodes: EpisodeSet, row: int, words: tuple[Word, ...]) -> Task:
    """The task of an episode of which an agent reads some words."""
    goal, length = int(episodes.goal[row]), int(episodes.path_length[row])
    path = episodes.path[row, :length]
    return Task(
        split=episodes.name,
        instruction_id=episodes.instruction_ids[row],
        text=episodes.texts[row],
        words=words,
        start=int(world.local[episodes.start[row]]),
        goal=None if goal == NONE else int(world.local[goal]),
        reference=() if goal == NONE else tuple(world.local[path].tolist()),
    )


def _words(text: str, vocabulary: Vocabulary, max_words: int) -> tuple[Word, ...]:
    """The words an agent reads, as they stand in the text."""
    known, end = set(vocabulary.words), 0
    words: list[Word] = []
    lowered = text.lower().replace("\n", " ")
    aligned = len(lowered) == len(text)  # a few capitals have longer small letters
    for word in split_words(text)[: max_words - _MARKS]:
        begin = lowered.find(word, end) if aligned else NONE
        if begin == NONE:
            words.append(Word(word, " " if words else "", word in known))
        else:
            words.append(Word(text[begin : begin + len(word)], text[end:begin], word in known))
            end = begin + len(word)
    return tuple(words)


def _floors(height: Tensor) -> tuple[list[float], list[int]]:
    """Group viewpoints by height: the fullest levels first, every viewpoint to the nearest level.

    height: (V,) metres  ->  heights of the floors, lowest first; floor of every viewpoint
    """
    waiting, levels = height, list[float]()
    while len(waiting):
        company = ((waiting.unsqueeze(1) - waiting).abs() < _LEVEL / 2).sum(dim=1)
        fullest = int(company.argmax())
        if levels and int(company[fullest]) < max(2, _LEAST * len(height)):
            break
        levels.append(float(waiting[(waiting - waiting[fullest]).abs() < _LEVEL / 2].mean()))
        waiting = waiting[(waiting - levels[-1]).abs() >= _STOREY]
    levels.sort()
    gaps = (height.unsqueeze(1) - torch.tensor(levels, dtype=height.dtype)).abs()
    return levels, gaps.argmin(dim=1).tolist()
