"""How much the planner takes on: above it a single edit would take longer than a blink."""

import math
from collections.abc import Iterator
from typing import TypeGuard

from mimokit.axes import CONFIG_FIELDS, GRID_AXES
from mimokit.config import Problem
from mimokit.planning.message_tags import ROOM
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.paths import SIZES, mapping_at, value_at

MOST_MODULES = 64
MOST_RANKS = 131_072
MOST_STAGE_STEPS = 20_000
"""Pipeline stages of all modules times micro-batches."""
MOST_SAMPLES = 10**9
MOST_CHARACTERS = 100_000
MOST_RANKS_PER_NODE = 1_024

CUTS = tuple(CONFIG_FIELDS[axis] for axis in GRID_AXES)
"""The sizes whose product is a module's ranks."""


def limit_problems(draft: Draft) -> Iterator[Problem]:
    """Yield what is beyond the planner, before anything is planned."""
    modules = mapping_at(draft.content, SIZES)
    if len(modules) > MOST_MODULES:
        yield Problem(
            "model",
            "module_parallelisms",
            len(modules),
            f"Section 'model': module_parallelisms has {len(modules):,} modules; the planner "
            f"shows at most {MOST_MODULES}.",
        )
        return
    yield from _node_problems(draft)
    yield from _batch_problems(draft)
    yield from _rank_problems(draft)
    yield from _pipeline_problems(draft)


def _node_problems(draft: Draft) -> Iterator[Problem]:
    typed = draft.ranks_per_node
    if not _whole(typed) or not 1 <= typed <= MOST_RANKS_PER_NODE:
        shown = f"the text '{typed}'" if isinstance(typed, str) else typed
        shown = "empty" if typed is None else shown
        yield Problem(
            "world",
            "ranks_per_node",
            typed,
            f"World: ranks per node is {shown}; it must be a whole number from 1 to "
            f"{MOST_RANKS_PER_NODE:,}.",
        )


def _batch_problems(draft: Draft) -> Iterator[Problem]:
    for name, value in mapping_at(draft.content, ("data",)).items():
        if _whole(value) and value > MOST_SAMPLES:
            yield Problem(
                "data",
                str(name),
                value,
                f"Section 'data': {name} is {_digits(value)}; the planner takes at most "
                f"{MOST_SAMPLES:,}.",
            )


def _rank_problems(draft: Draft) -> Iterator[Problem]:
    world = draft.world_size
    if _whole(world) and world > MOST_RANKS:
        yield Problem("world", "world_size", world, _too_many("World: world_size", world))
    for name, sizes in mapping_at(draft.content, SIZES).items():
        if not isinstance(sizes, dict):
            continue
        end = _number(sizes.get("rank_offset"), 0) + math.prod(
            max(1, _number(sizes.get(field))) for field in CUTS
        )
        if end > MOST_RANKS:
            # What is largest is what was mistyped.
            field = max(("rank_offset", *CUTS), key=lambda field: _number(sizes.get(field)))
            yield Problem(
                str(name),
                field,
                sizes.get(field),
                f"Module '{name}': {field} is {_digits(sizes.get(field))}, so its ranks end at "
                f"{_digits(end)}; the planner takes at most {MOST_RANKS:,} ranks.",
            )


def _pipeline_problems(draft: Draft) -> Iterator[Problem]:
    microbatches = value_at(draft.content, ("data", "num_microbatches"))
    if not _whole(microbatches) or microbatches > MOST_SAMPLES:
        return
    stages = sum(
        _number(sizes.get("pipeline_parallel", 1))
        for sizes in mapping_at(draft.content, SIZES).values()
        if isinstance(sizes, dict)
    )
    if stages * microbatches > MOST_STAGE_STEPS and microbatches > 1:
        most = max(1, MOST_STAGE_STEPS // max(1, stages))
        if value_at(draft.content, ("model", "deployment_mode")) == "heterogeneous":
            most = min(most, ROOM["microbatch"])  # so that one fix rights it
        yield Problem(
            "data",
            "num_microbatches",
            microbatches,
            f"Section 'data': num_microbatches is {microbatches:,} over {stages} pipeline stages; "
            f"the planner puts at most {most:,} in order.",
            {"path": "data.num_microbatches", "value": most},
        )


def _too_many(what: str, value: object) -> str:
    return f"{what} is {_digits(value)}; the planner takes at most {MOST_RANKS:,} ranks."


def _digits(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 24 else f"a number of {len(str(value))} digits"


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object, otherwise: int = 1) -> int:
    return value if _whole(value) else otherwise
