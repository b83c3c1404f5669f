"""AuxRN: its four tasks against plain references."""

from __future__ import annotations

import math

import pytest
import torch

from scenemem.agents.rollout import Outputs
from scenemem.learning.objectives import LOSSES
from scenemem.models.navigator import InstructionEncoder
from scenemem.models.speaker import WordDecoder
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK
from scenemem.zoo.auxiliary import matching, next_angle, next_directions, step_progress
from scenemem.zoo.auxrn import AUXILIARY, AuxRN
from scenemem.zoo.telling import SpelledInstructions, retelling_loss, spelled
from tests.zoo.helpers import Setting, roam


def test_retelling_is_the_mean_cost_of_known_words() -> None:
    torch.manual_seed(0)
    decoder = WordDecoder(11, 4, 6, dropout=0.0)
    states, mask = torch.randn(2, 5, 6), torch.arange(5) < torch.tensor([[5], [2]])
    tokens = torch.tensor([[BOS, 7, UNK, 9, EOS], [BOS, 8, EOS, PAD, PAD]])
    found = retelling_loss(decoder, states, mask, tokens)
    for row, length in enumerate((5, 3)):
        own = states[row : row + 1, : int(mask[row].sum())]
        alone = torch.ones(1, own.shape[1], dtype=torch.bool)
        torch.testing.assert_close(
            found[row : row + 1], retelling_loss(decoder, own, alone, tokens[row : row + 1, :length])
        )
    said = torch.tensor([[BOS, 8, EOS]])
    uniform = WordDecoder(11, 4, 6, dropout=0.0)
    torch.nn.init.zeros_(uniform.words.weight)
    torch.nn.init.zeros_(uniform.words.bias)
    expected = math.log(11 - 3)  # padding, unknown and begin are never said
    cost = retelling_loss(uniform, states[:1], mask[:1], said)
    assert float(cost.detach()[0]) == pytest.approx(expected, rel=1e-5)


def test_the_direction_of_the_next_hop_is_the_one_the_agent_sees(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent("auxrn"), roam(1))
    target, moves = next_directions(setting.world, rollout)
    for episode, step in rollout.alive.nonzero().tolist():
        last = step == int(rollout.length[episode]) - 1
        assert bool(moves[episode, step]) != last
        if last:
            assert not target[episode, step].any()
            continue
        here, there = rollout.viewpoint[episode, step : step + 2]
        seen = setting.environment.candidates(here.view(1), rollout.view[episode, step].view(1))
        slot = int(setting.world.slot_of(here, there))
        torch.testing.assert_close(target[episode, step], seen.orientation[0, slot], atol=1e-5, rtol=1e-5)
    assert not moves[~rollout.alive].any()


def test_its_losses_are_what_they_say(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent("auxrn"), roam(1))
    context, alive = setting.context(rollout), rollout.alive
    target, moves = next_directions(setting.world, rollout)
    exact = Outputs({}, {"angle": target, "step_progress": torch.zeros(alive.shape)})
    assert float(next_angle(rollout, exact, context)) == 0.0
    off = Outputs({}, {"angle": target + 1.0})
    assert float(next_angle(rollout, off, context)) == pytest.approx(4.0)
    assert float(step_progress(rollout, exact, context)) == pytest.approx(math.log(2), rel=1e-5)
    logits = torch.zeros(*alive.shape, 2)
    logits[torch.arange(len(alive)), rollout.length - 1] = torch.tensor([30.0, -30.0])
    said = Outputs({}, {"matching": logits})
    assert float(matching(rollout, said, context)) == pytest.approx(0.0, abs=1e-6)
    assert int(moves.sum()) == int((rollout.length - 1).sum())


def test_another_instruction_is_matched_with_every_walk(setting: Setting) -> None:
    agent = setting.loud_agent("auxrn")
    assert isinstance(agent, AuxRN)
    rollout, log = setting.walk(agent, roam(1))
    heads = agent.evaluate_actions(rollout, log, setting.environment).heads
    assert "state" not in heads
    words = spelled(log.instructions).context[:, 0]
    state = log.stacked().hidden[log.row_at[torch.arange(len(words)), rollout.length - 1]]
    other = agent.matching(torch.cat([state, words.roll(1, 0)], dim=1)).squeeze(1)
    own = agent.matching(torch.cat([state, words], dim=1)).squeeze(1)
    torch.testing.assert_close(heads["matching"][:, 0], torch.stack([own, other], dim=1))


def test_words_go_with_their_instructions(setting: Setting) -> None:
    read = setting.read(setting.loud_agent("auxrn"))
    assert isinstance(read, SpelledInstructions)
    twice = read.repeat(2)
    assert torch.equal(twice.tokens[: len(read.tokens)], read.tokens)
    assert len(twice.tokens) == len(twice.context) == 2 * len(read.tokens)
    plain = InstructionEncoder(9, 4, 6, 0.0, PAD)(torch.tensor([[1, 2]]), torch.tensor([2]))
    with pytest.raises(TypeError, match="build it with a SpellingEncoder"):
        spelled(plain)


def test_the_tasks_learn_from_the_reference_path_only() -> None:
    assert {LOSSES[name].walks for name in AUXILIARY} == {"teacher"}
