"""The second column of walk lengths: runs of the family, counted as the releases of their systems do.

    python tools/as_released.py DIR RUN...

DIR is the data folder. Walks are those that the runs have kept of val_unseen. Printed is a JSON object: for
every row whose release counts less than every metre walked, TL and SPL by its rule (``AS_RELEASED`` of the
system's file), mean and standard deviation over the runs, in the form of ``scenemem compare --json``. Walks
that a speaker helped to choose (``scenemem eval --speaker``) are rows of their own.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import scenemem as sm
from scenemem import zoo
from scenemem.errors import UserError

Shorten = Callable[[Sequence[str]], list[str]]
"""The viewpoints of a walk that a release counts."""

SPLIT = "val_unseen"
_WITH_OVERLAYS = re.compile("-as-published|-r[24]r-")  # what follows in the name of results


def rules() -> dict[str, Shorten]:
    """By name of the row, whatever it is trained on."""
    own: dict[str, Shorten] = {}
    for system in zoo.systems().values():
        own |= getattr(system, "AS_RELEASED", {})
    return own


def with_speaker(stamp: Path) -> str:
    """What is added to the name of a row whose walks a speaker helped to choose."""
    weight = _read(stamp, "walk again: scenemem eval RUN --speaker SPEAKER")["reranking"]["weight"]
    return f", with a speaker of weight {weight:g}"


def counted(file: Path, data: str, shorten: Shorten, task: str, advice: str) -> dict[str, float]:
    """Metrics of kept walks after they were shortened."""
    kept = _read(file, advice)
    walks = {one["instr_id"]: shorten([place for place, *_ in one["trajectory"]]) for one in kept}
    return dict(sm.score(walks, SPLIT, data=data, task=task, allow_jumps=True).metrics)


def second_column(data: str, runs: Iterable[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """TL and SPL of every row whose release counts less, by name."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    known = rules()
    for run in runs:
        described = _read(run / "preset.json", "name the folder of a training run")
        name, task = described["name"], described["preset"]["data"]["task"]
        row = _WITH_OVERLAYS.split(name)[0]
        if row not in known:
            continue
        folder = run / "results"
        advice = f"walk first: scenemem eval {run} --split {SPLIT}"
        found[name].append(counted(folder / f"{SPLIT}.json", data, known[row], task, advice))
        chosen = folder / "reranked" / f"{SPLIT}.json"
        if chosen.is_file():
            helped = name + with_speaker(chosen.with_suffix(".stamp.json"))
            found[helped].append(counted(chosen, data, known[row], task, advice))
    return {
        name: {key: _spread([one[key] for one in metrics]) for key in ("tl", "spl")}
        for name, metrics in found.items()
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else None, "n": len(values)}


def _read(file: Path, advice: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); {advice}") from error


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python tools/as_released.py DIR RUN...")
    try:
        json.dump(second_column(sys.argv[1], map(Path, sys.argv[2:])), sys.stdout)
    except UserError as problem:
        sys.exit(f"error: {problem}")
