"""The second column of walk lengths: runs of the family, counted as the releases of their systems do.

    python tools/as_released.py DIR RUN...

DIR is the data folder. Walks are those that the runs have kept of val_unseen; runs of systems that count what
we count, every metre walked, are passed over. One line per row: mean ± standard deviation over its runs.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev

import scenemem as sm
from scenemem import zoo

Shorten = Callable[[Sequence[str]], list[str]]
"""The viewpoints of a walk that a release counts."""

SPLIT = "val_unseen"


def rules() -> dict[str, Shorten]:
    """By name of the preset, on every task it has a row of."""
    own: dict[str, Shorten] = {}
    for system in zoo.systems().values():
        own |= getattr(system, "AS_RELEASED", {})
    return {
        row: rule
        for name, rule in own.items()
        for row in zoo.rows()
        if row == name or row.startswith((f"{name}-r2r-", f"{name}-r4r-"))
    }


def counted(run: Path, data: str, shorten: Shorten, task: str) -> dict[str, float]:
    """Metrics of the kept walks of a run after they were shortened."""
    kept = json.loads((run / "results" / f"{SPLIT}.json").read_text(encoding="utf-8"))
    walks = {one["instr_id"]: shorten([place for place, *_ in one["trajectory"]]) for one in kept}
    return dict(sm.score(walks, SPLIT, data=data, task=task, allow_jumps=True).metrics)


def told(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation over runs."""
    text = f"{mean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {stdev(values):.{digits}f}"


def second_column(data: str, runs: Iterable[Path]) -> list[str]:
    """A line for every row whose release counts less."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    known = rules()
    for run in runs:
        described = json.loads((run / "preset.json").read_text(encoding="utf-8"))
        name = described["name"]
        if name in known:
            found[name].append(counted(run, data, known[name], described["preset"]["data"]["task"]))
    return [
        f"{name}, as its release counts: TL {told([one['tl'] for one in metrics], 1)}, "
        f"SPL {told([one['spl'] for one in metrics], 3)}"
        for name, metrics in found.items()
    ]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python tools/as_released.py DIR RUN...")
    sys.stdout.writelines(f"{line}\n" for line in second_column(sys.argv[1], map(Path, sys.argv[2:])))
