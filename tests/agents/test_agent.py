"""What must hold for every agent, whatever it is made of: it is scored alike while it acts and afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.actions import (
    ActionSpace,
    FrontierActions,
    Limit,
    WalkOptions,
)
from scenemem.agents.agent import Agent, DecisionPoint, Observations, follow, pad_logits
from scenemem.agents.basic import Basic
from scenemem.agents.build import AGENTS, AgentModules, DataSizes, ModelConfig, lstm_modules
from scenemem.agents.rollout import (
    ACTION,
    FINAL,
    FRONTIER,
    GLOBAL,
    DecisionRequest,
    DecisionType,
    Outputs,
    Rollout,
)
from scenemem.agents.walker import AgentPolicy, Pick, collect, take_best
from scenemem.errors import SettingError, UserError
from scenemem.features.store import Environment
from scenemem.learning.objectives import (
    ClosestToGoal,
    LearningConfig,
    LossContext,
    Stage,
    a2c,
    distance_reward,
    imitation,
)
from scenemem.models.navigator import (
    DropoutMasks,
    FusedStateLog,
    Instructions,
    LSTMUpdater,
    Observation,
    State,
    StateLog,
    StateUpdater,
)
from scenemem.presets import PRESETS
from scenemem.simulator.panorama import Pose
from scenemem.ssm.agent import SSM, GlobalSSM, GlobalSSMConfig, LocalSSM, SSMConfig
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, World

VISUAL, MAX_DECISIONS, MAX_STEPS = 6, 6, 60
PACKAGED = ("basic", "basic-ending", "ssm", "ssm-local", "ssm-global")
assert PRESETS, "presets register the packaged agents"


# agents from outside: another recurrent core, and an agent that reads every field of a decision point


@dataclass(frozen=True)
class CountingState(State):
    """A state with a field of its own."""

    seen: Tensor  # (B, H) the sum of all views attended to so far


class GRUUpdater(StateUpdater):
    """A core without a hand-written gradient, and with a dropout mask of its own."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.width = config.width
        self.view = nn.Linear(sizes.visual, config.width)
        self.cell = nn.GRUCell(config.width, config.width)

    def mask_widths(self) -> dict[str, int]:
        return {"gru_input": self.width}

    def initial_state(self, instructions: Instructions) -> CountingState:
        return CountingState(instructions.hidden, torch.zeros_like(instructions.hidden))

    def forward(self, state: CountingState, observation: Observation) -> CountingState:
        view = self.view((observation.panorama * observation.masks.feature).mean(dim=1))
        words = observation.instructions
        view = view + (words.context * words.mask.unsqueeze(-1)).sum(dim=1) / 20
        hidden = self.cell(view * observation.masks["gru_input"], state.hidden)
        return CountingState(hidden, state.seen + view)


