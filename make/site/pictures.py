"""The pictures of the concepts, drawn from the plans of configs of this repository.

A view is a page of its own, alive without a kernel, which a frame of another page shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mimokit
from mimokit import charts
from mimokit.charts._renderer import svg
from mimokit_widgets import BatchSplit, FrameBalance, RankMap

CONFIGS = Path(__file__).parents[2] / "configs"


def files() -> dict[str, str | bytes]:
    """Return path -> SVG of each picture, HTML of each view."""
    drawn = {f"pictures/{name}.svg": _drawn(make()) for name, make in PICTURES.items()}
    views = {f"pictures/{name}.html": page_of(make()._in_html()) for name, make in VIEWS.items()}
    return drawn | views


def page_of(view: str) -> str:
    """Return the page that a frame shows of a view, given as HTML."""
    return f"<!doctype html><meta charset='utf-8'><body>{view}"


def _drawn(chart: Any) -> str:
    picture = svg(chart.to_dict())
    if picture is None:
        raise SystemExit("The pictures need vl-convert-python; `make setup` installs it.")
    return picture


def _plan(name: str) -> Any:
    return mimokit.plan(CONFIGS / f"digits_{name}.yaml")


PICTURES: dict[str, Callable[[], Any]] = {
    "memory": lambda: charts.memory_bars(
        mimokit.predict("preset:llava_7b_heterogeneous", gpu="h100")
    ),
}
VIEWS: dict[str, Callable[[], Any]] = {
    "homogeneous": lambda: RankMap(_plan("homogeneous")),
    "colocated": lambda: RankMap(_plan("colocated")),
    "heterogeneous": lambda: RankMap(_plan("heterogeneous")),
    "batch_split": lambda: BatchSplit(_plan("colocated")),
    "frames": lambda: FrameBalance("64 64 / 48 32 / 8 4 / 2 1"),
}
