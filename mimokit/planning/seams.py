"""The places of a step at which two runs are compared, and what a rank has recorded there.

A rank records a sketch of each tensor: its products with vectors of random signs, one sign for
every place of the whole tensor. Sketches of the parts of a tensor add up to that of the whole, so
that a layout is compared with one process without sending a tensor; the mean square of a sketch is,
in expectation, the sum of squares of the entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.expert_choices import ExpertChoices

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SIGNS = 16
"""Numbers of a sketch."""

PROJECTOR, ROWS, BRIDGE, LOSS = "projector", "rows", "bridge", "loss"
"""Operations outside of layers: the end of an encoder, its output, the way to another module, and
what takes the logits."""

GIVEN_ROWS = "rows that are given"
"""What gives rows their gradient, in `Recording.code`."""


def rows_for(receiver: str, receivers: int) -> str:
    """Return the operation whose backward pass has the gradient that one of so many modules gives.

    Each module behind a language model gives a gradient of its own to the same rows.
    """
    return ROWS if receivers == 1 else f"{ROWS} for {receiver}"


class SeamPhase(StrEnum):
    """A part of an optimizer step, in the order of execution."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ACCUMULATED = "gradient before reduction"
    REDUCED = "reduced gradient"
    NORM = "gradient norm before clipping"
    WEIGHT = "weight after the update"

    @property
    def is_of_samples(self) -> bool:
        """Whether its tensors have rows of samples; the others are of parameters."""
        return self in (SeamPhase.FORWARD, SeamPhase.BACKWARD)


PHASES = tuple(SeamPhase)


@dataclass(frozen=True, slots=True)
class Seam:
    """A tensor of a step, under its name in the whole model.

    Attributes:
        operation: the part of the module that computed it, or a parameter. Forward it is the output
            of the operation, backward the gradient of its input.
    """

    step: int
    module: str
    operation: str
    phase: SeamPhase

    def __str__(self) -> str:
        return f"step {self.step + 1}, {self.module}, {self.operation}, {self.phase}"


@dataclass(slots=True)
class Sketches:
    """What a rank has recorded of a seam.

    Attributes:
        share: of a sum. Records of other ranks with another share are added to it; with the same
            share and places they are copies of it.
        number: in the order of recording.
        samples: numbers of a step; of a parameter 0.
        values: [samples, SIGNS].
        places: which places the rank has, [samples]: the sum of a random number of each, modulo
            2^64.
        squares: sum of the squares of the entries, [samples].
    """

    share: str
    number: int
    samples: list[int] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SeamPiece:
    """A part of a tensor that a rank has, whole.

    Attributes:
        samples: of every row, [rows].
        rows: place of every row in its sample, [rows].
        columns: place of every column in the whole tensor, [columns].
        values: [rows, columns].
    """

    share: str
    samples: Integers
    rows: Integers
    columns: Integers
    values: Floats


@dataclass(slots=True)
class Recording:
    """What one rank has recorded of some steps.

    Attributes:
        wholes: seams that were looked at whole.
        epsilons: what the optimizer added to what it divided by, of every step.
        losses: of every step.
        lengths: of every step, sample -> its tokens without padding, where samples are put in a
            row without it; the others are not in it.
        code: (module, operation) -> file and line that calls it; ("", operation or phase) -> the
            function of a step that computes what no part of a module does.
    """

    sketches: dict[Seam, Sketches] = field(default_factory=dict)
    wholes: dict[Seam, list[SeamPiece]] = field(default_factory=dict)
    epsilons: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    lengths: list[Mapping[int, int]] = field(default_factory=list)
    choices: list[ExpertChoices] = field(default_factory=list)
    scores_apart: float = 0.0
    code: dict[tuple[str, str], str] = field(default_factory=dict)


ByRank = Mapping[int, Recording]


def code_of(seam: Seam, code: Mapping[tuple[str, str], str]) -> str:
    """Return file and line of what computes a tensor; empty if it is not known."""
    if not seam.phase.is_of_samples and seam.phase != SeamPhase.ACCUMULATED:
        return code.get(("", str(seam.phase)), "")
    operation = seam.operation.removesuffix(".input").removesuffix(".output")
    if operation.split(" for ")[0] == ROWS and seam.phase == SeamPhase.BACKWARD:
        operation = GIVEN_ROWS
    while True:  # of a parameter the part that has it
        line = code.get((seam.module, operation)) or code.get(("", operation))
        if line or "." not in operation:
            return line or ""
        operation = operation.rpartition(".")[0]
