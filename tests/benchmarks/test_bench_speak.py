"""``scenemem bench speak`` on the tiny world; how large the numbers are is not tested."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from scenemem.agents.network import NetworkConfig
from scenemem.benchmarks.flops import ProductCounter
from scenemem.benchmarks.speaking import SHARE_GOAL, Rate, SpeakReport, SpeakRequest
from scenemem.benchmarks.speaking_load import AugmentedLoad, Kind, SpeakerLoad, fresh_speaking
from scenemem.benchmarks.workload import Case
from scenemem.cli import main
from scenemem.commands.bench_speak import bench_speak
from scenemem.errors import UserError
from scenemem.formats.feature_files import write_store
from scenemem.formats.folder import DataFolder
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import PRESETS
from scenemem.runs.experiment import SPEAKERS, SpeakerExperiment
from scenemem.tasks.vocabulary import EOS, PAD
from scenemem.world.build import load_world

Captured = pytest.CaptureFixture[str]
SMALL_SPEAKER = replace(SPEAKERS["speaker"], model=SpeakerConfig(word_width=8, width=16))
AUGMENTED = ("basic-augmented", "ssm-augmented")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPEAKERS._objects, "speaker", SMALL_SPEAKER)
    for name in AUGMENTED:
        memory = replace(PRESETS[name].memory, stream=8)
        preset = replace(PRESETS[name], model=NetworkConfig(word_width=8, width=16), memory=memory)
        monkeypatch.setitem(PRESETS, name, preset)


@pytest.fixture
def fresh(small: None, tiny_trainable: Path) -> SpeakerExperiment:
    return fresh_speaking(DataFolder(tiny_trainable), None)


def _plausible(rate: Rate) -> None:
    assert rate.count >= 1
    assert min(rate.per_second, rate.normalised_per_second, rate.gigaflops_each) > 0
    assert rate.utilisation_of_square > 0
    assert rate.repeats == 1


def test_the_report_has_every_quantity(tiny_trainable: Path, tmp_path: Path, capsys: Captured) -> None:
    bench_speak(
        AUGMENTED,
        tiny_trainable,
        batch=4,
        beam=2,
        seconds=1e-6,
        repeats=1,
        json=True,
        out=tmp_path / "report.json",
    )
    shown = capsys.readouterr().out
    report = msgspec.json.decode(shown, type=SpeakReport)
    assert json.loads(shown) == json.loads((tmp_path / "report.json").read_text())
    assert (report.speaker, report.trained, report.feature_columns) == ("fresh", False, 8)
    assert list(report.describing) == ["greedy", "sampled", "beam"]
    assert len({way.words for way in report.describing.values()}) == 1, "texts of one length"
    for rate in (*(way.paths for way in report.describing.values()), report.training):
        _plausible(rate)
    assert report.training.count == report.training_batch == SMALL_SPEAKER.learning.batch
    assert report.describing["beam"].paths.gigaflops_each > report.describing["greedy"].paths.gigaflops_each
    assert [steps.preset for steps in report.augmented] == list(AUGMENTED)
    for steps in report.augmented:
        _plausible(steps.episodes)
        assert steps.episodes.count == 4 * 2 * 2, "two lanes of an episode, its own and a described one"
        assert steps.steps_per_second == pytest.approx(steps.episodes.per_second / 16)
        assert 0 < steps.speaker_share < 1
        assert steps.below_goal == (steps.speaker_share < SHARE_GOAL)


def test_a_trained_speaker_says_what_it_wants(tiny_trainable: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ("--data.min-count", "1", "--iterations", "2", "--selection.every", "2")
    out = tmp_path / "speaker-7"
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                *("speak", "train", "--data", str(tiny_trainable), "--out", str(out)),
                *(*words, "--selection.save-every", "2"),
            ]
        )
    capsys.readouterr()
    bench_speak(("basic-augmented",), tiny_trainable, speaker=out, batch=3, beam=2, seconds=1e-6, repeats=1)
    shown = " ".join(capsys.readouterr().out.split())
    for expected in ("speaker-7 (trained), 8 columns, batch 3", "beam 2", "pairs learnt", "batch 32"):
        assert expected in shown
    assert "basic-augmented, batch 3" in shown


@pytest.mark.parametrize("kind", SpeakerLoad.kinds)
def test_repeated_work_is_the_same_work(kind: Kind, fresh: SpeakerExperiment) -> None:
    load = SpeakerLoad(fresh, batch=5, beams=2)
    before = [weights.clone() for weights in load.speaker.network.parameters()]
    counts = []
    for _ in range(2):
        with ProductCounter() as counter:
            assert load.run(kind, 2) == 2 * (SMALL_SPEAKER.learning.batch if kind == "training" else 5)
        counts.append(counter.products)
    assert counts[0] == counts[1]
    for old, new in zip(before, load.speaker.network.parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_a_fresh_speaker_says_texts_as_long_as_instructions(fresh: SpeakerExperiment) -> None:
    episodes = fresh.episodes("train")
    said = fresh.speaker.describe(episodes.path, episodes.heading)
    lengths = (fresh.speaker.tokens(episodes.texts) != PAD).sum(dim=1)
    assert said.lengths.unique().tolist() == [fresh.speaker.max_words]  # type: ignore[no-untyped-call]
    assert float((lengths <= fresh.speaker.max_words).double().mean()) >= 0.9
    assert bool((said.tokens[:, -1] == EOS).all())


def test_the_agent_learns_from_what_the_speaker_says(fresh: SpeakerExperiment) -> None:
    load = AugmentedLoad(Case(PRESETS["basic-augmented"], batch=4), fresh.folder, fresh.speaker)
    load.run("mixed", 0)
    assert {"teacher", "augmented teacher"} <= set(load.trainer.step().losses)
    load.run("mixed", 1)
    assert load.shares[0] == 0.0, "no step, nothing described"
    assert 0 < load.shares[1] < 1


def test_mistakes_are_named(tiny_trainable: Path, fresh: SpeakerExperiment, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^unknown preset 'ssn'; there are: ssm, "):
        bench_speak(("ssn",), tiny_trainable)
    with pytest.raises(
        UserError, match=r"^preset 'ssm' learns from no described paths; there are: ssm-augmented, basic-aug"
    ):
        bench_speak(("ssm",), tiny_trainable)
    with pytest.raises(UserError, match=r"^--presets needs at least one value$"):
        SpeakRequest(presets=())
    with pytest.raises(
        UserError, match=r"^--batch and --repeats must be 1 or more and --beam 2 or more, got 0, 3 and 5$"
    ):
        SpeakRequest(batch=0)
    with pytest.raises(UserError, match=r"holds no run"):
        bench_speak(data=tiny_trainable, speaker=tmp_path)
    data = Path(shutil.copytree(tiny_trainable, tmp_path / "data"))
    names = load_world(data / "connectivity").names
    rows = np.zeros((len(names), 36, 8), dtype=np.float16)
    write_store(data / "features" / "other.npy", names, rows, width=8, source="test", encoder="zeros")
    with pytest.raises(UserError, match=r"^the speaker sees other features than the agent; name its store"):
        AugmentedLoad(Case(PRESETS["basic-augmented"], 4, features="other"), DataFolder(data), fresh.speaker)
