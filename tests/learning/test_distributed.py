"""Several processes train as one: real processes, started by torchrun's launcher as users start them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from scenemem.errors import UserError
from scenemem.learning.distributed import SINGLE, ProcessGroup, process_group

SCRIPT = '''
"""Trains on the tiny world; every step is logged and saved by the main process."""

import json
import sys
from pathlib import Path

import torch

from scenemem.agents.build import DataSizes
from scenemem.features.store import Environment
from scenemem.ssm.additions import SSMPlus, SSMPlusConfig
from scenemem.agents.walker import TrainedAgent
from scenemem.errors import UserError
from scenemem.features.store import open_store
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import LearningConfig, Stage
from scenemem.learning.distributed import process_group
from scenemem.learning.trainer import Trainer
from scenemem.tasks.episode_set import load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world

data, out, iterations, resumes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), "resume" in sys.argv
torch.set_num_threads(1)


def train(group):
    world = load_world(data / "connectivity")
    environment = Environment(world, open_store(data / "features" / "tiny.npy", world))
    episodes = load_split(DataFolder(data), world, "r2r", "train")
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    torch.manual_seed(0)
    config = SSMPlusConfig(
        word_width=8, width=16, dropout=0.3, feature_dropout=0.2, node_width=8, restore_state=True, hints=True
    )
    network = SSMPlus(config, DataSizes(len(vocabulary), environment.width))
    losses = {"teacher_forcing": 1.0, "student_forcing": 0.3, "a2c": 1.0}
    stage = Stage(losses=losses, augmented={**losses, "teacher_forcing": 0.5})
    learning = LearningConfig(
        iterations=max(iterations, 4), batch=6, max_decisions=8, max_steps=16, stages=(stage,)
    )
    trainer = Trainer(
        TrainedAgent(network, environment, vocabulary),
        episodes,
        learning,
        0,
        group,
        StoredEpisodes(episodes, seed=2),
    )
    if resumes:
        state = torch.load(out / "state.pt", weights_only=False)
        network.load_state_dict(state["network"])
        trainer.optimiser.load_state_dict(state["optimiser"])
        trainer.batches.load_state_dict(state["batches"])
        trainer.sampling.set_state(state["sampling"])
        torch.set_rng_state(state["random"])
        trainer.iteration = state["iteration"]
    while trainer.iteration < iterations:
        report = trainer.step()
        if group.is_main:
            state = {
                "network": network.state_dict(),
                "optimiser": trainer.optimiser.state_dict(),
                "batches": trainer.batches.state_dict(),
                "sampling": trainer.sampling.get_state(),
                "random": torch.get_rng_state(),
                "iteration": trainer.iteration,
            }
            torch.save(state, out / "state.pt")
            line = {"losses": report.losses, "gradient": report.gradient, "episodes": report.episodes}
            with open(out / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(line) + chr(10))


try:
    with process_group() as group:
        train(group)
except UserError as error:
    sys.exit(str(error))
'''


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(processes: int, data: Path, out: Path, iterations: int, *words: str) -> subprocess.Popen[str]:
    out.mkdir(exist_ok=True)
    script = out / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
    return subprocess.Popen(
        [sys.executable, *launcher, str(script), str(data), str(out), str(iterations), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _logged(out: Path) -> list[dict[str, Any]]:
    log = out / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _trained(processes: int, data: Path, out: Path, iterations: int, *words: str) -> list[dict[str, Any]]:
    process = _start(processes, data, out, iterations, *words)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return _logged(out)


def _same_steps(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for alone, shared in zip(one, other, strict=True):
        assert alone["losses"] == pytest.approx(shared["losses"], abs=1e-4, rel=1e-4)
        assert alone["gradient"] == pytest.approx(shared["gradient"], rel=1e-3)
        assert alone["episodes"] == shared["episodes"]


def test_processes_together_compute_what_one_does_and_continue_each_others_runs(
    tiny_trainable: Path, tmp_path: Path
) -> None:
    one = _trained(1, tiny_trainable, tmp_path / "one", 4)
    assert len(one) == 4
    two = _trained(2, tiny_trainable, tmp_path / "two", 4)
    _same_steps(one, two)
    # begun by two processes, continued by one
    _trained(2, tiny_trainable, tmp_path / "begun", 2)
    _same_steps(one, _trained(1, tiny_trainable, tmp_path / "begun", 4, "resume"))


def test_the_others_stop_when_a_process_dies(tiny_trainable: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = _start(2, tiny_trainable, out, 100_000)
    try:
        _wait_for(lambda: len(_logged(out)) >= 2, process)
        os.kill(_worker(process.pid, rank=1), signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "scenemem/learning" not in output, "the launcher says which process failed; we add no traceback"
    assert (out / "state.pt").exists()


def _wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if happened():
            return
        if process.poll() is not None:
            pytest.fail(f"ended too early: {process.communicate()[0]}")
        time.sleep(0.1)
    pytest.fail("nothing happened for two minutes")


def _worker(launcher: int, rank: int) -> int:
    """The process of a rank, among the children of its launcher."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in environment:
            return int(child)
    raise AssertionError(f"no process with rank {rank} among {children}")


def test_a_process_on_its_own_is_a_group_of_one() -> None:
    with process_group() as group:
        assert group == SINGLE
        assert group.is_main
        assert group.mean(3.0) == 3.0
        assert group.means({"a": 1.0}) == {"a": 1.0}
        module = torch.nn.Linear(1, 1)
        assert group.wrap(module) is module


def test_only_the_first_process_writes() -> None:
    assert [ProcessGroup(rank, 3).is_main for rank in range(3)] == [True, False, False]


def test_shares_are_disjoint_and_complete() -> None:
    rows = torch.arange(10)
    shares = [ProcessGroup(rank, 3).share(rows) for rank in range(3)]
    assert torch.cat(shares).sort().values.tolist() == rows.tolist()


@pytest.fixture
def as_one_of_two(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if torchrun had started this process beside another one; what is called is kept."""
    called: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "init_process_group", lambda backend: called.append(backend))
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "barrier", lambda: called.append("barrier"))
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: called.append("left"))
    return called


def test_a_process_of_several_waits_for_the_others_at_the_end(as_one_of_two: list[str]) -> None:
    with process_group() as group:
        assert group == ProcessGroup(1, 2, "cpu")
        assert as_one_of_two == ["gloo"]
    assert as_one_of_two == ["gloo", "barrier", "left"]


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (
            RuntimeError("Connection closed by peer"),
            UserError,
            "another process of this run is gone; the last",
        ),
        (RuntimeError("shapes differ"), RuntimeError, "shapes differ"),
        (UserError("no such split"), UserError, "no such split"),
    ],
)
def test_a_process_that_is_gone_is_told_from_other_errors(
    as_one_of_two: list[str], raised: Exception, expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=message), process_group():
        raise raised
    assert as_one_of_two == ["gloo", "left"], "who fails does not wait for the others"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics card here")
def test_a_missing_device_is_said() -> None:
    with (
        pytest.raises(
            UserError, match="--device cuda, but this machine has no such device; use --device cpu"
        ),
        process_group("cuda"),
    ):
        pass
