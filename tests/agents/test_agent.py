"""What must hold for every agent, whatever it is made of: what it decides with, and what it learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scenemem.agents.agent import (
    Agent,
    Basic,
    DecisionPoint,
    LocalActions,
    Observations,
)
from scenemem.agents.build import AGENTS, DataSizes, ModelConfig, lstm_modules
from scenemem.agents.rollout import ACTION, FINAL, FRONTIER, GLOBAL, DecisionRequest, DecisionType, Rollout
from scenemem.agents.walker import fitted, take_best
from scenemem.errors import SettingError
from scenemem.features.store import Environment
from scenemem.learning.objectives import (
    LearningConfig,
    LossContext,
    Stage,
    a2c,
    distance_reward,
    imitation,
)
from scenemem.models.navigator import (
    Instructions,
    LSTMUpdater,
    Observation,
    State,
    StateUpdater,
)
from scenemem.ssm.ablations import GlobalSSM, LocalSSM
from scenemem.ssm.additions import SSMPlus, SSMPlusConfig
from scenemem.ssm.agent import SSM
from scenemem.ssm.reading import GroundedConfig, SSMConfig
from scenemem.world.graph import NONE
from tests.agents.helpers import (
    Build,
    Notebook,
    Setting,
    never_stop,
    packaged,
    roam,
    same_scores,
    walks_of,
)

PACKAGED = ("basic", "basic-ending", "ssm", "ssm-plus", "ssm-local", "ssm-global")
SIZES: dict[str, Any] = {"word_width": 8, "width": 16}


# an agent from outside


class GRUUpdater(StateUpdater):
    """A core with a dropout mask of its own."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.width = config.width
        self.view = nn.Linear(sizes.visual, config.width)
        self.cell = nn.GRUCell(config.width, config.width)

    def mask_widths(self) -> dict[str, int]:
        return {"gru_input": self.width}

    def initial_state(self, instructions: Instructions) -> State:
        return State(instructions.hidden)

    def forward(self, state: State, observation: Observation) -> State:
        view = self.view((observation.panorama * observation.masks.feature).mean(dim=1))
        words = observation.instructions
        view = view + (words.context * words.mask.unsqueeze(-1)).sum(dim=1) / 20
        return State(self.cell(view * observation.masks["gru_input"], state.hidden))


class Outsider(SSM):
    """Has another core, and a head of its own."""

    def __init__(self, sizes: DataSizes) -> None:
        super().__init__(SSMConfig(**SIZES), sizes, updater=GRUUpdater)

    def heads(self, observations: Observations) -> dict[str, Tensor]:
        return {**super().heads(observations), "double": observations.state.hidden[:, :3] * 2}


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "basic": ("basic", {}),
    "seq2seq": ("basic", {"panorama": False}),
    "basic backtracks": ("basic-ending", {"final_backtrack": True}),
    "basic hop prior": ("basic-ending", {"hop_prior": True}),
    "local": ("ssm-local", {}),
    "local without grounding": ("ssm-local", {"grounding": False}),
    "local revisits": ("ssm-local", {"allow_revisits": True}),
    "ssm": ("ssm", {"reasoning_steps": 2}),
    "ssm narrow": ("ssm", {"node_width": 24, "orientation_width": 32}),
    "ssm all edges": ("ssm", {"edges": "all", "views": "all"}),
    "ssm unvisited views": ("ssm", {"views": "unvisited"}),
    "ssm by hops": ("ssm", {"walk_cost": "hops", "grounding": False}),
    "ssm without reasoning": ("ssm", {"reasoning_steps": 0}),
    "ssm revisits": ("ssm", {"allow_revisits": True, "panorama": False}),
    "plus hints": ("ssm-plus", {"hints": True}),
    "plus stay score": ("ssm-plus", {"stay_score": True}),
    "plus hints narrow": ("ssm-plus", {"hints": True, "node_width": 24}),
    "plus stop from memory": ("ssm-plus", {"stop_from_memory": True, "hints": True, "restore_state": True}),
    "plus restores": ("ssm-plus", {"restore_state": True}),
    "plus read before update": ("ssm-plus", {"read_before_update": True}),
    "plus hop prior": ("ssm-plus", {"hop_prior": True}),
    "plus restores and revisits": ("ssm-plus", {"restore_state": True, "allow_revisits": True}),
    "plus backtracks": ("ssm-plus", {"final_backtrack": True, "restore_state": True, "hints": True}),
    "global": ("ssm-global", {"reasoning_steps": 2}),
    "global narrow": ("ssm-global", {"node_width": 24}),
    "global revisits": ("ssm-global", {"allow_revisits": True}),
}
# agents registered by an installed package are held to the contract as they are
SETTINGS |= {name: (name, {}) for name in AGENTS if name not in PACKAGED}
BASIC, GROUNDED = ModelConfig(**SIZES), GroundedConfig(**SIZES)
VARIANTS: dict[str, Build] = {
    **{name: packaged(agent, **settings) for name, (agent, settings) in SETTINGS.items()},
    "basic with a GRU": lambda sizes: Basic(BASIC, sizes, lstm_modules(BASIC, sizes, GRUUpdater)),
    "local with a GRU": lambda sizes: LocalSSM(GROUNDED, sizes, GRUUpdater),
    "plus with a GRU": lambda sizes: SSMPlus(
        SSMPlusConfig(**SIZES, restore_state=True, hints=True), sizes, updater=GRUUpdater
    ),
    "global with a GRU": lambda sizes: GlobalSSM(SSMConfig(**SIZES), sizes, updater=GRUUpdater),
    "outsider": Outsider,
}