class Outsider(Agent):
    """Uses everything a decision point offers, and does not ask whether a node is known yet."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, parts: AgentModules, *, allow_revisits: bool) -> None:
        super().__init__(config, sizes, parts)
        self.option = nn.Linear(config.width, sizes.visual + 4)
        self.node = nn.Linear(config.width, 7)
        self.allow_revisits = allow_revisits

    @classmethod
    def build(cls, config: ModelConfig, sizes: DataSizes, *, allow_revisits: bool = False) -> Outsider:
        parts = lstm_modules(config, sizes, updater=GRUUpdater)
        return cls(config, sizes, parts, allow_revisits=allow_revisits)

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        del learning
        options = WalkOptions(restore_state=True, allow_revisits=self.allow_revisits)
        return FrontierActions(world, episodes, max_decisions, options)

    def heads(self, observations: Observations) -> dict[str, Tensor]:
        return {**super().heads(observations), "double": observations.state.hidden[:, :3] * 2}

    def columns(self, observations: Observations) -> dict[str, Tensor]:
        return {"mood": observations.state.hidden[:, :2].detach()}

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        state, graph, seen = point.state, point.memory(), point.candidates()
        assert isinstance(state, CountingState)
        query = self.option((state.hidden + state.seen) * point.mask("decision"))
        visual, angle = query.split([seen.visual.shape[2], 4], dim=1)
        actions = (seen.visual * (visual * point.feature_mask).unsqueeze(1)).sum(dim=2)
        actions = actions + (seen.orientation * angle.unsqueeze(1)).sum(dim=2)
        stop = torch.cos(point.heading) + point.view / 36 + point.viewpoint / 50
        facts = torch.stack(
            [
                graph.viewpoint / 50.0,
                graph.edge.sum(dim=2) / 4.0,
                graph.walk.nan_to_num(posinf=99.0) / 10.0,
                graph.open.sum(dim=2) / 4.0,
                (graph.viewpoint == point.viewpoint.unsqueeze(1)).float(),
                *graph.column("mood").unbind(dim=2),
            ],
            dim=-1,
        )
        frontiers = (facts * self.node(state.seen + graph.count.unsqueeze(1)).unsqueeze(1)).sum(dim=2)
        return {FRONTIER: frontiers, ACTION: torch.cat([actions, stop.unsqueeze(1)], dim=1)}


Build = Callable[[DataSizes], Agent]


def _packaged(agent: str, **settings: Any) -> Build:
    def build(sizes: DataSizes) -> Agent:
        spec = AGENTS[agent]
        return spec.build(spec.config(word_width=8, width=16, **settings), sizes)

    build.settings = (agent, settings)  # type: ignore[attr-defined]
    return build


SIZES = ModelConfig(word_width=8, width=16)
VARIANTS: dict[str, Build] = {
    "basic": _packaged("basic"),
    "seq2seq": _packaged("basic", panorama=False),
    "basic backtracks": _packaged("basic-ending", final_backtrack=True),
    "basic hop prior": _packaged("basic-ending", hop_prior=True),
    "local": _packaged("ssm-local"),
    "local without grounding": _packaged("ssm-local", grounding=False),
    "local revisits": _packaged("ssm-local", allow_revisits=True),
    "ssm": _packaged("ssm", reasoning_steps=2),
    "ssm narrow": _packaged("ssm", node_width=32),
    "ssm all edges": _packaged("ssm", edges="all"),
    "ssm all views": _packaged("ssm", views="all"),
    "ssm unvisited views": _packaged("ssm", views="unvisited"),
    "ssm narrow directions": _packaged("ssm", orientation_width=32),
    "ssm hints": _packaged("ssm", hints=True),
    "ssm stay score": _packaged("ssm", stay_score=True),
    "ssm hints narrow": _packaged("ssm", hints=True, node_width=32),
    "ssm stop from memory": _packaged(
        "ssm", stop_from_memory=True, hints=True, restore_state=True, node_width=32
    ),
    "ssm stop from memory plainly": _packaged("ssm", stop_from_memory=True),
    "ssm by hops": _packaged("ssm", walk_cost="hops"),
    "ssm without grounding": _packaged("ssm", grounding=False),
    "ssm without reasoning": _packaged("ssm", reasoning_steps=0),
    "ssm restores": _packaged("ssm", restore_state=True),
    "ssm read before update": _packaged("ssm", read_before_update=True),
    "ssm hop prior": _packaged("ssm", hop_prior=True),
    "ssm revisits": _packaged("ssm", allow_revisits=True, hints=True, stop_from_memory=True),
    "ssm restores and revisits": _packaged("ssm", restore_state=True, allow_revisits=True, hints=True),
    "ssm backtracks": _packaged("ssm", final_backtrack=True, restore_state=True, hints=True),
    "ssm one view": _packaged("ssm", panorama=False, hints=True),
    "global": _packaged("ssm-global", reasoning_steps=2),
    "global narrow": _packaged("ssm-global", node_width=32),
    "global stop from memory": _packaged("ssm-global", stop_from_memory=True, restore_state=True),
    "global read before update": _packaged("ssm-global", read_before_update=True),
    "global revisits": _packaged("ssm-global", allow_revisits=True),
    "global backtracks": _packaged("ssm-global", final_backtrack=True),
    "basic with a GRU": lambda sizes: Basic.build(SIZES, sizes, GRUUpdater),
    "local with a GRU": lambda sizes: LocalSSM.build(
        AGENTS["ssm-local"].config(word_width=8, width=16), sizes, GRUUpdater
    ),
    "ssm with a GRU": lambda sizes: SSM.build(
        SSMConfig(word_width=8, width=16, restore_state=True, hints=True), sizes, GRUUpdater
    ),
    "global with a GRU": lambda sizes: GlobalSSM.build(
        GlobalSSMConfig(word_width=8, width=16, restore_state=True), sizes, GRUUpdater
    ),
    "outsider": lambda sizes: Outsider.build(SIZES, sizes),
    "outsider revisits": lambda sizes: Outsider.build(SIZES, sizes, allow_revisits=True),
}
# agents registered by an installed package are held to the contract as they are
VARIANTS |= {name: _packaged(name) for name in AGENTS if name not in PACKAGED}


def test_every_setting_of_every_packaged_agent_has_a_variant() -> None:
    tried: dict[str, set[str]] = {}
    for build in VARIANTS.values():
        agent, settings = getattr(build, "settings", ("", {}))
        tried.setdefault(agent, set()).update(settings)
    sizes = {"word_width", "width", "dropout", "feature_dropout"}
    by_other_agents = {  # the same code serves both
        "basic-ending": {"panorama"},
        "ssm-local": {"panorama"},
        "ssm-global": {"panorama", "grounding", "orientation_width", "walk_cost", "edges", "views"},
    }
    for agent in PACKAGED:
        names = {item.name for item in fields(AGENTS[agent].config)} - sizes
        assert names - tried[agent] == by_other_agents.get(agent, set()), agent


# a tiny world, and walks in it that keep what they were decided with


@dataclass(frozen=True)
class LivePoint:
    """A decision point as it was scored while acting."""

    step: int
    episode: Tensor  # (R,)
    feature_mask: Tensor
    fields: dict[str, Tensor]  # (R, ...) each
    nodes: dict[str, Tensor]  # (R, N, ...) each; empty for agents without a memory


@dataclass(frozen=True)
class Walked:
    """A rollout, and what the agent said while it walked."""

    rollout: Rollout
    logits: dict[DecisionType, Tensor]
    points: list[LivePoint]
    log: StateLog

    @property
    def learned(self) -> dict[DecisionType, Tensor]:
        return {kind: logits for kind, logits in self.logits.items() if kind.learned}


class RecordingPolicy(AgentPolicy):
    """Keeps the logits of every decision, and who may decide at every step."""

    def __init__(self, agent: Agent, log: StateLog, environment: Environment, pick: Pick) -> None:
        super().__init__(agent, log, environment, self._recorded)
        self._pick_from = pick
        self._type = ACTION
        self._kept: dict[DecisionType, list[Tensor]] = {}
        self.now = (0, torch.empty(0))

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /) -> Tensor:
        self._type = request.type
        self.now = (space.now, space.deciding)
        return super().decide(request, label, pose, space)

    def _recorded(self, logits: Tensor, episode: Tensor) -> Tensor:
        self._kept.setdefault(self._type, []).append(logits)
        return self._pick_from(logits, episode)

    @property
    def logits(self) -> dict[DecisionType, Tensor]:
        return {kind: torch.cat(logits) for kind, logits in self._kept.items()}


@dataclass(frozen=True)
class Setting:
    """A tiny world with random features, and episodes to walk in it."""

    environment: Environment
    episodes: EpisodeSet
    vocabulary: Vocabulary

    @property
    def world(self) -> World:
        return self.environment.world

    def agent(self, build: Build) -> Agent:
        """Random weights, so large that scores differ clearly from option to option."""
        torch.manual_seed(4)
        agent = build(DataSizes(len(self.vocabulary), VISUAL))
        for parameter in agent.parameters():
            nn.init.normal_(parameter, std=0.25)
        return agent.eval()

    def read(self, agent: Agent, episodes: EpisodeSet | None = None) -> Instructions:
        texts = (episodes or self.episodes).texts
        encoded: Instructions = agent.encoder(*self.vocabulary.encode_batch(texts, 40))
        return encoded

    def walk(
        self,
        agent: Agent,
        pick: Pick,
        episodes: EpisodeSet | None = None,
        *,
        masks: DropoutMasks | None = None,
        max_decisions: int = MAX_DECISIONS,
        learning: bool = False,
        learns: bool = False,
        fused: bool = False,
    ) -> Walked:
        """Walk, and keep what was said on the way."""
        episodes = episodes or self.episodes
        count, points = len(episodes), list[LivePoint]()
        log = agent.state_log(
            self.environment,
            self.read(agent, episodes),
            masks or agent.dropout_masks(count),
            learns=learns,
            fused=fused,
        )
        policy = RecordingPolicy(agent, log, self.environment, pick)
        score = agent.score

        def spy(point: DecisionPoint) -> Any:
            # at once, because the memories go on growing
            points.append(
                LivePoint(*policy.now, point.feature_mask, _fields(agent, point), _node_fields(agent, point))
            )
            return score(point)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agent, "score", spy)
            rollout = collect(
                self.world,
                episodes,
                agent.action_space(self.world, count, max_decisions, learning=learning),
                policy,
                max_steps=MAX_STEPS,
                label_rule=ClosestToGoal(self.world, episodes.goal),
            )
        return Walked(rollout, policy.logits, points, log)

    def evaluate(
        self, agent: Agent, rollout: Rollout, masks: DropoutMasks, environment: Environment | None = None
    ) -> Outputs:
        """What an agent says about walks that were made without it."""
        environment = environment or self.environment
        log = agent.state_log(environment, self.read(agent), masks, learns=True)
        follow(log, rollout)
        return agent.evaluate_actions(rollout, log, environment)

    def loss(self, rollout: Rollout, outputs: Outputs) -> Tensor:
        """Everything that teaches: labels of all decisions, choices, values and entropies."""
        taken = sum(len(table.episode) for table in rollout.decisions.values())
        context = LossContext(self.world, self.episodes, LearningConfig(), Stage(), taken, distance_reward)
        return imitation(rollout, outputs, {}) + a2c(rollout, outputs, context)


@pytest.fixture(scope="module")
def setting(
    random_environment: Callable[[World, int], Environment], world: World, episodes: EpisodeSet
) -> Setting:
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    chosen = episodes.select(range(0, len(episodes), 5))
    return Setting(random_environment(world, VISUAL), chosen, vocabulary)


@pytest.fixture(params=VARIANTS)
def agent(request: pytest.FixtureRequest, setting: Setting) -> Agent:
    return setting.agent(VARIANTS[request.param])


def _roam(seed: int = 0) -> Pick:
    """Chooses anything, but seldom to stop, so that memories grow and walks lead back and forth."""
    random = torch.Generator().manual_seed(seed)

    def pick(logits: Tensor, _episode: Tensor) -> Tensor:
        chance = logits.isfinite().float()
        chance[:, -1] *= 0.2
        return torch.multinomial(chance, 1, generator=random).squeeze(1)

    return pick


def _close(seen: Mapping[Any, Tensor], expected: Mapping[Any, Tensor]) -> None:
    assert seen.keys() == expected.keys()
    for name in expected:
        assert seen[name].shape == expected[name].shape, name
        assert torch.allclose(seen[name].double(), expected[name].double(), atol=1e-4, rtol=1e-4), name


# acting and learning


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_a_decision_is_scored_alike_while_acting_and_over_the_finished_rollout(
    agent: Agent, setting: Setting, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits, and every field of the decision points they are functions of."""
    agent.train(training)
    walked = setting.walk(agent, _roam(), learns=True)
    rollout = walked.rollout
    recorded: list[DecisionPoint] = []
    score = agent.score

    def spy(point: DecisionPoint) -> Any:
        recorded.append(point)
        return score(point)

    monkeypatch.setattr(agent, "score", spy)
    outputs = agent.evaluate_actions(rollout, walked.log, setting.environment)
    _close(outputs.logits, walked.learned)
    if rollout.memory is not None:
        assert int(rollout.memory.count.max()) >= MAX_DECISIONS, "somebody went far"

    (point,) = recorded
    steps = rollout.decision_steps()
    row = {
        where: number
        for number, where in enumerate(zip(steps.episode.tolist(), steps.step.tolist(), strict=True))
    }
    with torch.no_grad():
        recorded_fields, recorded_nodes = _fields(agent, point), _node_fields(agent, point)
    for live in walked.points:
        decided = [(episode, live.step) in row for episode in live.episode.tolist()]
        # only with the hop prior it depends on the memory whether there is anything to decide
        assert all(decided) or getattr(agent.config, "hop_prior", False)
        rows = torch.tensor([row.pop((episode, live.step)) for episode in live.episode[decided].tolist()])
        assert torch.equal(point.feature_mask, live.feature_mask)
        _close(
            {name: values[rows] for name, values in recorded_fields.items()},
            {name: values[decided] for name, values in live.fields.items()},
        )
        assert recorded_nodes.keys() == live.nodes.keys()
        for name, acting in live.nodes.items():
            values, expected, nodes = recorded_nodes[name][rows], acting[decided], acting.shape[1]
            empty = {"viewpoint": -1.0, "walk": torch.inf}.get(name, 0.0)
            assert bool((values[:, nodes:] == empty).all()), f"{name} of nodes nobody knew then"
            begin = values[:, :nodes, :nodes] if name == "edge" else values[:, :nodes]
            _close({name: begin}, {name: expected})
    assert not row, "every decision step was met while acting"


