"""What a view of a sweep shows of each experiment, as texts; and all of it as HTML that stays."""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimokit.analysis.many_runs import predicted_if_known
from mimokit.analysis.run_info import config_of
from mimokit.config import ConfigError
from mimokit.experiment.sweeps.records import NOT_DONE, ExperimentRecord, ExperimentStatus
from mimokit.result_files import RunFile
from mimokit.tables import Section
from mimokit.units import listed, seconds_text

if TYPE_CHECKING:
    from mimokit.prediction.task import HardwareSource

COLUMNS = (
    "experiment", "status", "ranks", "iterations", "loss", "tokens/s", "step", "communication",
    "waiting", "time",
)  # fmt: skip
_NONE = "–"

BYTES_OF_LAST_ROWS = 2**16
"""Of a table that grows while it is looked at: some hundred iterations."""


@dataclass(frozen=True)
class RunMedians:
    """What the last iterations of an experiment come down to; None where nothing was measured.

    Attributes:
        tokens: per second.
        seconds: of a step, of its slowest rank.
        communication: share of the time of a mean rank, without waiting for other ranks.
        waiting: share of it.
        predicted: seconds of a step.
    """

    tokens: float | None = None
    seconds: float | None = None
    communication: float | None = None
    waiting: float | None = None
    predicted: float | None = None


class Medians:
    """Medians of experiments, read from the ends of their tables of metrics."""

    def __init__(self, hardware: HardwareSource | None = None) -> None:
        """Remember for what hardware steps are predicted, as `predicted_if_known` takes it."""
        self._hardware = hardware
        self._rows: dict[Path, tuple[int, list[dict[str, str]]]] = {}
        self._predicted: dict[Path, float | None] = {}

    def of(self, directory: Path) -> RunMedians:
        """Return the medians of the last iterations after the warm-up."""
        steps = self._last(directory / RunFile.METRICS)
        ranks = self._last(directory / RunFile.METRICS_BY_RANK)
        try:
            spent = sum(_numbers(ranks, "total_time"))
            waited = sum(_numbers(ranks, "waiting_time"))
            communicated = sum(_numbers(ranks, "communication_time")) - waited
            return RunMedians(
                _median(steps, "tokens_per_sec"),
                _median(steps, "total_time"),
                max(0.0, communicated) / spent if spent else None,
                waited / spent if spent else None,
                self._predict(directory),
            )
        except ValueError:
            return RunMedians()  # no table of numbers; the analysis says why

    def _last(self, file: Path) -> list[dict[str, str]]:
        try:
            size = file.stat().st_size
            if self._rows.get(file, (-1, []))[0] != size:
                self._rows[file] = (size, _last_rows(file))
        except (OSError, ValueError, csv.Error):
            return []  # not there yet, or no table
        return self._rows[file][1]

    def _predict(self, directory: Path) -> float | None:
        if directory not in self._predicted:
            if not (directory / RunFile.CONFIG).is_file():
                return None
            try:
                known = predicted_if_known(config_of(directory), self._hardware)
            except (ConfigError, OSError, ValueError):
                known = None
            self._predicted[directory] = None if known is None else known[0]
        return self._predicted[directory]


