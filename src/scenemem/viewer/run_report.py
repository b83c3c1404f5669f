"""The report on runs: scores, curves, where it fails, distributions, and the paper's numbers beside ours."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from scenemem.evaluation.tables import Spread
from scenemem.viewer.axes import Axis
from scenemem.viewer.curves import Point, draw_curves
from scenemem.viewer.episode_sections import (
    FRACTIONS,
    distributions_section,
    failures_section,
    jumps_section,
    lengths_section,
)
from scenemem.viewer.paper import ablation_section, published_section
from scenemem.viewer.report import Section, figure, figures, note, numbers, table, write_report
from scenemem.viewer.runs import (
    METRICS,
    Groups,
    ReportRun,
    curves,
    grouped,
    logged_names,
    metric_spreads,
    pooled,
    shown,
    splits_of,
)

Scores = Mapping[str, Mapping[str, float]]
"""agent -> metric -> mean, of agents that are no runs"""


def write_run_report(
    file: str | os.PathLike[str],
    title: str,
    runs: Sequence[ReportRun],
    *,
    world: str,
    task: str,
    references: Mapping[str, Scores] | None = None,
    more: Iterable[Section] = (),
    replays: Section | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """Write the report on some runs.

    Args:
        file: the page.
        title: its headline.
        runs: what it is about; all trained on the same features.
        world: what they were trained and measured on, in words.
        task: whose published numbers stand beside ours: r2r or r4r.
        references: agents that are no runs, by split, to be listed with the metrics.
        more: further sections, before the published numbers.
        replays: links to replays.
        remarks: what the reader should know, for example what is missing.
    """
    groups = grouped(runs)
    splits = splits_of(groups)
    sections = [_scores_section(groups, splits, references or {}, remarks)]
    sections += [] if replays is None else [replays]
    sections.append(_curves_section(groups, runs))
    if splits:
        sections.append(failures_section(groups, splits))
        sections.append(distributions_section(groups, splits[0]))
        sections.append(lengths_section(groups, splits[0]))
        jumping = {name: some for name, some in groups.items() if some[0].settings["agent"] == "frontier"}
        if pooled(jumping, splits[0]):
            sections.append(jumps_section(jumping, splits[0]))
    sections += more
    ours = {split: metric_spreads(groups, split) for split in splits}
    sections += [ablation_section(ours, world), published_section(task), _runs_section(groups)]
    write_report(file, title, sections, lead=world)


def _scores_section(
    groups: Groups, splits: Sequence[str], references: Mapping[str, Scores], remarks: Sequence[str]
) -> Section:
    parts = [note(remark) for remark in (*remarks, *_unequal(groups))]
    if splits:
        parts.append(_cards(metric_spreads(groups, splits[0]), splits[0]))
    head = ["agent", "runs", *METRICS.values(), "jumps"]
    for split in splits:
        rows = [
            [name, "-", *(shown(metric, Spread(means[metric], None, 1)) for metric in METRICS), "-"]
            for name, means in references.get(split, {}).items()
        ]
        quiet = range(len(rows))
        for name, cells in metric_spreads(groups, split).items():
            row = [shown(metric, cells[metric]) for metric in (*METRICS, "jumps")]
            rows.append([name, str(cells["sr"].n), *row])
        episodes = max(len(run.results.get(split, ())) for runs in groups.values() for run in runs)
        caption = f"{split}: {episodes:,} instructions; mean ± standard deviation over runs"
        parts.append(table(caption, head, rows, quiet=quiet))
    if splits:
        parts.append(
            note(
                "Fractions, and metres for NE (distance to the goal at the end) and TL (length walked). "
                "Jumps are decisions to go back to another frontier, per episode."
            )
        )
    else:
        parts.append(note("No split has been walked yet: scenemem eval RUN."))
    return Section("Scores", "\n".join(parts))


def _unequal(groups: Groups) -> list[str]:
    """What is to be said when agents were not trained for the same number of iterations."""
    lengths = {name: {_iterations(run) for run in runs} for name, runs in groups.items()}
    if len(set.union(*lengths.values())) == 1:
        return []
    told = [f"{name} {' and '.join(f'{n:,}' for n in sorted(some))}" for name, some in lengths.items()]
    return [f"Not trained for the same number of iterations: {', '.join(told)}."]


def _cards(rows: Mapping[str, Mapping[str, Spread]], split: str) -> str:
    cards = "".join(
        f'<li><span class="who">{escape(name)}</span><strong>{shown("sr", cells["sr"])}</strong>'
        f"<span>SR on {escape(split)}</span><span>SPL {shown('spl', cells['spl'])}</span></li>"
        for name, cells in rows.items()
    )
    return f'<ul class="cards">{cards}</ul>'


def _curves_section(groups: Groups, runs: Sequence[ReportRun]) -> Section:
    selection = ", ".join(dict.fromkeys(str(run.settings["selection"]["split"]) for run in runs))
    charts: list[tuple[str, str, str, Axis | None]] = [
        ("validation", metric, f"{METRICS[metric]} on {selection}", FRACTIONS)
        for metric in ("sr", "spl")
        if metric in logged_names(groups, "validation")
    ]
    charts += [("losses", loss, f"{loss} loss", None) for loss in logged_names(groups, "losses")]
    drawings, tables = [], []
    for kind, name, caption, limits in charts:
        lines = curves(groups, kind, name)
        ordered = {group: lines.get(group, []) for group in groups}  # so that styles agree with the legend
        drawings.append(figure(draw_curves(ordered, across="iterations", up=caption, limits=limits), caption))
        tables.append(_curve_table(caption, lines))
    if not drawings:
        return Section("Learning curves", note("Nothing has been logged yet."))
    told = "Lines are means over runs, bands one standard deviation to each side."
    if all(len(members) == 1 for members in groups.values()):
        told = "One run each."
    return Section(
        "Learning curves",
        figures(list(groups), drawings) + note(told) + numbers("\n".join(tables)),
    )


def _curve_table(caption: str, lines: Mapping[str, Sequence[Point]]) -> str:
    iterations = sorted({point.x for points in lines.values() for point in points})
    columns = [{point.x: point for point in points} for points in lines.values()]
    rows = [[f"{x:,g}", *(_at(column.get(x)) for column in columns)] for x in iterations]
    return table(caption, ["iterations", *lines], rows)


def _at(point: Point | None) -> str:
    if point is None:
        return "-"
    return f"{point.y:.3f} ± {point.spread:.3f}" if point.spread else f"{point.y:.3f}"


def _runs_section(groups: Groups) -> Section:
    rows = [
        [
            run.folder,
            name,
            str(run.seed),
            _progress(run),
            _weights(run),
            run.features,
            ", ".join(f"{tool} {version}" for tool, version in run.versions.items()),
        ]
        for name, runs in groups.items()
        for run in runs
    ]
    head = ["folder", "agent", "seed", "iterations", "weights measured", "features", "versions"]
    return Section("Runs", table("What this report is made of", head, rows))


def _progress(run: ReportRun) -> str:
    """How far the training has come, and how far it was meant to go when it has not."""
    done, asked = _iterations(run), run.settings["learning"]["iterations"]
    return f"{done:,}" if done >= asked else f"{done:,} of {asked:,}"


def _iterations(run: ReportRun) -> int:
    return int(run.log[-1]["iteration"]) if run.log else 0


def _weights(run: ReportRun) -> str:
    """Which weights were measured; all episodes of a split were walked by the same."""
    firsts = [results[0] for results in run.results.values()]
    return ", ".join(dict.fromkeys(f"{first.checkpoint} at {first.iteration:,}" for first in firsts)) or "-"