@pytest.fixture(params=VARIANTS)
def agent(request: pytest.FixtureRequest, setting: Setting) -> Agent:
    return setting.network(VARIANTS[request.param])


# one pass: what is decided with is what is learnt from


@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
def test_the_logits_of_a_rollout_are_those_that_decided(
    agent: Agent, setting: Setting, training: bool
) -> None:
    """With or without gradients: same walks, same scores."""
    masks, notes = agent.train(training).dropout_masks(len(setting.episodes)), Notebook()
    rollout = setting.walk(agent, roam(), masks=masks, watcher=notes)
    for kind, table in rollout.decisions.items():
        seen = notes.of(kind)
        for column in ("logits", "choice"):
            assert torch.equal(getattr(table, column), torch.cat([getattr(d, column) for d in seen]))
        assert torch.equal(table.logits.isfinite(), table.options)
        assert table.logits.requires_grad == kind.learned
        assert bool(table.options.gather(1, table.choice.unsqueeze(1)).all())
    assert rollout.learned.keys() == {kind for kind in rollout.decisions if kind.learned}
    plain = setting.walk(agent, roam(), masks=masks, learns=False)
    same_scores(plain, rollout, tolerance=1e-6)
    assert torch.equal(plain.viewpoint, rollout.viewpoint)
    assert not plain.heads
    assert rollout.heads["value"].requires_grad


def _loss(setting: Setting, rollout: Rollout) -> Tensor:
    """Everything that teaches: labels of all decisions, choices, values and entropies."""
    taken = sum(len(table.episode) for table in rollout.decisions.values())
    context = LossContext(setting.world, setting.episodes, LearningConfig(), Stage(), taken, distance_reward)
    return imitation(rollout, {}) + a2c(rollout, context)