def _fields(agent: Agent, point: DecisionPoint) -> dict[str, Tensor]:
    """Everything a decision point says about its R rows."""
    seen = point.candidates()
    found = {
        "viewpoint": point.viewpoint,
        "view": point.view,
        "heading": point.heading,
        "candidates.visual": seen.visual,
        "candidates.orientation": seen.orientation,
        "candidates.mask": seen.mask,
        **{f"mask of {name}": point.mask(name) for name in point.observations.masks.rows},
        **{f"state.{item.name}": getattr(point.state, item.name) for item in fields(point.state)},
        **{f"words of {name}": words for name, words in agent.words_at(point).items()},
    }
    if not getattr(agent.config, "restore_state", True):  # a restored state has none before it
        found["earlier"] = point.observations.earlier[point.row]
    if point.graph is not None:
        found |= {"count": point.graph.count, "here": point.graph.here}
    return found


def _node_fields(agent: Agent, point: DecisionPoint) -> dict[str, Tensor]:
    """Everything a decision point says about the nodes of its R memories, (R, N, ...) each."""
    graph = point.graph
    if graph is None:
        return {}
    query = torch.linspace(-1.0, 1.0, VISUAL).expand(len(graph.here), -1)
    return {
        "viewpoint": graph.viewpoint,
        "edge": graph.edge,
        "walk": graph.walk,
        "open": graph.open,
        "attended": graph.attend(query),
        "slots": graph.slot_scores(query, query[:, :4]) * graph.open.unsqueeze(-1),
        **{f"column {name}": graph.column(name) for name in agent.columns(point.observations)},
    }


