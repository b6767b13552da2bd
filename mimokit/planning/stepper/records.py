"""What a rank tells of a step; free of torch, as it is read where there may be none."""

from __future__ import annotations

from dataclasses import dataclass, field

from mimokit.planning.stepper import Piece


@dataclass(frozen=True)
class TensorFacts:
    """What there is to say of a tensor without looking into it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class StepRecord:
    """What one rank did at a tick.

    Attributes:
        number: of the tick, counted from the opening of the stepper.
        rank: who tells.
        did: the step in words, None where it waited or had nothing to do.
        then: the step that it is about to do, in words.
        seconds: that it took.
        code: the lines that did it, behind a line "file:number".
        pieces: what it handed over or took.
        tensors: name -> facts of what it held afterwards.
        result: loss, grad_norm and num_tokens at the end of an optimizer step, else empty.
    """

    number: int
    rank: int
    did: str | None
    then: str
    seconds: float = 0.0
    code: str = ""
    pieces: tuple[Piece, ...] = ()
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    result: dict[str, float] = field(default_factory=dict)
