"""``scenemem eval``, ``follow``, ``compare``, ``score``, ``submit``, ``weights``: results in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.table import Table
from tyro.conf import Positional, arg

from scenemem import api
from scenemem.agents.scripted import SCRIPTED
from scenemem.commands import console
from scenemem.commands.console import (
    WALKING,
    Data,
    FileTask,
    Json,
    Processes,
    Run,
    Runs,
    Split,
    Walking,
    progress_bar,
)
from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.evaluate import Evaluation
from scenemem.evaluation.following import OWN, GroundingQuality
from scenemem.evaluation.score import check_walks, with_angles
from scenemem.formats.atomic import atomic_file
from scenemem.formats.results import read_trajectories, write_trajectories
from scenemem.runs.experiment import find_split
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import LoadedAgent, evaluate_scripted
from scenemem.runs.weights import (
    AGENT_METRICS,
    PREFIX,
    SPEAKER_METRICS,
    pack_weights,
    published,
    read_published,
)
from scenemem.world.build import load_world
from scenemem.zoo.reranking import Reranking


def eval_run(
    run: Annotated[str, Positional, arg(metavar="RUN")],
    split: Split = "val_unseen",
    walking: Walking = WALKING,
    *,
    out: Path | None = None,
    traces: int = 0,
    task: str = "r2r",
    seed: int = 0,
    processes: Processes = 1,
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
    console.use_threads(walking.threads)
    console.at_least_one(processes=processes)
    if speaker is None and candidates != 1:
        raise UserError(f"--candidates {candidates} needs a --speaker to help choose among them")
    where = f"{run} on {task} {split}"
    if run in SCRIPTED:
        if traces or out is not None:
            raise UserError(f"'{run}' is no run and keeps nothing; leave out --out and --traces")
        if speaker is not None:
            raise UserError(f"'{run}' draws no candidates; --speaker needs a trained run")
        folder = console.open_data(walking.data)
        found = evaluate_scripted(run, folder, task, split, seed, progress_bar)
    else:
        (agent,) = walking.load(Path(run)).values()
        chosen: dict[str, Any] = {"candidates": candidates, "speaker_weight": speaker_weight, "seed": seed}
        found, written = agent.record(
            split, out=out, traces=traces, processes=processes, speaker=speaker, **chosen
        )
        where = f"{run} on {_walked(agent, split)}"
        for file in written:
            console.say(f"written to {file}")
    title = f"{where}: {found.n} instructions, {found.jumps:.2f} jumps each"
    console.show(json, found.summary(), _evaluation_table(title, found))


def _walked(agent: LoadedAgent, split: str) -> str:
    """What an agent walks, and what it perceives."""
    return f"{agent.preset.data.task} {split}, track {agent.experiment.track or 'unknown'}"


def _evaluation_table(title: str, found: Evaluation) -> Table:
    """All metrics; below a line what was walked besides the answers that a speaker helped to choose."""
    table, chosen = console.metric_table(title, found.metrics), found.reranking
    if chosen is not None and "all_walked" not in chosen:
        table.caption = f"{chosen['speaker']} helped to choose where searches end"
    elif chosen is not None:
        all_walked, count = chosen["all_walked"], chosen["candidates"]
        table.add_section()
        table.add_row("TL, all walked", f"{all_walked['tl']:.2f} m", f"length of all {count} candidates")
        table.add_row("SPL, all walked", f"{all_walked['spl']:.3f}", "success, weighted with that length")
        table.caption = (
            f"the best of {count} walks per episode, not comparable with agents that walk once; "
            "metrics above the line are those of the walk chosen"
        )
    return table


def follow(
    run: Run,
    split: Split = "val_unseen",
    walking: Walking = WALKING,
    *,
    grounding: bool = False,
    json: Json = False,
) -> None:
    """Lead an agent along the reference paths and print how often it would have chosen what is right.

    Args:
        grounding: measure instead how well the word attention agrees with hand-made labels (lar2r/).
    """
    (agent,) = walking.load(run).values()
    where = f"{run} led along {_walked(agent, split)}"
    found: dict[str, Any] = {"split": split, "iteration": agent.iteration}
    if grounding:
        found["grounding"] = quality = agent.grounding(split)
        table = _grounding_table(where, quality)
    else:
        agreements = agent.following(split)
        found["following"] = {one.decisions: {"share": one.share, "of": one.of} for one in agreements}
        rows = [(one.decisions, f"{one.share:.3f}", f"{one.of:,}") for one in agreements]
        table = console.table(where, ("decision: what is right", "chosen", "of"), rows)
    console.show(json, found, table)


def _grounding_table(title: str, quality: GroundingQuality) -> Table:
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
    covered = quality.coverage
    caption = (
        f"{quality.episodes} instructions of {quality.paths} paths; {covered.measured} of {covered.labels} "
        f"labels measured: {covered.empty} are empty, {covered.beyond} point past the end, "
        f"{covered.cut} past what is read, {covered.unvisited} lie off the walk"
    )
    return console.table(title, header, rows, caption=caption)


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def compare(
    runs: Runs,
    split: Split = "val_unseen",
    walking: Walking = WALKING,
    *,
    against: str | None = None,
    again: bool = False,
    out: Path | None = None,
    processes: Processes = 1,
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
    console.at_least_one(processes=processes)
    if not runs:
        raise UserError("name at least one run folder: scenemem compare RUN RUN ...")
    if out is not None and out.suffix not in (".md", ".html", ".svg"):
        raise UserError(
            f"{out}: unknown kind of table '{out.suffix}'; expected a name ending in .md, .html or .svg"
        )
    if out is not None and out.suffix == ".svg" and against is None:
        raise UserError(f"{out}: a picture shows differences from a row; name it with --against ROW")
    folder = walking.open(*runs)
    where: dict[str, Any] = {"data": folder.root, "device": walking.device, "progress": progress_bar}
    how: dict[str, Any] = {"checkpoint": walking.checkpoint, "again": again, "processes": processes}
    comparison = api.compare(runs, split, against=against, **where, **how)
    counted = sum(row["sr"].n for row in comparison.rows.values())
    if kept := counted - comparison.walked:
        console.say(
            f"kept results of {kept} of {counted} runs are shown "
            "(agents with parts of a plugin always walk); --again walks with all of them"
        )
    for remark in comparison.remarks:
        console.say(f"note: {remark}")
    if out is not None:
        comparison.write(out)
        console.say(f"written to {out}")
    if not json:
        for shown in comparison.tables():
            console.print_whole(shown.caption, shown.head, shown.rows, kept=shown.head.index("sr"))
        return
    found: dict[str, Any] = {"split": split, "tracks": comparison.tracks}
    found |= {"cpu_seconds": comparison.cpu_seconds, "rows": comparison.rows}
    if against is not None:
        found["against"] = {against: comparison.distances}
        found["against_by_building"] = {against: comparison.by_building}
    console.print_json({**found, "remarks": comparison.remarks})


def score(
    file: Annotated[Path, Positional, arg(metavar="FILE")],
    split: Split,
    data: Data = None,
    task: FileTask = "r2r",
    json: Json = False,
    per_episode: Path | None = None,
    partial: bool = False,
    allow_jumps: bool = False,
    keep_repeats: bool = False,
) -> None:
    """Score a result file (leaderboard or DUET style, plain or .gz).

    Args:
        file: the result file.
        per_episode: write the metrics of every instruction to this file as JSON lines.
        partial: allow instructions without a trajectory.
        allow_jumps: charge steps without an edge the geodesic distance instead of refusing them.
        keep_repeats: do not merge repeated viewpoints before nDTW and SDTW.
    """
    rules = {"partial": partial, "allow_jumps": allow_jumps, "keep_repeats": keep_repeats}
    found = api.score(file, split, data=data, task=task, progress=progress_bar, **rules)
    if per_episode is not None:
        with atomic_file(per_episode) as unfinished, unfinished.open("wb") as stream:
            for instruction_id, metrics in found.per_episode.items():
                stream.write(msgspec.json.encode({"instr_id": instruction_id, **metrics}) + b"\n")
    missing = f", {found.missing} missing" if found.missing else ""
    title = f"{split}: {found.n} instructions{missing}"
    console.show(json, found.summary(), console.metric_table(title, found.metrics))


def submit(
    source: Annotated[Path, Positional, arg(metavar="RUN|FILE")],
    split: Split,
    out: Path | None = None,
    walking: Walking = WALKING,
    task: FileTask = "r2r",
    *,
    check: bool = False,
) -> None:
    """Validate results (start, ids, every edge) and write the leaderboard file.

    Nothing is written when anything is wrong; the error names the instruction, the step and the viewpoints.
    Headings and elevations are filled in where the results lack them.

    Args:
        source: a run folder, weights:NAME, or a result file in leaderboard or DUET style, plain or .gz.
        out: the leaderboard file to write.
        check: only validate; nothing is written.
    """
    if check is (out is not None):
        raise UserError("name the leaderboard file with --out FILE, or --check to write none; one of the two")
    if not source.exists():
        raise UserError(f"{source}: no such run folder and no such result file")
    if source.is_dir():
        (agent,) = walking.load(source).values()
        world, walks = agent.world, agent.walks(split)
        episodes, trajectories = walks.episodes, walks.trajectories(world)
    else:
        folder = walking.open()
        world = load_world(folder.connectivity)
        episodes, trajectories = find_split(folder, world, task, split), read_trajectories(source)
    checked = check_walks(world, episodes, trajectories, source=source)
    if out is not None:
        write_trajectories(out, with_angles(world, episodes, trajectories, checked))
    console.say(f"{out or source}: {len(trajectories)} trajectories; every start, id and edge is right")


def weights(json: Json = False) -> None:
    """List the weights that come with SceneMem; ``weights:NAME`` stands for a run in every command."""
    found = published()
    if json:
        facts = {one.name: {"track": one.track, "metrics": one.metrics} for one in found}
        console.print_json({one.name: {**one.description, **facts[one.name]} for one in found})
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
    walking: Walking = WALKING,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    licence: str = "",
) -> None:
    """Pack the weights of a run in half precision, measure them, and write them with a model card.

    Args:
        out: the file to write, NAME.safetensors, with its card NAME.md beside it; or a folder, which gets the
            layout of the Hugging Face Hub: model.safetensors, config.json and README.md.
        splits: where to measure them.
        licence: of the weights, for the card: mit, cc-by-nc-4.0, other, ...; a folder needs one.
    """
    if out.suffix not in ("", ".safetensors"):
        raise UserError(
            f"{out}: the name of packed weights ends in .safetensors, that of a folder in nothing"
        )
    what = RunFolder(run), out, walking.open(run), splits, walking.checkpoint
    file, *cards = pack_weights(*what, progress_bar, walking.device, licence)
    console.say(f"{file} ({file.stat().st_size / 1e6:.1f} MB) and {', '.join(map(str, cards))}")
    entry, data = read_published(file), () if walking.data is None else ("--data", walking.data)
    place = f"{PREFIX}{out}" if out.suffix or "/" in str(out) else f"{PREFIX}{out}/"
    console.say_next(entry.command, place, *data, "--split", entry.measured_on)
