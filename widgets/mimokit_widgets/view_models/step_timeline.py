"""A predicted step on the clock: what the planner draws beneath its bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mimokit.charts._palette import STEP_COLORS, module_colors

if TYPE_CHECKING:
    from mimokit.prediction import Block, PredictedTimeline

MOST_BLOCKS = 1_200
MOST_LANES = 32
TICKS = 5
FORWARD, BACKWARD = "66", "d9"
"""Opacities in hex; a backward is also the longer one."""
NONE = "No timeline is drawn: it would have too many micro-batches to distinguish."


def step_timeline(timeline: PredictedTimeline | None, modules: tuple[str, ...]) -> dict[str, Any]:
    """Return a line per stage with a block for whatever it does, from 0 to 1 of what is shown.

    Args:
        timeline: from `mimokit.prediction.predict_timeline`.
        modules: in the order in which they have colours elsewhere.
    """
    if timeline is None:
        return {"lanes": [], "ticks": [], "legend": [], "sentence": NONE}
    blocks = [block for block in timeline.blocks if block.lane < MOST_LANES]
    until = _until(blocks, timeline.seconds)
    colors = _colors(modules)
    lanes: list[dict[str, Any]] = [
        {"name": name, "blocks": []} for name in timeline.lanes[:MOST_LANES]
    ]
    for block in blocks:
        if block.start < until:
            lanes[block.lane]["blocks"].append(_drawn(block, until, colors))
    used = {_kind(block) for block in blocks}
    return {
        "lanes": lanes,
        "ticks": [_seconds(until * tick / (TICKS - 1)) for tick in range(TICKS)],
        "legend": [
            {"name": name, "color": color} for name, color in colors.items() if name in used
        ],
        "sentence": _sentence(timeline, until),
    }


def _until(blocks: list[Block], seconds: float) -> float:
    """Return the end of what is shown: of a long step the beginning."""
    if len(blocks) <= MOST_BLOCKS:
        return seconds
    return sorted(block.stop for block in blocks)[MOST_BLOCKS]


def _colors(modules: tuple[str, ...]) -> dict[str, str]:
    """Return the colour of everything that a block can be, by what the legend calls it."""
    colors: dict[str, str] = {}
    for name, hue in module_colors(modules).items():
        colors |= {f"{name} forward": hue + FORWARD, f"{name} backward": hue + BACKWARD}
    return {**colors, "bridge": STEP_COLORS["bridge"], "update": STEP_COLORS["update"]}


def _kind(block: Block) -> str:
    return f"{block.module} {block.kind}" if block.kind in ("forward", "backward") else block.kind


def _drawn(block: Block, until: float, colors: dict[str, str]) -> list[Any]:
    """Return left end, width, colour and words of a block."""
    of = "" if block.micro_batch is None else f" of micro-batch {block.micro_batch}"
    of += "" if block.chunk is None else f" in chunk {block.chunk}"
    words = f"{_kind(block)}{of}, {_seconds(block.stop - block.start)} from {_seconds(block.start)}"
    left, right = block.start / until, min(1.0, block.stop / until)
    return [round(left, 5), round(right - left, 5), colors[_kind(block)], words]


def _sentence(timeline: PredictedTimeline, until: float) -> str:
    parts = []
    if until < timeline.seconds:
        parts.append(f"The first {_seconds(until)} of {_seconds(timeline.seconds)} are shown.")
    if len(timeline.lanes) > MOST_LANES:
        parts.append(f"The first {MOST_LANES} of {len(timeline.lanes)} stages are shown.")
    return " ".join(parts)


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
