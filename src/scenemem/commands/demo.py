"""``scenemem demo``: the embedded houses, agents that walk them, their metrics, and pictures to look at."""

from __future__ import annotations

from pathlib import Path

from scenemem.commands.console import console, open_data, output, progress_bar
from scenemem.commands.eval import scripted_agent
from scenemem.commands.tables import comparison_table
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import read_plan
from scenemem.houses.maps import draw_map
from scenemem.houses.pictures import draw_panorama
from scenemem.presets import SCRIPTED
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World


def demo(out: Path = Path("demo"), *, seed: int = 0) -> None:
    """Build the embedded houses, walk the expert, a random and a standing agent, print metrics, draw a route.

    Args:
        out: folder for the pictures.
        seed: of the random agent.
    """
    folder = open_data(None)
    world = load_world(folder.connectivity)
    for split in ("val_seen", "val_unseen"):
        episodes = load_split(folder, world, "r2r", split)
        rows = {}
        with progress_bar(f"walking {split}") as progress:
            for done, name in enumerate(SCRIPTED, start=1):
                walked = walk_split(scripted_agent(name, world, seed), episodes)
                rows[name] = walked.measured(world).means()
                progress(done, len(SCRIPTED))
        output.print(comparison_table(f"houses {split}: {len(episodes)} instructions", rows))
    _draw_route(folder, world, load_split(folder, world, "r2r", "val_unseen"), out)


def _draw_route(folder: DataFolder, world: World, episodes: EpisodeSet, out: Path) -> None:
    """The map of the first unseen house with its first route, and what one sees at the start."""
    start = int(episodes.start[0])
    scan = world.scans[int(world.scan_of[start])]
    house = read_plan(folder.root, scan)
    first = start - int(world.local[start])
    route = [int(place) - first for place in episodes.path[0] if int(place) >= 0]
    with atomic_file(out / "route.svg") as partial:
        partial.write_text(draw_map(house, route=route), encoding="utf-8")
    with atomic_file(out / "panorama.png") as partial:
        draw_panorama(house, route[0]).save(partial, format="PNG")
    console.print(
        f"\nA route through {scan}: {out / 'route.svg'}, seen from its start: {out / 'panorama.png'}"
    )
    console.print(f"It was described as: [italic]{episodes.texts[0]}[/]")
