"""The tables of a fit, from the records of its nodes as they come, and times on its network."""

from __future__ import annotations

import csv
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from xxhash import xxh3_64

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.text_file import open_regular, read_json
from mimokit.experiment.results import AppendedTable
from mimokit.extras.strategies.exchanges import StrategyPlan
from mimokit.extras.strategies.fits.records import (
    Begun,
    Drift,
    Exchanged,
    NodeStep,
    Record,
    Validation,
)
from mimokit.extras.strategies.network import (
    Network,
    StrategyPrediction,
    StrategyTimeline,
    predict_strategy,
    strategy_timeline,
)
from mimokit.extras.strategies.nodes.communicate import NOT_EMULATED
from mimokit.planning.digests import digest_text, is_as_sealed, sealed
from mimokit.result_files import (
    BY_STRATEGY,
    FIT_COLUMNS,
    MEASURED_SECONDS,
    PREDICTED_SECONDS,
    FitFile,
    write_json,
    write_table,
)

Row: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[int, int, int]
"""(step, purpose in the order of a step, node)."""

SEALED_EVERY = 1.0
"""Seconds between two digests of the tables: a client that is killed leaves later rows without."""
_MESSAGE = ("step", "node", "purpose")


class FitTables:
    """Rows of all tables; each is appended to its file when it is complete.

    Attributes:
        begun: what the nodes have said before the first step; None before.
    """

    def __init__(self, directory: Path, nodes: int) -> None:
        """Take the folder, which may hold the tables of the same run up to a checkpoint."""
        self._directory, self._nodes = directory, nodes
        self.begun: Begun | None = None
        self.times: dict[int, dict[int, NodeStep]] = defaultdict(dict)  # by step, by node
        self.completed: dict[int, int] = dict.fromkeys(range(nodes), 0)  # steps of each node
        self._rows: dict[FitFile, dict[Any, Row]] = {file: {} for file in FIT_COLUMNS}
        self._files: dict[FitFile, AppendedTable] = {}
        self._written_before: set[Place] = set()
        self._counts: dict[Place, int] = defaultdict(int)
        self._written: dict[FitFile, _Rows] = {}
        self._sealed_at = -math.inf
        self._heard: list[Callable[[FitFile, Row], None]] = []

    def on_row(self, callback: Callable[[FitFile, Row], None]) -> None:
        """Call back for every row of training and validation."""
        self._heard.append(callback)

    def rows(self, file: FitFile) -> list[Row]:
        """Return the rows of a table, in order."""
        return [self._rows[file][key] for key in sorted(self._rows[file])]

    def take(self, record: Record) -> None:
        """Take a record; raises OSError if its row could not be written."""
        match record:
            case Begun():
                self._begin(record)
            case NodeStep():
                self._take_step(record)
            case Validation():
                self._add(FitFile.VALIDATION, {record.step: _validation_row(record)})
            case Drift():
                names = FIT_COLUMNS[FitFile.DRIFT]
                row = {name: getattr(record, name) for name in names}
                self._add(FitFile.DRIFT, {record.step: row})
            case Exchanged():
                self._add(FitFile.COMMUNICATION, self._communication(record))

    def write(self, further: Mapping[int, Mapping[str, float]] | None = None) -> None:
        """Replace all files by whole ones.

        Args:
            further: step -> further columns of training and validation.

        Raises:
            OSError: a file cannot be written.
        """
        for step, columns in (further or {}).items():
            for file in (FitFile.TRAIN, FitFile.VALIDATION):
                if step in self._rows[file]:
                    self._rows[file][step] |= columns
        if self.begun is None and any((self._directory / file).exists() for file in FIT_COLUMNS):
            return  # The nodes refused to go on: the tables are those of the earlier run.
        for file, names in FIT_COLUMNS.items():
            if self._rows[file] or file is not FitFile.DRIFT:
                self._replace(file, names)
        self._seal(ended=True)

    def _replace(self, file: FitFile, names: Sequence[str]) -> None:
        write_table(self._directory / file, self.rows(file), names)
        self._written[file] = _Rows(self.rows(file))

    def _seal(self, *, ended: bool = False) -> None:
        """Write how many rows of each table there are, and their digest."""
        tables = {file: [rows.count, rows.digest()] for file, rows in self._written.items()}
        content = {"ended": ended, "tables": tables}
        write_json(self._directory / FitFile.DIGESTS, sealed(content))
        self._sealed_at = time.monotonic()

    def _begin(self, record: Begun) -> None:
        if self.begun is not None:
            return
        self.begun = record
        (self._directory / FitFile.DIGESTS).unlink(missing_ok=True)  # rows are taken away
        for file, names in FIT_COLUMNS.items():
            path = self._directory / file
            for row in _rows_until(path, record.first_step):
                self._keep(file, row)
            self._written[file] = _Rows()
            if path.exists():
                self._replace(file, names)
            self._files[file] = AppendedTable(path, names)

    def _keep(self, file: FitFile, row: Row) -> None:
        """Keep a row of the run that goes on; what a checkpoint reports again is not added."""
        key: Any = row["step"]
        if file is FitFile.COMMUNICATION:
            place = _place(row)
            self._written_before.add(place)
            self._counts[place] += 1
            key = (*place, self._counts[place])
        self._rows[file][key] = row

    def _take_step(self, record: NodeStep) -> None:
        group = self.times[record.step]
        group[record.node] = record
        self.completed[record.node] = max(self.completed[record.node], record.step)
        if len(group) < self._nodes:
            return
        rows = self._rows[FitFile.TRAIN]
        before = rows.get(record.step - 1, {}).get("examples_trained", 0)
        self._add(FitFile.TRAIN, {record.step: _train_row(list(group.values()), int(before))})

    def _communication(self, record: Exchanged) -> dict[Any, Row]:
        rows: dict[Any, Row] = {}
        for message in record.messages:
            purpose = message.purpose if message.purpose in NOT_EMULATED else BY_STRATEGY
            row = dict(zip(_MESSAGE, (message.step, record.node, purpose), strict=True))
            place = _place(row)
            if place not in self._written_before:
                self._counts[place] += 1
                rows[(*place, self._counts[place])] = row | {
                    "operation": message.operation,
                    "payload_bytes": message.payload_bytes,
                    "sent_bytes": message.sent_bytes,
                }
        return rows

    def _add(self, file: FitFile, rows: Mapping[Any, Row]) -> None:
        new = {key: row for key, row in rows.items() if key not in self._rows[file]}
        self._rows[file] |= new
        for row in new.values():
            for callback in self._heard:
                callback(file, row)
        self._files[file].append(new.values())
        self._written[file].add(new.values())
        if time.monotonic() > self._sealed_at + SEALED_EVERY:
            self._seal()


