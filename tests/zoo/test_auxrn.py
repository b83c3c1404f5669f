"""AuxRN: its four tasks against plain references."""

from __future__ import annotations

import math

import pytest
import torch

from scenemem.learning.objectives import LOSSES
from scenemem.models.navigator import InstructionEncoder
from scenemem.models.speaker import WordDecoder
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK
from scenemem.zoo.auxrn import AUXILIARY, AuxRN
from scenemem.zoo.encoders import SpelledInstructions, spelled
from scenemem.zoo.objectives import matching, next_angle, next_directions, retelling_cost, step_progress
from tests.zoo.helpers import Setting, Walk, roam, with_heads


@pytest.fixture(scope="module")
def agent(setting: Setting) -> AuxRN:
    agent: AuxRN = setting.loud(AuxRN, "auxrn")
    return agent


@pytest.fixture(scope="module")
def walk(agent: AuxRN, setting: Setting) -> Walk:
    return setting.walk(agent, roam(1), learning=True)


def test_retelling_is_the_mean_cost_of_known_words() -> None:
    torch.manual_seed(0)
    decoder = WordDecoder(11, 4, 6, dropout=0.0)
    states, mask = torch.randn(2, 5, 6), torch.arange(5) < torch.tensor([[5], [2]])
    tokens = torch.tensor([[BOS, 7, UNK, 9, EOS], [BOS, 8, EOS, PAD, PAD]])
    found = retelling_cost(decoder, states, mask, tokens)
    for row, length in enumerate((5, 3)):
        own = states[row : row + 1, : int(mask[row].sum())]
        alone = torch.ones(1, own.shape[1], dtype=torch.bool)
        expected = retelling_cost(decoder, own, alone, tokens[row : row + 1, :length])
        torch.testing.assert_close(found[row : row + 1], expected)
    torch.nn.init.zeros_(decoder.words.weight)
    torch.nn.init.zeros_(decoder.words.bias)
    uniform = retelling_cost(decoder, states[:1], mask[:1], torch.tensor([[BOS, 8, EOS]]))
    # padding, unknown and begin are never said
    assert float(uniform.detach()[0]) == pytest.approx(math.log(11 - 3), rel=1e-5)


def test_the_direction_of_the_next_hop_is_the_one_the_agent_sees(setting: Setting, walk: Walk) -> None:
    rollout = walk.rollout
    target, moves = next_directions(setting.world, rollout)
    last = torch.arange(rollout.alive.shape[1]) == rollout.length.unsqueeze(1) - 1
    assert torch.equal(moves, rollout.alive & ~last)
    assert not target[~moves].any()
    for episode, step in moves.nonzero().tolist():
        here, there = rollout.viewpoint[episode, step : step + 2]
        seen = setting.environment.candidates(here.view(1), rollout.view[episode, step].view(1))
        slot = int(setting.world.slot_of(here, there))
        torch.testing.assert_close(target[episode, step], seen.orientation[0, slot], atol=1e-5, rtol=1e-5)


def test_its_losses_are_what_they_say(setting: Setting, walk: Walk) -> None:
    rollout, context = walk.rollout, setting.context(walk.rollout)
    target, _ = next_directions(setting.world, rollout)
    exact = with_heads(rollout, angle=target, step_progress=torch.zeros(rollout.alive.shape))
    assert float(next_angle(exact, context)) == 0.0
    assert float(next_angle(with_heads(rollout, angle=target + 1.0), context)) == pytest.approx(4.0)
    assert float(step_progress(exact, context)) == pytest.approx(math.log(2), rel=1e-5)
    logits = torch.zeros(*rollout.alive.shape, 2)
    logits[torch.arange(len(logits)), rollout.length - 1] = torch.tensor([30.0, -30.0])
    assert float(matching(with_heads(rollout, matching=logits), context)) == pytest.approx(0.0, abs=1e-6)


def test_another_instruction_is_matched_with_every_walk(agent: AuxRN, walk: Walk) -> None:
    words = spelled(walk.inputs.instructions).context[:, 0]
    state = torch.zeros_like(words)
    for episode, _, hidden in walk.arrivals():  # the last one stays
        state[episode] = hidden
    other = agent.matching(torch.cat([state, words.roll(1, 0)], dim=1)).squeeze(1)
    own = agent.matching(torch.cat([state, words], dim=1)).squeeze(1)
    torch.testing.assert_close(walk.heads["matching"][:, 0], torch.stack([own, other], dim=1))


def test_words_go_with_their_instructions(agent: AuxRN, setting: Setting) -> None:
    read = setting.inputs(agent).instructions
    assert isinstance(read, SpelledInstructions)
    assert torch.equal(read.repeat(2).tokens, read.tokens.repeat(2, 1))
    plain = InstructionEncoder(9, 4, 6, 0.0, PAD)(torch.tensor([[1, 2]]), torch.tensor([2]))
    with pytest.raises(TypeError, match="build it with a SpellingEncoder"):
        spelled(plain)


def test_the_tasks_learn_from_the_reference_path_only() -> None:
    assert {LOSSES[name].walks for name in AUXILIARY} == {"teacher"}
