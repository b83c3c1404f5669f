"""Asked about a whole walk at once, an agent says what it would have chosen if asked at every step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import AgentPolicy, Decided, TrainedAgent, WalkConfig, collect, take_best
from scenemem.errors import UserError
from scenemem.evaluation.following import Agreement, measure_following, path_likelihood
from scenemem.features.store import Environment, open_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import ReferencePath
from scenemem.simulator.panorama import Pose
from scenemem.ssm.agent import SSM
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world
from scenemem.zoo import active_perception, rpa, student_forcing

FAMILY = {"active-perception": active_perception, "rpa": rpa, "student-forcing": student_forcing}


@pytest.fixture(scope="module")
def environment(tiny_trainable: Path) -> Environment:
    world = load_world(tiny_trainable / "connectivity")
    return Environment(world, open_store(tiny_trainable / "features" / "tiny.npy", world))


@pytest.fixture(scope="module")
def episodes(tiny_trainable: Path, environment: Environment) -> EpisodeSet:
    return load_split(DataFolder(tiny_trainable), environment.world, "r2r", "val_unseen")


def _agent(name: str, environment: Environment, episodes: EpisodeSet, **settings: object) -> TrainedAgent:
    torch.manual_seed(3)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    spec = FAMILY[name].SPEC if name in FAMILY else AGENTS[name]
    sizes = DataSizes(words=len(vocabulary), visual=environment.width)
    network = spec.build(spec.config(word_width=6, width=8, **settings), sizes)
    return TrainedAgent(network, environment, vocabulary, WalkConfig(max_decisions=4, max_words=30))


class _Asked:
    """Follows the labels, and notes what the agent would have done."""

    def __init__(self, inner: AgentPolicy) -> None:
        self.inner = inner
        self.right, self.of = Counter[str](), Counter[str]()

    def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        self.inner.observe(pose, active, space)

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        chosen = self.inner.decide(request, label, pose, space)
        for mine, right, stops in zip(chosen, label, request.stops(label), strict=True):
            what = ": stay" if request.type.over_nodes else (": stop" if stops else ": go on")
            name = str(request.type) if request.type.aside else f"{request.type}{what}"
            self.right[name] += bool(mine == right)
            self.of[name] += 1
        return label


@pytest.mark.parametrize("name", ["basic", "ssm", "ssm-global", "ssm-local", "active-perception"])
def test_it_agrees_with_asking_at_every_step(
    name: str, environment: Environment, episodes: EpisodeSet
) -> None:
    agent = _agent(name, environment, episodes)
    agent.network.train()
    told: list[tuple[int, int]] = []
    found = measure_following(
        agent, episodes, batch_size=7, progress=lambda done, total: told.append((done, total))
    )
    assert agent.network.training, "as it was before"
    assert told[-1] == (len(episodes), len(episodes))
    network, longest = agent.network.eval(), int(episodes.path_length.max())
    log = network.state_log(environment, agent.read(episodes.texts), network.dropout_masks(len(episodes)))
    asked = _Asked(AgentPolicy(network, log, environment, take_best))
    collect(
        environment.world,
        episodes,
        network.action_space(environment.world, len(episodes), longest, learning=True),
        asked,
        max_steps=longest**2,
        label_rule=ReferencePath(environment.world, episodes.path),
    )
    assert found == [Agreement(kind, asked.right[kind], asked.of[kind]) for kind in sorted(asked.of)]
    assert {one.of for one in found if one.decisions.endswith("stop")} == {len(episodes)}
    assert any(0 < one.share < 1 for one in found)


@pytest.mark.parametrize("name", ["basic", "ssm", "ssm-global"])
def test_the_likelihood_of_a_path_is_that_of_its_decisions(
    name: str, environment: Environment, episodes: EpisodeSet
) -> None:
    agent = _agent(name, environment, episodes)
    found = path_likelihood(agent, episodes)
    network, longest = agent.network.eval(), int(episodes.path_length.max())
    log = network.state_log(environment, agent.read(episodes.texts), network.dropout_masks(len(episodes)))
    said: list[list[float]] = [[] for _ in range(len(episodes))]

    class Noted:
        """A watcher that reads the chances of what is right, decision by decision."""

        label: Tensor

        def observed(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
            pass

        def decided(self, decided: Decided, /) -> None:
            chances = decided.logits.log_softmax(dim=1)
            for episode, row, right in zip(decided.request.episode, chances, self.label, strict=True):
                said[int(episode)].append(float(row[right]))

    class Led(AgentPolicy):
        def decide(
            self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
        ) -> Tensor:
            noted.label = label
            super().decide(request, label, pose, space)
            return label

    noted = Noted()
    collect(
        environment.world,
        episodes,
        network.action_space(environment.world, len(episodes), longest, learning=True),
        Led(network, log, environment, take_best, watcher=noted),
        max_steps=longest**2,
        label_rule=ReferencePath(environment.world, episodes.path),
    )
    expected = torch.tensor([sum(chances) / len(chances) for chances in said])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(path_likelihood(agent, episodes.select([2, 0])), found[[2, 0]])


@pytest.mark.parametrize("name", ["rpa", "student-forcing"])
def test_agents_that_turn_and_step_are_refused(
    name: str, environment: Environment, episodes: EpisodeSet
) -> None:
    agent = _agent(name, environment, episodes)
    with pytest.raises(UserError, match="this agent turns and steps; only agents that choose viewpoints"):
        measure_following(agent, episodes)


def test_who_is_sure_to_stay_stays(environment: Environment, episodes: EpisodeSet) -> None:
    agent = _agent("ssm", environment, episodes, stay_score=True)
    assert isinstance(agent.network, SSM)
    assert agent.network.stay_score is not None
    share = {}
    for bias in (1e3, -1e3):
        torch.nn.init.constant_(agent.network.stay_score.score.bias, bias)
        share[bias] = next(
            one.share for one in measure_following(agent, episodes) if one.decisions == "frontier: stay"
        )
    assert share[1e3] == 1.0
    assert share[-1e3] < 0.8, "at the start, and where nothing was left open, there is no other frontier"