class _Rows:
    """The digest of rows, whichever columns are empty in them."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.count, self._digest = 0, xxh3_64()
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.count += 1
            cells = sorted((name, str(value)) for name, value in row.items() if value != "")
            self._digest.update(repr(cells).encode())

    def digest(self) -> str:
        return digest_text(self._digest)


def check_tables(directory: Path) -> None:
    """Check the tables of a fit that is to go on.

    Raises:
        ConfigError: a file is not such a table, or its rows are not those that the fit has written.
    """
    try:
        seals = _seals(directory / FitFile.DIGESTS)
    except (OSError, ValueError) as error:
        raise _no_table(directory / FitFile.DIGESTS, f"cannot be read ({error})") from None
    for file in FIT_COLUMNS:
        path, seal = directory / file, seals.tables.get(file)
        if not os.path.lexists(path) and (seal is None or not seal[0]):
            continue
        try:
            _rows_until(path, math.inf)
            # A client that was killed has written rows after the last digest.
            rows = _Rows(islice(_cells(path), None if seals.ended or seal is None else seal[0]))
        except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise _no_table(path, f"is no table of a fit ({reason})") from None
        if seal not in (None, (rows.count, rows.digest())):
            why = f"has other rows than the fit has written; delete {FitFile.DIGESTS} to go on"
            raise _no_table(path, f"{why} with these, or put the right ones back")


class _Seals(BaseModel):
    ended: bool = False
    tables: dict[FitFile, tuple[int, str]] = {}


def _seals(path: Path) -> _Seals:
    if not os.path.lexists(path):  # of an earlier version
        return _Seals()
    content = read_json(path)
    if not isinstance(content, dict) or not is_as_sealed(content):
        raise ValueError("it has other content than was written")
    return _Seals.model_validate(content)


def _no_table(path: Path, why: str) -> ConfigError:
    return ConfigError([Problem("fit", "resume", True, f"fit: resume is True, but {path} {why}.")])


def _train_row(group: list[NodeStep], examples_before: int) -> Row:
    loss = math.fsum(step.loss for step in group) / len(group)
    row: Row = {
        "step": group[0].step,
        "examples_trained": examples_before + sum(step.samples for step in group),
        "train_loss": loss,
        "train_perplexity": perplexity(loss),
        "lr": group[0].lr,
    }
    names = dict.fromkeys(name for step in group for name in step.metrics)
    for name in names:
        values = [step.metrics[name] for step in group if name in step.metrics]
        row[name] = math.fsum(values) / len(values)
    return row


def _validation_row(record: Validation) -> Row:
    row: Row = {"step": record.step}
    for name, value in record.values.items():
        row[name] = value
        if name in ("local_loss", "global_loss"):
            row[name.replace("loss", "perplexity")] = perplexity(value)
    return row


def perplexity(loss: float) -> float:
    """Return e to the loss; infinite where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _place(row: Row) -> Place:
    purposes = (NOT_EMULATED[0], BY_STRATEGY, *NOT_EMULATED[1:])
    return row["step"], purposes.index(row["purpose"]), row["node"]


