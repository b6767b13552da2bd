"""What nodes report of a fit, next to `StepSample`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mimokit.engine.strategies.communicate import Message

RECORDS = "fit"
"""The key of records in a message of a node."""

MODEL = "model"
"""What the samples of a fit call its one module."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A node is about to train.

    Attributes:
        node: the sender.
        first_step: steps completed: 0, or those of the checkpoint.
        total_steps: steps of the whole fit.
        minibatch_size: samples of a micro-batch.
        notes: what the user should hear, one sentence each.
    """

    node: int
    first_step: int
    total_steps: int
    minibatch_size: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A step of a node.

    Attributes:
        node: the sender.
        step: optimizer steps completed.
        samples: trained on in this step.
        loss: mean over the samples.
        lr: learning rate of the step.
        busy_seconds: time of the step without exchanges.
        seconds: time of the step.
        metrics: what model and strategy have reported.
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
        step: optimizer steps completed.
        values: column -> value: `local_loss` of node 0's weights, `global_loss` of the mean of all
            nodes' weights, and the metrics of both.
    """

    step: int
    values: Mapping[str, float]

    @property
    def loss(self) -> float:
        """That of the mean of all nodes' weights; of one node's weights where it is alone."""
        return self.values.get("global_loss", self.values["local_loss"])


@dataclass(frozen=True, slots=True)
class Drift:
    """How far nodes are apart.

    Attributes:
        step: optimizer steps completed.
        mean_correlation: Pearson's, of the weights, mean over all pairs of nodes.
        largest_distance: Euclidean, between the weights of two nodes.
    """

    step: int
    mean_correlation: float
    largest_distance: float


Record: TypeAlias = Begun | NodeStep | Exchanged | Validation | Drift


def records_of(message: Mapping[str, Any]) -> tuple[Record, ...]:
    """Return the records of a message."""
    found: tuple[Record, ...] = message.get(RECORDS, ())
    return found
