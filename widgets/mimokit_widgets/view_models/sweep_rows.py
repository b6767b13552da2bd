"""What a view of a sweep shows of each experiment, as texts; and all of it as HTML that stays."""

from __future__ import annotations

import csv
import io
import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mimokit.experiment.sweeps.records import NOT_DONE, ExperimentRecord, ExperimentStatus
from mimokit.result_files import RunFile
from mimokit.units import listed, seconds_text

COLUMNS = ("experiment", "status", "ranks", "iterations", "loss", "tokens/s", "time")
_NONE = "–"

BYTES_OF_LAST_ROWS = 2**16
"""Of a table that grows while it is looked at: some hundred iterations."""


class Rates:
    """Tokens per second of experiments, read from the ends of their tables of metrics."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, float | None]] = {}

    def of(self, directory: Path) -> float | None:
        """Return the median of the last iterations after the warm-up, None without a table."""
        file = directory / RunFile.METRICS
        try:
            size = file.stat().st_size
            if self._known.get(file, (-1, None))[0] != size:
                self._known[file] = (size, _median_rate(file))
        except (OSError, ValueError, csv.Error):
            return None  # not there yet, or no table; the analysis says why
        return self._known[file][1]


def _median_rate(file: Path) -> float | None:
    """Return the median of a column; a row that is half written does not count."""
    with file.open("rb") as table:
        heading = table.readline()
        start = table.tell()
        table.seek(max(start, table.seek(0, os.SEEK_END) - BYTES_OF_LAST_ROWS))
        if table.tell() > start:
            table.readline()  # begins within a row
        text = (heading + table.read()).decode("utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = list(csv.DictReader(io.StringIO(whole)))
    warm = [row for row in rows if float(row.get("warmup") or 0) == 0] or rows
    rates = [float(row["tokens_per_sec"]) for row in warm if row.get("tokens_per_sec")]
    return statistics.median(rates) if rates else None


def sweep_rows(experiments: Sequence[ExperimentRecord], rates: Rates) -> list[dict[str, Any]]:
    """Return one row per experiment: texts of `COLUMNS`, its status, share and message."""
    return [_row(record, rates) for record in experiments]


def _row(record: ExperimentRecord, rates: Rates) -> dict[str, Any]:
    done, planned = record.iteration, record.iterations or 0
    known = planned and (done or record.status == "running")
    cells = {
        "experiment": record.name,
        "status": str(record.status),
        "ranks": str(record.ranks or _NONE),
        "iterations": f"{done:,} of {planned:,}" if known else _NONE,
        "loss": _NONE if record.loss is None else _finite(record.loss, f"{record.loss:.4f}"),
        "tokens/s": _rate_text(rates.of(record.directory)),
        "time": seconds_text(record.seconds) if record.seconds else _NONE,
    }
    share = 1.0 if record.status == "completed" else min(1.0, done / planned if planned else 0.0)
    message = " ".join(record.message.split())
    return {
        "cells": cells,
        "status": str(record.status),
        "ended": record.ended,
        "share": share,
        "message": message,
    }


def _finite(number: float, text: str) -> str:
    return text if math.isfinite(number) else "not finite"


def _rate_text(rate: float | None) -> str:
    return _NONE if rate is None else f"{rate:,.0f}"


def sweep_head(rows: Sequence[Mapping[str, Any]], done: bool) -> dict[str, Any]:
    """Return title, sentence and share of a whole sweep."""
    count = Counter(row["status"] for row in rows if row["ended"])
    running = sum(1 for row in rows if row["status"] == ExperimentStatus.RUNNING)
    shares = [1.0 if row["ended"] else row["share"] for row in rows]
    failed = [row["cells"]["experiment"] for row in rows if row["status"] in NOT_DONE]
    words = listed([f"{count[status]} {status}" for status in ExperimentStatus if count[status]])
    how = f": {words}" if words else ""
    going = f"; {running} running" if running else ""
    named = f" Without a result: {listed(failed[:5])}{_more(failed[5:])}." if failed else ""
    return {
        "title": "Sweep ended" if done else "Sweep",
        "sentence": f"{count.total()} of {len(rows)} experiments have ended{how}{going}.{named}",
        "share": sum(shares) / len(rows) if rows else 1.0,
        "done": done,
    }


def _more(names: Sequence[str]) -> str:
    return f" and {len(names)} more" if names else ""


def sweep_html(shown: Mapping[str, Any], styles: str) -> str:
    """Return a sweep as HTML that needs no kernel and no scripts."""
    head = shown["head"]
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in COLUMNS)
    body = "".join(map(_html_row, shown["rows"]))
    title = head["title"] if head["done"] else "Sweep, when this page was saved"
    return (
        f"<style>{styles}</style><div class='mimokit mimokit-sweep'><header><h3>{title}</h3>"
        f"</header><p class='sentence'>{escape(head['sentence'])}</p>"
        f"<div class='rows'><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
        "</div></div>"
    )


def _html_row(row: Mapping[str, Any]) -> str:
    cells = "".join(f"<td>{escape(row['cells'][name])}</td>" for name in COLUMNS)
    line = f"<tr class='{escape(row['status'])}'>{cells}</tr>"
    if not row["message"]:
        return line
    status = escape(row["status"])
    text = f"<td colspan='{len(COLUMNS)}'>{escape(row['message'])}</td>"
    return f"{line}<tr class='message {status}'>{text}</tr>"
