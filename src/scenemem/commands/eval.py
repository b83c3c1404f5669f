"""``scenemem eval RUN``: walk a trained (or scripted) agent over a split and print its metrics.

With ``--grounding`` the agent is led along the reference paths instead, and its word attention is measured.
With ``--speaker`` it walks several candidate routes and a speaker helps to choose among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from scenemem.agents.reranking import Reranking
from scenemem.agents.scripted import SCRIPTED
from scenemem.commands.console import (
    check_processes,
    metric_table,
    open_data,
    output,
    print_json,
    progress_bar,
    use_threads,
)
from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.grounding import OWN, GroundingQuality
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.opened import evaluation_of, open_run, reranking_facts, walk_scripted


def eval_run(
    run: Annotated[str, tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    checkpoint: Which = "last",
    task: str = "r2r",
    seed: int = 0,
    threads: int = 1,
    processes: int = 1,
    speaker: Path | None = None,
    candidates: int = 1,
    speaker_weight: float = Reranking.weight,
    grounding: bool = False,
    json: bool = False,
) -> None:
    """Walk an agent over a split and print its metrics; trajectories and outcomes go into the run folder.

    Args:
        run: a run folder, or one of expert, random and stop.
        split: which episodes.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the run, or those that did best on its selection split.
        task: which episode files a scripted agent walks; a run knows its own.
        seed: of the random agent, and of sampled candidates.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        processes: walk a run's episodes with this many processes of one thread each, for large splits.
        speaker: run of a speaker that helps to choose among candidate routes, see --candidates.
        candidates: routes walked per episode before one is the answer: the greedy one, the others sampled.
        speaker_weight: of the speaker's log-likelihood per word; the agent's per decision has the rest.
        grounding: measure instead how well the word attention agrees with hand-made labels (lar2r/).
        json: print one JSON object instead of a table.
    """
    use_threads(threads)
    check_processes(processes)
    _check_flags(run, speaker, candidates, processes, grounding=grounding)
    reranking = None if speaker is None else Reranking(candidates, speaker_weight, seed)
    folder = open_data(data)
    if run in SCRIPTED:
        world, walks = walk_scripted(run, folder, task, split, seed, progress_bar)
        report = evaluation_of(walks, world, split).summary()
    else:
        opened = open_run(RunFolder(Path(run)), folder, checkpoint, progress_bar)
        if grounding:
            quality = opened.grounding(split)
            if json:
                print_json({"split": split, "iteration": opened.iteration, "grounding": quality})
            else:
                output.print(grounding_table(f"{run} on {opened.experiment.episodes(split).name}", quality))
            return
        if speaker is None or reranking is None:
            walks, _ = opened.evaluate(split, processes)
            report = evaluation_of(walks, opened.world, split).summary()
        else:
            walks, walker = opened.evaluate_reranked(split, RunFolder(speaker), reranking)
            report = evaluation_of(walks, opened.world, split).summary()
            report["reranking"] = {
                "speaker": str(speaker),
                **reranking_facts(walker, walks, opened.world),
            }
    if json:
        print_json(report)
        return
    title = f"{run} on {walks.episodes.name}: {report['n']} instructions, {report['jumps']:.2f} jumps each"
    table = metric_table(title, report["metrics"])
    if "reranking" in report:
        _add_reranking(table, report["reranking"])
    output.print(table)


def _check_flags(run: str, speaker: Path | None, candidates: int, processes: int, *, grounding: bool) -> None:
    """Refuse flags that mean nothing together."""
    if grounding and run in SCRIPTED:
        raise UserError(f"'{run}' listens to no word; --grounding needs a trained run")
    if speaker is None:
        if candidates != 1:
            raise UserError(f"--candidates {candidates} needs a --speaker to help choose among them")
        return
    if run in SCRIPTED:
        raise UserError(f"'{run}' draws no candidates; --speaker needs a trained run")
    if processes > 1:
        raise UserError("candidates are walked by one process; leave out --processes or --speaker")
    if grounding:
        raise UserError("--grounding leads the agent along the reference paths; leave out --speaker")


def _add_reranking(table: Table, reranking: dict[str, Any]) -> None:
    """What all candidates walked, below the metrics of the walks chosen."""
    count, all_walked = reranking["candidates"], reranking["all_walked"]
    table.add_section()
    table.add_row("TL, all walked", f"{all_walked['tl']:.2f} m", f"length of all {count} candidates")
    table.add_row("SPL, all walked", f"{all_walked['spl']:.2%}", "success, weighted with that length")
    table.caption = (
        f"the best of {count} walks per episode, not comparable with agents that walk once; "
        "metrics above the line are those of the walk chosen"
    )


def grounding_table(title: str, quality: GroundingQuality) -> Table:
    """One row per kind of words and attention; intervals are 95 %."""
    table = Table("words", "attention", "mass", "chance", "lift", "lift elsewhere", "pointing", title=title)
    for row in quality.attention:
        elsewhere = "-" if row.elsewhere is None else _interval(row.elsewhere, 2)
        own = " (own)" if OWN[row.words] == row.stream else ""
        table.add_row(
            row.words,
            row.stream + own,
            _interval(row.mass, 3),
            f"{row.chance:.3f}",
            _interval(row.lift, 2),
            elsewhere,
            _interval(row.pointing, 3),
        )
    covered = quality.coverage
    table.caption = (
        f"{quality.episodes} instructions of {quality.paths} paths; {covered.measured} of {covered.labels} "
        f"labels measured: {covered.empty} are empty, {covered.beyond} point past the end, "
        f"{covered.cut} past what is read, {covered.unvisited} lie off the walk"
    )
    return table


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
