"""Walking an agent over an episode set, every viewpoint recorded."""

from __future__ import annotations

from collections.abc import Callable

from scenemem.agents.scripted import Agent
from scenemem.formats.submission import Point, Trajectory
from scenemem.simulator.panorama import Simulator, Track
from scenemem.tasks.batches import in_order
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.geometry import view_elevation, view_heading
from scenemem.world.graph import World


def walk_episodes(
    world: World,
    episodes: EpisodeSet,
    agent: Agent,
    *,
    max_hops: int = 60,
    batch_size: int = 512,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """The trajectories of ``agent`` on all ``episodes``, in their order.

    Args:
        world: the world the episodes are bound to.
        episodes: what to walk.
        agent: who walks.
        max_hops: an agent that has not stopped by then is stopped where it is.
        batch_size: episodes walked at once.
        progress: called with (episodes done, episodes in all).
    """
    trajectories: list[Trajectory] = []
    for rows in in_order(len(episodes), batch_size):
        batch = episodes.select(rows)
        track = _walk(Simulator(world), batch, agent, max_hops)
        trajectories.extend(_trajectories(world, batch, track))
        if progress is not None:
            progress(len(trajectories), len(episodes))
    return trajectories


def _walk(simulator: Simulator, batch: EpisodeSet, agent: Agent, max_hops: int) -> Track:
    stance = simulator.reset(batch.start, batch.heading)
    track = Track(stance)
    agent.begin(batch)
    for _ in range(max_hops):
        stance = simulator.step(stance, agent.act(stance))
        track.append(stance)
        if bool(stance.done.all()):
            break
    return track


def _trajectories(world: World, batch: EpisodeSet, track: Track) -> list[Trajectory]:
    viewpoint, view, length = track.walked()
    columns = (
        viewpoint.tolist(),
        view_heading(view).tolist(),
        view_elevation(view).tolist(),
        length.tolist(),
    )
    return [
        Trajectory(
            instruction_id,
            tuple(
                Point(world.viewpoints[place], heading, elevation)
                for place, heading, elevation in zip(places[:hops], headings, elevations, strict=False)
            ),
        )
        for instruction_id, places, headings, elevations, hops in zip(
            batch.instruction_ids, *columns, strict=True
        )
    ]
