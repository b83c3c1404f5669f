"""Several processes that walk with copies of one trained agent, for large splits."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType

import torch

from scenemem.agents.rollout import Rollout, joined
from scenemem.agents.trained import TrainedAgent
from scenemem.errors import UserError
from scenemem.experiment import stored_experiment
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet

_agent: TrainedAgent | None = None  # of a process of the crew


class Crew:
    """Walks as the agent of a checkpoint does, every process a share of the episodes; close it after use.

    Args:
        checkpoint: the weights.
        folder: the data folder.
        processes: how many; each computes with one thread.
    """

    def __init__(self, checkpoint: Path, folder: DataFolder, processes: int) -> None:
        self._processes = processes
        self._pool = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),  # a forked torch may hang
            initializer=_open,
            initargs=(checkpoint, folder.root),
        )

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes, in their order.

        Raises:
            UserError: a process was ended from outside.
        """
        rows = torch.arange(len(episodes)).chunk(self._processes)
        try:
            return joined(list(self._pool.map(_walk, [episodes.select(part) for part in rows])))
        except BrokenProcessPool as error:
            raise UserError(
                "a process of the evaluation is gone, perhaps for lack of memory; use fewer --processes"
            ) from error


def _open(checkpoint: Path, root: Path) -> None:
    global _agent
    torch.set_num_threads(1)
    _agent = stored_experiment(checkpoint, DataFolder(root))[0].agent


def _walk(episodes: EpisodeSet) -> Rollout:
    if _agent is None:
        raise RuntimeError("the process was not opened")
    return _agent.walk(episodes)
