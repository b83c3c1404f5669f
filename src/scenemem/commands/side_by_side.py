"""Training several presets at the same time, one process each, with a progress bar for each."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path

import torch
from rich.progress import Progress, TaskID

from scenemem.commands.console import training_bar
from scenemem.commands.train import run_training
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.learning.run_folder import RunFolder
from scenemem.learning.session import Glimpse
from scenemem.presets import Preset


@dataclass(frozen=True)
class News:
    """What a training process tells: a step, its end, or what went wrong."""

    name: str
    glimpse: Glimpse | None = None
    error: str | None = None


def train_side_by_side(
    presets: Mapping[str, Preset], folder: Path, out: Path, seed: int
) -> dict[str, RunFolder]:
    """Train every preset in a process of its own; runs that exist already are continued.

    Raises:
        UserError: a training failed; its message is passed on.
    """
    context = multiprocessing.get_context("spawn")
    news: Queue[News] = context.Queue()
    runs = {name: RunFolder(out / f"{name}-{seed}") for name in presets}
    processes = {
        name: context.Process(
            target=_train, args=(name, preset, folder, runs[name].root, seed, news), daemon=True
        )
        for name, preset in presets.items()
    }
    for process in processes.values():
        process.start()
    try:
        _follow(processes, news)
    finally:
        for process in processes.values():
            process.kill()  # harmless when it has ended
            process.join()
    return runs


def _train(name: str, preset: Preset, folder: Path, out: Path, seed: int, news: Queue[News]) -> None:
    torch.set_num_threads(1)
    run = RunFolder(out)
    try:
        run_training(
            name,
            preset,
            DataFolder(folder),
            run,
            seed=seed,
            resume=run.last.exists(),
            watch=lambda glimpse: news.put(News(name, glimpse)),
        )
        news.put(News(name))
    except UserError as error:
        news.put(News(name, error=str(error)))


def _follow(processes: Mapping[str, BaseProcess], news: Queue[News]) -> None:
    """Draw progress until every process has said that it is done."""
    running = set(processes)
    with training_bar() as bar:
        tasks = {name: bar.add_task(f"training {name}", total=None, facts="") for name in processes}
        while running:
            try:
                item = news.get(timeout=1.0)
            except queue.Empty:
                _check_alive(processes, running)
                continue
            if item.error is not None:
                raise UserError(f"training '{item.name}' failed: {item.error}")
            if item.glimpse is None:
                running.discard(item.name)
            else:
                _show(bar, tasks[item.name], item.glimpse)


def _check_alive(processes: Mapping[str, BaseProcess], running: set[str]) -> None:
    for name in sorted(running):
        if not processes[name].is_alive():
            raise UserError(
                f"training '{name}' ended with exit code {processes[name].exitcode}; "
                "is there enough memory? Start again to continue it"
            )


def _show(bar: Progress, task: TaskID, glimpse: Glimpse) -> None:
    facts = f"{glimpse.episodes_per_second:.0f} episodes/s"
    if glimpse.validation is not None:
        facts += f"  [green]SR {glimpse.validation['sr']:.3f}"
    bar.update(task, completed=glimpse.iteration, total=glimpse.iterations, facts=facts)
