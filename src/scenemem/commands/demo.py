"""``scenemem demo``: build the houses, train two agents, walk unseen houses, print and report."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import torch

from scenemem.agents.scripted import SCRIPTED
from scenemem.commands import console
from scenemem.commands.console import METRICS, open_data, progress_bar, say, say_next
from scenemem.errors import Interrupted
from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS
from scenemem.runs.comparison import METRICS as COLUMNS
from scenemem.runs.config import changed
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import LoadedAgent, evaluate_scripted, open_run
from scenemem.runs.pages import report_on
from scenemem.runs.training import Settings, run_training
from scenemem.runs.weights import find_run

SPLITS = ("val_seen", "val_unseen")
TRAINED = ("basic", "ssm")
PACKAGED = ("ssm-plus-houses",)
"""Weights that are shown beside what the demo trains."""
EXPECT = (
    "basic is the paper's baseline and ssm its agent, both after few steps. Expect ssm to come near the goal "
    "more often (OSR) and to walk farther (TL), and about as much success (SR) or a little more. "
    "ssm-plus has our additions and learnt longer."
)


def demo(out: Path = Path("demo"), *, iterations: int = 300, seed: int = 0, replays: bool = True) -> None:
    """Build the embedded houses, train two agents, and evaluate them in houses they never saw.

    A demo that was interrupted goes on where it stopped; one that is finished only evaluates again.

    Args:
        out: folder for runs and the report.
        iterations: training steps of each agent; after a few hundred ssm comes near the goal more often, and
            more make both better.
        seed: of weights, batches, dropout, sampling and the random agent.
        replays: write replays of telling episodes, both agents side by side, beside the report.
    """
    torch.set_num_threads(1)  # threads that wait for each other beside another program are far slower
    folder = open_data(None, quiet=True)
    pause = max(1, iterations // 4)  # four validations
    short = {"learning": {"iterations": iterations}, "selection": {"every": pause, "save_every": pause}}
    say(f"Two agents learn, {iterations} steps each, and then walk houses they never saw.")
    runs = {name: RunFolder(out / "runs" / f"{name}-{seed}") for name in TRAINED}
    try:
        for name, run in runs.items():
            with console.training_bar(name, "sr") as watch:
                settings = Settings(name, changed(PRESETS[name], short), seed)
                run_training(settings, folder, run, resume=True, watch=watch)
    except KeyboardInterrupt as stopped:
        kept = f"what was learnt is kept in {out / 'runs'}, and the same command goes on from there"
        raise Interrupted(f"interrupted; {kept}", getattr(stopped, "number", signal.SIGINT)) from None
    runs |= {name: find_run(f"weights:{name}") for name in PACKAGED}
    opened = {name: open_run(run, folder, "last", progress_bar) for name, run in runs.items()}
    references = {split: _evaluate(folder, opened, split, seed) for split in SPLITS}
    say(EXPECT)
    page = report_on(
        list(runs.values()),
        folder,
        out / "report.html",
        splits=SPLITS,
        references=references,
        replays=replays,
        progress=progress_bar,
    )
    say(f"The report: {page}")
    say_next("view", runs["ssm"].root, runs["basic"].root)
    needed = "" if find_spec("uvicorn") else "needs: pip install 'scenemem[serve]'"
    say_next("serve", runs["ssm"].root, note=needed)


def _evaluate(
    folder: DataFolder, opened: dict[str, LoadedAgent], split: str, seed: int
) -> dict[str, dict[str, float]]:
    """Walk every agent over a split, print the table and return the scores of the agents without a run."""
    scripted = {name: evaluate_scripted(name, folder, "r2r", split, seed, progress_bar) for name in SCRIPTED}
    trained = {name: run.evaluate(split) for name, run in opened.items()}
    rows = [
        (agent, *(f"{found.metrics[name]:.3f}" for name in COLUMNS))
        for agent, found in (scripted | trained).items()
    ]
    title = f"houses {split}: {scripted['expert'].n} instructions"
    console.print_whole(title, ("agent", *(METRICS[name][0] for name in COLUMNS)), rows)
    return {name: found.metrics for name, found in scripted.items()}
