"""How long a step takes and what fills the fullest ranks: what the planner's prediction draws."""

from __future__ import annotations

from typing import Any

from mimokit.charts._palette import MEMORY_COLORS, STEP_COLORS, module_colors
from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig
from mimokit.planning.types import LayoutPlan
from mimokit.units import GIB, gib_text
from mimokit_widgets.planner.outcome import resolved_config
from mimokit_widgets.view_models.step_timeline import step_timeline

SMALLEST_SHARE = 0.001


def prediction_bars(
    config: ExperimentConfig, plan: LayoutPlan, supposed: PredictionConfig
) -> dict[str, Any]:
    """Return the predicted step of a layout, or why it cannot be predicted.

    Args:
        plan: its plan; every data_parallel is known there.
        supposed: the GPU, its price and the software.
    """
    # The predictor is slow to import, so it is imported when the tab is first opened.
    from mimokit.architecture.from_config import model_of_config
    from mimokit.interop import layout_of_config, workload_of_config
    from mimokit.prediction import predict, predict_timeline

    picture: dict[str, Any] = {"step": [], "memory": [], "timeline": None}
    resolved = resolved_config(config, plan)
    gpu, software = supposed.chosen_gpu, supposed.chosen_software
    try:
        asked = (
            model_of_config(resolved.model),
            layout_of_config(resolved),
            workload_of_config(resolved),
            gpu,
        )
        prediction = predict(
            *asked, software=software, price_per_gpu_hour=supposed.price_per_gpu_hour
        )
        timeline = predict_timeline(*asked, software=software)
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


def _cost(prediction: Any) -> str:
    dollars = prediction.dollars_per_million_tokens
    return "" if dollars is None else f" A million tokens cost {dollars:.3g} dollars."


def _step(prediction: Any) -> list[dict[str, Any]]:
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
