"""Led along the reference paths: what an agent would have chosen, and which words it attends to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scenemem.agents.walker import TrainedAgent, WalkConfig, take_best
from scenemem.errors import UserError
from scenemem.evaluation import following
from scenemem.evaluation.following import Agreement, GroundingQuality, Stream, WordAttention
from scenemem.formats.annotations import (
    LandmarkLabels,
    WordLabels,
    landmark_label_file,
    read_landmark_labels,
)
from scenemem.formats.episodes import read_episodes
from scenemem.learning.objectives import ReferencePath
from scenemem.models.navigator import Instructions
from scenemem.presets import PRESETS
from scenemem.ssm.agent import GroundedAgent
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import split_words
from scenemem.world.graph import NONE
from tests.agents.helpers import Setting

KINDS = sorted({preset.agent for preset in PRESETS.values()})


@pytest.fixture(scope="module")
def setting(tiny_trainable: Path) -> Setting:
    return Setting.load(tiny_trainable, "val_unseen")


def _agent(setting: Setting, name: str, **settings: Any) -> TrainedAgent:
    return setting.agent(name, limits=WalkConfig(max_decisions=4, max_steps=9, max_words=30), **settings)


@pytest.mark.parametrize("name", ["basic", "ssm", "ssm-plus", "ssm-global", "ssm-local", "active-perception"])
def test_agreement_and_likelihood_are_those_of_every_single_decision(name: str, setting: Setting) -> None:
    agent, episodes, told = _agent(setting, name), setting.episodes, list[tuple[int, int]]()
    agent.network.train()
    found = following.measure_following(
        agent, episodes, batch_size=7, progress=lambda *done: told.append(done)
    )
    likelihood = following.path_likelihood(agent, episodes)
    assert agent.network.training, "as it was before"
    assert told[-1] == (len(episodes), len(episodes))
    longest, led = int(episodes.path_length.max()), torch.ones(len(episodes), dtype=torch.bool)
    rollout = setting.walk(
        agent.network.eval(),
        take_best,
        max_decisions=longest,
        max_steps=longest**2,
        learning=True,
        forced=led,
        rule=ReferencePath(setting.world, episodes.path),
    )
    right, of, chances = Counter[str](), Counter[str](), dict[int, list[float]]()
    for kind, table in rollout.decisions.items():
        for row in (table.label >= 0).nonzero().flatten().tolist():
            logits, label = table.logits[row].detach(), int(table.label[row])
            what = ": stay" if kind.over_nodes else (": stop" if table.stops[row] else ": go on")
            decisions = str(kind) if kind.auxiliary else f"{kind}{what}"
            right[decisions] += int(logits.argmax()) == label
            of[decisions] += 1
            chances.setdefault(int(table.episode[row]), []).append(float(logits.log_softmax(dim=0)[label]))
    assert found == [Agreement(one, right[one], of[one]) for one in sorted(of)]
    assert {one.of for one in found if one.decisions.endswith("stop")} == {len(episodes)}
    assert any(0 < one.share < 1 for one in found)
    expected = torch.tensor([sum(row) / len(row) for _, row in sorted(chances.items())])
    torch.testing.assert_close(likelihood, expected, rtol=1e-4, atol=1e-5)
    part = following.path_likelihood(agent, episodes.select([2, 0]))
    torch.testing.assert_close(part, likelihood[[2, 0]], rtol=1e-4, atol=1e-4)


# Grounding


@pytest.mark.parametrize("name", KINDS)
def test_attention_is_that_of_the_states_that_decide_along_the_path(
    name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step after step, what ``forward`` of the grounding has attended to is what was recorded."""
    agent, told, seen = _agent(setting, name), list[tuple[int, int]](), list[Tensor]()
    agent.network.train()
    attend, streams = Instructions.attend, ["navigator"]
    if isinstance(agent.network, GroundedAgent) and agent.network.grounding is not None:
        streams, ground = ["perception", "action", "navigator"], agent.network.grounding.forward

        def spied(state: Tensor, words: Instructions) -> Any:
            with pytest.MonkeyPatch.context() as patch:

                def kept(words: Instructions, queries: Tensor) -> tuple[Tensor, Tensor]:
                    values, weights = attend(words, queries)
                    seen.append(weights)
                    return values, weights

                patch.setattr(Instructions, "attend", kept)
                return ground(state, words)

        monkeypatch.setattr(agent.network.grounding, "forward", spied)
    assert (len(streams) == 1) == name.startswith("basic")
    for batch in following.attention_along_reference(
        agent, setting.episodes, batch_size=7, progress=lambda *done: told.append(done)
    ):
        for walk, alive, path in zip(batch.viewpoint, batch.alive, batch.episodes.path, strict=True):
            assert walk[alive].tolist() == path[path != NONE].tolist()
        assert list(batch.words) == streams
        for weights in batch.words.values():
            assert torch.allclose(weights[batch.alive].sum(-1), torch.ones(int(batch.alive.sum())))
        steps = batch.alive.sum(dim=0).tolist() if len(streams) > 1 else []
        assert [len(weights) for weights in seen] == steps
        for step, weights in enumerate(seen):
            for number, stream in enumerate(("perception", "action")):
                of_stream: Tensor = batch.words[stream]  # type: ignore[index]
                assert torch.equal(of_stream[batch.alive[:, step], step], weights[:, number])
        seen.clear()
    assert agent.network.training, "as it was before"
    assert told[-1] == (len(setting.episodes), len(setting.episodes))


