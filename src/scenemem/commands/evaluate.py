"""``scenemem eval``, ``follow``, ``compare``, ``score``, ``submit``, ``weights``: results in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.table import Table

from scenemem import api
from scenemem.agents.scripted import SCRIPTED
from scenemem.commands import console
from scenemem.commands.console import Checkpoint, Data, Device, Json, Processes, Run, Runs, Split, Threads
from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.following import Agreement
from scenemem.evaluation.grounding import OWN, GroundingQuality
from scenemem.evaluation.score import check_walks, with_angles
from scenemem.formats.atomic import atomic_file
from scenemem.formats.results import read_trajectories, write_trajectories
from scenemem.learning.distributed import check_device
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import open_run
from scenemem.runs.weights import (
    AGENT_METRICS,
    PREFIX,
    SPEAKER_METRICS,
    pack_weights,
    published,
    read_published,
)
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world
from scenemem.zoo.reranking import Reranking


def eval_run(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    split: Split = "val_unseen",
    data: Data = None,
    *,
    out: Path | None = None,
    traces: int = 0,
    checkpoint: Checkpoint = "last",
    task: str = "r2r",
    seed: int = 0,
    threads: Threads = 1,
    processes: Processes = 1,
    device: Device = "cpu",
    speaker: Path | None = None,
    candidates: int = 1,
    speaker_weight: float = Reranking.weight,
    json: Json = False,
) -> None:
    """Walk an agent over a split and print its metrics; trajectories and outcomes go into the run folder.

    With --speaker, a speaker helps to choose among several candidate routes or, when the agent searches,
    among the routes that its search has found.

    Args:
        run: a run folder, weights:NAME, or one of expert, random and stop.
        out: folder for trajectories, outcomes and traces; results/ of the run when left out.
        traces: number of episodes, from the first on, whose decisions are kept in detail.
        task: which episode files a scripted agent walks; a run has its own.
        seed: of the random agent, and of sampled candidates.
        speaker: run of a speaker that helps to choose among candidate routes, see --candidates, or among the
            routes of a search.
        candidates: routes walked per episode before one is the answer: the greedy one, the others sampled.
        speaker_weight: of the speaker's log-likelihood per word; the agent's per decision has the rest (of a
            search both are divided by their deviation, and the agent's is that of the whole route).
    """
    console.use_threads(threads)
    console.at_least_one(processes=processes)
    if speaker is None and candidates != 1:
        raise UserError(f"--candidates {candidates} needs a --speaker to help choose among them")
    where = f"{run} on {task} {split}"
    if run in SCRIPTED:
        if traces or out is not None:
            raise UserError(f"'{run}' is no run and keeps nothing; leave out --out and --traces")
        if speaker is not None:
            raise UserError(f"'{run}' draws no candidates; --speaker needs a trained run")
        folder = console.open_data(data)
        console.check_split(folder, task, split, run=False)
        progress = console.progress_bar
        found = api.evaluate(run, split, data=folder.root, task=task, seed=seed, progress=progress)
    else:
        agent = console.load_agent(Path(run), split, data, checkpoint, device)
        found, written = agent.record(
            split,
            out=out,
            traces=traces,
            processes=processes,
            speaker=speaker,
            candidates=candidates,
            speaker_weight=speaker_weight,
            seed=seed,
        )
        where = f"{run} on {agent.preset.data.task} {split}, track {agent.experiment.track or 'unknown'}"
        for file in written:
            console.say(f"written to {file}")
    if json:
        console.print_json(found.summary())
        return
    title = f"{where}: {found.n} instructions, {found.jumps:.2f} jumps each"
    table = console.metric_table(title, found.metrics)
    if found.reranking is not None and "all_walked" not in found.reranking:
        table.caption = f"{found.reranking['speaker']} helped to choose where searches end"
    elif found.reranking is not None:
        all_walked = found.reranking["all_walked"]
        table.add_section()
        table.add_row("TL, all walked", f"{all_walked['tl']:.2f} m", f"length of all {candidates} candidates")
        table.add_row("SPL, all walked", f"{all_walked['spl']:.3f}", "success, weighted with that length")
        table.caption = (
            f"the best of {candidates} walks per episode, not comparable with agents that walk once; "
            "metrics above the line are those of the walk chosen"
        )
    console.output.print(table)


def follow(
    run: Run,
    split: Split = "val_unseen",
    data: Data = None,
    *,
    grounding: bool = False,
    checkpoint: Checkpoint = "last",
    threads: Threads = 1,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Lead an agent along the reference paths and print how often it would have chosen what is right.

    Args:
        grounding: measure instead how well the word attention agrees with hand-made labels (lar2r/).
    """
    console.use_threads(threads)
    agent = console.load_agent(run, split, data, checkpoint, device)
    where = f"{run} led along {agent.preset.data.task} {split}, track {agent.experiment.track or 'unknown'}"
    found: dict[str, object] = {"split": split, "iteration": agent.iteration}
    if grounding:
        quality = agent.grounding(split)
        found["grounding"], table = quality, grounding_table(where, quality)
    else:
        agreements = agent.following(split)
        found["following"] = {one.decisions: {"share": one.share, "of": one.of} for one in agreements}
        table = following_table(where, agreements)
    if json:
        console.print_json(found)
    else:
        console.output.print(table)


def following_table(title: str, agreements: list[Agreement]) -> Table:
    """One row per kind of decision."""
    rows = [(one.decisions, f"{one.share:.3f}", f"{one.of:,}") for one in agreements]
    return console.table(title, ("decision: what is right", "chosen", "of"), rows)


def grounding_table(title: str, quality: GroundingQuality) -> Table:
    """One row per kind of words and attention; intervals are 95 %."""
    header = ("words", "attention", "mass", "chance", "lift", "lift elsewhere", "pointing")
    rows = [
        (
            row.words,
            row.stream + (" (own)" if OWN[row.words] == row.stream else ""),
            _interval(row.mass, 3),
            f"{row.chance:.3f}",
            _interval(row.lift, 2),
            "-" if row.elsewhere is None else _interval(row.elsewhere, 2),
            _interval(row.pointing, 3),
        )
        for row in quality.attention
    ]
    table, covered = console.table(title, header, rows), quality.coverage
    table.caption = (
        f"{quality.episodes} instructions of {quality.paths} paths; {covered.measured} of {covered.labels} "
        f"labels measured: {covered.empty} are empty, {covered.beyond} point past the end, "
        f"{covered.cut} past what is read, {covered.unvisited} lie off the walk"
    )
    return table


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def compare(
    runs: Runs,
    split: Split = "val_unseen",
    data: Data = None,
    *,
    checkpoint: Checkpoint = "last",
    against: str | None = None,
    again: bool = False,
    out: Path | None = None,
    threads: Threads = 1,
    processes: Processes = 1,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Evaluate runs on a split and print mean +- standard deviation per preset.

    Args:
        against: name of a row; how far the others are from it is printed too, paired by episode, with
            95 % bootstrap intervals over seeds and paths, and over seeds and buildings (rough with two or
            three seeds, see the docs).
        again: walk with all runs; without it, results that a run has kept are read, if they come from these
            weights, this data and this version of the code.
        out: also write the tables to this file, as Markdown (.md) or HTML (.html), or (with --against) how
            far the rows are apart as a picture (.svg).
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem compare RUN RUN ...")
    _check_table(out, against)
    console.at_least_one(processes=processes)
    for run in runs:
        console.existing_run(run, data, checkpoint)
    console.use_threads(threads)
    comparison = api.compare(
        runs,
        split,
        data=data,
        checkpoint=checkpoint,
        against=against,
        again=again,
        processes=processes,
        device=device,
        progress=console.progress_bar,
    )
    counted = sum(row["sr"].n for row in comparison.rows.values())
    if kept := counted - comparison.walked:
        console.say(f"{kept} of {counted} runs had walked {split} already; --again walks with all of them")
    for remark in comparison.remarks:
        console.say(f"note: {remark}")
    if out is not None:
        comparison.write(out)
        console.say(f"written to {out}")
    if json:
        found = {"against": comparison.distances, "against_by_building": comparison.by_building}
        distances = {name: {against: value} for name, value in found.items()} if against else {}
        told = {
            "split": split,
            "tracks": comparison.tracks,
            "cpu_seconds": comparison.cpu_seconds,
            "rows": comparison.rows,
        }
        console.print_json({**told, **distances, "remarks": comparison.remarks})
        return
    for shown in comparison.tables():
        console.print_whole(shown.title, shown.header, shown.cells, kept=shown.header.index("sr"))


def _check_table(out: Path | None, against: str | None) -> None:
    """Refuse a file that could not be written in the end."""
    if out is None:
        return
    if out.suffix not in (".md", ".html", ".svg"):
        raise UserError(
            f"{out}: unknown kind of table '{out.suffix}'; expected a name ending in .md, .html or .svg"
        )
    if out.suffix == ".svg" and against is None:
        raise UserError(f"{out}: a picture shows distances from a row; name it with --against ROW")


def score(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    split: Split,
    data: Data = None,
    task: str = "r2r",
    json: Json = False,
    per_episode: Path | None = None,
    partial: bool = False,
    allow_jumps: bool = False,
    keep_repeats: bool = False,
) -> None:
    """Score a result file (leaderboard or DUET style, plain or .gz).

    Args:
        file: the result file.
        task: which task the split belongs to: r2r, r4r, reverie.
        per_episode: write the metrics of every instruction to this file as JSON lines.
        partial: allow instructions without a trajectory.
        allow_jumps: charge steps without an edge the geodesic distance instead of refusing them.
        keep_repeats: do not merge repeated viewpoints before nDTW and SDTW.
    """
    found = api.score(
        file,
        split,
        data=data,
        task=task,
        partial=partial,
        allow_jumps=allow_jumps,
        keep_repeats=keep_repeats,
        progress=console.progress_bar,
    )
    if per_episode is not None:
        with atomic_file(per_episode) as unfinished, unfinished.open("wb") as stream:
            for instruction_id, metrics in found.per_episode.items():
                stream.write(msgspec.json.encode({"instr_id": instruction_id, **metrics}) + b"\n")
    if json:
        console.print_json(found.summary())
    else:
        missing = f", {found.missing} missing" if found.missing else ""
        console.output.print(console.metric_table(f"{split}: {found.n} instructions{missing}", found.metrics))


def submit(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")],
    split: Split,
    out: Path,
    data: Data = None,
    task: str = "r2r",
    checkpoint: Checkpoint = "last",
    device: Device = "cpu",
) -> None:
    """Validate results (start, ids, every edge) and write the leaderboard file.

    Nothing is written when anything is wrong; the error names the instruction, the step and the viewpoints.
    Headings and elevations are filled in where the results lack them.

    Args:
        source: a run folder, weights:NAME, or a result file in leaderboard or DUET style, plain or .gz.
        out: the leaderboard file to write.
        task: which task a result file belongs to: r2r, r4r, reverie; a run has its own.
    """
    console.use_threads(1)
    if not source.exists():
        raise UserError(f"{source}: no such run folder and no such result file")
    if source.is_dir():
        console.existing_run(source, data, checkpoint)
        check_device(device)
    folder = console.open_data(data)
    if source.is_dir():
        opened = open_run(RunFolder(source), folder, checkpoint, console.progress_bar, device)
        world, walks = opened.world, opened.walk(split)
        episodes, trajectories = walks.episodes, walks.trajectories(world)
    else:
        world = load_world(folder.connectivity)
        episodes, trajectories = load_split(folder, world, task, split), read_trajectories(source)
    checked = check_walks(world, episodes, trajectories, source=source)
    count = write_trajectories(out, with_angles(world, episodes, trajectories, checked))
    console.say(f"{out}: {count} trajectories; every start, id and edge is right")


def weights(json: Json = False) -> None:
    """List the weights that come with SceneMem; ``weights:NAME`` stands for a run in every command."""
    found = published()
    if json:
        console.print_json(
            {
                entry.name: {**entry.description, "track": entry.track, "metrics": entry.metrics}
                for entry in found
            }
        )
        return
    for what, columns, speaks in (("agents", AGENT_METRICS, False), ("speakers", SPEAKER_METRICS, True)):
        rows = [
            (entry.name, entry.track or "unknown", split, *(f"{metrics[name]:.3f}" for name in columns))
            for entry in found
            if entry.is_speaker is speaks
            for split, metrics in entry.metrics.items()
        ]
        title = f"published {what}; '{PREFIX}NAME' stands for a run"
        console.print_whole(title, ("name", "track", "split", *columns), rows, kept=3)


def weights_pack(
    run: Run,
    out: Path,
    data: Data = None,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    checkpoint: Checkpoint = "last",
    device: Device = "cpu",
) -> None:
    """Pack the weights of a run in half precision, measure them, and write them with a model card.

    Args:
        out: the file to write, NAME.safetensors, with its card NAME.md beside it; or a folder, which gets the
            layout of the Hugging Face Hub: model.safetensors, config.json and README.md.
        splits: where to measure them.
    """
    if out.suffix not in ("", ".safetensors"):
        raise UserError(
            f"{out}: the name of packed weights ends in .safetensors, that of a folder in nothing"
        )
    console.use_threads(1)
    console.existing_run(run, data, checkpoint)
    check_device(device)
    what = RunFolder(run), out, console.open_data(data), splits, checkpoint
    file, *cards = pack_weights(*what, console.progress_bar, device)
    console.say(f"{file} ({file.stat().st_size / 1e6:.1f} MB) and {', '.join(map(str, cards))}")
    if not out.suffix:
        console.say_next(read_published(file).command, f"weights:{out}{'' if '/' in str(out) else '/'}")
