"""Kills at random moments: ``python -m benchmarks.faults.kills --kills 200``.

Commands work on a small world and are killed (SIGKILL) after a random time, again and again. After every kill
no visible file may be half-written, and the command, started once more and left alone, has to end with the
same bytes as one that was never killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from scenemem.errors import UserError
from scenemem.formats.features import verify_store
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.runs.folder import RunFolder

SMALL = (
    *("--model.width", "16", "--model.word-width", "8", "--learning.batch", "4", "--data.min-count", "1"),
    *("--selection.every", "4", "--selection.save-every", "2", "--no-replays", "--iterations", "20"),
)


@dataclass(frozen=True)
class Job:
    """A command; what it writes lies in ``{out}``."""

    name: str
    words: tuple[str, ...]
    resumes: bool = False


JOBS = (
    Job("train", ("train", "ssm", "--data", "{data}", "--out", "{out}/run", *SMALL), resumes=True),
    Job("eval", ("eval", "{run}", "--data", "{data}", "--json")),
    Job("houses", ("data", "houses", "--out", "{out}/houses", "--houses", "2", "--jobs", "1")),
    Job("report", ("report", "{run}", "--data", "{data}", "--out", "{out}/report.html", "--no-replays")),
    Job("view", ("view", "{run}", "--data", "{data}", "--out", "{out}/replays", "--count", "1")),
)


def main() -> None:
    """Kill every job and print what came out as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="a small data folder, with features")
    chosen = parser.parse_args()
    found = {}
    for job in JOBS:
        share = chosen.kills // len(JOBS)
        found[job.name] = kill_repeatedly(job, chosen.data, share, random.Random(f"{chosen.seed} {job.name}"))
        print(f"{job.name}: {found[job.name]}", flush=True)
    print(json.dumps(found))


def kill_repeatedly(job: Job, data: Path, kills: int, chance: random.Random) -> dict[str, object]:
    """Kill a job so many times, then let it end  ->  what was found."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        run = root / "trained"
        words = Job("train", ("train", "ssm", "--data", str(data), "--out", str(run), *SMALL)).words
        _finish(words)
        whole, killed = root / "whole", root / "killed"
        for folder in (whole, killed):
            folder.mkdir()
        started = time.perf_counter()
        _finish(_filled(job, data, whole, run))
        seconds = time.perf_counter() - started
        damaged = 0
        for _ in range(kills):
            if not job.resumes or (killed / "run" / "report.html").exists():
                shutil.rmtree(killed)
                killed.mkdir()
            process = subprocess.Popen(
                _command(_resumed(job, _filled(job, data, killed, run), killed)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(chance.uniform(0.2, 1.0) * seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
            damaged += len(half_written(killed))
        _finish(_resumed(job, _filled(job, data, killed, run), killed))
        return {"kills": kills, "half-written files": damaged, "same at the end": same(whole, killed)}


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
    return _content(first) == _content(second)


def _content(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".safetensors" and file.stem != "previous":
            tensors = read_checkpoint(file).tensors
            found[name] = {
                key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in tensors.items()
            }
        elif file.name == "metrics.jsonl":
            found[name] = [(line["iteration"], line["losses"]) for line in RunFolder(file.parent).logged()]
        elif file.is_file() and file.suffix in (".npy", ".jsonl"):
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def _filled(job: Job, data: Path, out: Path, run: Path) -> tuple[str, ...]:
    return tuple(word.format(data=data, out=out, run=run) for word in job.words)


def _resumed(job: Job, words: tuple[str, ...], out: Path) -> tuple[str, ...]:
    begun = job.resumes and (out / "run" / "preset.json").exists()
    return (*words, "--resume") if begun else words


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "scenemem", *words]


def _finish(words: tuple[str, ...]) -> None:
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        _command(words), check=True, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main()
