"""Speed of training and walking: python -m benchmarks.train ssm basic --data DIR --features NAME"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tyro

from benchmarks.machine import MEGABYTE, Case, Options, command
from benchmarks.measure import Speed, measure
from benchmarks.workload import MODES, PAPER_COLUMNS, Mode, Width, Workload, preset_at
from scenemem.errors import UserError


@dataclass(frozen=True)
class TrainOptions(Options):
    """Measure training and greedy walking of presets, with counted arithmetic."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = ("ssm", "basic")
    """which agents"""
    widths: tuple[Width, ...] = ("everyday", "paper")
    """everyday takes the presets as they are, paper gives them the sizes of the paper"""
    batches: tuple[int, ...] = (16, 64)
    """episodes per step; each size is measured"""
    modes: tuple[Mode, ...] = MODES
    """teacher-forced, sampled and mixed training, greedy walking"""
    columns: int | None = None
    """use made-up features so many columns wide; at the paper's width 2048 unless given"""
    reference_observations: dict[str, float] = field(default_factory=dict)
    """observations per episode of the reference by mode, for ratios per observation: sampled 12 greedy 8"""
    trace: Path | None = None
    """also write one step of the last mode as a trace of torch's profiler, with a range per part"""
    batch: tyro.conf.Suppress[int] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.presets and self.widths and self.batches and self.modes):
            raise UserError("presets, --widths, --batches and --modes need at least one value each")
        if min(self.batches) < 1 or (self.columns is not None and self.columns < 1):
            raise UserError(
                f"--batches and --columns must be 1 or more, got {self.batches} and {self.columns}"
            )


@dataclass(frozen=True)
class Reference:
    """Speed of another implementation at the paper's width with 2048 columns, on one core, without the time
    its simulator takes.
    """

    agent: str
    mode: Mode
    episodes_per_second: float
    source: str
    observations: float | None = None  # per episode of its walks; None where they were not counted
    same_walks: bool = False  # both follow the reference paths


_RELEASED = "released code of the SSM paper, batch 16"
_E_DROPOUT = "a public implementation of the base agent (E-Dropout), batch 64"
REFERENCES = (
    Reference("ssm", "teacher", 0.51, _RELEASED, same_walks=True),
    Reference("ssm", "sampled", 0.165, _RELEASED, observations=12.6),
    Reference("ssm", "greedy", 0.49, _RELEASED, observations=10.8),
    Reference("basic", "teacher", 36.0, _E_DROPOUT, same_walks=True),
    Reference("basic", "mixed", 24.0, _E_DROPOUT),
    Reference("basic", "greedy", 80.0, _E_DROPOUT),
)


def compared(
    speed: Speed, agent: str, columns: int, mode: Mode, observations: float | None = None
) -> dict[str, Any]:
    """Our normalised speed as a multiple of the reference; nothing where there is none.

    Args:
        speed: ours.
        agent: name of the agent.
        columns: of the features.
        mode: how it walked.
        observations: per episode of the reference, instead of those known.
    """
    found = [row for row in REFERENCES if (row.agent, row.mode, PAPER_COLUMNS) == (agent, mode, columns)]
    if not found:
        return {}
    ours, ratio = speed.observations_per_episode, speed.normalised_episodes_per_second
    ratio /= found[0].episodes_per_second
    theirs = ours if found[0].same_walks else observations or found[0].observations
    return {
        "reference_episodes_per_second": found[0].episodes_per_second,
        "reference_observations_per_episode": theirs,
        "times_reference": ratio,
        "times_reference_per_observation": None if theirs is None else ratio * ours / theirs,
    }


def measure_training(options: TrainOptions) -> list[Case]:
    """A case per preset, width and batch size."""
    wanted = [(preset_at(name, width), name, width) for name in options.presets for width in options.widths]
    cases = []
    for preset, name, width in wanted:
        columns = options.columns or (PAPER_COLUMNS if width == "paper" else None)
        for batch in options.batches:
            print(f"{name}, {width} width, batch {batch}", file=sys.stderr)
            load = Workload(preset, replace(options, batch=batch), columns)
            network, environment = load.agent.network, load.agent.environment
            speeds = measure({mode: load.work(mode) for mode in options.modes}, network, options)
            case: Case = {
                "preset": name,
                "width": width,
                "batch": batch,
                "feature_columns": environment.width,
                "features": environment.store.info.encoder,
                "store_megabytes": environment.store.values.nbytes / MEGABYTE,
                "parameters": sum(weights.numel() for weights in network.parameters()),
                "episodes": len(load.episodes),
                "scans": len(environment.world.scans),
                "modes": {},
            }
            for mode in options.modes:
                observations = options.reference_observations.get(mode)
                ratios = compared(speeds[mode], preset.agent, environment.width, mode, observations)
                case["modes"][mode] = {**msgspec.to_builtins(speeds[mode]), **ratios}
            cases.append(case)
            if options.trace is not None:
                load.trace(options.modes[-1], options.trace)
    return cases


if __name__ == "__main__":
    command(TrainOptions, measure_training)