def _labelled(setting: Setting, episodes: EpisodeSet, *of_steps: WordLabels) -> LandmarkLabels:
    """Labels of the first viewpoints of every episode's path."""
    names = setting.world.viewpoints
    return {
        name: {names[place]: label for place, label in zip(path, of_steps, strict=False)}
        for name, path in zip(episodes.instruction_ids, episodes.path.tolist(), strict=True)
    }


def test_without_fine_grained_grounding_there_is_only_the_navigators_attention(setting: Setting) -> None:
    labels = _labelled(setting, setting.episodes, WordLabels(landmark=(0, 1), action=(2,)))
    quality = following.measure_grounding(_agent(setting, "ssm", grounding=False), setting.episodes, labels)
    shown = [(row.stream, row.words) for row in quality.attention]
    assert shown == [("navigator", "landmark"), ("navigator", "action")]
    assert quality.own_minus_other == {}


Measured = Callable[[EpisodeSet, LandmarkLabels, dict[Stream, list[int]]], GroundingQuality]


@pytest.fixture
def measured(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Grounding of made-up attention: every stream attends to the given tokens, to each as much."""

    def measure(
        episodes: EpisodeSet, labels: LandmarkLabels, attention: dict[Stream, list[int]]
    ) -> GroundingQuality:
        tokens = torch.tensor([len(split_words(text)) + 2 for text in episodes.texts])
        shape = (*episodes.path.shape, int(tokens.max()))

        def attend(*_args: object, **_options: object) -> Iterator[following.ReferenceAttention]:
            words: dict[Stream, Tensor] = {}
            for stream, chosen in attention.items():
                words[stream] = torch.zeros(shape)
                words[stream][:, :, chosen] = 1 / len(chosen)
            alive = episodes.path != NONE
            yield following.ReferenceAttention(episodes, episodes.path.clamp_min(0), alive, tokens, words)

        monkeypatch.setattr(following, "attention_along_reference", attend)
        return following.measure_grounding(_agent(setting, "ssm"), episodes, labels)

    return measure


def _row(quality: GroundingQuality, stream: Stream, words: str) -> WordAttention:
    (row,) = (row for row in quality.attention if (row.stream, row.words) == (stream, words))
    return row


def test_mass_lift_and_pointing_are_what_they_say(measured: Measured, setting: Setting) -> None:
    some = setting.episodes.select(range(6))
    labels = _labelled(setting, some, WordLabels(landmark=(0, 1), action=(2,)))
    quality = measured(some, labels, {"perception": [1, 2, 5, 6], "action": [3], "navigator": [0]})
    tokens = [len(split_words(text)) + 2 for text in some.texts]
    chance = sum(2 / count for count in tokens) / len(tokens)
    perception = _row(quality, "perception", "landmark")
    assert perception.chance == pytest.approx(chance)
    assert perception.mass.value == pytest.approx(0.5), "the first two of four words"
    assert perception.lift.value == pytest.approx(0.5 / chance)
    assert perception.pointing.value == 1.0, "the first of its four words is a landmark"
    assert perception.elsewhere is None, "nothing was said about other viewpoints"
    assert _row(quality, "perception", "action").mass.value == 0.0
    assert _row(quality, "action", "action").mass.value == 1.0
    assert _row(quality, "navigator", "landmark").pointing.value == 0.0
    assert quality.own_minus_other["landmark"].value == pytest.approx(0.5)
    assert quality.own_minus_other["action"].value == pytest.approx(1.0)
    assert quality.viewpoints == {"landmark": 6, "action": 6}
    assert (quality.episodes, quality.paths) == (6, len(set(some.record.tolist())))


def test_words_about_other_viewpoints_are_measured_apart(measured: Measured, setting: Setting) -> None:
    one = setting.episodes.select([0])
    labels = _labelled(setting, one, *(WordLabels(landmark=(word,), action=()) for word in (0, 1)))
    quality = measured(one, labels, {"navigator": [1]})
    row = _row(quality, "navigator", "landmark")
    tokens = len(split_words(one.texts[0])) + 2
    assert row.mass.value == 0.5, "right at the first viewpoint, wrong at the second"
    assert row.elsewhere is not None
    assert row.elsewhere.value == pytest.approx(0.5 * tokens), "and the other way round"
    assert quality.coverage.empty == 2


def test_every_label_is_measured_whole_or_counted_as_what_it_is(measured: Measured, setting: Setting) -> None:
    one = setting.episodes.select([0])
    name, length = one.instruction_ids[0], len(split_words(one.texts[0]))
    beyond, empty, word = WordLabels((0,), (0, length)), WordLabels(landmark=()), WordLabels(action=(1,))
    labels = dict(_labelled(setting, one, beyond, empty))
    labels = {name: {**labels[name], "somewhere else": word}, "another instruction": {"here": word}}
    coverage = measured(one, labels, {"navigator": [1]}).coverage
    assert (coverage.labels, coverage.measured) == (4, 1)
    assert (coverage.empty, coverage.beyond, coverage.unvisited, coverage.cut) == (1, 1, 1, 0)


def test_words_the_agent_does_not_read_are_not_held_against_it(setting: Setting) -> None:
    agent, episodes = _agent(setting, "basic"), setting.episodes
    agent.limits = replace(agent.limits, max_words=5)  # three words and the two marks
    labels = _labelled(setting, episodes, WordLabels(landmark=(2,)), WordLabels(landmark=(3,)))
    quality = following.measure_grounding(agent, episodes, labels)
    assert quality.coverage.cut == quality.coverage.measured == len(episodes)


def test_what_cannot_be_led_or_measured_is_refused(setting: Setting) -> None:
    with pytest.raises(UserError, match="no word label fits 'r2r val_unseen'; are they"):
        following.measure_grounding(_agent(setting, "basic"), setting.episodes, {})
    for name in ("rpa", "student-forcing"):
        with pytest.raises(UserError, match="this agent turns and steps; only agents that choose viewpoints"):
            following.measure_following(_agent(setting, name), setting.episodes)


@pytest.mark.real_data
def test_real_labels_count_words_as_we_do(real_data: Path) -> None:
    """A label begins with a word; one token further left or right would often be punctuation."""
    labels = read_landmark_labels(landmark_label_file(real_data, "val_unseen"))
    marks, total = Counter[int](), 0
    for episode in read_episodes(real_data / "r2r" / "R2R_val_unseen.json"):
        for name, text in zip(episode.instruction_ids, episode.instructions, strict=True):
            tokens = split_words(text)
            kinds = ((label.landmark, label.action) for label in labels[name].values())
            for words in chain.from_iterable(kinds):
                if words and 0 < words[0] < len(tokens) - 1:
                    total += 1
                    marks.update(at for at in (-1, 0, 1) if not tokens[words[0] + at][0].isalnum())
    assert marks[0] < 0.001 * total
    assert min(marks[-1], marks[1]) > 0.01 * total
