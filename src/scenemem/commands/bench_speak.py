"""``scenemem bench speak``: speed of a speaker, and its share of an augmented training step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scenemem.benchmarks.speaking import Rate, SpeakReport, SpeakRequest, measure_speaking
from scenemem.benchmarks.speaking_load import fresh_speaking
from scenemem.commands.bench_output import machine_line, start_bench, write_report
from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.runs.experiment import stored_speaker
from scenemem.runs.folder import RunFolder


def bench_speak(
    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = SpeakRequest.presets,
    data: Path | None = None,
    *,
    speaker: Path | None = None,
    batch: int = 64,
    beam: int = 5,
    features: str | None = None,
    seconds: float = 2.0,
    repeats: int = 3,
    threads: int = 1,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Measure how fast a speaker describes and learns, and what it costs agents that learn from it.

    Args:
        presets: agents that learn from described paths.
        data: data folder; the embedded houses without it.
        speaker: run of a trained speaker; without it a fresh one says texts of one usual length.
        batch: paths described at once, and episodes of a training step.
        beam: texts kept at once in beam search.
        features: name of the feature store, when the folder has several.
        seconds: about how long one repetition of a work lasts; it is one batch at least.
        repeats: repetitions; their median counts.
        threads: processor threads torch may use.
        json: print one JSON object instead of tables.
        out: also write the JSON object to this file.
    """
    request = SpeakRequest(presets, batch, beam, features, seconds, repeats)
    start_bench(threads)
    folder = open_data(data)
    if speaker is None:
        speaking = fresh_speaking(folder, features)
    else:
        run = RunFolder(speaker)
        run.describe()
        speaking = stored_speaker(run.best, folder)
        request = replace(request, features=features or speaking.preset.data.features)
    with progress_bar("measuring") as progress:
        report = measure_speaking(
            request, speaking, name=None if speaker is None else speaker.name, progress=progress
        )
    write_report(report, out)
    if json:
        print_json(report)
    else:
        _show(report)


def _show(report: SpeakReport) -> None:
    output.print(machine_line(report.machine))
    output.print(_rate_table(report))
    output.print(_share_table(report))


def _rate_table(report: SpeakReport) -> Table:
    kind = "trained" if report.trained else "fresh, texts of one length"
    title = f"{report.speaker} ({kind}), {report.feature_columns} columns, batch {report.batch}"
    table = Table("", "per second", "at 68 GFLOP/s", "words", "GFLOP", "of square", "cpus", title=title)
    for name, way in report.describing.items():
        label = f"beam {report.beams}" if name == "beam" else name
        table.add_row(label, *_cells(way.paths, f"{way.words:.1f}"))
    table.add_row("pairs learnt", *_cells(report.training, ""))
    table.caption = (
        "paths described, words and GFLOP of one; last row: pairs of path and instruction learnt from, "
        f"batch {report.training_batch}"
    )
    return table


def _cells(rate: Rate, words: str) -> tuple[str, ...]:
    return (
        f"{rate.per_second:.0f}",
        f"{rate.normalised_per_second:.0f}",
        words,
        f"{rate.gigaflops_each:.3f}",
        f"{rate.utilisation_of_square:.0%}",
        f"{rate.cpus:.2f}",
    )


def _share_table(report: SpeakReport) -> Table:
    table = Table("training step", "per second", "speaker's share", "goal", "cpus")
    for steps in report.augmented:
        table.add_row(
            f"{steps.preset}, batch {steps.batch}",
            f"{steps.steps_per_second:.2f}",
            f"{steps.speaker_share:.1%}",
            f"< {report.share_goal:.0%}" + ("" if steps.below_goal else " (missed)"),
            f"{steps.episodes.cpus:.2f}",
        )
    return table
