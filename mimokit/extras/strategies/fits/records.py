"""What nodes report of a fit, and how long the parts of their steps take."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mimokit.extras.strategies.fits.job import Emit
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.communicate import Message
from mimokit.samples import ModuleSample, StepSample, to_wire

RECORDS = "fit"
"""The key of records in a message of a node."""

MODEL = "model"
"""What the samples of a fit call its one module."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A node is about to train.

    Attributes:
        first_step: steps completed: 0, or those of the checkpoint.
        minibatch_size: samples of a micro-batch.
    """

    node: int
    first_step: int
    total_steps: int
    minibatch_size: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A step of a node; `step` counts the optimizer steps completed, here and below.

    Attributes:
        loss: mean over the samples.
        busy_seconds: time of the step without exchanges.
    """

    node: int
    step: int
    samples: int
    loss: float
    lr: float | None
    busy_seconds: float
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a node has exchanged since its last report; `Message.step` says when."""

    node: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Validation:
    """Losses on validation samples.

    Attributes:
        values: column -> value: `local_loss` of node 0's weights, `global_loss` of the mean of all
            nodes' weights, and the metrics of both.
    """

    step: int
    values: Mapping[str, float]

    @property
    def loss(self) -> float:
        """That of the mean of all nodes' weights, or of the one node's."""
        return self.values.get("global_loss", self.values["local_loss"])


@dataclass(frozen=True, slots=True)
class Drift:
    """How far nodes are apart."""

    step: int
    mean_correlation: float
    largest_distance: float


Record: TypeAlias = Begun | NodeStep | Exchanged | Validation | Drift


def records_of(message: Mapping[str, Any]) -> tuple[Record, ...]:
    """Return the records of a message."""
    records: tuple[Record, ...] = message.get(RECORDS, ())
    return records


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
        self._emit, self._rank, self._nodes = emit, rank, nodes
        self.since_checkpoint: list[Record] = []

    def send(self, *records: Record) -> None:
        """Send records, and what was exchanged meanwhile."""
        self._send({}, *records)

    def step(
        self, record: NodeStep, parts: Mapping[str, float], validation: Validation | None = None
    ) -> None:
        """Send a step, with the seconds of its parts by column, also as the sample of monitors."""
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
