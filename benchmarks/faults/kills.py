"""Faults at random moments: ``python -m benchmarks.faults.kills --kills 200 --out FILE``.

Commands work on a tiny world and are killed (SIGKILL), half of them after a random time and half of them
right before a random change to their folder. After every kill no visible file may be half-written and what
was there before has to be there still, and the command, started once more and left alone, has to end with the
same bytes as one that was never killed. Then trainings meet damaged checkpoints, a full disk and a disk that
becomes read-only (the last two need the right to mount one).

Commands are forked from this process, which has loaded everything already, so that a kill takes little time.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.world import write_world
from benchmarks.machine import this_machine
from scenemem.cli import main as scenemem
from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.features import verify_store
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.runs.folder import RunFolder

SMALL = (
    *("--model.width", "16", "--model.word-width", "8", "--learning.batch", "4", "--data.min-count", "1"),
    *("--selection.every", "4", "--selection.save-every", "2", "--no-replays", "--iterations", "20"),
)
BRIEF = (*SMALL[:-1], "8")
"""The same, shorter."""

_CHANGES = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
"""What Python tells its auditors before a folder changes."""

COUNTED = {
    "faults": "injected",
    "not injected": "the command had ended before",
    "half-written files": "visible files that cannot be read after a fault",
    "gone": "faults after which what was there before was not",
    "unclear messages": "anything but one line and exit code 2, where the command could still tell",
    "refused": "commands that could not be started again",
    "different": "commands that ended with other bytes than without a fault",
    "left behind": "temporary files that are still there at the end",
}
"""What is counted; all but the first two should stay 0."""

_MEMORY = Path("/dev/shm")  # a disk that is fast
_PAUSE = 0.005  # seconds between two looks at a process


@dataclass(frozen=True)
class Job:
    """A command; what it writes lies in ``{out}``, where ``run`` is a trained run unless it makes one."""

    name: str
    words: tuple[str, ...]
    share: int  # of the kills
    resumes: bool = False


TRAIN = Job("train", ("train", "ssm", "--data", "{data}", "--out", "{out}/run", *BRIEF), 10, resumes=True)
JOBS = (
    TRAIN,
    Job("eval", ("eval", "{out}/run", "--data", "{data}", "--json"), 3),
    Job("convert", ("data", "features", "{data}/features.tsv", "--data", "{data}", "--out", "{out}"), 14),
    Job("r4r", ("data", "r4r", "--data", "{data}", "--out", "{out}/r4r"), 8),
    Job("report", ("report", "{out}/run", "--data", "{data}", "--out", "{out}/r.html", "--no-replays"), 2),
    Job("replay", ("view", "{out}/run", "--data", "{data}", "--out", "{out}/replays", "--count", "2"), 2),
    Job("houses", ("data", "houses", "--out", "{out}/houses", "--houses", "2", "--jobs", "1"), 1),
)


def main() -> None:
    """Inject the faults, print what came out, and leave with 1 when anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--damages", type=int, default=20, help="of checkpoints and disks, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="name of one fault")
    parser.add_argument("--out", type=Path, help="JSON file to write, or to go on with")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for module in ("data", "evaluate", "pages", "train"):
        importlib.import_module(f"scenemem.commands.{module}")
    found = _before(chosen.out, chosen.seed)
    fast = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=fast) as place, _own_cache(Path(place) / "cache"):
        bench = Bench(Path(place), chosen.seed)
        faults: dict[str, Callable[[], dict[str, int]]] = {
            job.name: partial(bench.kill, job, chosen.kills * job.share // _shares()) for job in JOBS
        }
        faults["damaged checkpoint"] = partial(bench.damage, chosen.damages)
        faults["full disk"] = partial(bench.fill, chosen.damages)
        faults["read-only disk"] = partial(bench.close, chosen.damages)
        for name, fault in faults.items():
            if chosen.only in ("", name) and name not in found:
                found[name] = fault()
                print(f"{name}: {found[name]}", flush=True)
                if chosen.out is not None:
                    _write(chosen.out, chosen.seed, found)
    harmless = ("faults", "not injected")
    sys.exit(any(count for one in found.values() for what, count in one.items() if what not in harmless))


def _before(file: Path | None, seed: int) -> dict[str, dict[str, int]]:
    """What an earlier call found with the same seed, by fault."""
    if file is None or not file.is_file():
        return {}
    known = json.loads(file.read_bytes())
    found: dict[str, dict[str, int]] = known["faults"] if known["seed"] == seed else {}
    return found


def _write(file: Path, seed: int, found: dict[str, dict[str, int]]) -> None:
    about = {"date": date.today().isoformat(), "machine": this_machine(), "seed": seed}
    with atomic_file(file) as written:
        written.write_text(json.dumps({**about, "faults": found}, indent=1) + "\n", encoding="utf-8")


def _shares() -> int:
    return sum(job.share for job in JOBS)


@contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    before = os.environ.get("SCENEMEM_CACHE")
    os.environ["SCENEMEM_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SCENEMEM_CACHE"]
        else:
            os.environ["SCENEMEM_CACHE"] = before


class Bench:
    """The tiny world, a trained run, and what every job leaves behind when nobody disturbs it."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed = place, seed
        self.data = write_world(place / "data")
        self.trained = place / "trained"
        self._run(TRAIN, self._fresh("first"))
        shutil.move(place / "first" / "run", self.trained)

    def kill(self, job: Job, kills: int) -> dict[str, int]:
        """Kill a job so many times; after each kill let it end and compare."""
        chance = random.Random(f"{self.seed} {job.name}")
        whole, seconds, changes = self._whole(job)
        lost = dict.fromkeys(COUNTED, 0)
        killed = self._fresh("killed", job)
        complete = False  # whether the job has been done in this folder before
        while lost["faults"] < kills:
            by_time = chance.random() < 0.5
            moment = chance.uniform(0.0, seconds) if by_time else chance.randint(1, changes)
            process = self._start(job, killed, None if by_time else int(moment))
            if by_time:
                _wait(process, moment)
                os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            if not os.WIFSIGNALED(status):  # it had ended already
                lost["not injected"] += 1
                killed, complete = self._fresh("killed", job), False
                continue
            lost["faults"] += 1
            lost["gone"] += complete and not same(whole, killed)
            lost["half-written files"] += len(half_written(killed))
            if chance.random() < 0.5:
                continue  # it is started once more, and killed again
            self._end(job, whole, killed, lost)
            complete = not job.resumes and chance.random() < 0.5
            if not complete:
                killed = self._fresh("killed", job)
        self._end(job, whole, killed, lost)
        return lost

    def damage(self, count: int) -> dict[str, int]:
        """Cut off or flip a bit of the newest checkpoint of a run that was killed after its second one."""
        chance, (whole, _, changes) = random.Random(f"{self.seed} damage"), self._whole(TRAIN)
        lost = dict.fromkeys(COUNTED, 0)
        while lost["faults"] < count:
            killed = self._fresh("killed", TRAIN)
            os.waitpid(self._start(TRAIN, killed, chance.randint(changes // 2, changes)), 0)
            run = RunFolder(killed / "run")
            if not (run.last.exists() and run.previous.exists()):
                continue
            content = bytearray(run.last.read_bytes())
            spot = chance.randrange(len(content))
            if chance.random() < 0.5:
                del content[spot:]
            else:
                content[spot] ^= 1 << chance.randrange(8)
            run.last.unlink()  # it may share its bytes with the one before
            run.last.write_bytes(content)
            lost["faults"] += 1
            self._end(TRAIN, whole, killed, lost)
        return lost

    def fill(self, count: int) -> dict[str, int]:
        """Train on disks that are too small, then on the same disk with room."""
        whole = self._whole(TRAIN)[0]
        needed = sum(file.stat().st_size for file in whole.rglob("*") if file.is_file())
        chance = random.Random(f"{self.seed} full")

        def sizes() -> Iterator[int]:
            while True:
                yield chance.randint(16, max(17, needed * 3 // 2048))

        return self._on_small_disk(count, whole, sizes(), close=False)

    def close(self, count: int) -> dict[str, int]:
        """Train on disks that become read-only on the way, then on the same disk made writable."""
        whole = self._whole(TRAIN)[0]

        def sizes() -> Iterator[int]:
            while True:
                yield 64 << 10

        return self._on_small_disk(count, whole, sizes(), close=True)

    def _on_small_disk(
        self, count: int, whole: Path, kilobytes: Iterator[int], *, close: bool
    ) -> dict[str, int]:
        lost = dict.fromkeys(COUNTED, 0)
        chance, seconds = random.Random(f"{self.seed} close {close}"), self._whole(TRAIN)[1]
        while lost["faults"] < count:
            disk = self._fresh("disk")
            if _mount(disk, f"size={next(kilobytes)}k") != 0:
                return {"faults": 0, "not injected": count}
            try:
                process = self._start(TRAIN, disk)
                if close:
                    _wait(process, chance.uniform(0.1, 0.9) * seconds)
                    while _mount(disk, "remount,ro") != 0:  # a file is open
                        time.sleep(_PAUSE)
                _, status = os.waitpid(process, 0)
                if os.waitstatus_to_exitcode(status) == 0:
                    lost["not injected"] += 1
                    continue
                lost["faults"] += 1
                told = (self.place / "told").read_text(encoding="utf-8")
                lost["unclear messages"] += "Traceback" in told or os.waitstatus_to_exitcode(status) != 2
                lost["half-written files"] += len(half_written(disk))
                _mount(disk, "remount,rw,size=64m")
                self._end(TRAIN, whole, disk, lost)
            finally:
                subprocess.run(["umount", str(disk)], check=True)
        return lost

    def _whole(self, job: Job) -> tuple[Path, float, int]:
        """A folder nobody disturbed, how many seconds it took, and how many changes it saw."""
        whole = self._fresh("whole", job)
        started = time.perf_counter()
        changes = self._run(job, whole)
        return whole, time.perf_counter() - started, changes

    def _fresh(self, name: str, job: Job | None = None) -> Path:
        """An empty folder, with a copy of the trained run for jobs that need one."""
        folder = self.place / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if job is not None and not job.resumes:
            shutil.copytree(self.trained, folder / "run")
        return folder

    def _end(self, job: Job, whole: Path, killed: Path, lost: dict[str, int]) -> None:
        """Let a job end, and count what is not as it would have been."""
        process = self._start(job, killed)
        _, status = os.waitpid(process, 0)
        lost["refused"] += os.waitstatus_to_exitcode(status) != 0
        if different := differences(whole, killed):
            lost["different"] += 1
            print(f"{job.name}: {', '.join(different)}", file=sys.stderr, flush=True)
        hidden = [file for file in killed.rglob(".*") if file.name.endswith((".partial", ".replaced"))]
        lost["left behind"] += len(hidden)

    def _run(self, job: Job, out: Path) -> int:
        """Let a job end  ->  how many changes it made."""
        counted = self.place / "changes"
        counted.write_text("0")
        _, status = os.waitpid(self._start(job, out, counting=counted), 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"{job.name} failed: {(self.place / 'told').read_text(encoding='utf-8')}")
        return int(counted.read_text())

    def _start(
        self, job: Job, out: Path, kill_before: int | None = None, counting: Path | None = None
    ) -> int:
        """Fork a process that does a job, killed before its n-th change to the folder  ->  its number"""
        words = [word.format(data=self.data, out=out) for word in job.words]
        if job.resumes and RunFolder(out / "run").description.exists():
            words.append("--resume")
        sys.stdout.flush()
        process = os.fork()
        if process:
            return process
        code = 70  # what leaves the block below without saying so has failed
        try:
            told = os.open(self.place / "told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(told, 1)
            os.dup2(told, 2)
            code = _command(words, out, kill_before, counting)
        finally:
            os._exit(code)


def _command(words: Sequence[str], out: Path, kill_before: int | None, counting: Path | None) -> int:
    """Run a command in this process  ->  its exit code"""
    seen, inside = 0, str(out)

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in _CHANGES or not str(arguments[0]).startswith(inside):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        seen += 1
        if seen == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        scenemem(words)
    except SystemExit as done:
        sys.stdout.flush()
        if counting is not None:
            counting.write_text(str(seen))
        return int(done.code or 0)
    return 0


def _wait(process: int, seconds: float) -> None:
    """Wait, or until a process has ended."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(_PAUSE)


def _mount(folder: Path, options: str) -> int:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode


def half_written(folder: Path) -> list[Path]:
    """Visible files that cannot be read."""
    found = []
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        try:
            if file.suffix == ".safetensors":
                read_checkpoint(file)
            elif file.suffix == ".npy" and file.with_suffix(".json").exists():
                verify_store(file)
            elif file.suffix == ".json":
                json.loads(file.read_bytes())
            elif file.suffix == ".html" and not file.read_text(encoding="utf-8").rstrip().endswith("</html>"):
                found.append(file)
        except (UserError, ValueError):
            found.append(file)
    return found


def same(first: Path, second: Path) -> bool:
    """Whether two folders hold the same results: files byte for byte, checkpoints tensor by tensor."""
    return not differences(first, second)


def differences(first: Path, second: Path) -> list[str]:
    """The files that only one of two folders has, or that differ."""
    one, other = _content(first), _content(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _content(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if any(part.startswith(".") for part in Path(name).parts):  # what is being written
            continue
        if file.suffix == ".safetensors" and file.stem != "previous":
            tensors = read_checkpoint(file).tensors
            found[name] = {
                key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in tensors.items()
            }
        elif file.name == "metrics.jsonl":
            found[name] = [(line["iteration"], line["losses"]) for line in RunFolder(file.parent).logged()]
        elif file.is_file() and file.suffix in (".npy", ".jsonl", ".json") and not _tells_times(file):
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _tells_times(file: Path) -> bool:
    """Whether a file depends on when a run was gone on with, or on the bytes of a checkpoint, which do."""
    return file.name == "preset.json" or file.name.endswith(".stamp.json")


if __name__ == "__main__":
    main()
