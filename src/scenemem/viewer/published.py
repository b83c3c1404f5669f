"""The published numbers: the paper's ablation table beside ours, and the rows of its main tables.

All are from Wang, Wang, Liang, Xiong, Shen, "Structured Scene Memory for Vision-Language Navigation",
CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scenemem.evaluation.tables import Spread
from scenemem.viewer.pages import Section, Table, section
from scenemem.viewer.runs import METRICS, metric_cell

PAPER = 'Wang et al., "Structured Scene Memory for Vision-Language Navigation", CVPR 2021'
SPLITS = ("val_seen", "val_unseen")
_COLUMNS = ("sr", "ne", "tl", "osr", "spl")
_ARROWS = {"ne": "↓", "tl": "↓"}

# preset -> what the paper calls it, and its row of table 3: SR NE TL OR SPL on val_seen, then on val_unseen
_ABLATION = {
    "basic": ("Basic agent (E-Dropout)", "0.62 3.99 11.0 0.71 0.59 0.52 5.22 10.7 0.58 0.48"),
    "ssm": ("Full model", "0.71 3.10 14.7 0.80 0.62 0.62 4.32 20.7 0.73 0.45"),
    "ssm-no-grounding": (
        "without fine-grained instruction grounding",
        "0.70 3.44 13.5 0.80 0.62 0.59 4.57 20.3 0.72 0.43",
    ),
    "ssm-no-reasoning": ("without iterative reasoning", "0.69 3.51 12.9 0.78 0.61 0.57 4.60 19.8 0.70 0.42"),
    "ssm-local": ("with local action space", "0.67 3.62 11.9 0.75 0.63 0.54 5.21 12.6 0.64 0.49"),
    "ssm-global": ("with global action space, one step", "0.68 3.25 13.2 0.74 0.60 0.56 4.76 19.8 0.68 0.41"),
}

_ENDINGS = ("", "-r2r-objects", "-r2r-objects-augmented")  # of presets that stand in one row of the paper

# table 1, R2R: SR NE TL OR SPL on val_seen, val_unseen, test; an asterisk marks back-translation
_R2R = {
    "Student-Forcing": "0.39 6.01 11.3 0.53 - 0.22 7.81 8.39 0.28 - 0.20 7.85 8.13 0.27 0.18",
    "E-Dropout": "0.55 4.71 10.1 - 0.53 0.47 5.49 9.37 - 0.43 - - - - -",
    "Regretful": "0.65 3.69 - 0.72 0.59 0.48 5.36 - 0.61 0.37 - - - - -",
    "Active Perception": "0.66 3.35 19.8 0.79 0.51 0.55 4.40 19.9 0.70 0.40 0.56 4.77 21.0 0.73 0.37",
    "SSM (the paper)": "0.65 3.77 13.5 0.74 0.57 0.56 4.88 18.9 0.69 0.42 0.57 4.66 18.5 0.68 0.44",
    "Speaker-Follower*": "0.66 3.36 - 0.74 - 0.36 6.62 - 0.45 - 0.35 6.62 14.8 0.44 0.28",
    "E-Dropout*": "0.62 3.99 11.0 - 0.59 0.52 5.22 10.7 - 0.48 0.51 5.23 11.7 0.59 0.47",
    "EGP*": "- - - - - 0.56 4.83 - 0.64 0.44 0.53 5.34 - 0.61 0.42",
    "Active Perception*": "0.70 3.20 19.7 0.80 0.52 0.58 4.36 20.6 0.70 0.40 0.60 4.33 21.6 0.71 0.41",
    "SSM (the paper)*": "0.71 3.10 14.7 0.80 0.62 0.62 4.32 20.7 0.73 0.45 0.61 4.57 20.4 0.70 0.46",
}

# table 2, R4R: NE TL SR CLS nDTW SDTW on val_seen, val_unseen
_R4R = {
    "Speaker-Follower": "5.35 15.4 0.52 0.46 - - 8.47 19.9 0.24 0.30 - -",
    "RCM+fidelity oriented": "5.37 18.8 0.53 0.55 - - 8.08 28.5 0.26 0.35 0.30 0.13",
    "PTA high-level": "4.54 16.5 0.58 0.60 0.58 0.41 8.25 17.7 0.24 0.37 0.32 0.10",
    "EGP": "- - - - - - 8.00 18.3 0.30 0.44 0.37 0.18",
    "E-Dropout": "- 19.9 0.52 0.53 - 0.27 - 27.0 0.29 0.34 - 0.09",
    "SSM (the paper)": "4.60 19.4 0.63 0.65 0.56 0.44 8.27 22.1 0.32 0.53 0.39 0.19",
}


class _MainTable(NamedTuple):
    where: str
    splits: tuple[str, ...]
    columns: tuple[str, ...]  # for each split
    rows: dict[str, str]


_MAIN_TABLES = {
    "r2r": _MainTable("R2R, table 1", (*SPLITS, "test"), _COLUMNS, _R2R),
    "r4r": _MainTable("R4R, table 2", SPLITS, ("ne", "tl", "sr", "cls", "ndtw", "sdtw"), _R4R),
}

OurRows = Mapping[str, Mapping[str, Mapping[str, Spread]]]
"""split -> preset -> metric -> spread"""


def ablation_section(ours: OurRows, world: str) -> Section:
    """Table 3 of the paper with our numbers below each of its rows; what was not trained is a dash.

    Args:
        ours: by the names of our presets.
        world: what our agents were trained and measured on.
    """
    rows, published_rows = list[list[str]](), []
    for preset, (title, published) in _ABLATION.items():
        published_rows.append(len(rows))
        rows.append([f"{title} (paper)", *published.split()])
        for name in _variants(ours, preset):
            cells = [_ours(ours, split, name, metric) for split in SPLITS for metric in _COLUMNS]
            rows.append([f"{name} (ours)", *cells])
    head = ["model", *_headed(_COLUMNS) * 2]
    spans = [("", 1), *((split, len(_COLUMNS)) for split in SPLITS)]
    text = (
        f"Rows marked (paper) are table 3 of {PAPER}: R2R, ResNet-152 features, back-translation. "
        f"Ours: {world}. Only differences within one of the two can be compared."
    )
    shown = Table("Ablations in the layout of the paper's table 3", head, rows, spans, published_rows)
    return section("Ablations, beside the paper's", "published", shown, text)


def published_section(task: str) -> Section:
    """Rows of the paper's main table for a task, for reference."""
    main = _MAIN_TABLES[task]
    rows = [[name, *cells.split()] for name, cells in main.rows.items()]
    head = ["model", *_headed(main.columns) * len(main.splits)]
    spans = [("", 1), *((split, len(main.columns)) for split in main.splits)]
    text = f"{PAPER}. An asterisk marks data augmentation by back-translation, a dash a missing number."
    shown = Table(f"{main.where} of the paper (a selection)", head, rows, spans)
    return section("Published results", "published", shown, text)


def _headed(columns: Sequence[str]) -> list[str]:
    return [f"{METRICS[metric]} {_ARROWS.get(metric, '↑')}" for metric in columns]


def _variants(ours: OurRows, preset: str) -> list[str]:
    """What there is of a preset, on its own and as rows of the scoreboard; the preset itself if nothing."""
    known = [preset + ending for ending in _ENDINGS if any(preset + ending in rows for rows in ours.values())]
    return known or [preset]


def _ours(ours: OurRows, split: str, preset: str, metric: str) -> str:
    cells = ours.get(split, {}).get(preset)
    return "-" if cells is None else metric_cell(metric, cells[metric])
