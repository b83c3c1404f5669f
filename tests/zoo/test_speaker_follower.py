"""Speaker-Follower: its product scorer, what its core reads, how words are read, and its pragmatic search."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents import walker
from scenemem.agents.actions import ActionSpace
from scenemem.agents.agent import recorded_observations
from scenemem.agents.rollout import GLOBAL, Outputs
from scenemem.agents.search import END, ENDING
from scenemem.agents.walker import Decided, take_best
from scenemem.errors import SettingError
from scenemem.learning.matching import MATCHING_CRITIC
from scenemem.learning.speaker import Speaker
from scenemem.models.encoders import OneWayEncoder, TransformerEncoder
from scenemem.models.panoramic import FollowerUpdater, action_taken, candidate_actions
from scenemem.models.recurrent import DropoutMasks, Observation
from scenemem.simulator.panorama import Pose
from scenemem.tasks.vocabulary import PAD
from scenemem.world.graph import NONE
from scenemem.zoo.speaker_follower import FollowerConfig, SpeakerFollower, chosen_route, standardised
from tests.zoo.helpers import Setting, roam


@pytest.mark.parametrize("name", ["speaker-follower", "speaker-follower-as-published"])
def test_candidates_are_scored_by_products(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    assert isinstance(agent, SpeakerFollower)
    rollout, log = setting.walk(agent, roam())
    seen = recorded_observations(setting.environment, log, rollout)
    with torch.no_grad():
        found = agent.action_logits(seen)
        actions = candidate_actions(seen.candidates, seen.feature_mask)
        for row in range(0, len(found), 9):
            for option in range(found.shape[1]):
                product = agent.of_state(seen.state.hidden[row]) * agent.of_action(actions[row, option])
                assert float(found[row, option]) == pytest.approx(float(agent.weigh(product)), abs=1e-4)
    assert not actions[:, -1].any(), "stop is a row of zeros"


def test_on_the_common_recipe_products_begin_as_a_dot_product(setting: Setting) -> None:
    begun = {}
    for name in ("speaker-follower", "speaker-follower-as-published"):
        agent = setting.agent(name).network
        assert isinstance(agent, SpeakerFollower)
        begun[name] = agent.weigh.weight
    assert bool((begun["speaker-follower"] == 1.0).all())
    assert float(begun["speaker-follower-as-published"].detach().std()) > 0.01, "as the release begins"


def test_the_action_taken_is_the_candidate_as_it_looked_before(setting: Setting) -> None:
    """Its view, and its direction relative to the view faced then; 0 at the start."""
    agent = setting.loud_agent("speaker-follower-as-published")
    rollout, log = setting.walk(agent, roam(1))
    environment, world = setting.environment, setting.world
    checked = 0
    for episode, step in rollout.alive.nonzero().tolist():
        here = rollout.viewpoint[episode, step].view(1)
        before = rollout.viewpoint[episode, step - 1].view(1) if step else torch.tensor([-1])
        faced = rollout.view[episode, max(step - 1, 0)].view(1)
        masks = DropoutMasks(torch.ones(environment.width), {})
        observation = Observation(
            here,
            before,
            rollout.view[episode, step].view(1),
            environment.panorama(here),
            log.instructions,
            masks,
            environment=environment,
        )
        taken = action_taken(observation, faced)
        if step == 0:
            assert not taken.any()
            continue
        slot = int(world.slot_of(before, here))
        expected = candidate_actions(environment.candidates(before, faced), masks.feature)[0, slot]
        torch.testing.assert_close(taken[0], expected, atol=1e-5, rtol=1e-5)
        checked += 1
    assert checked > 20


def test_it_needs_an_environment(setting: Setting) -> None:
    updater = FollowerUpdater(setting.environment.width, 8, 4)
    here = setting.episodes.start[:1]
    read = setting.read(setting.loud_agent("speaker-follower"))
    observation = Observation(
        here, here, here * 0, setting.environment.panorama(here), read, DropoutMasks(torch.ones(8), {})
    )
    with pytest.raises(TypeError, match="the state log has no environment"):
        action_taken(observation, here * 0)
    assert updater.mask_widths()["output"] == 8


@pytest.mark.parametrize("backwards", [False, True])
def test_words_are_read_in_their_order_without_padding(backwards: bool) -> None:
    torch.manual_seed(0)
    encoder = OneWayEncoder(9, 4, 6, 0.0, PAD, backwards=backwards, project=False)
    tokens = torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]])
    read = encoder(tokens, torch.tensor([4, 2]))
    for row, length in enumerate((4, 2)):
        words = tokens[row : row + 1, :length]
        states, (hidden, cell) = encoder.lstm(encoder.embedding(words.flip(1) if backwards else words))
        expected = states.flip(1) if backwards else states
        torch.testing.assert_close(read.context[row, :length], expected[0])
        torch.testing.assert_close(read.hidden[row], hidden[0, 0])
        torch.testing.assert_close(read.cell[row], cell[0, 0])
    assert read.mask.tolist() == [[True] * 4, [True, True, False, False]]


def test_a_transformer_reads_words_without_padding() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(9, 4, 6, 0.0, PAD, layers=2, heads=2)
    read = encoder(torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]]), torch.tensor([4, 2]))
    alone = encoder(torch.tensor([[7, 8]]), torch.tensor([2]))
    torch.testing.assert_close(read.context[1:, :2], alone.context)
    torch.testing.assert_close(read.hidden[1:], alone.hidden)
    with pytest.raises(SettingError, match="width must be a multiple of the 4 heads, got 6"):
        TransformerEncoder(9, 4, 6, 0.0, PAD, layers=1, heads=4)


# pragmatic search


class _Watcher:
    """Keeps the action space, and what is decided last."""

    space: ActionSpace

    def __init__(self) -> None:
        self.explained: list[tuple[int, int, float]] = []  # episode, place, what the speaker says

    def observed(self, _pose: Pose, _active: Tensor, space: ActionSpace, /) -> None:
        self.space = space

    def decided(self, decided: Decided, /) -> None:
        said = decided.explanation.numbers["speaker, per word"].tolist()
        episodes = decided.request.episode
        places = decided.pose.viewpoint[episodes].tolist()
        self.explained += zip(episodes.tolist(), places, said, strict=True)


def _route(graph: nx.DiGraph[int], start: int, end: int) -> list[int]:
    """Up the tree of a search from one of its places to the start, turned around."""
    route = [end]
    while route[-1] != start:
        (above,) = graph.predecessors(route[-1])
        route.append(above)
    return route[::-1]


@pytest.mark.parametrize("follower", [False, True])
def test_a_speaker_chooses_where_a_search_ends(follower: bool, setting: Setting) -> None:
    """By hand: every place that was entered is the end of a route, told by an ordinary speaker."""
    weight, moved, alone = 0.7, 0, 0
    agent = setting.loud_agent("speaker-follower-pragmatic", speaker_weight=weight, follower=follower)
    assert isinstance(agent, SpeakerFollower)
    assert agent.speaker is not None
    speaker = Speaker(agent.speaker, setting.environment, setting.vocabulary, max_words=40)
    watcher = _Watcher()
    rollout, _ = setting.walk(agent, take_best, watcher=watcher, max_decisions=5)
    memory, episodes = watcher.space.memory, setting.episodes
    assert memory is not None
    for number, start in enumerate(episodes.start.tolist()):
        known = memory.node[number, : int(memory.count[number])].tolist()
        columns = {name: memory.columns[name][number].tolist() for name in ("scores", "parent")}
        tree: nx.DiGraph[int] = nx.DiGraph()
        tree.add_nodes_from(known)
        tree.add_edges_from((round(columns["parent"][node][0]), known[node]) for node in range(1, len(known)))
        heard, own = [], []
        for node, place in enumerate(known):
            route = _route(tree, start, place)
            heading, tokens = episodes.heading[number].view(1), speaker.tokens([episodes.texts[number]])
            heard.append(float(speaker.score(torch.tensor([route]), heading, tokens).per_word))
            total = columns["scores"][node][-1]
            for here, there in pairwise(route):
                slot = setting.world.neighbour[here].tolist().index(there)
                total += columns["scores"][known.index(here)][slot]
            own.append(total)
        ranks = [
            weight * says / torch.tensor(heard).std() + (1 - weight) * likes / torch.tensor(own).std()
            for says, likes in zip(heard, own, strict=True)
        ]
        best = known[max(range(len(known)), key=lambda node: ranks[node])]
        walked = [place for place in rollout.walked[number].tolist() if place != NONE]
        assert walked[-1] == best
        assert chosen_route(walked) == _route(tree, start, best), "what the release counts"
        moved += best != known[own.index(max(own))]
        alone += best != known[heard.index(max(heard))]
        shown = [(place, said) for episode, place, said in watcher.explained if episode == number]
        assert shown
        for place, said in shown:
            assert said == pytest.approx(heard[known.index(place)], abs=1e-5)
    assert moved > 0, "the speaker changed somebody's mind"
    assert alone > 0, "and did not decide alone"


def test_a_long_search_notes_who_is_asked_where_to_end(setting: Setting) -> None:
    agent = setting.loud_agent("speaker-follower-pragmatic")
    rollout, _ = setting.walk(agent, take_best, max_decisions=5)
    assert rollout.memory is not None
    asked = torch.zeros_like(rollout.alive)
    ends = rollout.decisions[END]
    asked[ends.episode, ends.step] = True
    noted = (rollout.memory.notes[ENDING].squeeze(-1) > 0) & rollout.alive
    assert torch.equal(noted, asked)
    assert len(ends.episode) == len(setting.episodes)
    assert len(rollout.decisions[GLOBAL].episode) > len(ends.episode)


def test_words_are_kept_when_instructions_are_read_in_parts(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are for large splits."""
    agent = setting.agent("speaker-follower-pragmatic")
    texts = ("go on", "walk past the table and stop at the second door", *setting.episodes.texts)
    whole, walks = agent.read(texts), agent.walk(setting.episodes)
    monkeypatch.setattr(walker, "_READ_TOGETHER", 3)
    parts = agent.read(texts)
    for name in ("mask", "hidden", "cell", "tokens"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-5, rtol=1e-5)
    assert torch.equal(agent.walk(setting.episodes).walked, walks.walked)