def test_gradients_reach_every_parameter(agent: Agent, setting: Setting) -> None:
    loss = _loss(setting, setting.walk(agent, roam(), learning=True))
    names, parameters = zip(*agent.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    dead = {name for name, g in zip(names, gradients, strict=True) if g is None or not g.any()}
    expected = set()
    if isinstance(agent, SSMPlus) and agent.config.hop_prior:
        # with the hop prior no walk of the tiny world gets to where it may stop
        expected = {"actions.stop.visual", "actions.stop.orientation"}
    if not isinstance(agent.updater, LSTMUpdater):
        # only an LSTM begins with a summary of the ends of the text
        expected = {"encoder.initial_cell.weight", "encoder.initial_cell.bias"}
    assert dead - {"critic.layers.2.bias"} == expected
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_heads_are_those_of_every_observation_and_0_after_the_end(setting: Setting) -> None:
    rollout = setting.walk(setting.network(Outsider), roam())
    assert rollout.heads["value"].shape == rollout.alive.shape
    assert rollout.heads["double"].shape == (*rollout.alive.shape, 3)
    assert not rollout.alive.all()
    for name in ("value", "double"):
        assert not rollout.heads[name][~rollout.alive].any()
        assert rollout.heads[name][rollout.alive].all()


# what must not matter


def test_an_episode_is_what_it_would_be_alone(agent: Agent, setting: Setting) -> None:
    """Neither other episodes, nor their order, nor padding for longer texts change a walk or a score."""
    together = setting.walk(agent, take_best, learns=False)
    for episode in range(0, len(setting.episodes), 4):
        alone = setting.walk(agent, take_best, setting.episodes.select([episode]), learns=False)
        part = together.select(torch.tensor([episode]))
        assert torch.equal(part.viewpoint, alone.viewpoint)
        same_scores(part, alone)


def test_a_dropped_column_can_hold_anything(agent: Agent, setting: Setting) -> None:
    masks, store = agent.dropout_masks(len(setting.episodes)), setting.environment.store
    feature, values = torch.ones_like(masks.feature), store.values.clone()
    feature[2], values[..., 2] = 0.0, 50.0
    garbage = replace(setting, environment=Environment(setting.world, replace(store, values=values)))
    seen, expected = (
        one.walk(agent, roam(), masks=replace(masks, feature=feature), learns=False)
        for one in (garbage, setting)
    )
    same_scores(seen, expected)


def test_a_walk_of_one_decision_works(agent: Agent, setting: Setting) -> None:
    """A memory of one node has no frontier to choose, and no edge to read."""

    def first_option(logits: Tensor, _episode: Tensor) -> Tensor:
        return logits.isfinite().int().argmax(dim=-1)

    rollout = setting.walk(agent, first_option, max_decisions=1, learning=True)
    assert len(rollout.decisions) == 1
    assert FRONTIER not in rollout.decisions
    assert bool(_loss(setting, rollout).isfinite())


# dropout


def test_nothing_is_dropped_when_evaluating(agent: Agent) -> None:
    masks = agent.dropout_masks(3)
    assert (masks.feature == 1.0).all()
    assert {"decision", *agent.updater.mask_widths()} == set(masks.rows)
    assert all((mask == 1.0).all() for mask in masks.rows.values())


def test_training_drops_whole_columns_and_scales_the_rest(setting: Setting) -> None:
    agent = setting.network("ssm").train()
    torch.manual_seed(0)
    masks = agent.dropout_masks(40)
    assert masks.feature.shape == (agent.visual,), "one mask for all episodes, views and steps"
    drawn = torch.cat([agent.dropout_masks(1).feature for _ in range(9)])
    assert sorted(set(drawn.tolist())) == pytest.approx([0.0, 1 / 0.6])
    for mask in masks.rows.values():
        assert set(mask.flatten().tolist()) == {0.0, 2.0}
        assert 0.3 < float((mask == 0.0).float().mean()) < 0.7
        assert not torch.equal(mask[0], mask[1]), "episodes drop different numbers"
    own = torch.tensor([3, 1])
    assert torch.equal(masks.select(own)["decision"], masks["decision"][own])


# ending at the best place


@pytest.mark.parametrize("name", ["plus hints narrow", "plus stop from memory", "basic backtracks"])
def test_when_the_decisions_are_used_up_a_walk_ends_where_stopping_was_likeliest(
    name: str, setting: Setting
) -> None:
    agent = setting.network(VARIANTS[name])
    agent.config = replace(agent.config, final_backtrack=True)  # type: ignore[call-arg]
    rollout = setting.walk(agent, never_stop, max_decisions=3)
    assert rollout.stopped.all(), "none is cut off any more"
    walks, table, decided = walks_of(rollout), rollout.decisions[FINAL], rollout.decisions[ACTION]
    likely = decided.logits.detach().log_softmax(dim=-1)[:, -1]
    assert len(table.episode) > 5
    went_back = 0
    for row, episode in enumerate(table.episode.tolist()):
        scores, stop_score = table.logits[row].detach(), dict[int, float]()
        visited = list(dict.fromkeys(walks[episode]))
        assert table.options[row].nonzero().squeeze(1).tolist() == list(range(len(visited)))
        assert int((decided.episode == episode).sum()) == 3
        for at in (decided.episode == episode).nonzero().squeeze(1).tolist():
            stop_score[visited.index(walks[episode][decided.step[at]])] = float(likely[at])  # the latest
        for node, score in stop_score.items():
            assert float(scores[node]) == pytest.approx(score, abs=1e-5)
        others = [float(scores[node]) for node in range(len(visited)) if node not in stop_score]
        assert all(score < min(stop_score.values()) for score in others), "nothing was decided there"
        best = visited[max(stop_score, key=stop_score.__getitem__)]
        assert walks[episode][-1] == best == int(table.place[row])
        went_back += best != walks[episode][table.step[row]]
    assert went_back > 3
    assert table.stops.all()
    stopped = set(range(len(walks))) - set(table.episode.tolist())
    assert stopped == set(decided.episode[decided.stops].tolist())
    assert (table.label == NONE).all(), "where to end is not learnt"
    learning = setting.walk(agent, never_stop, max_decisions=3, learning=True)
    assert FINAL not in learning.decisions, "walks to learn from are cut off"


# what is refused


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (ModelConfig, {"width": 7}, "width must be even and positive, got 7; both directions share it"),
        (ModelConfig, {"word_width": 0}, "word_width must be 1 or more, got 0"),
        (ModelConfig, {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        (ModelConfig, {"feature_dropout": -0.1}, r"feature_dropout must be in \[0, 1\), got -0.1"),
        (
            SSMPlusConfig,
            {"restore_state": True, "read_before_update": True},
            "restore_state and read_before_update exclude each other",
        ),
        (SSMPlusConfig, {"hints": True, "stay_score": True}, "hints hold a score for staying already"),
        *(
            (AGENTS[name].config, {"hop_prior": True, "final_backtrack": True}, "hop_prior and final_backtr")
            for name in ("ssm-plus", "basic-ending")
        ),
    ],
)
def test_impossible_settings_are_refused(
    config: type[ModelConfig], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        config(**settings)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        # padded with a 0, they would teach the agent to stop at random
        (
            lambda scores: {**scores, ACTION: scores[ACTION][:, :-1]},
            "columns for decision 'action', expected .*: one per candidate slot, and stop last",
        ),
        (
            lambda scores: {ACTION: scores[ACTION]},
            "Forgetful.score gives no scores for decision 'frontier'; it gives: action",
        ),
        (
            lambda scores: {**scores, FRONTIER: scores[FRONTIER].repeat(1, 9)},
            "columns for decision 'frontier', expected 7$",
        ),
    ],
    ids=["no stop", "wrong type", "too many"],
)
def test_scores_that_do_not_fit_the_options_are_refused(
    setting: Setting, score: Callable[..., Any], message: str
) -> None:
    class Forgetful(Outsider):
        def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
            scores: dict[DecisionType, Tensor] = score(super().score(point))
            return scores

    with pytest.raises(SettingError, match=message):
        setting.walk(setting.network(Forgetful), roam())


@pytest.mark.parametrize("kind", [SSM, GlobalSSM])
def test_an_agent_with_a_memory_refuses_a_space_without_one(
    kind: type[SSM | GlobalSSM], setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = setting.network(lambda sizes: kind(SSMConfig(**SIZES), sizes))
    monkeypatch.setattr(agent, "action_space", lambda *given, **_: LocalActions(*given))
    with pytest.raises(TypeError, match="decides over a memory, but its action space has none"):
        setting.walk(agent, take_best)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (FRONTIER, 9, [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 0.0]),
        (GLOBAL, 9, [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 5.0]),  # stop stays last
        (ACTION, 5, [1.0, 2.0, 3.0, 4.0, 5.0]),
    ],
)
def test_scores_of_known_nodes_are_padded_to_all_there_could_be(
    kind: DecisionType, options: int, expected: list[float]
) -> None:
    exists = torch.ones(2, options, dtype=torch.bool)
    exists[1, 0] = False
    request = DecisionRequest(kind, torch.arange(2), exists, exists.long())
    found = fitted(torch.arange(1.0, 6.0).expand(2, -1), request).tolist()
    assert found == [expected, [-torch.inf, *expected[1:]]]
