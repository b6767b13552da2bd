"""Tables about many runs that charts draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mimokit.analysis.comparison import Comparison
from mimokit.analysis.runs import Runs
from mimokit.analysis.step_figures import step_figures
from mimokit.analysis.table_file import records
from mimokit.config import ExperimentConfig
from mimokit.prediction import predict

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource


def time_parts(runs: Runs) -> pd.DataFrame:
    """Return where the steps of runs go, as a mean over the ranks, warm-up left out.

    Columns: run, part, module ("" for a part of no module), column, seconds, share. A run in which
    nothing was measured has no rows.
    """
    tables = []
    for name in runs:
        figures, _ = step_figures(runs, name)
        if figures is not None:
            tables.append(figures.parts.assign(run=name))
    columns = ["run", "part", "module", "column", "seconds", "share"]
    if not tables:
        return pd.DataFrame(columns=columns)
    return pd.concat(tables, ignore_index=True)[columns]


def scaling_table(runs: Runs, comparison: Comparison) -> pd.DataFrame:
    """Return the compared medians with the ranks that they took.

    Columns: name, mode, world_size, median, low, high, efficiency: the median per rank over that of
    the best one on the fewest ranks. Names without a completed run are left out.
    """
    about = runs.runs[["run", "layout", "mode", "world_size"]]
    rows = []
    for row in records(comparison.table):
        if row["name"] in comparison.unfinished:
            continue
        alike = about[(about["run"] == row["name"]) | (about["layout"] == row["name"])].iloc[:1]
        if len(alike) and alike["world_size"].notna().all():
            place = {"mode": alike["mode"].iloc[0], "world_size": int(alike["world_size"].iloc[0])}
            rows.append({**row, **place})
    columns = ["name", "mode", "world_size", "median", "low", "high"]
    table = pd.DataFrame(rows, columns=columns).sort_values(
        ["world_size", "median"], ignore_index=True
    )
    fewest = table["world_size"] == table["world_size"].min()
    best = (table["median"] / table["world_size"])[fewest].max()
    return table.assign(efficiency=table["median"] / table["world_size"] / best)


def loss_over_tokens(runs: Runs) -> pd.DataFrame:
    """Return the loss of runs over the tokens that they have trained on.

    Columns: run, iteration, tokens, loss. Tokens are those of a step times the steps; where they
    are not known for every run, samples, or else iterations. `attrs["over"]` says which.
    """
    rows = runs.runs.set_index("run")
    steps = runs.iterations
    if "loss" not in steps.columns:
        return pd.DataFrame(columns=["run", "iteration", "tokens", "loss"])
    table = steps[["run", "iteration", "loss"]].dropna().reset_index(drop=True)
    seen = rows.loc[table["run"].unique().tolist()]
    over, column = next(
        (
            (words, name)
            for words, name in (("tokens", "tokens_per_step"), ("samples", "samples_per_step"))
            if seen[name].notna().all()
        ),
        ("iterations", ""),
    )
    each = {str(name): float(value) for name, value in rows[column].items()} if column else {}
    per_step = np.array([each.get(name, 1.0) for name in table["run"]])
    table["tokens"] = per_step * (table["iteration"] + 1)
    table.attrs["over"] = over
    return table[["run", "iteration", "tokens", "loss"]]


def predicted_step(
    config: ExperimentConfig, hardware: HardwareSource | None = None
) -> tuple[float, float, float]:
    """Predict the seconds of a step, with the ends of their band.

    Args:
        hardware: as in `mimokit.predict`: the file that `mimokit.calibrate` wrote on the machine
            of the runs, or a GPU.
    """
    prediction = predict(config, gpu=hardware)
    return prediction.seconds, prediction.low, prediction.high


def predicted_if_known(
    config: ExperimentConfig, hardware: HardwareSource | None = None
) -> tuple[float, float, float] | None:
    """Predict as `predicted_step`, for the hardware of the config where none is given.

    Returns:
        None if neither names hardware, or if the config cannot be predicted for its own.
    """
    source = hardware or getattr(config.runtime, "hardware", None)  # that of a fit has none
    if source is None:
        return None
    try:
        return predicted_step(config, source)
    except ValueError:
        if hardware is not None:
            raise
        return None
