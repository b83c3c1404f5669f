"""The words instructions are made of; many ways to say the same."""

from __future__ import annotations

WALK = ("walk", "go", "head", "move", "continue", "proceed", "keep going")
EXIT = (
    "exit",
    "leave",
    "walk out of",
    "go out of",
    "step out of",
    "get out of",
    "head out of",
    "come out of",
)
ENTER = ("enter", "go into", "walk into", "step into", "head into", "move into", "come into")
STOP = ("stop", "stop", "wait", "stop and wait", "come to a stop", "you should stop", "halt", "pause")
TURN = {
    "left": ("turn left", "turn left", "make a left", "take a left", "turn to the left", "turn to your left"),
    "right": (
        "turn right",
        "turn right",
        "make a right",
        "take a right",
        "turn to the right",
        "turn to your right",
    ),
    "around": ("turn around", "turn around", "make a u-turn"),
}
BEAR = {
    "left": ("bear left", "turn slightly left", "veer left", "turn left a little"),
    "right": ("bear right", "turn slightly right", "veer right", "turn right a little"),
}
AHEAD = ("forward", "straight", "straight ahead", "ahead", "straight on")
TOWARDS = ("towards", "toward", "in the direction of")
BESIDE = ("next to", "beside", "by", "near", "close to", "alongside")
REACHED = ("at", "when you reach", "once you get to", "when you come to")
"""Before a landmark where one turns; followed by a comma."""

PAST = (
    "walk past",
    "go past",
    "head past",
    "continue past",
    "go by",
    "walk by",
    "pass",
    "move past",
    "keep going past",
)
DOORWAY = ("door", "doorway", "entrance")
ORDINALS = ("first", "second", "third", "fourth", "fifth")
LINK = (" and ", ", then ", " and then ")
OPENERS = ("Then ", "Next, ", "After that, ", "From there, ", "Now ", "Afterwards, ", "And then ")
"""Beginnings of sentences after the first."""