def test_fused_and_plain_gradients_are_the_same(agent: Agent, setting: Setting) -> None:
    agent.train()
    masks = agent.dropout_masks(len(setting.episodes))
    names, parameters = zip(*agent.named_parameters(), strict=True)
    results = []
    for fused in (False, True):
        walked = setting.walk(agent, _roam(), masks=masks, learning=True, learns=True, fused=fused)
        assert (type(walked.log) is FusedStateLog) == (fused and type(agent.updater) is LSTMUpdater)
        outputs = agent.evaluate_actions(walked.rollout, walked.log, setting.environment)
        loss = setting.loss(walked.rollout, outputs)
        found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        results.append((walked, outputs, dict(zip(names, found, strict=True))))
    (plain, plain_outputs, expected), (fused_walk, outputs, gradients) = results
    assert torch.equal(fused_walk.rollout.viewpoint, plain.rollout.viewpoint)
    _close(fused_walk.logits, plain.logits)
    _close(outputs.logits, plain_outputs.logits)
    _close(outputs.heads, plain_outputs.heads)
    for name in names:
        rounding = 1e-5 + 1e-6 * float(expected[name].abs().max())
        assert torch.allclose(gradients[name], expected[name], atol=rounding, rtol=1e-3), name
    assert sum(float(gradient.abs().sum()) for gradient in gradients.values()) > 0


