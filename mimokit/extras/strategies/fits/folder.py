"""Fits under strategies: the folder of one, and tables of several for charts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from mimokit.analysis.run_folders import RunFolderError, read_object, read_sound_table
from mimokit.result_files import BY_STRATEGY, FIT_COLUMNS, PREDICTED_SECONDS, FitFile

TEXTS = ("purpose", "operation")
"""Columns of text in communication.csv."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The tables of a fit: of its result or its folder.

    Attributes:
        train: a row per step.
        validation: a row per validation.
        communication: a row per node and collective; bytes.
        drift: how far nodes are apart; empty if it was not measured.
    """

    train: pd.DataFrame
    validation: pd.DataFrame
    communication: pd.DataFrame
    drift: pd.DataFrame


Fits: TypeAlias = Mapping[str, Fit]
"""Name -> fit, in the order of legends."""


@dataclass(frozen=True, kw_only=True)
class FitFolder(Fit):
    """The content of the folder of a fit.

    Attributes:
        config: strategy and arguments, from config.json.
        prediction: of the time on the fit's network; empty without that file.
    """

    directory: Path
    config: Mapping[str, Any]
    prediction: Mapping[str, Any]


def read_fit(directory: str | Path) -> FitFolder:
    """Read the folder of a fit: `log_dir/run_name` of `Trainer.fit`.

    Raises:
        RunFolderError: the folder or its train.csv is missing, or a file is broken.
    """
    folder = Path(directory)
    if not os.path.isdir(folder):
        raise RunFolderError(f"The folder {folder} does not exist.")
    if not (folder / FitFile.TRAIN).is_file():
        raise RunFolderError(
            f"The folder {folder} has no {FitFile.TRAIN}, so it is not the folder of a fit "
            "or the fit ended before its first step."
        )
    tables = {
        file: read_sound_table(folder / file, columns, columns, TEXTS)
        for file, columns in FIT_COLUMNS.items()
    }
    return FitFolder(
        directory=folder,
        config=read_object(folder / FitFile.CONFIG),
        train=tables[FitFile.TRAIN],
        validation=tables[FitFile.VALIDATION],
        communication=tables[FitFile.COMMUNICATION],
        drift=tables[FitFile.DRIFT],
        prediction=read_object(folder / FitFile.PREDICTION),
    )


def validation_of_fits(fits: Fits) -> pd.DataFrame:
    """Return the validation loss of fits, over steps, bytes and predicted time.

    Columns: fit, step, loss (of the mean of all nodes' weights; with one node of its weights),
    sent_bytes (what a node has sent for the strategy until then, mean over the nodes), and
    predicted_seconds where a fit has a network.
    """
    losses, times = ["local_loss", "global_loss"], PREDICTED_SECONDS
    tables = []
    for name, fit in fits.items():
        table = fit.validation.reindex(columns=["step", *losses, times])
        local, mean, predicted = (_numbers(table[column]) for column in (*losses, times))
        sent = _sent_by_step(fit)
        rows = pd.DataFrame({"step": table["step"].astype(int), "loss": mean.fillna(local)})
        rows["sent_bytes"] = [float(sent[sent.index <= step].sum()) for step in rows["step"]]
        tables.append(rows.assign(fit=name, **{times: predicted}))
    together = _together(tables, ["fit", "step", "loss", "sent_bytes", times])
    return together.drop(columns=times) if together[times].isna().all() else together


def bytes_of_fits(fits: Fits) -> pd.DataFrame:
    """Return what a node sends for the strategy after each step, mean over the nodes.

    Columns: fit, step, sent_bytes; steps without an exchange have 0.
    """
    tables = []
    for name, fit in fits.items():
        steps = fit.train["step"].astype(int)
        sent = _sent_by_step(fit).reindex(steps, fill_value=0.0)
        columns = {"fit": name, "step": steps, "sent_bytes": sent.to_numpy()}
        tables.append(pd.DataFrame(columns))
    return _together(tables, ["fit", "step", "sent_bytes"])


def drift_of_fits(fits: Fits) -> pd.DataFrame:
    """Return how far the nodes of fits are apart; fits that did not measure it have no rows.

    Columns: fit, step, mean_correlation, largest_distance.
    """
    columns = list(FIT_COLUMNS[FitFile.DRIFT])
    tables = [
        fit.drift[columns].assign(fit=name) for name, fit in fits.items() if not fit.drift.empty
    ]
    return _together(tables, ["fit", *columns])


def _sent_by_step(fit: Fit) -> pd.Series:
    table = fit.communication.reindex(columns=list(FIT_COLUMNS[FitFile.COMMUNICATION]))
    nodes = max(1, table["node"].nunique())
    exchanged = table[table["purpose"] == BY_STRATEGY]
    sent: pd.Series = _numbers(exchanged["sent_bytes"]).groupby(exchanged["step"].astype(int)).sum()
    return sent / nodes


def _numbers(values: pd.Series) -> pd.Series:
    numbers: pd.Series = pd.to_numeric(values, errors="coerce").astype(float)
    return numbers


def _together(tables: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    if not tables:
        return pd.DataFrame(columns=columns)
    return pd.concat(tables, ignore_index=True)[columns]
