"""The tables of docs/family.md, from what ``scenemem compare --json`` printed.

    python tools/family_table.py r2r-captions VAL_UNSEEN.json VAL_SEEN.json AS_RELEASED.json

The first two files compare the same runs ``--against basic-r2r-captions``, the third is what
``tools/as_released.py`` printed of them; ``runs/family.sh`` trains the runs and calls this. Below the table
of R2R stands how its order agrees with the published one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import correlation
from typing import Any

PUBLISHED = {  # SR on val_unseen of R2R, from images; the paper's tables, else the systems' own
    "ssm": ".56",
    "fast": ".56 aug",
    "auxrn": ".55 aug",
    "active-perception": ".55",
    "oaam": ".54 aug",
    "egp": ".52",
    "regretful": ".48",
    "basic": ".47",
    "self-monitoring": ".44",
    "rcm": ".43 aug",
    "speaker-follower": ".31",
    "rpa": ".25",
    "student-forcing": ".22",
}
PUBLISHED_R4R = {  # SR / CLS / nDTW / SDTW on val_unseen of R4R: the paper's second table
    "ssm": ".32 / .53 / .39 / .19",
    "oaam": ".31 / .40 / - / .11",
    "egp": ".30 / .44 / .37 / .18",
    "egp-revisits": ".30 / .44 / .37 / .18",
    "basic": ".29 / .34 / - / .09",
    "rcm": ".29 / .20 / .27 / .11",
    "pta-low": ".27 / .35 / .20 / .08",
    "rcm-fidelity": ".26 / .35 / .30 / .13",
    "pta": ".24 / .37 / .32 / .10",
    "speaker-follower": ".24 / .30 / - / -",
}
LOW_LEVEL = ("student-forcing", "rpa")
STEPS = 300  # of every row
LONGER = {  # SR of basic with more steps, by steps: the scoreboard
    "r2r-captions": {600: 0.392, 1000: 0.411, 1600: 0.435, 3400: 0.462},
    "r2r-objects": {1000: 0.433},
    "r2r-oracle": {1000: 0.526, 2700: 0.583},
}


def spread(metric: dict[str, Any], digits: int = 3) -> str:
    """Mean and standard deviation over seeds."""
    mean = f"{metric['mean']:.{digits}f}"
    return mean if metric["sd"] is None else f"{mean} ± {metric['sd']:.{digits}f}"


def difference(interval: dict[str, float]) -> str:
    """A difference and its interval, bold where it leaves out 0."""
    text = f"{interval['value']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]"
    return f"**{text}**" if interval["low"] > 0 or interval["high"] < 0 else text


def matched(sr: float, times: float, longer: dict[int, float]) -> str:
    """SR of basic with ``times`` as many steps, between the rows that there are; beyond them the last one."""
    rows = sorted({STEPS: sr, **longer}.items())
    steps = times * STEPS
    for (few, low), (many, high) in pairwise(rows):
        if few <= steps <= many:
            return f"{low + (high - low) * (steps - few) / (many - few):.3f}"
    last, best = rows[-1]
    return f"{best:.3f} ({last:,} steps)" if longer else "-"


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the largest; equal values share the mean of their ranks."""
    ordered = sorted(values, reverse=True)
    return [1 + ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def agreement(ours: dict[str, float]) -> str:
    """Rank correlation with the published order, and the ranks that differ by three or more.

    Args:
        ours: SR by system.
    """
    names = [name for name in PUBLISHED if name in ours]
    theirs = [float(PUBLISHED[name].split()[0]) for name in names]
    here, there = ranks([ours[name] for name in names]), ranks(theirs)
    lines = [f"rank correlation over {len(names)} rows {correlation(here, there):.2f}"]
    kept = [number for number, name in enumerate(names) if name not in LOW_LEVEL]
    fewer = [ranks(each) for each in zip(*((ours[names[k]], theirs[k]) for k in kept), strict=True)]
    lines.append(f"without the low-level systems {correlation(*fewer):.2f}")
    for name, our, their in zip(names, here, there, strict=True):
        if abs(our - their) >= 3:
            lines.append(f"{name}: rank {our:g} here, {their:g} published")
    return "\n".join(lines)


def table(task: str, unseen: dict[str, Any], seen: dict[str, Any], released: dict[str, Any]) -> str:
    """The Markdown table of one task, the highest SR (on R4R the highest nDTW) first.

    Args:
        task: the end of the rows' names, for example ``r2r-captions``.
        unseen: the comparison on val_unseen.
        seen: the same on val_seen.
        released: TL and SPL of rows whose release counts less; without any there is no column for them.
    """
    on_r4r = task.startswith("r4r")
    base = f"basic-{task}"
    apart = unseen["against_by_building"][base]
    shown = ("sr", "cls", "ndtw", "sdtw") if on_r4r else ("sr", "spl", "osr")
    compared = ("sr", "ndtw", "sdtw") if on_r4r else ("sr", "osr")
    titles = {"sr": "SR", "spl": "SPL", "osr": "OSR", "cls": "CLS", "ndtw": "nDTW", "sdtw": "SDTW"}
    head = ["system", "n", *(titles[key] for key in shown), "TL, everything walked"]
    head += ["TL / SPL as its release counts"] if released else []
    head += ["val_seen SR"]
    head += [f"{titles[key]} against `basic`" for key in compared]
    head += ["CPU time, times `basic`"]
    head += (
        ["published SR / CLS / nDTW / SDTW"] if on_r4r else ["`basic` with that CPU time, SR", "published SR"]
    )
    lines = [head, ["---"] * len(head)]
    best = "ndtw" if on_r4r else "sr"
    for name, row in sorted(unseen["rows"].items(), key=lambda item: -item[1][best]["mean"]):
        system, times = (
            name.removesuffix(f"-{task}"),
            unseen["cpu_seconds"][name] / unseen["cpu_seconds"][base],
        )
        cells = [f"`{system}`", str(row["sr"]["n"]), *(spread(row[key]) for key in shown)]
        cells.append(f"{row['tl']['mean']:.1f}")
        if released:
            less = released.get(name)
            cells.append(f"{less['tl']['mean']:.1f} / {spread(less['spl'])}" if less else "")
        cells.append(spread(seen["rows"][name]["sr"]))
        cells += [difference(apart[name][key]) if name in apart else "" for key in compared]
        cells.append(f"{times:.1f}")
        if on_r4r:
            cells.append(PUBLISHED_R4R.get(system, "-"))
        else:
            sr = unseen["rows"][base]["sr"]["mean"]
            cells.append("" if name == base else matched(sr, times, LONGER.get(task, {})))
            cells.append(PUBLISHED.get(system, "-"))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def report(task: str, unseen: dict[str, Any], seen: dict[str, Any], released: dict[str, Any]) -> str:
    """The table of a task and, for R2R, how its order agrees with the published one."""
    text = table(task, unseen, seen, released)
    if task.startswith("r2r"):
        ours = {name.removesuffix(f"-{task}"): row["sr"]["mean"] for name, row in unseen["rows"].items()}
        text += f"\n\n{agreement(ours)}"
    return text + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: python tools/family_table.py TASK VAL_UNSEEN.json VAL_SEEN.json AS_RELEASED.json")
    files = (json.loads(Path(file).read_text(encoding="utf-8")) for file in sys.argv[2:])
    sys.stdout.write(report(sys.argv[1], *files))