def test_heads_are_said_at_every_step_and_0_after_the_end(setting: Setting) -> None:
    agent = setting.agent(VARIANTS["outsider"])
    walked = setting.walk(agent, _roam(), learns=True)
    rollout = walked.rollout
    heads = agent.evaluate_actions(rollout, walked.log, setting.environment).heads
    assert heads["value"].shape == rollout.alive.shape
    assert heads["double"].shape == (*rollout.alive.shape, 3)
    hidden, row = walked.log.stacked().hidden, walked.log.row_at
    for episode, step in rollout.alive.nonzero().tolist():
        state = hidden[row[episode, rollout.state_step[episode, step]]]
        torch.testing.assert_close(heads["double"][episode, step], state[:3] * 2)
        torch.testing.assert_close(heads["value"][episode, step], agent.critic(state))
    assert not rollout.alive.all()
    assert not heads["double"][~rollout.alive].any()


def test_outputs_of_some_episodes_are_those_of_their_part_of_the_rollout(
    agent: Agent, setting: Setting
) -> None:
    walked = setting.walk(agent, _roam(2), learns=True)
    outputs = agent.evaluate_actions(walked.rollout, walked.log, setting.environment)
    chosen = torch.arange(1, len(setting.episodes), 3)
    part = walked.rollout.select(chosen)
    selected = outputs.select(walked.rollout, chosen)
    assert selected.heads["value"].shape == part.alive.shape
    for kind, logits in selected.logits.items():
        table, whole = part.decisions[kind], walked.rollout.decisions[kind]
        for number, episode in enumerate(chosen.tolist()):
            own = outputs.logits[kind][whole.episode == episode]
            assert torch.equal(logits[table.episode == number], own)


# restored states


class StateReader(Agent):
    """Scores with the states themselves: whatever they are, options differ by them alone."""

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        del learning
        return FrontierActions(world, episodes, max_decisions, WalkOptions(restore_state=True))

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        width = point.candidates().mask.shape[1] + 1
        nodes = point.memory().edge.shape[1]
        hidden = point.state.hidden
        return {ACTION: hidden[:, :width], FRONTIER: hidden[:, :1].expand(-1, nodes)}


@pytest.mark.parametrize("fused", [False, True])
def test_whoever_comes_back_decides_with_the_state_it_had_there(setting: Setting, fused: bool) -> None:
    sizes = DataSizes(len(setting.vocabulary), VISUAL)
    agent = StateReader(SIZES, sizes, lstm_modules(SIZES, sizes))
    walked = setting.walk(agent, _roam(), learns=True, fused=fused)
    rollout = walked.rollout
    made = walked.log.packing
    state_at = dict(
        zip(
            zip(made.episode.tolist(), made.step.tolist(), strict=True),
            walked.log.stacked().hidden.detach(),
            strict=True,
        )
    )
    came_back = 0
    for live in walked.points:
        for row, episode in enumerate(live.episode.tolist()):
            walk = rollout.viewpoint[episode, : live.step + 1].tolist()
            first = walk.index(walk[-1])
            assert torch.equal(live.fields["state.hidden"][row], state_at[episode, first])
            came_back += first != live.step
    assert came_back > 5
    outputs = agent.evaluate_actions(rollout, walked.log, setting.environment)
    _close(outputs.logits, walked.logits)
    for kind, table in rollout.decisions.items():
        assert outputs.logits[kind].requires_grad
        for row in range(len(table.episode)):
            where = int(table.episode[row]), int(rollout.state_step[table.episode[row], table.step[row]])
            options = table.options[row]
            expected = state_at[where][: len(options)] if kind == ACTION else state_at[where][:1]
            seen = outputs.logits[kind][row][options].detach()
            assert torch.equal(seen, expected[options] if kind == ACTION else expected.expand(len(seen)))


def test_a_hop_from_a_restored_place_continues_the_restored_state(setting: Setting) -> None:
    """The state after it is an update of the state kept there, seen coming from there."""
    agent = setting.agent(VARIANTS["outsider"])
    updates: list[tuple[Tensor, Tensor, Tensor]] = []  # viewpoint, previous viewpoint, state before
    update = agent.updater.forward

    def spy(state: CountingState, observation: Observation) -> State:
        updates.append((observation.viewpoint, observation.previous, state.hidden))
        after: State = update(state, observation)
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.updater, "forward", spy)
        rollout = setting.walk(agent, _roam(), setting.episodes.select([3]), max_decisions=12).rollout
    walk, made = rollout.viewpoint[0].tolist(), rollout.state_step[0].tolist()
    new = [step for step in range(len(walk)) if made[step] == step]
    assert len(new) < len(walk), "it came back"
    assert [int(viewpoint) for viewpoint, _, _ in updates] == [walk[step] for step in new]
    assert [int(previous) for _, previous, _ in updates] == [NONE, *(walk[step - 1] for step in new[1:])]


