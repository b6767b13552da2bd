"""The table: each figure of this tree as a ratio of the tag's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from rich.table import Table

from benchmarks.against.measuring import Figures, middle

SAID_ABOVE = 1.03
"""A change that costs more says so in its message."""


def ratio(before: tuple[float, ...], now: tuple[float, ...]) -> float:
    """Return the median of the ratios of pairs, each measured one after the other."""
    return statistics.median(b / max(a, 1e-9) for a, b in zip(before, now, strict=True))


def table(figures: Mapping[str, Figures], tag: str) -> Table:
    """Return a row per figure; what one tree alone has is left out."""
    (now,) = (name for name in figures if name != tag)
    shown = Table("what", "", tag, now, "ratio", "")
    for what in figures[tag]:
        if what in figures[now]:
            share = ratio(figures[tag][what], figures[now][what])
            columns = [f"{middle(figures[name], what):.3g}" for name in (tag, now)]
            verdict = "costs more" if share > SAID_ABOVE else ""
            shown.add_row(what[0], what[1], *columns, f"{share:.2f}", verdict)
    return shown
