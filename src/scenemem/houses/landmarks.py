"""Everything one can name on the way: things, windows and front doors, under one numbering."""

from __future__ import annotations

from scenemem.houses.records import STOREY, Box, Door, House, Thing, Window

SILL, PANE_TOP = 0.9, 2.1  # of windows, above the floor


def landmarks(house: House) -> tuple[Thing, ...]:
    """Things, then windows, then front doors; the latter as flat boxes in their wall."""
    panes = (
        _in_wall(house, pane, pane.room, SILL, PANE_TOP, "window", "blue", "glass") for pane in house.windows
    )
    shut = (
        _in_wall(house, door, door.rooms[0], 0.0, door.height, "front door", door.colour, "wood")
        for door in front_doors(house)
    )
    return (*house.things, *panes, *shut)


def window_number(house: House, window: int) -> int:
    """The landmark number of a window."""
    return len(house.things) + window


def front_door_number(house: House, door: Door) -> int:
    """The landmark number of a front door."""
    return len(house.things) + len(house.windows) + front_doors(house).index(door)


def front_doors(house: House) -> tuple[Door, ...]:
    """The shut doors that lead out of the house."""
    return tuple(door for door in house.doors if door.style == "front door")


def _in_wall(
    house: House,
    opening: Door | Window,
    number: int,
    bottom: float,
    top: float,
    kind: str,
    colour: str,
    material: str,
) -> Thing:
    room = house.rooms[number]
    z0, z1 = room.floor * STOREY + bottom, room.floor * STOREY + top
    x, y, half = opening.x, opening.y, opening.width / 2
    if opening.across == "x":
        box, facing = Box(x, y - half, z0, x, y + half, z1), (1 if room.rect.centre[0] > x else -1, 0)
    else:
        box, facing = Box(x - half, y, z0, x + half, y, z1), (0, 1 if room.rect.centre[1] > y else -1)
    return Thing(kind, colour, material, number, box, facing)