def test_the_fused_gradient_hands_out_no_more_than_it_has(setting: Setting) -> None:
    agent = setting.agent(VARIANTS["basic"])
    walked = setting.walk(agent, _roam(), learns=True, fused=True)
    with pytest.raises(
        SettingError, match=r"only has 'hidden', not 'cell'; switch it off with --learning.no-f"
    ):
        _ = walked.log.stacked().cell  # type: ignore[attr-defined]


def test_an_agent_that_observes_in_its_own_way_gets_plain_gradients(setting: Setting) -> None:
    class Forgetful(Basic):
        def observe(self, state: Any, observation: Observation) -> State:
            return super().observe(replace(state, cell=torch.zeros_like(state.cell)), observation)

    agent = setting.agent(lambda sizes: Forgetful.build(SIZES, sizes))
    walked = setting.walk(agent, _roam(), learns=True, fused=True)
    assert type(walked.log) is StateLog
    _close(agent.evaluate_actions(walked.rollout, walked.log, setting.environment).logits, walked.logits)
    other = setting.walk(setting.agent(VARIANTS["basic"]), _roam())
    assert not torch.allclose(other.logits[ACTION], walked.logits[ACTION]), "its own way was taken"


# what must not matter


def test_a_walk_made_by_others_can_be_learnt_from(setting: Setting) -> None:
    rollout = setting.walk(setting.agent(VARIANTS["ssm"]), _roam()).rollout
    other = setting.agent(VARIANTS["ssm hints narrow"])
    outputs = setting.evaluate(other, rollout, other.dropout_masks(len(setting.episodes)))
    for kind, table in rollout.decisions.items():
        assert torch.equal(outputs.logits[kind].isfinite(), table.options)


def test_following_a_walk_gives_the_states_of_walking_it(agent: Agent, setting: Setting) -> None:
    walked = setting.walk(agent, _roam(), learns=True)
    log = agent.state_log(
        setting.environment, setting.read(agent), agent.dropout_masks(len(setting.episodes)), learns=True
    )
    follow(log, walked.rollout)
    torch.testing.assert_close(log.stacked().hidden, walked.log.stacked().hidden)
    torch.testing.assert_close(log.state.hidden, walked.log.state.hidden)
    assert torch.equal(log.packing.episode, walked.log.packing.episode)
    assert torch.equal(log.packing.step, walked.log.packing.step)


def _of_episode(rollout: Rollout, logits: dict[DecisionType, Tensor], episode: int) -> dict[Any, Tensor]:
    """The scores of an episode's options, decision by decision; what is not an option is left out."""
    found = {}
    for kind, table in rollout.decisions.items():
        rows = table.episode == episode
        if rows.any():
            found[kind] = logits[kind][rows][table.options[rows]]
    return found


def test_an_episode_is_what_it_would_be_alone(agent: Agent, setting: Setting) -> None:
    """Neither other episodes, nor their order, nor padding for longer texts change a walk or a score."""
    together = setting.walk(agent, take_best)
    assert len(set(together.rollout.length.tolist())) > 1
    for episode in range(0, len(setting.episodes), 4):
        alone = setting.walk(agent, take_best, setting.episodes.select([episode]))
        steps = int(alone.rollout.length[0])
        assert together.rollout.viewpoint[episode, :steps].tolist() == alone.rollout.viewpoint[0].tolist()
        assert together.rollout.alive[episode].sum() == steps
        _close(
            _of_episode(together.rollout, together.logits, episode),
            _of_episode(alone.rollout, alone.logits, 0),
        )


def test_nothing_after_the_end_of_a_walk_matters(agent: Agent, setting: Setting) -> None:
    masks = agent.dropout_masks(len(setting.episodes))
    rollout = setting.walk(agent, _roam(1)).rollout
    assert not rollout.alive.all()
    garbage = replace(
        rollout,
        viewpoint=rollout.viewpoint.masked_fill(~rollout.alive, 7),
        view=rollout.view.masked_fill(~rollout.alive, 30),
    )
    expected = setting.evaluate(agent, rollout, masks)
    seen = setting.evaluate(agent, garbage, masks)
    _close(seen.logits, expected.logits)
    _close(seen.heads, expected.heads)


def _with_slots_turned(world: World) -> World:
    """The same world with the neighbours of every viewpoint in reversed order."""
    slots = torch.arange(world.neighbour.shape[1])
    turned = torch.where(slots < world.degree[:, None], world.degree[:, None] - 1 - slots, slots)
    names = ("neighbour", "neighbour_view", "neighbour_heading", "neighbour_elevation", "neighbour_length")
    return replace(world, **{name: getattr(world, name).gather(1, turned) for name in names})


