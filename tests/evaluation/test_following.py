"""Led along the reference paths, an agent is asked at every decision what it would have chosen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, Arrival
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import AgentPolicy, TrainedAgent, WalkConfig, collect, take_best
from scenemem.errors import UserError
from scenemem.evaluation.following import Agreement, measure_following, path_likelihood
from scenemem.learning.objectives import ReferencePath
from scenemem.models.navigator import RolloutInputs
from scenemem.simulator.panorama import Pose
from scenemem.ssm.additions import SSMPlus
from scenemem.zoo import active_perception, rpa, student_forcing
from tests.agents.helpers import Setting

FAMILY = {"active-perception": active_perception, "rpa": rpa, "student-forcing": student_forcing}


@pytest.fixture(scope="module")
def setting(tiny_trainable: Path) -> Setting:
    return Setting.load(tiny_trainable, "val_unseen")


def _agent(setting: Setting, name: str, **settings: object) -> TrainedAgent:
    limits = WalkConfig(max_decisions=4, max_words=30)
    if name not in FAMILY:
        return setting.agent(name, limits=limits, **settings)
    spec = FAMILY[name].AGENTS[name]
    network = setting.network(lambda sizes: spec.build(spec.config(word_width=6, width=8), sizes))
    return TrainedAgent(network, setting.environment, setting.vocabulary, limits)


class _Asked:
    """Follows the labels, and notes what the agent would have done and how likely the label was."""

    def __init__(self, inner: AgentPolicy) -> None:
        self.inner = inner
        self.right, self.of = Counter[str](), Counter[str]()
        self.chances: dict[int, list[float]] = {}

    def observe(self, pose: Pose, arrival: Arrival, space: ActionSpace, /) -> None:
        self.inner.observe(pose, arrival, space)

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, Tensor]:
        chosen, logits = self.inner.decide(request, label, pose, space)
        for row, (mine, right, stops) in enumerate(zip(chosen, label, request.stops(label), strict=True)):
            what = ": stay" if request.type.over_nodes else (": stop" if stops else ": go on")
            name = str(request.type) if request.type.auxiliary else f"{request.type}{what}"
            self.right[name] += bool(mine == right)
            self.of[name] += 1
            likely = float(logits[row].log_softmax(dim=0)[right])
            self.chances.setdefault(int(request.episode[row]), []).append(likely)
        return label, logits


@pytest.mark.parametrize("name", ["basic", "ssm", "ssm-plus", "ssm-global", "ssm-local", "active-perception"])
def test_agreement_and_likelihood_are_those_of_every_single_decision(name: str, setting: Setting) -> None:
    agent, episodes, told = _agent(setting, name), setting.episodes, list[tuple[int, int]]()
    agent.network.train()
    found = measure_following(
        agent, episodes, batch_size=7, progress=lambda done, total: told.append((done, total))
    )
    likelihood = path_likelihood(agent, episodes)
    assert agent.network.training, "as it was before"
    assert told[-1] == (len(episodes), len(episodes))
    network, longest = agent.network.eval(), int(episodes.path_length.max())
    inputs = RolloutInputs(
        setting.environment, agent.read(episodes.texts), network.dropout_masks(len(episodes))
    )
    asked = _Asked(AgentPolicy(network, inputs, take_best))
    collect(
        setting.world,
        episodes,
        network.action_space(setting.world, len(episodes), longest, learning=True),
        asked,
        max_steps=longest**2,
        label_rule=ReferencePath(setting.world, episodes.path),
    )
    assert found == [Agreement(kind, asked.right[kind], asked.of[kind]) for kind in sorted(asked.of)]
    assert {one.of for one in found if one.decisions.endswith("stop")} == {len(episodes)}
    assert any(0 < one.share < 1 for one in found)
    if name != "active-perception":  # which has decisions that a path does not label
        expected = torch.tensor([sum(row) / len(row) for _, row in sorted(asked.chances.items())])
        torch.testing.assert_close(likelihood, expected, rtol=1e-4, atol=1e-5)
    part = path_likelihood(agent, episodes.select([2, 0]))
    torch.testing.assert_close(part, likelihood[[2, 0]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["rpa", "student-forcing"])
def test_agents_that_turn_and_step_are_refused(name: str, setting: Setting) -> None:
    with pytest.raises(UserError, match="this agent turns and steps; only agents that choose viewpoints"):
        measure_following(_agent(setting, name), setting.episodes)


def test_an_agent_that_is_sure_to_stay_stays(setting: Setting) -> None:
    agent = _agent(setting, "ssm-plus", stay_score=True)
    assert isinstance(agent.network, SSMPlus)
    assert agent.network.stay_score is not None
    share = {}
    for bias in (1e3, -1e3):
        torch.nn.init.constant_(agent.network.stay_score.score.bias, bias)
        found = {one.decisions: one.share for one in measure_following(agent, setting.episodes)}
        share[bias] = found["frontier: stay"]
    assert share[1e3] == 1.0
    assert share[-1e3] < 0.8, "at the start, and where nothing was left open, there is no other frontier"
