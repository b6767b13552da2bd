"""What a search found, as points and rows that load when they are clicked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mimokit.charts._palette import mode_colors
from mimokit.extra_rooms import import_extra
from mimokit.units import GIB, counted, gib_text, seconds_text

if TYPE_CHECKING:
    from mimokit.layout_search import SearchResult
    from mimokit.prediction import Layout, Prediction

ROWS = 8
"""Layouts in the table."""
MODES = ("homogeneous", "colocated", "heterogeneous")


def layouts_shown(
    result: SearchResult, telling: Sequence[Prediction] = ()
) -> tuple[Prediction, ...]:
    """Return the best few layouts, the best first, then the rest of the front and of `telling`."""
    best = (row[0] for row in result.rows(ROWS))
    shown = (*best, *result.pareto, *telling)
    return tuple({id(prediction): prediction for prediction in shown}.values())


def place_of(layout: Layout | None, shown: Sequence[Prediction]) -> int:
    """Return where a layout lies among those that are shown, -1 where it does not."""
    return next((at for at, prediction in enumerate(shown) if prediction.layout is layout), -1)


def found_layouts(result: SearchResult, telling: Sequence[Prediction] = ()) -> dict[str, Any]:
    """Return what the browser draws of a search: `layouts_shown`, and what is said about them."""
    words = import_extra("layout_search.result", "A search")
    rows = result.rows(ROWS)
    alike = {id(row[0]): words.more_alike(len(row) - 1) for row in rows}
    front = {id(prediction) for prediction in result.pareto}
    shown = layouts_shown(result, telling)
    colors = mode_colors(MODES)
    limit = result.task.memory_limit / GIB
    return {
        "title": words.title(result),
        "figures": _figures(result),
        "cut": list(result.cut),
        "rows": len(rows),
        "limit": limit,
        "limit_text": f"{limit:.1f} GiB may be planned",
        "modes": [
            {"name": mode, "color": colors[mode]}
            for mode in MODES
            if any(prediction.layout.mode == mode for prediction in shown)
        ],
        "telling": [place_of(prediction.layout, shown) for prediction in telling],
        "layouts": [
            _layout(prediction, id(prediction) in front, alike.get(id(prediction), ""))
            for prediction in shown
        ],
        "words": (
            f"Step time against memory: {counted(len(result.pareto), 'layout')} that no other one "
            "beats in step time, memory and GPUs at once"
        ),
    }


def _figures(result: SearchResult) -> list[tuple[str, str]]:
    from mimokit.prediction.verdict import MEASURES

    columns = import_extra("layout_search.result", "A search").columns_of(result)
    verdict = [(measure.key, measure.label) for measure in MEASURES if measure.label in columns]
    return [*verdict, ("gpus", "GPUs"), ("peak", "of peak")]


def _layout(prediction: Prediction, on_front: bool, alike: str) -> dict[str, Any]:
    from mimokit.prediction.layout import sizes_text
    from mimokit.prediction.verdict import verdict_lines

    verdict = prediction.verdict
    lines = verdict_lines(verdict)
    seconds, memory = seconds_text(prediction.seconds), f"{gib_text(prediction.peak_memory)}"
    gpus = counted(prediction.layout.gpus, "GPU")
    modules = [f"{name} {sizes_text(sizes)}" for name, sizes in prediction.layout.modules.items()]
    return {
        "mode": prediction.layout.mode,
        "seconds": prediction.seconds,
        "memory": prediction.peak_memory / GIB,
        "gpus": prediction.layout.gpus,
        "on_front": on_front,
        "texts": {
            **{line.key: line.value for line in lines},
            "gpus": f"{prediction.layout.gpus:,}",
            "peak": f"{prediction.utilisation:.0%}",
        },
        "notes": {line.key: line.note for line in lines if line.note},
        "fits": verdict.fits,
        "modules": [*modules, *filter(None, [alike])],
        "short": f"{prediction.layout.mode}, {gpus}, {seconds} a step",
        "words": f"{prediction.layout.mode}, {gpus}, {seconds} a step, {memory}: "
        + "; ".join(modules),
    }