def test_the_order_of_neighbours_only_moves_scores(agent: Agent, setting: Setting) -> None:
    turned = replace(
        setting, environment=Environment(_with_slots_turned(setting.world), setting.environment.store)
    )
    walked, moved = setting.walk(agent, take_best), turned.walk(agent, take_best)
    assert torch.equal(moved.rollout.viewpoint, walked.rollout.viewpoint)
    for kind, logits in walked.logits.items():
        if kind == FRONTIER:
            torch.testing.assert_close(moved.logits[kind], logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            moved.logits[kind].sort(dim=1).values, logits.sort(dim=1).values, atol=1e-4, rtol=1e-4
        )


def test_a_dropped_column_can_hold_anything(agent: Agent, setting: Setting) -> None:
    masks = agent.dropout_masks(len(setting.episodes))
    mask = torch.ones(VISUAL)
    mask[2] = 0.0
    masks = replace(masks, feature=mask)
    walked = setting.walk(agent, _roam(), masks=masks)
    store = setting.environment.store
    values = store.values.clone()
    values[..., 2] = 50.0
    garbage = Environment(setting.world, replace(store, values=values))
    _close(setting.evaluate(agent, walked.rollout, masks, garbage).logits, walked.learned)


def test_a_walk_of_one_decision_works(agent: Agent, setting: Setting) -> None:
    """A memory of one node: nobody is asked for a frontier."""

    def first_option(logits: Tensor, _episode: Tensor) -> Tensor:
        return logits.isfinite().int().argmax(dim=-1)

    walked = setting.walk(agent, first_option, max_decisions=1, learning=True)
    assert len(walked.rollout.decisions) == 1
    assert FRONTIER not in walked.rollout.decisions
    masks = agent.dropout_masks(len(setting.episodes))
    _close(setting.evaluate(agent, walked.rollout, masks).logits, walked.logits)


# parameters and dropout


def test_every_parameter_learns(agent: Agent, setting: Setting) -> None:
    walked = setting.walk(agent, _roam(), learning=True, learns=True)
    outputs = agent.evaluate_actions(walked.rollout, walked.log, setting.environment)
    names, parameters = zip(*agent.named_parameters(), strict=True)
    gradients = torch.autograd.grad(setting.loss(walked.rollout, outputs), parameters, allow_unused=True)
    dead = {
        name
        for name, gradient in zip(names, gradients, strict=True)
        if gradient is None or not gradient.any()
    }
    expected = set()
    if isinstance(agent, SSM) and agent.config.hop_prior:
        # with the hop prior no walk of the tiny world gets to where it may stop
        expected = {"actions.stop.visual", "actions.stop.orientation"}
    if not isinstance(agent.updater, LSTMUpdater):
        # only an LSTM begins with a summary of the ends of the text
        expected = {"encoder.initial_cell.weight", "encoder.initial_cell.bias"}
    assert dead - {"critic.layers.2.bias"} == expected
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_nothing_is_dropped_when_evaluating(agent: Agent) -> None:
    masks = agent.dropout_masks(3)
    assert (masks.feature == 1.0).all()
    assert {"decision", *agent.updater.mask_widths()} == set(masks.rows)
    assert all((mask == 1.0).all() for mask in masks.rows.values())


def test_training_drops_whole_columns_and_scales_the_rest(setting: Setting) -> None:
    torch.manual_seed(0)
    agent = setting.agent(VARIANTS["ssm"]).train()
    masks = agent.dropout_masks(40)
    assert masks.feature.shape == (VISUAL,), "one mask for all episodes, views and steps"
    drawn = torch.cat([agent.dropout_masks(1).feature for _ in range(9)])
    assert sorted(set(drawn.tolist())) == pytest.approx([0.0, 1 / 0.6])
    for mask in masks.rows.values():
        assert set(mask.flatten().tolist()) == {0.0, 2.0}
        assert 0.3 < float((mask == 0.0).float().mean()) < 0.7
        assert not torch.equal(mask[0], mask[1]), "episodes drop different numbers"


# ending at the best place


def _never_stop(logits: Tensor, _episode: Tensor) -> Tensor:
    wanderer = logits.clone()
    wanderer[:, -1] = torch.where(wanderer[:, :-1].isfinite().any(dim=1), -1e6, wanderer[:, -1])
    return take_best(wanderer)


