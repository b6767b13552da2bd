"""What a search found, as points and rows that load when they are clicked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mimokit.charts._palette import module_colors
from mimokit.units import GIB, counted, gib_text, seconds_text

if TYPE_CHECKING:
    from mimokit.layout_search import SearchResult
    from mimokit.prediction import Layout, Prediction

ROWS = 8
"""Layouts in the table."""
MODES = ("homogeneous", "colocated", "heterogeneous")


def layouts_shown(result: SearchResult) -> tuple[Prediction, ...]:
    """Return the best few layouts, the best first, and behind them the rest of the front."""
    best = result.top(ROWS)
    known = {id(one) for one in best}
    return (*best, *(one for one in result.pareto if id(one) not in known))


def place_of(layout: Layout | None, shown: Sequence[Prediction]) -> int:
    """Return where a layout lies among those that are shown, -1 where it does not."""
    return next((at for at, one in enumerate(shown) if one.layout is layout), -1)


def found_layouts(result: SearchResult) -> dict[str, Any]:
    """Return what the browser draws of a search: `layouts_shown`, and what is said about them."""
    from mimokit.layout_search.report import title

    front = {id(one) for one in result.pareto}
    shown = layouts_shown(result)
    colors = module_colors(MODES)
    limit = result.task.memory_limit / GIB
    return {
        "title": title(result),
        "cut": list(result.cut),
        "rows": len(result.top(ROWS)),
        "limit": limit,
        "limit_text": f"{limit:.1f} GiB may be planned",
        "modes": [
            {"name": mode, "color": colors[mode]}
            for mode in MODES
            if any(one.layout.mode == mode for one in shown)
        ],
        "layouts": [_layout(one, id(one) in front) for one in shown],
        "words": (
            f"Step time against memory: {len(result.pareto)} layouts that no other one beats in "
            "step time, memory and GPUs at once"
        ),
    }


def _layout(one: Prediction, on_front: bool) -> dict[str, Any]:
    from mimokit.prediction.layout import sizes_text

    seconds, memory = seconds_text(one.seconds), f"{gib_text(one.peak_memory)}"
    gpus = counted(one.layout.gpus, "GPU")
    modules = [f"{name} {sizes_text(sizes)}" for name, sizes in one.layout.modules.items()]
    return {
        "mode": one.layout.mode,
        "seconds": one.seconds,
        "memory": one.peak_memory / GIB,
        "gpus": one.layout.gpus,
        "on_front": on_front,
        "texts": {
            "step": seconds,
            "memory": memory,
            "gpus": f"{one.layout.gpus:,}",
            "tokens": f"{one.tokens_per_second:,.0f}",
            "peak": f"{one.utilisation:.0%}",
        },
        "modules": modules,
        "words": f"{one.layout.mode}, {gpus}, {seconds} a step, {memory}: {'; '.join(modules)}",
    }
