"""The pictures of the concepts, drawn from the plans of configs of this repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mimokit
from mimokit import charts
from mimokit.charts._renderer import svg

CONFIGS = Path(__file__).parents[2] / "configs"


def svgs() -> dict[str, str | bytes]:
    """Return path -> SVG of each picture."""
    return {f"pictures/{name}.svg": _drawn(make()) for name, make in PICTURES.items()}


def _drawn(chart: Any) -> str:
    picture = svg(chart.to_dict())
    if picture is None:
        raise SystemExit("The pictures need vl-convert-python; `make setup` installs it.")
    return picture


def _plan(name: str) -> Any:
    return mimokit.plan(CONFIGS / f"digits_{name}.yaml")


PICTURES: dict[str, Callable[[], Any]] = {
    "homogeneous": lambda: charts.rank_map(_plan("homogeneous")),
    "colocated": lambda: charts.rank_map(_plan("colocated")),
    "heterogeneous": lambda: charts.rank_map(_plan("heterogeneous")),
    "batch_split": lambda: charts.batch_split(_plan("colocated")),
    "frames": lambda: charts.frame_balance(_plan("videos").frames[0].forecast.plan),
    "memory": lambda: charts.memory_bars(
        mimokit.predict("preset:llava_7b_heterogeneous", gpu="h100")
    ),
}
