"""Which mode is best where: a cell for each model and kind of sample."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from mimokit.charts import _palette
from mimokit.charts._axes import inline, layered, need, records, titled
from mimokit.prediction.band import CLEAR, TIE, is_tie
from mimokit.units import counted, seconds_text

MODES = tuple(_palette.MODE_COLORS)
"""The plainest first: of modes that tie, the first one is worth its trouble."""
PALENESS: Mapping[str, float] = {"tie": 0.82, "ahead": 0.5, "": 0.0}
"""Share of white in the colour of a mode."""
CELL = 112, 46


def mode_map(table: pd.DataFrame, rows: str, columns: str) -> alt.LayerChart:
    """Return the best mode of every cell, how far the next one is behind, and its step time.

    A cell is pale where modes tie, and half pale up to 12 % ahead: see `mimokit.prediction.band`.

    Args:
        table: a row for each mode that fits, with mode, seconds, low and high, as `Prediction` has
            them, and the two columns named here.
        rows, columns: columns of the table, whose values stand in the order of the table.
    """
    need(table, "mode_map", rows, columns, "mode", "seconds", "low", "high")
    by_cell = table.groupby([rows, columns], sort=False)
    cells = [
        {rows: row, columns: column, **_cell(records(modes))} for (row, column), modes in by_cell
    ]
    base = alt.Chart(inline(cells)).encode(
        x=_named(columns, table[columns], "top"),
        y=_named(rows, table[rows], "left"),
        tooltip=[f"{name}:N" for name in (rows, columns, *MODES)],
    )
    text = alt.Color("ink:N", scale=None)
    chart = layered(
        base.mark_rect(stroke=_palette.PAPER, strokeWidth=2).encode(
            fill=alt.Fill("shade:N", scale=_shades(), legend=_legend(table["mode"]))
        ),
        base.mark_text(dy=-8, fontSize=13, fontWeight="bold").encode(text="ahead:N", color=text),
        base.mark_text(dy=10, fontSize=11).encode(text="step:N", color=text),
    )
    subtitle = (
        f"bold: how much longer the next mode takes; pale: a tie, up to {TIE:.0%}; full colour: "
        f"more than {CLEAR:.0%}"
    )
    return titled(
        chart, "Best mode", subtitle,
        f"Map of the best mode, {counted(len(cells), 'cell')} of {rows} by {columns}",
        width=alt.Step(CELL[0]), height=alt.Step(CELL[1]),
    )  # fmt: skip


def _cell(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    by_time = sorted(results, key=lambda each: each["seconds"])
    best, others = by_time[0], by_time[1:]
    tied = [each["mode"] for each in by_time if is_tie(each["seconds"], best["seconds"])]
    mode = min(tied, key=MODES.index)
    ahead = others[0]["seconds"] / best["seconds"] - 1 if others else None
    kind = "tie" if tied[1:] else "ahead" if ahead is not None and ahead <= CLEAR else ""
    shade = _shade(mode, kind)
    return {
        "shade": shade,
        "ink": _palette.ink_on(_fills()[shade]),
        "ahead": "tie" if tied[1:] else "no other fits" if ahead is None else f"+{ahead:.0%}",
        "step": f"{seconds_text(best['seconds'])} ± {best['high'] / best['seconds'] - 1:.0%}",
        **dict.fromkeys(MODES, "does not fit"),
        **{each["mode"]: _seconds(each) for each in results},
    }


def _seconds(result: Mapping[str, Any]) -> str:
    step, low, high = (seconds_text(result[end]) for end in ("seconds", "low", "high"))
    return f"{step} ({low} to {high})"


def _shade(mode: str, kind: str) -> str:
    return f"{mode}, {kind}" if kind else mode


def _fills() -> dict[str, str]:
    return {
        _shade(mode, kind): _palette.tint(color, share)
        for mode, color in _palette.MODE_COLORS.items()
        for kind, share in PALENESS.items()
    }


def _shades() -> alt.Scale:
    return alt.Scale(domain=list(_fills()), range=list(_fills().values()))


def _legend(modes: Iterable[str]) -> alt.Legend:
    shown = [mode for mode in MODES if mode in set(modes)]
    return alt.Legend(title=None, orient="top", values=shown, symbolType="square")


def _named(column: str, values: Iterable[Any], orient: Literal["top", "left"]) -> Any:
    axis = alt.Axis(
        orient=orient, labelAngle=0, ticks=False, domain=False, title=column, titlePadding=10
    )
    channel = alt.X if orient == "top" else alt.Y
    return channel(f"{column}:O", sort=list(dict.fromkeys(values)), axis=axis)