def _rows_until(path: Path, step: float) -> list[Row]:
    if step == 0 or not path.exists():
        return []
    rows = [
        {name: _number(value) for name, value in row.items() if value != ""} for row in _cells(path)
    ]
    return [row for row in rows if row["step"] <= step]


def _cells(path: Path) -> Iterator[dict[str, str]]:
    with open_regular(path, newline="", encoding="utf-8") as stream:
        yield from csv.DictReader(stream)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


Times = Mapping[int, Mapping[int, NodeStep]]
"""step -> node -> its record."""


@dataclass(frozen=True)
class FitTimes:
    """What the nodes of a fit have measured, and when the network lets them end their steps.

    Nodes of one machine share its cores: one of them computes a step longer than another, and
    which one changes from step to step. What they wait for each other therefore follows from the
    time of each step; means of nodes are too short.

    Attributes:
        busy: seconds of compute, [step, node].
        whole: seconds of the step with its exchanges, likewise.
        timeline: predicted from `busy`.
    """

    plan: StrategyPlan
    network: Network
    busy: NDArray[np.float64]
    whole: NDArray[np.float64]
    timeline: StrategyTimeline

    @classmethod
    def of(cls, plan: StrategyPlan, network: Network, times: Times, steps: int) -> FitTimes:
        """Return the times of the first `steps` steps, which all nodes have reported."""
        records = [
            [times[step][node] for node in range(plan.nodes)] for step in range(1, steps + 1)
        ]
        busy, whole = (
            np.array([[getattr(step, name) for step in group] for group in records])
            for name in ("busy_seconds", "seconds")
        )
        return cls(plan, network, busy, whole, strategy_timeline(plan, network, busy, steps))

    def prediction(self) -> StrategyPrediction:
        """Predict rounds and the time of the whole fit.

        A round has the waiting of the mean round of the fit.
        """
        line, (steps, nodes) = self.timeline, self.busy.shape
        waited = sum(line.seconds("wait")) / (steps * nodes)
        mean = float(self.busy.mean())
        measured = replace(self.network, speeds=(), spread=waited / mean if nodes > 1 else 0.0)
        predicted_round = predict_strategy(self.plan, measured, mean, steps=steps)
        return replace(predicted_round, wall_seconds=line.wall_seconds)

    def columns(self) -> dict[int, dict[str, float]]:
        """Return step -> predicted and measured seconds until all nodes have completed it."""
        ends = {0: np.zeros(self.plan.nodes)}
        for block in self.timeline.blocks:
            row = ends.setdefault(block.step, np.zeros(self.plan.nodes))
            row[block.node] = max(row[block.node], block.stop)
        measured = self.whole.cumsum(axis=0)
        seconds = {0: {PREDICTED_SECONDS: 0.0, MEASURED_SECONDS: 0.0}}
        last, since = 0, np.zeros(self.plan.nodes)
        for step, busy in enumerate(self.busy, start=1):
            since = since + busy
            if step in ends:
                last, since = step, np.zeros(self.plan.nodes)
            predicted = float((ends[last] + since).max())
            whole = float(measured[step - 1].max())
            seconds[step] = {PREDICTED_SECONDS: predicted, MEASURED_SECONDS: whole}
        return seconds
