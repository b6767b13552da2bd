"""How long a step takes and what fills the fullest ranks: what the planner's prediction draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mimokit.charts._palette import MEMORY_COLORS, STEP_COLORS, module_colors
from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.planning.types import LayoutPlan
from mimokit.units import GIB, gib_text
from mimokit_widgets.planner.verdicts import asked_of, predicted

if TYPE_CHECKING:
    from mimokit.prediction import Block, PredictedTimeline, Prediction

SMALLEST_SHARE = 0.001
MOST_BLOCKS = 1_200
MOST_LANES = 32
TICKS = 5
NONE = "No timeline is drawn: it would have too many micro-batches to distinguish."


def prediction_bars(
    config: ExperimentConfig, plan: LayoutPlan, supposed: PredictionConfig
) -> dict[str, Any]:
    """Return the predicted step of a layout, or why it cannot be predicted.

    Args:
        plan: its plan; every data_parallel is known there.
        supposed: the GPU, its price and the software.
    """
    # The predictor is slow to import, so it is imported when the tab is first opened.
    from mimokit.prediction import predict_timeline

    picture: dict[str, Any] = {"step": [], "memory": [], "timeline": None}
    try:
        prediction = predicted(config, plan, supposed)
        asked = asked_of(config, plan, supposed)
        timeline = predict_timeline(*asked, software=supposed.chosen_software)
    except ConfigError as error:
        return {**picture, "sentence": str(error), "fits": True}
    return {
        **picture,
        "fits": prediction.fits,
        "capacity": f"{gib_text(prediction.capacity)}",
        "timeline": step_timeline(timeline, tuple(plan.modules)),
        "sentence": (
            f"{prediction.seconds:.3g} s a step, in four cases of five within {prediction.low:.3g} "
            f"and {prediction.high:.3g} s; {prediction.tokens_per_second:,.0f} tokens/s, "
            f"{prediction.tflops_per_gpu:.0f} TFLOP/s per GPU, {prediction.utilisation:.0%} of its "
            f"peak. The fullest rank takes {prediction.peak_memory / GIB:.1f} of "
            f"{gib_text(prediction.capacity)}: "
            f"{'it fits' if prediction.fits else 'it does not fit'}."
            f"{_cost(prediction)}"
        ),
        "step": _step(prediction),
        "memory": [
            _memory(plan, name, lines, prediction.capacity)
            for name, lines in prediction.lines.items()
        ],
    }


def _cost(prediction: Prediction) -> str:
    dollars = prediction.dollars_per_million_tokens
    return "" if dollars is None else f" A million tokens cost {dollars:.3g} dollars."


def _step(prediction: Prediction) -> list[dict[str, Any]]:
    from mimokit.prediction import PART_WORDS

    parts = sorted(prediction.parts.items(), key=lambda item: list(STEP_COLORS).index(item[0]))
    return [
        _part(
            PART_WORDS.get(name, name),
            seconds / prediction.seconds,
            f"{1000 * seconds:,.1f} ms",
            STEP_COLORS[name],
        )
        for name, seconds in parts
        if seconds > SMALLEST_SHARE * prediction.seconds
    ]


def _memory(plan: LayoutPlan, name: str, lines: Any, capacity: float) -> dict[str, Any]:
    total = sum(line.bytes for line in lines)
    return {
        "module": name,
        "color": module_colors(plan.modules)[name],
        "total": f"{gib_text(total, 2)}",
        "share": total / capacity,
        "parts": [
            {
                **_part(
                    line.part,
                    line.bytes / capacity,
                    f"{gib_text(line.bytes, 2)}",
                    MEMORY_COLORS[line.part],
                ),
                "formula": f"{line.formula} = {line.numbers}",
                "source": line.source,
            }
            for line in lines
            if line.bytes
        ],
    }


def _part(name: str, share: float, text: str, color: str) -> dict[str, Any]:
    return {"name": name, "share": share, "text": text, "color": color}


FORWARD, BACKWARD = "66", "d9"
"""Opacities in hex; a backward is also the longer one."""


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
