"""Which heads, rows of the vocabulary and slices of the files are on which rank."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from mimokit.architecture.tensor_cut import Span
from mimokit.charts import _palette
from mimokit.charts._axes import TEXT_WIDTH, inline, layered, ranks, titled
from mimokit.planning.weights import RankWeights, SlicedTensor, WeightPlan, sliced_tensors
from mimokit.units import counted, samples_text, span_text

PANEL, BETWEEN = 126, 14
"""Pixels of the width of a panel, and between panels."""
MOST_LINES = 48
"""Ranks up to which each has a line with its number; more of them have thinner lines."""
MOST_NAMED_STAGES = 8
FADED = 0.25
"""Opacity of what does not belong to the rank that is pointed at."""
CHOSEN = "chosen_rank"
"""The parameter of the field: a rank as it was typed."""
CELL, GAP, VECTOR = 26, 6, 10
"""Pixels of a matrix's height, between tensors, and of the height of one with one dimension."""


def weight_map(plan: WeightPlan) -> alt.VConcatChart:
    """Return what every rank holds, and which slices of the files' tensors that is.

    Above, the layers, heads and rows of the vocabulary of each rank. Below, a tensor of each kind
    as a rectangle, with a column for each pipeline stage: its rows and columns are those of the
    file. A tensor of one dimension is a thin line. A colour is a place in the tensor parallel
    group; grey is what several of its ranks hold. A rank that is pointed at, or typed into
    the field below the chart, has its slices lit.
    """
    tensors = sliced_tensors(plan)
    sizes = f"TP {plan.tensor_parallel}, PP {plan.pipeline_parallel}"
    spans = _held(plan)
    # One parameter for all panels would be one per panel, with a warning of altair's.
    pointers = [f"pointer_{place}" for place in range(len(spans))]
    lit = " || ".join((*(f"{pointer}.rank" for pointer in pointers), f"{CHOSEN} && [+{CHOSEN}]"))
    panels = [
        _panel(plan, name, of_ranks, pointer, lit)
        for pointer, (name, of_ranks) in zip(pointers, spans.items(), strict=True)
    ]
    stages = alt.hconcat(*panels, spacing=BETWEEN)
    width = len(panels) * (PANEL + BETWEEN) - BETWEEN
    # JupyterLab takes the arrow keys of all but fields for text.
    field = alt.BindInput(input="text", name="rank ", placeholder=f"0 to {len(plan.ranks) - 1}")
    return titled(
        alt.vconcat(
            stages,
            _sliced(plan, tensors, width, lit),
            spacing=22,
            params=[alt.param(name=CHOSEN, value="", bind=field).param],
        ),
        f"Weights of {plan.model_type}, {sizes}",
        _subtitle(plan),
        f"Weights of {plan.model_type} on {counted(len(plan.ranks), 'rank')}, {sizes}",
    )


def _subtitle(plan: WeightPlan) -> str:
    said = "a colour is a place in the tensor parallel group; grey is on several of its ranks"
    if plan.vocab_size is None or plan.padded_vocab_size == plan.vocab_size:
        return said
    return f"{said}; vocabulary {plan.vocab_size:,} padded to {plan.padded_vocab_size:,}"


def _held(plan: WeightPlan) -> dict[str, list[Span | None]]:
    """Return name of a panel -> what each rank holds."""
    held: dict[str, list[Span | None]] = {
        "layers": [rank.layers for rank in plan.ranks],
        "query heads": [rank.query_heads for rank in plan.ranks],
        "query groups": [rank.query_groups for rank in plan.ranks],
    }
    if plan.vocab_size is not None:
        held["rows of the vocabulary"] = [_vocab(rank) for rank in plan.ranks]
    return held


def _vocab(rank: RankWeights) -> Span | None:
    return rank.vocab if rank.holds_vocabulary else None


def _panel(
    plan: WeightPlan, name: str, spans: Sequence[Span | None], pointer: str, lit: str
) -> alt.LayerChart:
    """Return a line per rank."""
    few = len(spans) <= MOST_LINES
    colors = _palette.place_colors(plan.tensor_parallel)
    last = max((span[1] for span in spans if span), default=1)
    rows = [
        {
            "rank": rank,
            "start": span[0],
            "stop": span[1],
            "middle": sum(span) / 2,
            "color": (color := colors[plan.ranks[rank].tensor_rank]),
            "ink": _palette.ink_on(color),
            "holds": samples_text(span),
            **_text_places(span, last),
        }
        for rank, span in enumerate(spans)
        if span is not None
    ]
    y = ranks() if few and lit.startswith(pointer) else alt.Y("rank:O", axis=None)
    base = alt.Chart(inline(rows)).encode(
        y=y.scale(domain=list(range(len(spans))), paddingInner=0.15)
    )
    pointed_at = alt.selection_point(
        name=pointer, fields=["rank"], on="pointerover", clear="pointerout"
    )
    bars = base.mark_bar(cornerRadius=2).add_params(pointed_at).encode(
        x=alt.X(
            "start:Q", title=name, scale=alt.Scale(domain=[0, last], nice=False),
            axis=alt.Axis(grid=False, tickCount=3, format=",d", values=[0, last]),
        ),
        x2="stop:Q",
        fill=alt.Fill("color:N", scale=None),
        opacity=_lit(f"datum.rank == ({lit})[0]", lit),
        # Only what has a tool tip hides what is below it from the pointer.
        tooltip=["rank:Q", alt.Tooltip("holds:N", title=name)],
    )  # fmt: skip
    panel: alt.LayerChart = layered(bars, *(_texts(base) if few else [])).properties(
        width=PANEL,
        height=alt.Step(20) if few else alt.Step(max(1.0, 640 / len(spans))),
    )
    return panel