def _last_rows(file: Path) -> list[dict[str, str]]:
    with file.open("rb") as table:
        heading = table.readline()
        start = table.tell()
        table.seek(max(start, table.seek(0, os.SEEK_END) - BYTES_OF_LAST_ROWS))
        if table.tell() > start:
            table.readline()  # begins within a row
        text = (heading + table.read()).decode("utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole)))
    return [row for row in rows if float(row.get("warmup") or 0) == 0] or rows


def _numbers(rows: Sequence[Mapping[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row.get(column)]


def _median(rows: Sequence[Mapping[str, str]], column: str) -> float | None:
    numbers = _numbers(rows, column)
    return statistics.median(numbers) if numbers else None


def sweep_rows(experiments: Sequence[ExperimentRecord], medians: Medians) -> list[dict[str, Any]]:
    """Return one row per experiment: texts of `COLUMNS`, its status, share and message."""
    return [_row(record, medians.of(record.directory)) for record in experiments]


def _row(record: ExperimentRecord, medians: RunMedians) -> dict[str, Any]:
    done, planned = record.iteration, record.iterations or 0
    known = planned and (done or record.status == "running")
    rate = medians.tokens
    cells = {
        "experiment": record.name,
        "status": str(record.status),
        "ranks": str(record.ranks or _NONE),
        "iterations": f"{done:,} of {planned:,}" if known else _NONE,
        "loss": _NONE if record.loss is None else _finite(record.loss, f"{record.loss:.4f}"),
        "tokens/s": _rate_text(rate),
        "step": _step_text(medians),
        "communication": _share_text(medians.communication),
        "waiting": _share_text(medians.waiting),
        "time": seconds_text(record.seconds) if record.seconds else _NONE,
    }
    share = 1.0 if record.status == "completed" else min(1.0, done / planned if planned else 0.0)
    message = " ".join(record.message.split())
    return {
        "cells": cells,
        "numbers": {
            "ranks": record.ranks,
            "iterations": done,
            "loss": record.loss if record.loss is not None and math.isfinite(record.loss) else None,
            "tokens/s": rate,
            "step": medians.seconds,
            "communication": medians.communication,
            "waiting": medians.waiting,
            "time": record.seconds,
        },
        "predicted": medians.predicted,
        "status": str(record.status),
        "ended": record.ended,
        "share": share,
        "message": message,
    }


def _finite(number: float, text: str) -> str:
    return text if math.isfinite(number) else "not finite"


def _step_text(medians: RunMedians) -> str:
    if medians.seconds is None:
        return _NONE
    known = medians.predicted
    return seconds_text(medians.seconds) + (f", predicted {seconds_text(known)}" if known else "")


def _share_text(share: float | None) -> str:
    return _NONE if share is None else f"{share:.0%}"


def _rate_text(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate:,.0f}"


def sweep_head(
    rows: Sequence[Mapping[str, Any]], done: bool, stopping: bool = False
) -> dict[str, Any]:
    """Return title, sentence and share of a whole sweep.

    Args:
        stopping: it was asked to stop, and goes on to the end of an iteration.
    """
    count = Counter(row["status"] for row in rows if row["ended"])
    running = sum(1 for row in rows if row["status"] == ExperimentStatus.RUNNING)
    shares = [1.0 if row["ended"] else row["share"] for row in rows]
    failed = [row["cells"]["experiment"] for row in rows if row["status"] in NOT_DONE]
    words = listed([f"{count[status]} {status}" for status in ExperimentStatus if count[status]])
    how = f": {words}" if words else ""
    going = f"; {running} running" if running else ""
    rates = {
        row["cells"]["experiment"]: row["numbers"]["tokens/s"] or 0.0 for row in rows if _whole(row)
    }
    best = max(rates, key=rates.__getitem__, default="")
    fastest = ""
    if done and len(rates) > 1 and rates.get(best):
        fastest = f" Most tokens per second: {best}, {_rate_text(rates[best])}."
    asked = " No other experiment begins; those that run end after their iteration."
    named = f" Without a result: {listed(failed[:5])}{_more(failed[5:])}." if failed else ""
    return {
        "title": "Sweep ended" if done else "Sweep, stopping" if stopping else "Sweep",
        "sentence": f"{count.total()} of {len(rows)} experiments have ended{how}{going}.{named}"
        + (fastest if done else asked if stopping else ""),
        "stopping": stopping and not done,
        "share": sum(shares) / len(rows) if rows else 1.0,
        "done": done,
    }


def _whole(row: Mapping[str, Any]) -> bool:
    if row["status"] == ExperimentStatus.SKIPPED:
        return float(row["share"]) == 1.0
    return str(row["status"]) == ExperimentStatus.COMPLETED


def _more(names: Sequence[str]) -> str:
    return f" and {len(names)} more" if names else ""


def sweep_section(shown: Mapping[str, Any]) -> Section:
    """Return the table of a sweep as a saved notebook shows it, and what went wrong."""
    head, rows = shown["head"], shown["rows"]
    title = head["title"] if head["done"] else "Sweep, when this page was saved"
    wrong = [f"{row['cells']['experiment']}: {row['message']}" for row in rows if row["message"]]
    cells = [[row["cells"][name] for name in COLUMNS] for row in rows]
    return Section(title, COLUMNS, cells, [head["sentence"], *wrong])
