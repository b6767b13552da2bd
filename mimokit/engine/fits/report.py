"""What a node reports while it trains, and how long the parts of its steps take."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mimokit.engine.fits.job import Emit
from mimokit.engine.fits.records import (
    MODEL,
    RECORDS,
    Exchanged,
    NodeStep,
    Record,
    Validation,
)
from mimokit.engine.strategies import communicate
from mimokit.samples import ModuleSample, StepSample, to_wire


class Watch:
    """The parts of a step, in seconds, from the end of one to the end of the next."""

    def __init__(self) -> None:
        self._begin(time.perf_counter())

    def _begin(self, moment: float) -> None:
        self._begun = self._last = moment
        self._exchanged = communicate.ledger.seconds

    def next_step(self) -> None:
        """Begin where the last lap ended: what came after it belongs to the next step."""
        self._begin(self._last)

    def lap(self) -> float:
        """Return the time since the last lap."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before

    @property
    def total(self) -> float:
        """Time since the start, up to the last lap."""
        return self._last - self._begun

    @property
    def exchanging(self) -> float:
        """Time of the exchanges since the start."""
        return communicate.ledger.seconds - self._exchanged


class Reporter:
    """Sends records, and keeps those since the last checkpoint: a killed node may not send them."""

    def __init__(self, emit: Emit, rank: int, nodes: int) -> None:
        """Take what sends a message."""
        self._emit, self._rank, self._nodes = emit, rank, nodes
        self.since_checkpoint: list[Record] = []

    def send(self, *records: Record) -> None:
        """Send records, and what was exchanged meanwhile."""
        self._send({}, *records)

    def step(
        self, record: NodeStep, parts: Mapping[str, float], validation: Validation | None = None
    ) -> None:
        """Send a step, also as the sample that monitors show.

        Args:
            record: of the step.
            parts: columns of `StepSample` -> seconds.
            validation: after the step, of the node that reports it.
        """
        passes = {name: parts[name] for name in ("forward_time", "backward_time")}
        sample = StepSample(
            iteration=record.step - 1,
            rank=self._rank,
            replica=self._rank,
            total_time=record.seconds,
            loss=record.loss,
            samples_per_sec=self._nodes * record.samples / max(record.seconds, 1e-9),
            validation_loss=None if validation is None else validation.loss,
            modules={MODEL: ModuleSample(**passes)},
            further={} if record.lr is None else {"lr": record.lr},
            **parts,  # type: ignore[arg-type]
        )
        records = (record,) if validation is None else (record, validation)
        self._send(to_wire(sample), *records)

    def again(self, records: list[Record]) -> None:
        """Send the records of a checkpoint: the last run may have been killed before they left."""
        self.since_checkpoint = []
        if records:
            self._emit({RECORDS: tuple(records)})

    def _send(self, message: dict[str, object], *records: Record) -> None:
        messages, communicate.ledger.messages = communicate.ledger.messages, []
        if messages:
            records = (*records, Exchanged(self._rank, tuple(messages)))
        self.since_checkpoint.extend(records)
        if records:
            self._emit({**message, RECORDS: records})