@pytest.mark.parametrize("name", ["ssm hints narrow", "ssm stop from memory", "global"])
def test_whoever_has_used_up_its_decisions_ends_where_stopping_was_likeliest(
    name: str, setting: Setting
) -> None:
    agent = setting.agent(VARIANTS[name])
    agent.config = replace(agent.config, final_backtrack=True)  # type: ignore[call-arg]
    walked = setting.walk(agent, _never_stop, max_decisions=3)
    rollout, table, memory = walked.rollout, walked.rollout.decisions[FINAL], walked.rollout.memory
    assert memory is not None
    kind = GLOBAL if name == "global" else ACTION
    decided = rollout.decisions[kind]
    likely = walked.logits[kind].log_softmax(dim=-1)[:, -1]
    assert len(table.episode) > 5
    went_back = 0
    for episode, scores in zip(table.episode.tolist(), walked.logits[FINAL], strict=True):
        stop_score: dict[int, float] = {}
        for row in (decided.episode == episode).nonzero().squeeze(1).tolist():
            stop_score[int(memory.here[episode, decided.step[row]])] = float(likely[row])  # the latest counts
        for node, score in stop_score.items():
            assert float(scores[node]) == pytest.approx(score, abs=1e-5)
        nodes = range(int(memory.count[episode].max()))
        others = [float(scores[node]) for node in nodes if node not in stop_score]
        assert all(score < min(stop_score.values()) for score in others), "nothing was decided there"
        best = max(stop_score, key=stop_score.__getitem__)
        assert int(rollout.viewpoint[episode, rollout.length[episode] - 1]) == int(memory.node[episode, best])
        went_back += best != int(memory.here[episode, table.step[table.episode == episode]])
    assert went_back > 3
    assert (table.label == NONE).all(), "where to end is not learnt"
    learning = setting.walk(agent, _never_stop, max_decisions=3, learning=True).rollout
    assert FINAL not in learning.decisions, "walks to learn from are cut off"


# what is refused


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (partial(ModelConfig, width=7), "width must be even and positive, got 7; both directions share it"),
        (partial(ModelConfig, word_width=0), "word_width must be 1 or more, got 0"),
        (partial(ModelConfig, dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
        (partial(ModelConfig, feature_dropout=-0.1), r"feature_dropout must be in \[0, 1\), got -0.1"),
        (partial(GlobalSSMConfig, reasoning_steps=-1), "reasoning_steps must be from 0.* to 100, got -1"),
        (partial(GlobalSSMConfig, reasoning_steps=101), "reasoning_steps must be from 0.* to 100, got 101"),
        (
            partial(GlobalSSMConfig, restore_state=True, read_before_update=True),
            "restore_state and read_before_update exclude each other",
        ),
        (
            partial(SSMConfig, hop_prior=True, final_backtrack=True),
            "hop_prior and final_backtrack exclude each other",
        ),
        (
            partial(SSMConfig, node_width=0),
            "node_width must be 1 or more, got 0; leave it out for the feature",
        ),
        (partial(SSMConfig, orientation_width=6), "orientation_width must be a multiple of 4, got 6"),
    ],
)
def test_impossible_settings_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", ["ssm", "global"])
def test_an_agent_with_a_memory_refuses_a_rollout_without_one(name: str, setting: Setting) -> None:
    agent = setting.agent(VARIANTS[name])
    rollout = replace(setting.walk(agent, _roam()).rollout, memory=None)
    with pytest.raises(TypeError, match="decides over a memory, but its action space has none"):
        setting.evaluate(agent, rollout, agent.dropout_masks(len(setting.episodes)))


def test_scores_without_stop_are_refused(setting: Setting) -> None:
    """They would be padded with a 0, and the agent would learn to stop at random."""

    class Forgetful(Outsider):
        def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
            scores = super().score(point)
            return {**scores, ACTION: scores[ACTION][:, :-1]}

    agent = setting.agent(lambda sizes: Forgetful.build(SIZES, sizes))
    slots = setting.world.neighbour_mask.shape[1]
    with pytest.raises(
        SettingError,
        match=f"score gives {slots} columns for decision 'action', expected {slots + 1}: one per candidate",
    ):
        setting.walk(agent, take_best)


def test_scores_of_the_wrong_type_are_named(setting: Setting) -> None:
    class OnlyActions(Outsider):
        def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
            return {ACTION: super().score(point)[ACTION]}

    agent = setting.agent(lambda sizes: OnlyActions.build(SIZES, sizes))
    with pytest.raises(
        SettingError, match=r"OnlyActions.score gives no scores for decision 'frontier'; it gives: action"
    ):
        setting.walk(agent, _roam())


def test_an_unknown_agent_is_named_with_what_is_near() -> None:
    with pytest.raises(UserError, match="unknown agent 'ssm-globl'; did you mean ssm-global or ssm-local"):
        AGENTS["ssm-globl"]


@pytest.mark.parametrize("kind", [FRONTIER, GLOBAL, ACTION])
def test_scores_of_known_nodes_are_padded_to_all_there_could_be(kind: DecisionType) -> None:
    logits, options = torch.arange(1.0, 6.0).expand(2, -1), torch.ones(2, 9, dtype=torch.bool)
    padded = {
        FRONTIER: [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0],
        GLOBAL: [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 5.0],  # stop stays last
    }
    if kind == ACTION:
        assert torch.equal(pad_logits(logits, options[:, :5], kind), logits)
    else:
        assert pad_logits(logits, options, kind)[1].tolist() == padded[kind]
