"""The Python front door, as a user would call it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import scenemem as sm
from scenemem.formats.folder import DataFolder
from scenemem.formats.traces import read_trace
from scenemem.presets import PRESETS
from scenemem.runs.folder import RunFolder
from scenemem.runs.weights import pack_weights

SMALL: dict[str, Any] = {
    "model.width": 16,
    "model.word_width": 8,
    "model.node_width": None,
    "data.min_count": 1,
    "learning.batch": 4,
    "selection.every": 2,
    "selection.save_every": 2,
}


@pytest.fixture(scope="module")
def run(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> sm.TrainingRun:
    out = tmp_path_factory.mktemp("runs") / "ssm-0"
    return sm.train("ssm", iterations=4, out=out, data=tiny_trainable, **SMALL)


@pytest.fixture(scope="module")
def agent(run: sm.TrainingRun) -> sm.LoadedAgent:
    return run.load()


def test_every_name_of_the_package_is_there() -> None:
    assert dir(sm) == sorted(sm.__all__)
    for name in sm.__all__:
        assert getattr(sm, name) is not None
    with pytest.raises(AttributeError, match="module 'scenemem' has no attribute 'laod'"):
        _ = sm.laod  # type: ignore[attr-defined]


def test_episodes_are_a_list_that_knows_ids(tiny_trainable: Path) -> None:
    found = sm.episodes("val_unseen", data=tiny_trainable)
    first = found[0]
    expected = ("2000_0", "yard", first.path[0], first.path[-1])
    assert (first.id, first.scan, first.start, first.goal) == expected
    assert first.text.startswith("Walk from")
    assert found.get("2000_0") == first
    assert [episode.id for episode in found[:2]] == ["2000_0", "2000_1"]
    assert len(list(found)) == len(found) > 2
    message = "'r2r val_unseen' has no instruction 'x'; its ids look like '2000_0'"
    with pytest.raises(sm.UserError, match=message):
        found.get("x")
    secret = sm.episodes("test", data=tiny_trainable)[0]
    assert (secret.goal, secret.path) == (None, (secret.start,))


def test_an_agent_walks_an_episode(agent: sm.LoadedAgent, tmp_path: Path) -> None:
    episode = agent.episodes("val_unseen")[3]
    walk = agent.walk(episode)
    assert walk.path[0] == episode.start
    assert walk.steps == len(walk.path) - 1
    assert walk.metrics is not None
    assert walk.metrics == pytest.approx(agent.evaluate("val_unseen").per_episode[episode.id])
    assert isinstance(walk.stopped, bool)
    places = [place.id for place in walk.trace.scene.places]
    assert [places[number] for number in walk.trace.path] == walk.path
    page = walk.save(tmp_path / "replay.html")
    assert episode.text in page.read_text(encoding="utf-8")
    assert read_trace(tmp_path / "replay.ssm-0.trace.json").task.text == episode.text
    with pytest.raises(sm.UserError, match=r"expected a name ending in \.html"):
        walk.save(tmp_path / "replay.pdf")


def test_an_agent_follows_any_text(agent: sm.LoadedAgent) -> None:
    episode = agent.episodes("val_unseen")[0]
    walk = agent.walk(episode.text, start=episode)
    assert walk.path == agent.walk(episode).path
    assert walk.metrics is None
    again = agent.walk(episode.text, start=(episode.scan, episode.start), heading=episode.heading)
    assert again.path == walk.path
    assert agent.walk("zzz", start=("yard", "g00")).path[0] == "g00"
    wrong: dict[str, tuple[Any, dict[str, Any]]] = {
        r"a text needs a start: start=\(scan, viewpoint\), or an episode": ("there", {}),
        "has no included viewpoint 'nowhere'": ("there", {"start": ("yard", "nowhere")}),
        "the heading is nan, expected": ("there", {"start": episode, "heading": float("nan")}),
        "an episode has its own start": (episode, {"start": episode}),
    }
    for message, (text, where) in wrong.items():
        with pytest.raises(sm.UserError, match=message):
            agent.walk(text, **where)


def test_a_run_knows_what_it_reached(run: sm.TrainingRun, tiny_trainable: Path) -> None:
    assert [line["iteration"] for line in run.log] == [2, 4]
    assert run.metrics == run.log[-1]["validation"]
    assert RunFolder(run.path).describe()["preset"]["model"]["width"] == 16
    selected = sm.evaluate(run, "dev_unseen")
    assert selected.metrics["sr"] == pytest.approx(run.metrics["sr"])
    assert sm.evaluate(run.path, "dev_unseen", data=tiny_trainable).metrics == selected.metrics
    assert sm.evaluate(run.load("best"), "dev_unseen").n == selected.n == len(selected.per_episode)
    assert selected.jumps is not None


def test_a_script_without_a_guard_may_use_several_processes(
    run: sm.TrainingRun, tiny_trainable: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import scenemem as sm\n"
        f"found = sm.evaluate({str(run.path)!r}, data={str(tiny_trainable)!r}, processes=2)\n"
        "print(found.metrics['ne'], __file__)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    alone = sm.evaluate(run).metrics["ne"]
    assert (done.stdout, done.stderr) == (f"{alone} {script}\n", "")


def test_scripted_agents_are_evaluated_too(tiny_trainable: Path) -> None:
    assert sm.evaluate("expert", data=tiny_trainable).metrics["sr"] == 1.0
    assert sm.evaluate("stop", "val_seen", data=tiny_trainable).metrics["tl"] == 0.0
    first, other = (sm.evaluate("random", data=tiny_trainable, seed=seed).metrics for seed in (0, 1))
    assert first != other


def test_training_goes_on_and_is_repeated_from_its_configuration(
    run: sm.TrainingRun, tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = sm.train("ssm", iterations=4, out=run.path, data=tiny_trainable, resume=True, **SMALL)
    assert again.log == run.log
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []
    changes: dict[str, Any] = {"data.min_count": 1, "learning.batch": 4}
    own = sm.train(
        replace(sm.preset("basic"), model=replace(sm.preset("basic").model, width=16)),
        iterations=2,
        seed=5,
        data=tiny_trainable,
        watch=lambda status: seen.append(status.iteration),
        **changes,
    )
    assert own.path == Path("runs/custom-5")
    assert seen == [1, 2]
    repeated = sm.train(config=own.path / "experiment.toml", out="again", data=tiny_trainable)
    assert [line["losses"] for line in repeated.log] == [line["losses"] for line in own.log]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "name a preset; there are: ssm"),
        ({"preset": "smm"}, r"unknown preset 'smm'; did you mean ssm"),
        ({"preset": "ssm", "model.widht": 3}, "unknown key 'model.widht'; did you mean 'model.width'"),
        ({"preset": "ssm", "iterations": 0}, "iterations must be 1 or more, got 0"),
        ({"preset": "ssm", "seed": -1}, "^`seed` must be 0 or more, got -1"),
        ({"preset": "ssm", "data": "nowhere"}, "nowhere: no such folder"),
        ({"preset": "ssm", "begin": "nowhere"}, "nowhere holds no run"),
        ({"preset": "speaker-follower", "recipe": "published"}, "this preset learns from augmented episodes"),
    ],
)
def test_mistakes_are_user_errors(
    arguments: dict[str, Any], message: str, tiny_trainable: Path, tmp_path: Path
) -> None:
    with pytest.raises(sm.UserError, match=message):
        sm.train(**{"data": tiny_trainable, "out": tmp_path / "run", **arguments})
    assert not (tmp_path / "run").exists()


def test_runs_packed_files_and_names_are_loaded_alike(
    agent: sm.LoadedAgent, tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.safetensors"
    pack_weights(RunFolder(agent.path), file, DataFolder(tiny_trainable), ["val_unseen"])
    monkeypatch.setattr("scenemem.runs.weights.WEIGHTS", tmp_path)
    episode = agent.episodes("val_unseen")[0]
    walks = [sm.load(source, data=tiny_trainable).walk(episode) for source in (file, "weights:tiny")]
    assert walks[0].path == walks[1].path
    for source, message in (
        ("weights:other", "no weights called 'other'; there are: tiny"),
        (tmp_path / "none.safetensors", "there are no packed weights at"),
        (RunFolder(agent.path).last, "holds no packed weights; name the run folder"),
        (tmp_path, "holds no run"),
    ):
        with pytest.raises(sm.UserError, match=message):
            sm.load(source, data=tiny_trainable)


def test_other_data_and_unknown_splits_are_refused_at_once(
    run: sm.TrainingRun, tiny_trainable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scenemem.houses.build.default_houses", None)  # nothing is built
    with pytest.raises(sm.UserError, match="not on the embedded houses; name that data folder with `data="):
        sm.load(run.path)
    with pytest.raises(sm.UserError, match="has no split 'val_unsen' of r2r; did you mean val_unseen"):
        sm.episodes("val_unsen", data=tiny_trainable)


def test_agents_are_compared(run: sm.TrainingRun, agent: sm.LoadedAgent, tiny_trainable: Path) -> None:
    both = sm.compare([agent, run], data=tiny_trainable)
    assert both.rows["ssm"]["sr"].n == 1, "named twice"
    mean = both.rows["ssm"]["sr"].mean
    cost = f"{both.cpu_seconds['ssm']:.0f}"
    assert f"\n| ssm | unknown | 1 | {cost} | {mean:.3f} |" in both.to_markdown()


def test_trajectories_in_memory_are_scored(tiny_trainable: Path) -> None:
    found = sm.episodes("val_unseen", data=tiny_trainable)
    by_id = {episode.id: episode.path for episode in found}
    perfect = sm.score(by_id, "val_unseen", data=tiny_trainable)
    assert (perfect.n, perfect.missing, perfect.metrics["sr"], perfect.jumps) == (len(found), 0, 1.0, None)
    assert sm.score(list(by_id.values()), "val_unseen", data=tiny_trainable).metrics == perfect.metrics
    some = sm.score({found[0].id: found[0].path[:1]}, "val_unseen", data=tiny_trainable, partial=True)
    assert (some.n, some.missing) == (1, len(found) - 1)
    assert some.per_episode[found[0].id]["tl"] == 0.0
    for wrong, message in (
        ({"x": ["g00"]}, "has no such instruction"),
        ({found[0].id: [found[0].start, "g-alone"]}, "no edge between"),
        ({found[0].id: []}, f"the trajectory of instruction '{found[0].id}' is empty"),
        ([["g00"]] * (len(found) + 1), f"got {len(found) + 1} trajectories for the {len(found)} of"),
    ):
        with pytest.raises(sm.UserError, match=message):
            sm.score(wrong, "val_unseen", data=tiny_trainable, partial=True)


def test_environments_are_gymnasium_environments(tiny_trainable: Path) -> None:
    one = sm.make_env(data=tiny_trainable)
    assert isinstance(one, gymnasium.Env)
    _, info = one.reset(seed=0)
    assert info
    several = sm.make_env("val_seen", num_envs=3, data=tiny_trainable)
    assert isinstance(several, gymnasium.vector.VectorEnv)
    assert several.num_envs == 3


def test_presets_are_listed_and_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PRESETS, "_objects", dict(PRESETS._objects))
    assert sm.list_presets()[:2] == ("ssm", "ssm-no-grounding")
    mine = replace(sm.preset("ssm"), agent="ssm-local-revisits")
    assert sm.register("preset", "mine", mine) is mine
    assert sm.preset("mine") is mine
    with pytest.raises(sm.UserError, match="nothing is registered as 'tool'; there are: agent, preset, loss"):
        sm.register("tool", "mine", mine)


def test_an_agent_is_led_along_reference_paths(agent: sm.LoadedAgent) -> None:
    shares = {one.decisions: one.share for one in agent.following("val_unseen")}
    assert shares
    assert all(0 <= share <= 1 for share in shares.values())
