"""The named steps of a schedule: one table that plans, engines, tables and charts read."""

from enum import StrEnum
from typing import Self


class Phase(StrEnum):
    """A category of step times."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    DATA = "data"
    REPORT = "report"

    @property
    def column(self) -> str:
        """The column of a step table with the seconds of this phase."""
        return f"{self}_time"


class CommunicationPart(StrEnum):
    """What the communication of a step consists of, by who takes part, and the wait in it.

    COLLECTIVE and POINT_TO_POINT add up to the phase; WAITING is part of it, of either kind.
    """

    COLLECTIVE = "collective"
    POINT_TO_POINT = "point_to_point"
    WAITING = "waiting"

    @property
    def column(self) -> str:
        """The column of a step table with its seconds."""
        return f"{self}_time"


MODULE_PHASES = (Phase.FORWARD, Phase.BACKWARD)
"""Phases that belong to one module; every module of a rank has their columns."""

RANK_PHASES = (Phase.COMMUNICATION, Phase.OPTIMIZER, Phase.DATA)
"""Phases that charts show per rank, in stacking order."""

REMAINDER = "other"
"""The rest of a step beyond the phases above, so that the times of a rank add up to its step time.
It includes the report."""


class StepKind(StrEnum):
    """One named step of a schedule.

    A member is the name itself (`StepKind.LOAD == "load"`), as plans, traces and the step-through
    debugger show it.

    Attributes:
        color: colour class in timelines: a phase, or `REMAINDER`.
        busy: forward or backward, if the clock of a pipeline counts the step as computation in
            that direction; None if the rank is idle or waits. The clock has no separate time for
            loading and sending, so these count with the computation they belong to.
        meaning: what the rank does, as a phrase.
    """

    phase: Phase
    color: str
    busy: Phase | None
    meaning: str

    def __new__(cls, name: str, phase: Phase, color: str, busy: Phase | None, meaning: str) -> Self:
        """Make the member; Python's enum calls this with each row of the table."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.phase, member.color, member.busy, member.meaning = phase, color, busy, meaning
        return member

    LOAD = ("load", Phase.DATA, Phase.DATA, Phase.FORWARD, "read a micro-batch")
    SLICE = ("slice", Phase.DATA, Phase.DATA, Phase.FORWARD, "cut out the samples of this rank")
    RECEIVE_FORWARD = (
        *("receive-forward", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "wait for activations of another stage",
    )
    FORWARD = ("forward", Phase.FORWARD, Phase.FORWARD, Phase.FORWARD, "forward pass of a module")
    GATHER = (
        *("gather", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "gather the output of an encoder for the language model",
    )
    LOSS = ("loss", Phase.FORWARD, REMAINDER, Phase.FORWARD, "loss of a micro-batch")
    SEND_FORWARD = (
        *("send-forward", Phase.COMMUNICATION, Phase.COMMUNICATION, Phase.FORWARD),
        "hand activations to another stage",
    )
    RECEIVE_BACKWARD = (
        *("receive-backward", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "wait for gradients of another stage",
    )
    SCATTER = (
        *("scatter", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "return the gradient of an encoder's output to its ranks",
    )
    BACKWARD = (
        *("backward", Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD),
        "backward pass of a module",
    )
    WEIGHT_GRADIENT = (
        *("weight-gradient", Phase.BACKWARD, Phase.BACKWARD, Phase.BACKWARD),
        "gradients of weights, where those of inputs were computed before",
    )
    SEND_BACKWARD = (
        *("send-backward", Phase.COMMUNICATION, Phase.COMMUNICATION, Phase.BACKWARD),
        "hand gradients to another stage",
    )
    WAIT = (
        *("wait", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "wait until all messages have arrived",
    )
    GRAD_SYNC = (
        *("grad-sync", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "reduce gradients over the replicas",
    )
    EXCHANGE = (
        *("exchange", Phase.COMMUNICATION, Phase.COMMUNICATION, None),
        "exchange what a strategy asks for with other replicas of the layout, or with other nodes",
    )
    OPTIMIZER = ("optimizer", Phase.OPTIMIZER, Phase.OPTIMIZER, None, "update the weights")
    REPORT = (
        *("report", Phase.REPORT, Phase.COMMUNICATION, None),
        "add up loss and tokens over all ranks",
    )

    @property
    def computes(self) -> bool:
        """Whether the step is computation of a module; Chrome traces show it as `compute`."""
        return self.phase in MODULE_PHASES


COMPUTATIONS = (StepKind.FORWARD, StepKind.BACKWARD, StepKind.WEIGHT_GRADIENT)
"""What stages compute of a micro-batch, in the order in which each waits for the one before."""
SENDS = (StepKind.SEND_FORWARD, StepKind.SEND_BACKWARD)
RECEIVES = (StepKind.RECEIVE_FORWARD, StepKind.RECEIVE_BACKWARD)
FORWARD_HALF = (
    StepKind.LOAD,
    StepKind.SLICE,
    StepKind.RECEIVE_FORWARD,
    StepKind.FORWARD,
    StepKind.GATHER,
    StepKind.LOSS,
    StepKind.SEND_FORWARD,
)
"""Actions of a rank without the backward half."""
POINT_TO_POINT = (*SENDS, *RECEIVES, StepKind.WAIT)
"""The steps of communication between two ranks; the others are collectives over a group."""
BRIDGES = (StepKind.GATHER, StepKind.SCATTER)
"""The steps of a bridge between modules that share their ranks: forward, backward."""
UPDATE = (StepKind.GRAD_SYNC, StepKind.OPTIMIZER)
"""Steps after the last micro-batch."""
