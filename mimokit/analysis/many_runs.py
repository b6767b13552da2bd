"""Tables about many runs that charts draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mimokit.analysis.comparison import Comparison, compare
from mimokit.analysis.runs import Runs
from mimokit.analysis.step_figures import step_figures
from mimokit.analysis.table_file import records
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.prediction import predict
from mimokit.prediction.hardware import load_hardware

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


PLANNED_COLUMNS = (
    "run", "mode", "planned", "planned_low", "planned_high", "measured", "low", "high", "error",
)  # fmt: skip
"""Columns of `planned_against_measured`; times are seconds of a step."""


def planned_against_measured(runs: Runs, hardware: HardwareSource | None = None) -> pd.DataFrame:
    """Predict the step of every run from its config.yaml, and put the measured median next to it.

    Args:
        hardware: as in `mimokit.predict`: the file that `mimokit.calibrate` wrote on the machine
            of the runs, or a GPU. None takes the GPU of each config, which is right only for runs
            on such GPUs.

    Returns:
        PLANNED_COLUMNS, a row per run that was measured and can be predicted; `error` is the
        prediction over the median minus 1. `attrs["left_out"]` says of the others why.

    Raises:
        ValueError: the runs were on CPUs and no hardware is given.
    """
    if hardware is None and runs.runs["accelerators"].isna().all():
        raise ValueError(
            "The runs were on CPUs, whose speed no shipped file says; give the hardware file that "
            "mimokit.calibrate wrote on this machine, or a GPU to predict for."
        )
    measured = compare(runs, metric="total_time").table.set_index("name")
    modes = runs.runs.set_index("run")["mode"]
    rows, left_out = [], {}
    for name in runs:
        if name not in measured.index:
            left_out[name] = "no step was measured"
            continue
        try:
            planned, low, high = predicted_step(runs.config(name), hardware)
        except (ConfigError, ValueError) as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        figures = measured.loc[name]
        interval = (figures["median"], figures["low"], figures["high"])
        rows.append((name, modes[name], planned, low, high, *interval, planned / interval[0] - 1))
    table = pd.DataFrame(rows, columns=list(PLANNED_COLUMNS))
    table.attrs["left_out"] = left_out
    name = load_hardware(hardware).name if hardware else "the GPU of each config"
    table.attrs["how"] = f"predicted for {name}"
    return table


def predicted_step(
    config: ExperimentConfig, hardware: HardwareSource | None = None
) -> tuple[float, float, float]:
    """Predict the seconds of a step, with the ends of their band.

    Raises:
        ValueError: the config cannot be predicted for this hardware.
    """
    prediction = predict(config, gpu=hardware)
    return prediction.seconds, prediction.low, prediction.high


def predicted_if_known(
    config: ExperimentConfig, hardware: HardwareSource | None = None
) -> tuple[float, float, float] | None:
    """Predict as `predicted_step`, for the hardware of the config where none is given.

    Returns:
        None if neither names hardware, or if the config cannot be predicted for its own.

    Raises:
        ValueError: the config cannot be predicted for the hardware that was given.
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
