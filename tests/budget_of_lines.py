"""How many lines there may be, and how many of them a verb may import.

`python -m tests.budget_of_lines` prints the lines of each room and verb. A budget is raised only
with a reason at its line.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mimokit.extra_rooms import room_of
from tests.reach import Module, Place, modules_in, reached

ROOT = Path(__file__).parents[1]
WIDGETS = "mimokit_widgets"
PACKAGES = ROOT / "mimokit", ROOT / "widgets" / WIDGETS

VERBS: dict[str, Place] = {
    "plan": ("mimokit.planning.layout", "plan_layout"),
    "training rank": ("mimokit.experiment.on_rank", "train_rank"),
    "verify": ("mimokit.experiment.verification", "verify"),
}
"""Verb -> what does it. `verify` reaches what it calls on ranks."""
BUDGETS = {
    "plan": 12_987,  # 35 are the table of rooms beside the core
    "training rank": 33_910,  # goal 30,000; 80 are fused kernels of GPUs
    "verify": 44_915,  # goal 40,000; 300 are the private network of ranks and guarded readers
    "core": 75_979,
    "mimokit": 101_745,  # goal 90,000; guards, samples, GPUs; 95 what rooms are asked by
    "widgets": 9_160,  # what-if, config.json, samples, digits that travel; 25 ask for rooms
    "JavaScript": 7_304,  # Play in the stepper; 5,500 likewise
}
"""What is counted -> the most lines."""


def counted(modules: Mapping[str, Module]) -> dict[str, int]:
    """Return the lines of all that has a budget.

    The core is what a layout is planned, run, proved and drawn with: `mimokit` without the rooms of
    `mimokit.extra_rooms.ROOMS`, which it does not import and works without. Widgets are no part of
    it.
    """
    rooms = lines_per_room(modules)
    widgets = sum(lines for room, lines in rooms.items() if room.startswith("mimokit_widgets"))
    package = {name: each for name, each in modules.items() if not name.startswith(WIDGETS)}
    core = sum(each.lines for name, each in package.items() if room_of(name) is None)
    scripts = [file for package in PACKAGES for file in package.rglob("*.js")]
    return {
        **{verb: _lines_reached(modules, start) for verb, start in VERBS.items()},
        "core": core,
        "mimokit": rooms.total() - widgets,
        "widgets": widgets,
        "JavaScript": sum(len(file.read_text().splitlines()) for file in scripts),
    }


def _lines_reached(modules: Mapping[str, Module], start: Place) -> int:
    return sum(modules[name].lines for name in reached(modules, [start]))


def lines_per_room(modules: Mapping[str, Module]) -> Counter[str]:
    """Return room -> lines; each room beside the core is its own, without its widgets."""
    rooms = Counter[str]()
    for name, module in modules.items():
        beside = None if name.startswith(WIDGETS) else room_of(name)
        rooms[".".join(name.split(".")[:2]) if beside is None else f"beside: {beside}"] += (
            module.lines
        )
    return rooms


def over_budget(lines: Mapping[str, int]) -> list[str]:
    """Return a sentence for all that has more lines than it may have."""
    return [
        f"{what} has {lines[what]:,} lines and may have {most:,}"
        for what, most in BUDGETS.items()
        if lines[what] > most
    ]


if __name__ == "__main__":
    known = modules_in(*PACKAGES)
    for room, lines in sorted(lines_per_room(known).items()):
        print(f"{room:32}{lines:9,}")
    totals = counted(known)
    for what, lines in totals.items():
        print(f"{what:32}{lines:9,} of {BUDGETS[what]:9,}")
    sys.exit("\n".join(over_budget(totals)) or None)
