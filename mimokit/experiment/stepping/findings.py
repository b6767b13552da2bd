"""What came, or left, instead of what should: each transfer that differs, looked at whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mimokit.experiment.stepping.row_differences import RowSource, how_it_differs
from mimokit.planning.seams import Floats
from mimokit.planning.stepper import Crossing, PlanDifference, SeenCrossing
from mimokit.planning.stepper.crossings import INPUT, PieceRows
from mimokit.planning.stepper.pictures import TensorPicture, picture_of

MOST_FINDINGS = 32
CELLS = (48, 144)

Piece = tuple[Crossing, bool]
"""(what crosses, seen by the rank that gives)."""
AskRows = Callable[[Mapping[int, Sequence[Piece]]], Mapping[int, Sequence[PieceRows | None]]]
"""Takes rank -> pieces, returns rank -> their rows."""


@dataclass(frozen=True)
class TransferFinding:
    """All that one rank took, or gave, in one transfer that differs.

    Attributes:
        rank: that took it; if it was sent, that gave it.
        module: of which it took, or gave, it.
    """

    rank: int
    module: str
    sent: bool
    what: str
    microbatch: int
    how: str
    right: TensorPicture
    came: TensorPicture
    wrong: tuple[Crossing, ...]

    def __str__(self) -> str:
        return f"rank {self.rank} {self.words}"

    @property
    def words(self) -> str:
        """What the rank did, without its name."""
        verb = "sent" if self.sent else "took"
        return f"{verb} the {self.what}, micro-batch {self.microbatch}: {self.how}"


@dataclass(frozen=True)
class _Transfer:
    rank: int
    sent: bool
    source: str
    destination: str
    backward: bool
    microbatch: int

    @classmethod
    def of(cls, crossing: Crossing, sent: bool) -> _Transfer:
        rank = crossing.source_rank if sent else crossing.destination_rank
        way = crossing.source, crossing.destination, crossing.backward, crossing.microbatch
        return cls(rank, sent, *way)

    @property
    def module(self) -> str:
        return self.source if self.sent != self.backward else self.destination

    @property
    def what(self) -> str:
        if self.source == INPUT:
            return f"input of {self.destination!r}"
        return f"{'gradient' if self.backward else 'output'} of {self.source!r}"


def alike(findings: Sequence[TransferFinding]) -> list[tuple[list[int], TransferFinding]]:
    """Return findings that say and show the same once, with their ranks."""
    groups: dict[tuple[str, bytes], list[TransferFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.words, finding.came.cells.tobytes()), []).append(finding)
    return [([each.rank for each in group], group[0]) for group in groups.values()]


def findings_of(
    differences: Sequence[PlanDifference], pieces: Sequence[SeenCrossing], ask: AskRows
) -> tuple[tuple[PlanDifference, ...], tuple[TransferFinding, ...]]:
    """Return the differences of a step with what came instead, and all that was found."""
    wrong: dict[_Transfer, list[Crossing]] = {}
    for difference in differences:
        key = _Transfer.of(difference.crossing, difference.sent)
        wrong.setdefault(key, []).append(difference.crossing)
    transfers = dict(list(wrong.items())[:MOST_FINDINGS])
    whole = {key: _pieces_of(key, pieces) for key in transfers}
    rows = _rows(whole, ask)
    findings = {}
    for key, crossings in transfers.items():
        finding = _finding(key, whole[key], rows, tuple(crossings))
        if finding is not None:
            findings[key] = finding
    told = [_with_how(each, findings) for each in differences]
    return tuple(told), tuple(findings.values())


def _with_how(
    difference: PlanDifference, findings: Mapping[_Transfer, TransferFinding]
) -> PlanDifference:
    finding = findings.get(_Transfer.of(difference.crossing, difference.sent))
    return difference if finding is None else replace(difference, how=finding.how)


def _pieces_of(transfer: _Transfer, pieces: Sequence[SeenCrossing]) -> list[Crossing]:
    crossings = {
        piece.crossing
        for piece in pieces
        if piece.sent == transfer.sent and _Transfer.of(piece.crossing, piece.sent) == transfer
    }
    return sorted(crossings, key=lambda crossing: crossing.start)


def _rows(
    whole: Mapping[_Transfer, Sequence[Crossing]], ask: AskRows
) -> Mapping[Piece, PieceRows | None]:
    asked: dict[int, dict[Piece, None]] = {}
    for transfer, crossings in whole.items():
        for crossing in crossings:
            asked.setdefault(crossing.source_rank, {})[crossing, True] = None
            if not transfer.sent:
                asked.setdefault(crossing.destination_rank, {})[crossing, False] = None
    told = ask({rank: list(wanted) for rank, wanted in asked.items()}) if asked else {}
    return {
        piece: rows
        for rank, wanted in asked.items()
        for piece, rows in zip(wanted, told[rank], strict=True)
    }


def _finding(
    transfer: _Transfer,
    crossings: Sequence[Crossing],
    rows: Mapping[Piece, PieceRows | None],
    wrong: tuple[Crossing, ...],
) -> TransferFinding | None:
    given = _known(rows, crossings, sent=True)
    taken = _known(rows, crossings, sent=transfer.sent)
    if not given or not taken:
        return None
    right, source = _right(transfer, crossings, given)
    came = _joined([piece.own for piece in taken])
    if right is None or source is None or came is None or not right.ndim or not came.ndim:
        return None
    images = transfer.source == INPUT and right.ndim > 2
    return TransferFinding(
        transfer.rank,
        transfer.module,
        transfer.sent,
        transfer.what,
        transfer.microbatch,
        how_it_differs(right, came, source),
        _picture(right, images),
        _picture(came, images),
        wrong,
    )


def _known(
    rows: Mapping[Piece, PieceRows | None], crossings: Sequence[Crossing], *, sent: bool
) -> list[PieceRows]:
    """Return the rows of all crossings at one end; empty if some are not known."""
    pieces = [rows.get((crossing, sent)) for crossing in crossings]
    known = [piece for piece in pieces if piece is not None]
    return known if len(known) == len(pieces) else []


def _right(
    transfer: _Transfer, crossings: Sequence[Crossing], given: Sequence[PieceRows]
) -> tuple[Floats | None, RowSource | None]:
    if transfer.sent or len(given) == 1:
        first, last = given[0], given[-1]
        held = first.held
        if held is None:
            return (first.own, RowSource(first.own, 0)) if not transfer.sent else (None, None)
        stop = last.first + len(last.own)
        right = held[first.first : stop] if transfer.sent else first.own
        return right, _named(RowSource(held, first.first), transfer, crossings)
    joined = _joined([piece.own for piece in given])
    return joined, None if joined is None else RowSource(joined, 0)


def _named(source: RowSource, transfer: _Transfer, crossings: Sequence[Crossing]) -> RowSource:
    """Number the items of an input as its samples, if each sample has one."""
    first, last = crossings[0], crossings[-1]
    if transfer.source != INPUT:
        return source
    if len(source.rows) == last.stop - first.start:
        return replace(source, unit="sample", offset=first.start)
    return replace(source, unit="item")


def _joined(parts: Sequence[Floats]) -> Floats | None:
    if len({part.shape[1:] for part in parts}) != 1:
        return None
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _picture(rows: Floats, images: bool) -> TensorPicture:
    return picture_of(rows.astype(np.float32), "float32", most=CELLS, images=images)
