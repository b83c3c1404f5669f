"""Acting, learning, resuming and evaluating on a graphics card, without one (see ``fake_card``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem.agents.build import AGENTS
from scenemem.agents.walker import Sample
from scenemem.errors import UserError
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import BackTranslation
from scenemem.learning.checkpoint import load_optimiser, read_checkpoint, write_checkpoint
from scenemem.learning.distributed import SINGLE, ProcessGroup, check_device
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS, DataConfig, Preset
from scenemem.runs.experiment import SpeakerPreset, new_experiment, new_speaker
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.opened import open_run
from scenemem.runs.training import Settings, run_training
from scenemem.tasks.paths import path_pool
from scenemem.zoo.reranking import Reranking, RerankingAgent
from tests.faults.fake_card import CARD, CardTensor, DeviceError, FakeCard, fake_card

GROUP = ProcessGroup(device=CARD)
# the agents that come with SceneMem; tests of plugins register more
NAMES = sorted({preset.agent for preset in PRESETS.values()} & set(AGENTS))


@pytest.fixture
def card() -> Iterator[FakeCard]:
    torch.set_num_threads(1)
    with fake_card() as found:
        yield found


def _preset(agent: str) -> Preset[Any]:
    base = next(preset for preset in PRESETS.values() if preset.agent == agent)
    return replace(
        base,
        model=replace(base.model, width=16, word_width=8),
        data=replace(base.data, min_count=1, features=None, task="r2r"),
        learning=replace(base.learning, iterations=4, batch=4),
        selection=replace(base.selection, split="dev_unseen", every=2, save_every=2),
    )


def test_the_double_refuses_what_a_card_would_refuse(card: FakeCard) -> None:
    there, here = torch.ones(3, device=CARD), torch.ones(3)
    assert there.device == torch.device(CARD)
    with pytest.raises(DeviceError, match=r"aten.add.Tensor mixes .*: torch.float32 \(3,\)"):
        there + here
    with pytest.raises(DeviceError, match="mixes tensors"):
        here[torch.tensor([0], device=CARD)]
    with pytest.raises(DeviceError, match="draws on the card with a generator of the CPU"):
        torch.multinomial(there, 1, generator=torch.Generator())
    with pytest.raises(DeviceError, match="move it to the CPU first"):
        there.numpy()
    assert (there + torch.tensor(1.0)).tolist() == [2.0] * 3, "single numbers may meet"
    assert there[torch.tensor([0, 1])].shape == (2,), "indices of the CPU are taken"
    assert here.copy_(there).tolist() == [1.0] * 3
    card.waits.clear()
    assert float(there.sum()) == 3.0
    assert there.nonzero().shape == (3, 1)
    assert card.waits == {"aten._local_scalar_dense.default": 1, "aten.nonzero.default": 1}


@pytest.mark.parametrize("agent", NAMES)
def test_every_agent_learns_resumes_and_is_evaluated_on_a_card(
    agent: str, tiny_trainable: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    settings, folder = Settings(agent, _preset(agent)), DataFolder(tiny_trainable)
    there, here = RunFolder(tmp_path / "card"), RunFolder(tmp_path / "cpu")
    run_training(settings, folder, here, group=SINGLE)

    def stop(status: TrainingStatus) -> None:
        if status.iteration == 3:
            raise InterruptedError

    with fake_card():
        with pytest.raises(InterruptedError):
            run_training(settings, folder, there, group=GROUP, watch=stop)
        run_training(settings, folder, there, resume=True, group=GROUP)
    # the double computes as the CPU does, so a run that was cut on the card ends like one that was not
    mine, theirs = read_checkpoint(there.last).tensors, read_checkpoint(here.last).tensors
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    with fake_card():
        found = open_run(there, folder, device=CARD).evaluate("val_unseen").metrics
    assert found == open_run(here, folder).evaluate("val_unseen").metrics


def test_moments_are_restored_where_the_parameters_are(tmp_path: Path, card: FakeCard) -> None:
    def stepped() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        network = torch.nn.Linear(3, 2).to(CARD)
        optimiser = torch.optim.AdamW(network.parameters(), fused=True)
        torch.autograd.backward(network(torch.ones(1, 3, device=CARD)).sum())
        optimiser.step()
        return network, optimiser

    network, optimiser = stepped()
    write_checkpoint(tmp_path / "c", network, {}, optimiser)
    _, other = stepped()
    load_optimiser(other, read_checkpoint(tmp_path / "c"))
    assert all(isinstance(value, CardTensor) for state in other.state.values() for value in state.values())
    other.step()


@pytest.fixture
def spoken(tiny_trainable: Path) -> SpeakerPreset:
    return SpeakerPreset(words=12, model=SpeakerConfig(width=16, word_width=8), data=DataConfig(min_count=1))


def test_a_speaker_describes_paths_on_a_card(
    spoken: SpeakerPreset, tiny_trainable: Path, card: FakeCard
) -> None:
    opened = new_speaker(spoken, DataFolder(tiny_trainable), 0, CARD)
    pool = path_pool(opened.environment.world, opened.training_scans)
    drawn = BackTranslation(opened.speaker, pool, 0).draw(
        0, 4, torch.ones(opened.environment.width, device=CARD), GROUP
    )
    assert len(drawn.texts) == 4
    assert drawn.path.device == torch.device(CARD)


def test_candidates_are_chosen_on_a_card(spoken: SpeakerPreset, tiny_trainable: Path, card: FakeCard) -> None:
    folder = DataFolder(tiny_trainable)
    opened = new_experiment(_preset("ssm"), folder, 0, CARD)
    speaker = new_speaker(spoken, folder, 0, CARD).speaker
    walker = RerankingAgent(opened.agent, speaker, Reranking(2, 0.5, 0))
    walks = walk_split(walker, opened.episodes("val_unseen"))
    assert walks.measured(opened.environment.world).means()["tl"] >= 0


def test_a_generator_of_the_cpu_draws_for_logits_of_a_card(card: FakeCard) -> None:
    logits = torch.zeros(5, 3)
    drawn = [Sample(torch.Generator().manual_seed(0))(logits.to(device)).tolist() for device in ("cpu", CARD)]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "`device='cuda'`, but this machine has no such device; use `device='cpu'`"),
        ("banana", "`device='banana'` is no device; use cpu or cuda"),
        ("mps", "`device='mps'` is not supported"),
    ],
)
def test_devices_that_are_not_there_are_refused(
    device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        check_device(device)
    assert check_device("cpu") == "cpu"