def test_the_speaker_learns_to_tell_reference_paths(setting: Setting) -> None:
    """The head is what an ordinary speaker says of a walk; its loss teaches the speaker and nothing else."""
    agent = setting.loud_agent("speaker-follower-pragmatic")
    assert isinstance(agent, SpeakerFollower)
    assert agent.speaker is not None
    rollout, log = setting.walk(agent, roam(), learning=True)
    outputs: Outputs = agent.evaluate_actions(rollout, log, setting.environment)
    speaker = Speaker(agent.speaker, setting.environment, setting.vocabulary, max_words=40)
    tokens = speaker.tokens(setting.episodes.texts)
    said = speaker.score(rollout.walked, setting.episodes.heading, tokens).per_word
    torch.testing.assert_close(outputs.heads["match"][:, 0], said, atol=1e-5, rtol=1e-5)
    taught = MATCHING_CRITIC.function(rollout, outputs, setting.context(rollout))
    assert float(taught.detach()) == pytest.approx(-float(said.mean()), abs=1e-5)
    torch.autograd.backward(taught)
    moved = {name for name, weight in agent.named_parameters() if weight.grad is not None}
    assert moved
    assert all(name.startswith("speaker.") for name in moved)
    assert MATCHING_CRITIC.walks == "teacher"
    without = setting.loud_agent("speaker-follower-search")
    assert isinstance(without, SpeakerFollower)
    assert without.speaker is None
    assert "match" not in without.evaluate_actions(rollout, log, setting.environment).heads


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=4, max_size=4), min_size=1, max_size=5
    )
)
def test_standardised_scores_keep_their_order_and_ignore_what_is_not_there(
    rows: list[list[tuple[int, bool]]],
) -> None:
    scores = torch.tensor([[score for score, _ in row] for row in rows], dtype=torch.float64)
    exists = torch.tensor([[known for _, known in row] for row in rows])
    exists[:, 0] = True  # a search has visited its start
    scores.requires_grad_()
    found = standardised(scores, exists)
    torch.autograd.backward(found[0].sum())
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all()), "of rows with one node, too"
    scores, found = scores.detach(), found.detach()
    torch.testing.assert_close(found, standardised(scores.masked_fill(~exists, 5e3), exists))
    for row, known in enumerate(exists):
        own, score = found[row][known], scores[row][known]
        assert float(own.mean()) == pytest.approx(0.0, abs=1e-5)
        spread = 1.0 if len(set(score.tolist())) > 1 else 0.0
        assert float(own.std(unbiased=False)) == pytest.approx(spread, abs=1e-5)
        assert own.argsort(stable=True).tolist() == score.argsort(stable=True).tolist()
    assert not found[~exists].any()


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="action_width must be 1 or more, got 0"):
        FollowerConfig(action_width=0)
    with pytest.raises(SettingError, match="search is 'short'; set search to long or speaker_width to 0"):
        FollowerConfig(search="short", speaker_width=8)
    with pytest.raises(SettingError, match=r"speaker_weight must be in \[0, 1\], got 1.5"):
        FollowerConfig(speaker_weight=1.5)
