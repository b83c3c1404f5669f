"""Several processes train as one: real processes, started as users start them, with torchrun's launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from scenemem.errors import UserError
from scenemem.learning.team import ALONE, Team, joined_team
from scenemem.runs.folder import RunFolder

SMALL = ("--model.width", "16", "--model.word-width", "8", "--data.min-count", "1", "--learning.batch", "6")
RHYTHM = ("--selection.save-every", "1", "--selection.every", "2")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(processes: int, data: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(_free_port())]
    train = ["train", "ssm", "--data", str(data), "--out", str(out), *SMALL, *RHYTHM, *words]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "scenemem", *train],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _finished(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def _trained(processes: int, data: Path, out: Path, *words: str) -> RunFolder:
    _finished(_start(processes, data, out, *words))
    return RunFolder(out)


def test_two_processes_compute_what_one_does(tiny_trainable: Path, tmp_path: Path) -> None:
    one = _trained(1, tiny_trainable, tmp_path / "one", "--iterations", "4")
    two = _trained(2, tiny_trainable, tmp_path / "two", "--iterations", "4")
    for alone, shared in zip(one.logged(), two.logged(), strict=True):
        assert alone["losses"] == pytest.approx(shared["losses"], abs=1e-5, rel=1e-5)
        assert alone["gradient"] == pytest.approx(shared["gradient"], rel=1e-3)
    assert one.describe()["preset"] == two.describe()["preset"]


def test_a_run_is_resumed_by_another_number_of_processes(tiny_trainable: Path, tmp_path: Path) -> None:
    whole = _trained(1, tiny_trainable, tmp_path / "whole", "--iterations", "4")
    out = tmp_path / "shared"
    process = _start(2, tiny_trainable, out, "--iterations", "4")
    try:
        _wait_for(lambda: _reached(RunFolder(out), 2), process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    resumed = _trained(1, tiny_trainable, out, "--resume", "--iterations", "4")
    for alone, shared in zip(whole.logged(), resumed.logged(), strict=True):
        assert alone["losses"] == pytest.approx(shared["losses"], abs=1e-5, rel=1e-5)


def test_the_others_stop_when_a_process_dies(tiny_trainable: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = _start(2, tiny_trainable, out, "--iterations", "100000")
    try:
        _wait_for(lambda: _reached(RunFolder(out), 2), process)
        os.kill(_worker(process.pid, rank=1), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "scenemem/learning" not in said, "the launcher says which process failed; we add no traceback"
    assert RunFolder(out).last.exists()


def _reached(run: RunFolder, iteration: int) -> bool:
    return run.root.exists() and any(line["iteration"] >= iteration for line in run.logged())


def _wait_for(happened: object, process: subprocess.Popen[str]) -> None:
    assert callable(happened)
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


def test_a_process_on_its_own_is_a_team_of_one() -> None:
    with joined_team() as team:
        assert team == ALONE
        assert team.leads
        assert team.mean(3.0) == 3.0


def test_shares_are_disjoint_and_complete() -> None:
    rows = torch.arange(10)
    shares = [Team(rank, 3).share(rows) for rank in range(3)]
    assert torch.cat(shares).sort().values.tolist() == rows.tolist()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics card here")
def test_a_missing_device_is_said() -> None:
    with (
        pytest.raises(
            UserError, match="--device cuda, but this machine has no such device; use --device cpu"
        ),
        joined_team("cuda"),
    ):
        pass