def _text_places(span: Span, last: int) -> dict[str, str]:
    text = samples_text(span)
    if len(text) * TEXT_WIDTH < PANEL * (span[1] - span[0]) / last:
        return {"inside": text, "behind": "", "before": ""}
    left = sum(span) < last
    return {"inside": "", "behind": text if left else "", "before": "" if left else text}


def _texts(base: alt.Chart) -> list[alt.Chart]:
    outside: dict[str, Any] = {"fontSize": 11, "fill": _palette.TEXT}
    return [
        base.mark_text(fontSize=11).encode(
            x="middle:Q", text="inside:N", fill=alt.Fill("ink:N", scale=None)
        ),
        base.mark_text(align="left", dx=4, **outside).encode(x="stop:Q", text="behind:N"),
        base.mark_text(align="right", dx=-4, **outside).encode(x="start:Q", text="before:N"),
    ]


def _lit(test: str, lit: str) -> Any:
    # Not `alt.condition`: altair would try each kind of channel for the mapping it returns.
    return alt.OpacityValue(FADED, condition={"test": f"!({lit}) || {test}", "value": 1})


def _sliced(
    plan: WeightPlan, tensors: Sequence[SlicedTensor], width: int, lit: str
) -> alt.LayerChart:
    names = list(dict.fromkeys(tensor.name for tensor in tensors))
    whole = {tensor.name: tensor for tensor in tensors}
    labels = [f"{name}  {whole[name].shape_text}" for name in names]
    rows = [row for tensor in tensors for row in _bands(plan, tensor, names.index(tensor.name))]
    stages = plan.pipeline_parallel
    middles = [row + 0.5 for row in range(len(names))]
    y = alt.Y(
        "top:Q",
        title=None,
        scale=alt.Scale(domain=[len(names), 0], nice=False),
        axis=alt.Axis(
            grid=False, values=middles, labelLimit=340,
            labelExpr=f"{json.dumps(labels)}[floor(datum.value)]",
        ),
    )  # fmt: skip
    x = alt.X(
        "left:Q",
        title=None if stages <= MOST_NAMED_STAGES else "stage",
        scale=alt.Scale(domain=[0, stages], nice=False),
        axis=alt.Axis(
            grid=False, orient="top", values=[stage + 0.5 for stage in range(stages)],
            labelExpr=f"{json.dumps(_stages(plan))}[floor(datum.value)]",
        ),
    )  # fmt: skip
    chart: alt.LayerChart = layered(
        alt.Chart(inline(rows))
        .mark_rect(stroke=_palette.PAPER, strokeWidth=_stroke(plan))
        .encode(
            x=x,
            x2="right:Q",
            y=y,
            y2="bottom:Q",
            fill=alt.Fill("color:N", scale=None),
            opacity=_lit(f"indexof(datum.holders, ({lit})[0]) >= 0", lit),
            tooltip=["tensor:N", "layers:N", "files:N", "rows:N", "columns:N", "ranks:N"],
        )
    ).properties(
        width=width,
        height=(CELL + GAP) * len(names),
        title=alt.TitleParams(
            "slices of the files' tensors, layers of a kind together",
            fontSize=12, fontWeight="normal", offset=4,
        ),
    )  # fmt: skip
    return chart


def _stages(plan: WeightPlan) -> list[str]:
    if plan.pipeline_parallel == 1:
        return [""]
    word = "stage " if plan.pipeline_parallel <= MOST_NAMED_STAGES else ""
    return [f"{word}{stage}" for stage in range(plan.pipeline_parallel)]


def _stroke(plan: WeightPlan) -> float:
    return 1.0 if plan.tensor_parallel <= 4 else 0.4 if plan.tensor_parallel <= 8 else 0.0


def _bands(plan: WeightPlan, tensor: SlicedTensor, line: int) -> Iterator[dict[str, Any]]:
    colors = _palette.place_colors(plan.tensor_parallel)
    high = (CELL if tensor.columns > 1 else VECTOR) / (CELL + GAP)
    others = len(tensor.files) - 1
    for part in tensor.slices:
        (left, right), (top, bottom) = tensor.place_of(part)
        alike = len(part.ranks) > 1
        yield {
            "tensor": tensor.name,
            "layers": span_text(tensor.layers) or "outside of layers",
            "files": tensor.files[0] + (f" and {others} more" if others else ""),
            "rows": samples_text(part.rows),
            "columns": "all" if part.columns is None else samples_text(part.columns),
            "ranks": span_text(part.ranks),
            "holders": list(part.ranks),
            "left": tensor.stage + 0.02 + 0.96 * left,
            "right": tensor.stage + 0.02 + 0.96 * right,
            "top": line + 0.5 + high * (top - 0.5),
            "bottom": line + 0.5 + high * (bottom - 0.5),
            "color": _palette.SHARED if alike else colors[plan.ranks[part.ranks[0]].tensor_rank],
        }
