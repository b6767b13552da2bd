"""How long a step takes and what fills the fullest ranks: what the planner's prediction draws."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mimokit.charts._palette import MEMORY_COLORS, STEP_COLORS, module_colors
from mimokit.charts.timeline.spans import of_prediction, timeline_view
from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.planning.types import LayoutPlan
from mimokit.units import bytes_text, gib_text, seconds_text
from mimokit_widgets.planner.verdicts import asked_of, predicted

if TYPE_CHECKING:
    from mimokit.prediction import Block, PredictedTimeline, Prediction
    from mimokit.prediction.explanation import WorkRow

SMALLEST_SHARE = 0.001
REST = "var(--rest)"
"""Of what is idle or not any module's: a colour that recedes on light and on dark pages."""
MOST_BLOCKS = 1_200
MOST_LANES = 32
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
        timeline = predict_timeline(*asked, software=supposed.software)
    except ConfigError as error:
        return {**picture, "sentence": str(error), "fits": True}
    told = str(prediction).splitlines()[2:]  # below its layout and its conditions
    return {
        **picture,
        "fits": prediction.fits,
        "capacity": f"{gib_text(prediction.capacity)}",
        "timeline": step_timeline(timeline, tuple(plan.modules)),
        "sentence": "; ".join(line for line in told if line not in prediction.supposed),
        "step": _step(prediction),
        "memory": [
            _memory(plan, name, lines, prediction.capacity)
            for name, lines in prediction.lines.items()
        ],
        "work": _work(plan, prediction),
    }


def _work(plan: LayoutPlan, prediction: Prediction) -> list[dict[str, Any]]:
    explanation, colors = prediction.explain(), module_colors(plan.modules)
    return [
        {
            "module": name,
            "color": colors[name],
            "total": seconds_text(explanation.seconds(name)),
            "rows": [_work_row(row) for row in explanation.of(name) if row.seconds or row.hidden],
        }
        for name in dict.fromkeys(row.module for row in explanation.rows)
    ]


def _work_row(row: WorkRow) -> dict[str, str]:
    from mimokit.prediction.explanation import exact_text, group_text

    return {
        "way": row.way,
        "what": row.what + group_text(row),
        "count": f"{row.count:,.6g}",
        "operations": f"{row.operations:.3g}" if row.operations else "",
        "bytes": bytes_text(round(row.bytes)) if row.bytes else "",
        "launches": f"{row.launches:,.4g}" if row.launches else "",
        "rates": row.sum_text,
        "seconds": exact_text(row.seconds),
        "assumed": row.assumed,
    }


def _step(prediction: Prediction) -> list[dict[str, Any]]:
    from mimokit.prediction import PART_WORDS

    parts = sorted(prediction.parts.items(), key=lambda item: list(STEP_COLORS).index(item[0]))
    return [
        _part(
            PART_WORDS.get(name, name),
            seconds / prediction.seconds,
            f"{1000 * seconds:,.1f} ms",
            REST if name == "bubble" else STEP_COLORS[name],
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
                    REST if line.part == "buffers" else MEMORY_COLORS[line.part],
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


def step_timeline(timeline: PredictedTimeline | None, modules: tuple[str, ...]) -> dict[str, Any]:
    """Return what each stage does, or why that is not drawn.

    Args:
        timeline: from `mimokit.prediction.predict_timeline`.
        modules: in the order in which they have colours elsewhere.
    """
    if timeline is None:
        return timeline_view([], modules, "s", NONE)
    blocks = [block for block in timeline.blocks if block.lane < MOST_LANES]
    until = _until(blocks, timeline.seconds)
    parts = []
    if until < timeline.seconds:
        shown, whole = seconds_text(until), seconds_text(timeline.seconds)
        parts.append(f"The first {shown} of {whole} are shown.")
    if len(timeline.lanes) > MOST_LANES:
        parts.append(f"The first {MOST_LANES} of {len(timeline.lanes)} stages are shown.")
    shown_blocks = tuple(block for block in blocks if block.start < until)
    drawn = replace(timeline, lanes=timeline.lanes[:MOST_LANES], blocks=shown_blocks)
    return timeline_view([of_prediction(drawn)], modules, "s", " ".join(parts))


def _until(blocks: list[Block], seconds: float) -> float:
    if len(blocks) <= MOST_BLOCKS:
        return seconds
    return sorted(block.stop for block in blocks)[MOST_BLOCKS]
