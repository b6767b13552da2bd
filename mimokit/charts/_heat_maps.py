"""Values of every rank or expert over a run as heat maps: work and load."""

import altair as alt
import pandas as pd

from mimokit.analysis import rank_work
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import MOST_RANKS, inline, need, records, titled
from mimokit.samples import expert_column, experts_of
from mimokit.units import counted

FAR = 0.5
"""Relative differences from here on have the darkest colours."""
MOST_COLUMNS = 100


def stragglers(ranks: pd.DataFrame) -> alt.Chart:
    """Return how much longer each rank works than the median rank, over the iterations of one run.

    Work is forward, backward, optimizer and data loading: what a rank does alone. The time of the
    whole step is the same on all ranks, because they wait for each other. A long run has at most
    100 columns, each the mean of its iterations; of more than 64 ranks those are shown that differ
    most from the others.

    Args:
        ranks: `Runs.ranks` of one run, or any table with a row per rank and iteration.
    """
    need(ranks, "stragglers", "iteration", "rank", "forward_time")
    work = rank_work(ranks)
    relative = work.div(work.median(axis=1).where(lambda median: median > 0), axis=0) - 1.0
    shown = relative.median().abs().nlargest(MOST_RANKS).index
    table = relative[sorted(shown)].reset_index().melt("iteration", value_name="share").dropna()
    colors = alt.Scale(domain=[-FAR, 0.0, FAR], range=list(_palette.DIVERGING), clamp=True)
    shares = cells(table, "share", 4)
    return titled(
        heat_map(shares, "share", colors, tooltip="+.1%", legend="+.0%"),
        "Stragglers",
        "work of a rank against the median of all ranks in the same step",
        f"Heat map of the work of {counted(len(shown), 'rank')} by iterations",
    )


def expert_load(steps: pd.DataFrame, module: str | None = None) -> alt.Chart:
    """Return the load of each expert of a module over the run: 1 where all take as many tokens.

    It is the mean over the layers. A long run has at most 100 columns, each the mean of its
    iterations; of more than 64 experts those are shown whose load differs most from 1.

    Args:
        module: None: the first that has experts.

    Raises:
        ValueError: the table has no column of the load of its experts.
    """
    columns_of = experts_of(steps.columns)
    name = next(iter(columns_of), "language_module") if module is None else module
    columns = columns_of.get(name, {0: expert_column(name, 0)})
    need(steps, "expert_load", "iteration", *columns.values())
    loads = steps.groupby("iteration")[list(columns.values())].mean()
    loads.columns = pd.Index(columns, name="expert")
    shown = (loads.mean() - 1.0).abs().nlargest(MOST_RANKS).index
    table = loads[sorted(shown)].reset_index().melt("iteration", value_name="load").dropna()
    colors = alt.Scale(domain=[0.0, 1.0, 2.0], range=list(_palette.DIVERGING), clamp=True)
    return titled(
        heat_map(cells(table, "load", 4, "expert"), "load", colors, ".2f", ".1f", "expert"),
        f"Load of the experts of {name}",
        "tokens of an expert against an even share, mean of its layers",
        f"Heat map of the load of {len(shown)} experts by iterations",
    )


def cells(table: pd.DataFrame, value: str, digits: int, line: str = "rank") -> pd.DataFrame:
    """Return the mean of a value in every cell: a rank, and one or more iterations.

    Columns: rank, first, stop, and the value. There are at most 100 columns of cells.
    """
    width = _iterations_in_a_column(table["iteration"])
    first = table["iteration"] // width * width
    means: pd.DataFrame = (
        table.assign(first=first, stop=first + width)
        .groupby([line, "first", "stop"], as_index=False)[[value]]
        .mean()
        .round(digits)
    )
    return means


def heat_map(
    table: pd.DataFrame, value: str, scale: alt.Scale, tooltip: str, legend: str, line: str = "rank"
) -> alt.Chart:
    """Return cells as coloured rectangles."""
    gradient = alt.Legend(
        type="gradient", orient="top", title=None, format=legend, gradientLength=160,
        gradientThickness=8, offset=6, labelExpr=_label(scale),
    )  # fmt: skip
    chart: alt.Chart = (
        alt.Chart(inline(records(table)))
        .mark_rect(strokeWidth=0.7)
        .encode(
            x=_axes.iterations("first"),
            x2="stop:Q",
            y=_axes.lines(line),
            fill=alt.Fill(f"{value}:Q", scale=scale, legend=gradient),
            stroke=alt.Stroke(f"{value}:Q", scale=scale, legend=gradient),
            tooltip=[f"{line}:O", "first:Q", alt.Tooltip(f"{value}:Q", format=tooltip)],
        )
        .properties(height=alt.Step(16))
    )
    return chart


def _label(scale: alt.Scale) -> str:
    given = scale.to_dict()
    if given.get("clamp") is not True:
        return "datum.label"
    low, high = given["domain"][0], given["domain"][-1]
    beyond = f"datum.value <= {low} ? '≤ ' : datum.value >= {high} ? '≥ ' : ''"
    return f"({beyond}) + datum.label"


def _iterations_in_a_column(iterations: pd.Series) -> int:
    span = int(iterations.max() - iterations.min()) + 1 if len(iterations) else 1
    return -(-span // MOST_COLUMNS)
