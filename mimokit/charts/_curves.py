"""The loss over a run."""

import altair as alt
import pandas as pd

from mimokit.analysis import per_iteration
from mimokit.charts import _axes, _palette
from mimokit.charts._axes import columns, layered, need, titled

TRAINING, VALIDATION, HELD_OUT = "training", "validation", "held-out samples"
COLORS = {
    TRAINING: _palette.LINE,
    VALIDATION: _palette.STEP_COLORS["matrix"],
    HELD_OUT: _palette.ACCENT,
}


def loss(steps: pd.DataFrame, evaluations: pd.DataFrame | None = None) -> alt.LayerChart:
    """Return the training loss per iteration, and those of validations and evaluations."""
    need(steps, "loss", "iteration", "loss")
    iterations = per_iteration(steps)
    table = _losses(iterations, evaluations)
    shown = {name: COLORS[name] for name in table["on"].unique()}
    base = alt.Chart(columns(table, list(table.columns))).encode(
        x=_axes.iterations(),
        y=_axes.amount("loss", "loss", "~g"),
        color=_axes.colored("on", shown, "stroke"),
        tooltip=["on:N", "task:N", "iteration:Q", alt.Tooltip("loss:Q", format=".4f")],
    )
    lines = base.transform_filter(f"datum.on != '{HELD_OUT}'").mark_line(strokeWidth=1.8)
    points = base.transform_filter(f"datum.on != '{TRAINING}'").mark_point(filled=True, opacity=1)
    return titled(
        layered(lines, points),
        "Loss",
        "mean over the unmasked tokens" if "tokens_per_sec" in iterations.columns else "",
        f"Loss over {len(iterations)} iterations",
    )


def _losses(iterations: pd.DataFrame, evaluations: pd.DataFrame | None) -> pd.DataFrame:
    validated = iterations.drop(columns="loss").rename(columns={"validation_loss": "loss"})
    tables = {TRAINING: iterations, VALIDATION: validated, HELD_OUT: evaluations}
    parts = [
        table.reindex(columns=["iteration", "loss"]).assign(on=name, task=table.get("task", ""))
        for name, table in tables.items()
        if table is not None
    ]
    return pd.concat([part[part["loss"].notna()] for part in parts], ignore_index=True)
