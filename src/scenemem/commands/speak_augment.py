"""``scenemem speak augment RUN``: describe new paths of the training buildings and write them as episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from scenemem.agents.policy import Chooser, Sample, take_best
from scenemem.commands.console import output, print_json, progress_bar, use_threads
from scenemem.commands.speak_eval import open_speaker
from scenemem.errors import UserError
from scenemem.formats.episodes import Episode, write_episodes
from scenemem.learning.speaker_voice import Speaker
from scenemem.tasks.episode_set import Batches
from scenemem.tasks.paths import PathPool, path_pool, shortest_paths
from scenemem.world.graph import HEADINGS, STEP
from scenemem.world.graph import NONE

FIRST_PATH_ID = 10_000_000
"""Path ids count from here, so that they meet none of the public data sets'."""

_BATCH = 128


def speak_augment(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path,
    data: Path | None = None,
    *,
    count: int = 10_000,
    seed: int = 0,
    sample: bool = False,
    checkpoint: Literal["best", "last"] = "best",
    threads: int = 1,
    json: bool = False,
) -> None:
    """Describe random shortest paths of the buildings the speaker learnt in; write an R2R-format file.

    The paths come from the pool of all shortest paths with 4 to 6 edges and 5 m or more, in random order;
    none comes twice before all have come once. Walkers start with a random heading.

    Args:
        run: the run folder of a speaker.
        out: the episode file to write; gzipped when its name ends in .gz.
        data: the data folder; the embedded houses when left out.
        count: how many paths.
        seed: of paths, headings and sampled words.
        sample: draw words by their probability instead of taking the most likely ones.
        checkpoint: the weights that did best on the run's selection split, or its last ones.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        json: print one JSON object instead of text.
    """
    use_threads(threads)
    if count < 1:
        raise UserError(f"--count must be 1 or more, got {count}")
    speaking = open_speaker(run, data, checkpoint)
    pool = path_pool(speaking.sight.world, speaking.training_scans)
    randomness = torch.Generator().manual_seed(seed)
    choose = Sample(randomness) if sample else take_best
    begun = time.perf_counter()
    with progress_bar("describing paths") as progress:
        written = write_episodes(
            out,
            augmented(speaking.speaker, pool, count, seed, randomness, choose=choose, progress=progress),
        )
    speed = written / (time.perf_counter() - begun)
    if json:
        print_json({"out": str(out), "count": written, "pool": len(pool), "paths_per_second": round(speed)})
    else:
        text = f"{out}: {written:,} of {len(pool):,} paths described, {speed:.0f} per second"
        output.print(text, highlight=False, soft_wrap=True)


def augmented(
    speaker: Speaker,
    pool: PathPool,
    count: int,
    seed: int,
    randomness: torch.Generator,
    *,
    choose: Chooser = take_best,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Episode]:
    """Descriptions of ``count`` paths of a pool, as episodes, some at a time."""
    world, done = speaker.sight.world, 0
    batches = Batches(len(pool), _BATCH, seed)
    while done < count:
        rows = next(batches)[: count - done].to(world.device)
        path, _ = shortest_paths(world, pool.start[rows], pool.goal[rows])
        heading = torch.randint(HEADINGS, (len(rows),), generator=randomness).to(world.device) * STEP
        metres = world.geodesic(pool.start[rows], pool.goal[rows])
        texts = speaker.texts(speaker.describe(path, heading, choose=choose).tokens)
        columns = zip(path.tolist(), heading.tolist(), metres.tolist(), texts, strict=True)
        for number, (places, angle, length, text) in enumerate(columns, start=FIRST_PATH_ID + done):
            yield Episode(
                scan=world.scans[int(world.scan_of[places[0]])],
                path_id=number,
                path=tuple(world.viewpoints[place] for place in places if place != NONE),
                heading=angle,
                instructions=(text,),
                instruction_ids=(f"{number}_0",),
                distance=length,
            )
        done += len(rows)
        if progress is not None:
            progress(done, count)
