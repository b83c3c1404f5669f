from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scenemem.evaluation.evaluate import CandidateWalker, Walks, walk_split
from scenemem.evaluation.metrics import path_length
from scenemem.formats.folder import DataFolder
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS, DataConfig
from scenemem.runs.experiment import Experiment, SpeakerPreset, new_experiment, new_speaker
from scenemem.zoo.reranking import Reranking, RerankingAgent


@pytest.fixture(scope="module")
def experiment(tiny_trainable: Path) -> Experiment:
    base = PRESETS["ssm"]
    preset = replace(base, model=replace(base.model, word_width=8, width=16), data=DataConfig(min_count=1))
    return new_experiment(preset, DataFolder(tiny_trainable), seed=0)


@pytest.fixture(scope="module")
def reranking(experiment: Experiment) -> RerankingAgent:
    preset = SpeakerPreset(
        words=14, model=SpeakerConfig(word_width=8, width=16), data=DataConfig(min_count=1)
    )
    speaker = new_speaker(preset, experiment.folder, seed=0).speaker
    return RerankingAgent(experiment.agent, speaker, Reranking(candidates=4))


def _walked_candidates(
    reranking: RerankingAgent, experiment: Experiment, batch: int
) -> tuple[Walks, CandidateWalker]:
    walker = CandidateWalker(reranking)
    return walk_split(walker, experiment.episodes("val_unseen"), batch_size=batch), walker


def test_everything_walked_is_counted_whatever_the_answer(
    reranking: RerankingAgent, experiment: Experiment
) -> None:
    walks, walker = _walked_candidates(reranking, experiment, batch=5)
    world, episodes = experiment.environment.world, walks.episodes
    candidates = reranking.candidates(episodes)
    each = path_length(world, candidates.rollout.walked).view(4, len(episodes))
    torch.testing.assert_close(walker.metres, each.sum(dim=0))
    measured = walks.measured(world)
    assert bool((walker.metres >= measured.tl).all())
    assert float(walker.metres.mean()) > float(measured.tl.mean()), "the others walked, too"
    assert bool((walker.spl(walks, world) <= measured.spl).all())


def test_the_answer_is_the_agents_own_whatever_the_batch(
    reranking: RerankingAgent, experiment: Experiment
) -> None:
    small, large = (_walked_candidates(reranking, experiment, batch)[0] for batch in (3, 100))
    assert torch.equal(small.viewpoint, large.viewpoint)
    whole = reranking.walk(small.episodes)
    assert torch.equal(small.jumps, walk_split(reranking, small.episodes).jumps)
    assert torch.equal(whole.length, (small.viewpoint >= 0).sum(dim=1))


def test_one_candidate_walks_nothing_more(reranking: RerankingAgent, experiment: Experiment) -> None:
    alone = RerankingAgent(reranking.agent, reranking.scorer, Reranking(candidates=1))
    walks, walker = _walked_candidates(alone, experiment, batch=100)
    plain, world = walk_split(experiment.agent, walks.episodes), experiment.environment.world
    assert torch.equal(walks.viewpoint, plain.viewpoint)
    assert torch.equal(walks.view, plain.view)
    assert torch.equal(walks.jumps, plain.jumps)
    assert torch.equal(walker.metres, plain.measured(world).tl)
    assert torch.equal(walker.spl(walks, world), plain.measured(world).spl)
