"""Traces recorded while an agent acts: a policy that watches another one answer, round by round.

Shape letters: B lanes, M lanes asked, O options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scenemem.agents.network import Acting
from scenemem.agents.policy import Chooser, NetworkPolicy
from scenemem.agents.rollout import Question
from scenemem.agents.spaces import ActionSpace
from scenemem.agents.trained import TrainedAgent
from scenemem.evaluation.metrics import Metrics, measure
from scenemem.formats.traces import Ending, Move, Scores, Trace
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.insight import Insight
from scenemem.viewer.openings import open_scene, open_task
from scenemem.viewer.rounds import RoundInProgress, decision_of, memory_of
from scenemem.world.graph import NONE

OnRound = Callable[[int, Move], None]
"""Called with the lane and its finished round, as soon as the lane goes on or ends."""


def open_traces(agent: TrainedAgent, episodes: EpisodeSet, *, name: str = "agent") -> list[Trace]:
    """Traces before the first round: what is asked for, and where."""
    world = agent.sight.world
    return [
        Trace(
            agent=name,
            task=open_task(world, episodes, row, agent.vocabulary, agent.max_words),
            scene=open_scene(world, int(episodes.scan[row]), int(episodes.goal[row])),
        )
        for row in range(len(episodes))
    ]


@torch.no_grad()
def trace_episodes(
    agent: TrainedAgent, episodes: EpisodeSet, on_round: OnRound | None = None, *, name: str = "agent"
) -> list[Trace]:
    """Walk the episodes exactly as ``agent.walk`` does and keep everything worth seeing.

    The network is watched meanwhile, so two threads must not trace with the same one at once.

    Args:
        agent: who walks.
        episodes: one lane each; goals may be secret.
        on_round: told of every round as it happens.
        name: of the agent, for people.
    """
    insight = Insight()
    policy = TracingPolicy(agent.choose, insight, open_traces(agent, episodes, name=name), on_round)
    with insight.watching(agent.network):
        rollout = agent.walk(episodes, policy.using)
    walked = rollout.viewpoint.masked_fill(~rollout.alive, NONE)
    metrics = measure(agent.sight.world, walked, episodes.path) if episodes.has_goals else None
    return policy.finished(metrics)


class TracingPolicy:
    """Answers as a ``NetworkPolicy`` and records, per lane, what it knew and how it decided.

    Args:
        choose: how an option is chosen from the scores.
        insight: watches the network.
        opened: the traces to fill, one per lane.
        on_round: told of every round as it happens.
    """

    def __init__(
        self,
        choose: Chooser,
        insight: Insight,
        opened: Sequence[Trace],
        on_round: OnRound | None = None,
    ) -> None:
        self._policy: NetworkPolicy
        self._space: ActionSpace  # both known from the first observation on
        self._choose = choose
        self._insight = insight
        self._opened = opened
        self._on_round = on_round
        self._rounds: list[list[Move]] = [[] for _ in opened]
        self._open: list[RoundInProgress | None] = [None] * len(opened)
        self._logits = torch.empty(0)

    def using(self, acting: Acting) -> TracingPolicy:
        """This policy, answering with a network in use."""
        self._policy = NetworkPolicy(acting, self._note_logits)
        return self

    def observe(self, pose: Pose, lanes: Tensor, space: ActionSpace, /) -> None:
        """Update the states of ``lanes`` and note where they stand."""
        self._space = space
        with self._insight.about(lanes):
            self._policy.observe(pose, lanes, space)
        places = space.world.local[pose.viewpoint[lanes]].tolist()
        for lane, place in zip(lanes.tolist(), places, strict=True):
            turn = self._open[lane]
            if turn is not None:
                turn.walk.append(place)

    def answer(self, question: Question, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        """(M,) what the wrapped policy chooses"""
        with self._insight.about(question.lanes):
            choice = self._policy.answer(question, label, pose, space)
        for row, lane in enumerate(question.lanes.tolist()):
            turn = self._open[lane]
            if turn is None or not turn.waits_for(question.kind):
                self._close(lane)
                turn = self._begin(lane, pose, space)
            words = len(self._opened[lane].task.words)
            turn.decisions.append(
                decision_of(question, row, self._logits[row], int(choice[row]), space, self._insight, words)
            )
        return choice

    def finished(self, metrics: Metrics | None) -> list[Trace]:
        """The whole traces, when every lane has ended."""
        traces = []
        for lane, opened in enumerate(self._opened):
            self._close(lane)
            rounds = self._rounds[lane]
            place = rounds[-1].walk[-1] if rounds else opened.task.start
            ending = Ending(
                stopped=bool(rounds) and rounds[-1].stops,
                place=place,
                memory=memory_of(self._space, lane),
                to_goal=opened.scene.places[place].to_goal,
                scores=None if metrics is None else _scores(metrics, lane),
            )
            traces.append(Trace(opened.agent, opened.task, opened.scene, tuple(rounds), ending))
        return traces

    def _note_logits(self, logits: Tensor) -> Tensor:
        self._logits = logits
        return self._choose(logits)

    def _begin(self, lane: int, pose: Pose, space: ActionSpace) -> RoundInProgress:
        place = int(space.world.local[pose.viewpoint[lane]])
        turn = RoundInProgress(
            heading=float(pose.heading[lane]),
            memory=memory_of(space, lane),
            to_goal=self._opened[lane].scene.places[place].to_goal,
            walk=[place],
        )
        self._open[lane] = turn
        return turn

    def _close(self, lane: int) -> None:
        turn = self._open[lane]
        if turn is not None:
            self._open[lane] = None
            self._rounds[lane].append(turn.finished())
            if self._on_round is not None:
                self._on_round(lane, self._rounds[lane][-1])


def _scores(metrics: Metrics, lane: int) -> Scores:
    values = {name: float(getattr(metrics, name)[lane]) for name in Scores.__struct_fields__}
    return Scores(**{name: round(value, 4) for name, value in values.items()})
