"""Several processes train as one: real processes, started by torchrun's launcher as users start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from scenemem.errors import UserError
from scenemem.learning.distributed import (
    SINGLE,
    Precision,
    ProcessGroup,
    _seconds,
    process_group,
    use_precision,
)
from scenemem.runs.folder import RunFolder

CONFIG = """
base = "ssm-plus"
augment = "{data}/r2r/R2R_train.json"
iterations = {iterations}

[model]
word_width = 8
width = 16
node_width = 8
dropout = 0.3
feature_dropout = 0.2

[data]
min_count = 1

[selection]
every = {iterations}
save_every = 1

[learning]
batch = 6
max_decisions = 8

[[learning.stages]]
losses = {{ teacher_forcing = 1.0, student_forcing = 0.3, a2c = 1.0 }}
augmented = {{ teacher_forcing = 0.5, student_forcing = 0.3, a2c = 1.0 }}
"""
STEPS = 6


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(processes: int, data: Path, out: Path, *words: str, steps: int = STEPS) -> subprocess.Popen[str]:
    config = out.with_suffix(".toml")
    config.write_text(CONFIG.format(data=data, iterations=steps), encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port()), "-m", "scenemem"]
    command = ["train", "--config", str(config), "--data", str(data), "--out", str(out), "--no-replays"]
    return subprocess.Popen(
        [sys.executable, *launcher, *command, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _logged(out: Path) -> list[dict[str, Any]]:
    return list(RunFolder(out).logged())


def _ended(process: subprocess.Popen[str]) -> tuple[str, int]:
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return output, process.returncode


def _trained(processes: int, data: Path, out: Path, *words: str) -> list[dict[str, Any]]:
    output, code = _ended(_start(processes, data, out, *words))
    assert code == 0, output
    return _logged(out)


def _same_steps(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert len(one) == len(other) == STEPS
    for alone, shared in zip(one, other, strict=True):
        assert alone["losses"] == pytest.approx(shared["losses"], abs=1e-4, rel=1e-4)
        assert alone["gradient"] == pytest.approx(shared["gradient"], rel=1e-3)


def test_processes_together_compute_what_one_does_and_continue_each_others_runs(
    tiny_trainable: Path, tmp_path: Path
) -> None:
    one = _trained(1, tiny_trainable, tmp_path / "one")
    assert "augmented a2c" in one[0]["losses"]
    _same_steps(one, _trained(2, tiny_trainable, tmp_path / "two"))
    # started by two processes, stopped, continued by one
    process = _start(2, tiny_trainable, tmp_path / "stopped")
    _wait_for(lambda: len(_logged(tmp_path / "stopped")) >= 1, process)
    os.kill(_worker(process.pid, rank=1), signal.SIGTERM)
    _ended(process)
    assert 1 <= len(_logged(tmp_path / "stopped")) < STEPS
    _same_steps(one, _trained(1, tiny_trainable, tmp_path / "stopped", "--resume"))


def test_the_others_stop_when_a_process_dies(tiny_trainable: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = _start(2, tiny_trainable, out, steps=50_000)
    _wait_for(lambda: len(_logged(out)) >= 2, process)
    os.kill(_worker(process.pid, rank=1), signal.SIGKILL)
    output, code = _ended(process)
    assert code != 0
    assert "scenemem/learning" not in output, "the launcher names the failed process, no traceback"
    assert RunFolder(out).has_checkpoint


def _wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if happened():
            return
        if process.poll() is not None:
            pytest.fail(f"ended too early: {process.communicate()[0]}")
        time.sleep(0.02)
    pytest.fail("nothing happened for two minutes")


def _worker(launcher: int, rank: int) -> int:
    """The process of a rank, among the children of its launcher."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in environment:
            return int(child)
    raise AssertionError(f"no process with rank {rank} among {children}")


def test_a_process_on_its_own_is_a_group_of_one_on_a_device_that_is_there() -> None:
    cuda = "`device='cuda'`, but this machine has no such device; use `device='cpu'`"
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match=cuda), process_group("cuda"):
            pass
    with process_group() as group:
        assert group == SINGLE
        assert group.is_main
        assert group.mean(3.0) == 3.0
        assert group.means({"a": 1.0}) == {"a": 1.0}
        module = torch.nn.Linear(1, 1)
        assert group.wrap(module) is module


def test_shares_are_disjoint_and_complete() -> None:
    rows, groups = torch.arange(10), [ProcessGroup(rank, 3) for rank in range(3)]
    assert [group.is_main for group in groups] == [True, False, False], "one of them writes"
    shares = [group.share(rows) for group in groups]
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
        (RuntimeError("Connection closed by peer"), UserError, "another process of this run is gone"),
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


@pytest.fixture
def _precision_as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_precision_as_before")
@pytest.mark.parametrize(
    ("wanted", "seconds", "device", "tried", "used"),
    [
        ("fast", 1.75, "cpu", False, "highest"),
        ("fast", 0.5, "cpu", False, "medium"),
        ("full", 0.5, "cpu", False, "highest"),
        ("fast", 9.0, "cuda", False, "medium"),
        ("fast", 9.0, "cpu", True, "medium"),
    ],
    ids=["slower here", "faster here", "full", "a card is not tried", "a run goes on as it began"],
)
def test_products_are_fast_where_that_pays(
    wanted: Precision, seconds: float, device: str, tried: bool, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _seconds("medium") > 0
    assert torch.get_float32_matmul_precision() == "highest", "trying leaves it full"
    torch.set_float32_matmul_precision("medium")
    measured = {"medium": seconds, "highest": 1.0}.__getitem__
    monkeypatch.setattr("scenemem.learning.distributed._seconds", measured)
    told = use_precision(wanted, device, tried=tried)
    assert torch.get_float32_matmul_precision() == used
    slow = "--precision fast makes products 1.8 times slower on this processor; full is used"
    assert told == (slow if (wanted, used) == ("fast", "highest") else None)
