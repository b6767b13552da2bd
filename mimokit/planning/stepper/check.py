"""What ranks report of a tick, and where that differs from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mimokit.planning.stepper.crossings import Crossing, SeenCrossing


@dataclass(frozen=True)
class TensorFacts:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class StepRecord:
    """The report of one rank on a tick.

    Attributes:
        number: of the tick, counted from the opening of the stepper.
        rank: the rank that reports.
        did: the step in words; None: it waited or had nothing to do.
        then: its next step, in words.
        seconds: that it took.
        code: the lines that did it, after a line "file:number".
        pieces: what it gave or took.
        tensors: name -> facts of a tensor that it has afterwards.
        result: loss, grad_norm and num_tokens at the end of an optimizer step, else empty.
    """

    number: int
    rank: int
    did: str | None
    then: str
    seconds: float = 0.0
    code: str = ""
    pieces: tuple[SeenCrossing, ...] = ()
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    result: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanDifference:
    """One difference between plan and run.

    Attributes:
        crossing: the samples and ranks.
        planned: what the plan, or the sender, gives.
        happened: what was seen.
    """

    crossing: Crossing
    planned: str
    happened: str

    def __str__(self) -> str:
        return f"The {self.crossing}: planned {self.planned}, but {self.happened}."


def differences(
    planned: Iterable[tuple[Crossing, bool]],
    pieces: Iterable[SeenCrossing],
    sent: Mapping[Crossing, SeenCrossing],
) -> tuple[PlanDifference, ...]:
    """Compare what ranks saw at a tick with the plan, and received contents with sent ones.

    Args:
        planned: from `planned_crossings`.
        pieces: what the ranks saw at that tick.
        sent: what has been sent and not yet received, this tick included.
    """
    wanted = dict.fromkeys(planned)
    seen: dict[tuple[Crossing, bool], SeenCrossing] = {}
    found = []
    for piece in pieces:
        key = (piece.crossing, piece.sent)
        if key not in wanted:
            found.append(PlanDifference(piece.crossing, "nothing", f"it was {_verb(piece.sent)}"))
        elif key in seen:
            found.append(
                PlanDifference(piece.crossing, "once", f"it was {_verb(piece.sent)} twice")
            )
        seen[key] = piece
        found.extend(_contents(piece, sent.get(piece.crossing)))
    for crossing, is_sent in wanted:
        if (crossing, is_sent) not in seen:
            found.append(PlanDifference(crossing, "to cross", f"it was not {_verb(is_sent)}"))
    return tuple(found)


def _verb(sent: bool) -> str:
    return "sent" if sent else "received"


def _contents(piece: SeenCrossing, sent: SeenCrossing | None) -> Iterator[PlanDifference]:
    crossing = piece.crossing
    if piece.sent:
        if piece.held is not None and piece.held != piece.prints:
            which = _which(crossing, piece.held, piece.prints)
            yield PlanDifference(
                crossing,
                f"what rank {crossing.source_rank} has for {which}",
                "it sent other rows",
            )
    elif sent is not None and sent.shape != piece.shape:
        yield PlanDifference(
            crossing, f"the shape {list(sent.shape)} that was sent", f"{list(piece.shape)} came"
        )
    elif sent is not None and sent.prints != piece.prints:
        which = _which(crossing, sent.prints, piece.prints)
        yield PlanDifference(
            crossing,
            f"what rank {crossing.source_rank} gave for {which}",
            f"rank {crossing.destination_rank} has other values",
        )


def _which(crossing: Crossing, wanted: tuple[str, ...], got: tuple[str, ...]) -> str:
    """Return the samples whose fingerprints differ, if there is one fingerprint per sample."""
    if not len(wanted) == len(got) == crossing.stop - crossing.start:
        return f"samples {crossing.start} to {crossing.stop - 1}"
    pairs = enumerate(zip(wanted, got, strict=True), start=crossing.start)
    wrong = [str(sample) for sample, (mine, theirs) in pairs if mine != theirs]
    return f"sample{'s' if len(wrong) > 1 else ''} {', '.join(wrong)}"
