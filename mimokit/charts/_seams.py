"""The tensors of a step that two runs were compared at: modules, layers, passes and ranks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from mimokit.charts import _axes, _palette
from mimokit.charts._axes import inline, layered, titled
from mimokit.units import counted

Rows = Sequence[Mapping[str, Any]]

WIDTH = 600
"""Pixels of all panels next to each other."""
CELL = 4.0, 30.0
"""Pixels of a rank, at least and at most."""
ROW = 16
"""Pixels of a layer."""
SHARES = 1e-3, 1.0, 1e3
"""Shares of what is allowed at which the colours end, and that in their middle."""
FADED = 0.22
"""Opacity of what comes behind the first tensor that differs."""


def seams(rows: Rows) -> alt.VConcatChart:
    """Return a picture of a step, and below it each difference next to what is allowed.

    The picture has a row per layer of every module, a panel per pass, and in it a column per rank;
    a cell has the colour of its worst tensor. The first tensor that differs has a frame on the
    ranks whose part is wrong; what comes behind it is faded.
    """
    first = next((row for row in rows if row["is_first"]), None)
    step = first["step"] if first else max((row["step"] for row in rows), default=1)
    of_step = [row for row in rows if max(row["step"], 1) == max(step, 1)]
    chart = alt.vconcat(_picture(of_step, first), _differences(rows, first), spacing=30)
    marked = "no tensor differs by more than is allowed"
    if first:
        where = f"{first['operation']} of {first['module']}, {first['phase']}"
        marked = f"framed: the first that differs, {where}; faded: what comes behind it"
    picture: alt.VConcatChart = chart.resolve_scale(color="independent", opacity="independent")
    return titled(
        picture,
        f"Step {max(step, 1)}: {counted(len(of_step), 'tensor')} by layer, pass and rank",
        marked,
        f"Differences of {counted(len(rows), 'tensor')} over what is allowed; {marked}",
    )


def _picture(rows: Rows, first: Mapping[str, Any] | None) -> alt.HConcatChart:
    cells = list(_cells(rows, first))
    layers = list(dict.fromkeys(cell["layer"] for cell in cells))
    phases = list(dict.fromkeys(cell["phase"] for cell in cells))
    columns = {
        phase: sorted({cell["rank"] for cell in cells if cell["phase"] == phase})
        for phase in phases
    }
    number = sum(map(len, columns.values()))
    size = min(max(WIDTH / max(1, number), CELL[0]), CELL[1])
    panels = [
        _panel([cell for cell in cells if cell["phase"] == phase], phase, layers, size, not place)
        for place, phase in enumerate(phases)
    ]
    picture: alt.HConcatChart = alt.hconcat(*panels, spacing=10).resolve_scale(
        y="shared", color="shared"
    )
    return picture


def _panel(
    cells: Rows, phase: str, layers: Sequence[str], size: float, is_left: bool
) -> alt.LayerChart:
    ranks = sorted({cell["rank"] for cell in cells})
    labels = alt.Axis(labelLimit=220, ticks=False, domain=False) if is_left else None
    x = alt.X("rank:O", title="rank", sort=ranks, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    y = alt.Y("layer:N", title=None, sort=layers, scale=alt.Scale(domain=layers), axis=labels)
    scale = alt.Scale(type="log", domain=list(SHARES), range=list(_palette.DIVERGING), clamp=True)
    color = alt.Color(
        "share:Q", scale=scale,
        legend=alt.Legend(title="difference / allowed", format="~g", values=list(SHARES)),
    )  # fmt: skip
    opacity = alt.Opacity(
        "seen:N", scale=alt.Scale(domain=["before", "behind"], range=[1, FADED]), legend=None
    )
    heat = alt.Chart(inline(cells)).mark_rect(stroke=_palette.MUTED, strokeWidth=0.4)
    frames = alt.Chart(inline([cell for cell in cells if cell["is_first"]]))
    panel: alt.LayerChart = layered(
        heat.encode(x=x, y=y, color=color, opacity=opacity, tooltip=_TOOLTIP),
        frames.mark_rect(fillOpacity=0, stroke=_palette.TEXT, strokeWidth=2.5).encode(
            x=x, y=y, tooltip=_TOOLTIP
        ),
    ).properties(
        title=alt.TitleParams(_PASSES.get(phase, phase), fontSize=11, anchor="start"),
        width=max(size * len(ranks), 7.0 * len(_PASSES.get(phase, phase))),
        height=ROW * len(layers),
    )
    return panel


_PASSES = {
    "gradient before reduction": "summands",
    "reduced gradient": "reduced",
    "gradient norm before clipping": "norm",
    "weight after the update": "weights",
}

_TOOLTIP = [
    "layer:N",
    "phase:N",
    "rank:O",
    alt.Tooltip("operation:N", title="worst tensor"),
    alt.Tooltip("share:Q", title="difference / allowed", format=".1e"),
]


def _cells(rows: Rows, first: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, str, int], list[tuple[float, Mapping[str, Any]]]] = {}
    for row in rows:
        for rank, share in row["by_rank"].items():
            key = _layer_of(row), row["phase"], rank
            groups.setdefault(key, []).append((share, row))
    for (layer, phase, rank), tensors in groups.items():
        share, worst = max(tensors, key=lambda each: each[0])
        is_first = any(row["is_first"] and rank in _ranks_of(row) for _, row in tensors)
        before = first is None or any(row["number"] <= first["number"] for _, row in tensors)
        shown = first["operation"] if is_first and first else worst["operation"]
        yield {
            "layer": layer, "phase": phase, "rank": rank, "operation": shown,
            "share": max(share, SHARES[0]), "is_first": is_first,
            "seen": "before" if before else "behind",
        }  # fmt: skip


def _ranks_of(row: Mapping[str, Any]) -> set[int]:
    return set(map(int, filter(None, row["ranks"].split(", ")))) or set(row["by_rank"])


def _layer_of(row: Mapping[str, Any]) -> str:
    if row["operation"] == row["module"]:
        return str(row["module"])  # the norm of all gradients
    layer = re.search(r"layers\.(\d+)", row["operation"])
    parts = [part for part in row["operation"].split(".") if part != "decoder"]
    return f"{row['module']} · {f'layer {layer[1]}' if layer else parts[0]}"


def _differences(rows: Rows, first: Mapping[str, Any] | None) -> alt.LayerChart:
    known = [row[name] for row in rows for name in ("difference", "spread") if row[name] > 0]
    least = min(known, default=1e-8) / 3
    drawn = [
        {
            **{name: row[name] for name in _DRAWN},
            "difference": max(row["difference"], least),
            "seen": "before" if first is None or row["number"] <= first["number"] else "behind",
        }
        for row in rows
    ]
    x = alt.X("number:Q", title="tensors in the order of execution", axis=alt.Axis(grid=False))
    axis = alt.Axis(format="~g", tickCount=6, minExtent=_axes.LEFT)
    scale = alt.Scale(type="log", nice=False, padding=10)

    def y(column: str) -> alt.Y:
        return alt.Y(f"{column}:Q", title="relative difference", scale=scale, axis=axis)

    hues = _palette.module_colors(dict.fromkeys(row["module"] for row in drawn))
    opacity = alt.Opacity(
        "seen:N", scale=alt.Scale(domain=["before", "behind"], range=[0.9, FADED]), legend=None
    )
    every = alt.Chart(inline(drawn))
    rounded = alt.Chart(inline([row for row in drawn if row["spread"] > 0]))
    ring = alt.Chart(inline([row for row in drawn if first and row["number"] == first["number"]]))
    below: alt.LayerChart = layered(
        every.mark_line(interpolate="step", color=_palette.MUTED, strokeDash=[4, 3]).encode(
            x=x, y=y("allowed")
        ),
        rounded.mark_tick(
            color=_palette.LINE, thickness=1.5, bandSize=6, orient="horizontal"
        ).encode(x=x, y=y("spread"), tooltip=_TENSOR),
        every.mark_circle(size=26).encode(
            x=x, y=y("difference"), color=_axes.colored("module", hues, "circle"),
            opacity=opacity, tooltip=_TENSOR,
        ),
        ring.mark_point(size=220, stroke=_palette.ACCENT, strokeWidth=2).encode(
            x=x, y=y("difference"), tooltip=_TENSOR
        ),
    ).properties(
        title=alt.TitleParams(
            "dots: differences; dashed line: what is allowed; ticks: what a rounding changes",
            fontSize=11, anchor="start",
        ),
        width=WIDTH, height=200,
    )  # fmt: skip
    return below


_DRAWN = (
    "number", "step", "phase", "module", "operation", "allowed", "spread", "ranks",
)  # fmt: skip

_TENSOR = [
    "step:Q",
    "phase:N",
    "module:N",
    "operation:N",
    *(alt.Tooltip(f"{name}:Q", format=".1e") for name in ("difference", "spread", "allowed")),
    "ranks:N",
]
