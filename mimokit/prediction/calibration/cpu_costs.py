"""CPU seconds of a rank, fitted to measured pieces and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from mimokit.prediction.calibration.fit import FittedLaw, fit_law
from mimokit.prediction.calibration.measurements import (
    AROUND,
    CollectiveTime,
    Measurements,
    PieceTime,
    Round,
)
from mimokit.prediction.local_cpu.cost_model import NUMBER_BYTES, CoreCosts, SharedCosts
from mimokit.prediction.local_cpu.simulator import (
    Collective,
    Compute,
    Operation,
    Span,
    all_reduce,
    run_shared,
)
from mimokit.units import counted


def fit_shared_costs(measured: Measurements) -> tuple[SharedCosts, tuple[FittedLaw, ...]]:
    """Return the laws of all pieces and collectives, and their fits.

    Raises:
        ConfigError: there are too few measurements, or a time is not positive and finite.
    """
    fitted = {round_.ranks: _fit_round(round_) for round_ in measured.rounds}
    costs = {
        round_.ranks: replace(fitted[round_.ranks][0], busy=busy_share(measured, round_))
        for round_ in measured.rounds
    }
    return SharedCosts(costs), tuple(fit for _, fits in fitted.values() for fit in fits)


def _fit_round(measured: Round) -> tuple[CoreCosts, tuple[FittedLaw, ...]]:
    pieces, collectives = measured.pieces, measured.collectives
    where = f"{counted(measured.ranks, 'rank')} at work"
    names = tuple(dict.fromkeys(piece.piece for piece in pieces))
    by_piece = {
        name: _piece_law(where, name, [p for p in pieces if p.piece == name]) for name in names
    }
    groups = sorted({(timed.kind, timed.ranks) for timed in collectives})
    by_group = {
        (kind, ranks): _collective_law(
            where, [timed for timed in collectives if (timed.kind, timed.ranks) == (kind, ranks)]
        )
        for kind, ranks in groups
    }
    laws: dict[str, dict[int, dict[str, float]]] = {}
    for (kind, ranks), fit in by_group.items():
        laws.setdefault(kind, {})[ranks] = dict(fit.constants)
    costs = CoreCosts({name: dict(fit.constants) for name, fit in by_piece.items()}, laws)
    return costs, (*by_piece.values(), *by_group.values())


def _piece_law(where: str, name: str, rows: Sequence[PieceTime]) -> FittedLaw:
    terms = {term: [row.terms[term] for row in rows] for term in rows[0].terms}
    labels = [", ".join(f"{value:g} {term}" for term, value in row.terms.items()) for row in rows]
    return fit_law(f"CPU of '{name}', {where}", terms, [row.cpu_seconds for row in rows], labels)


def _collective_law(where: str, rows: Sequence[CollectiveTime]) -> FittedLaw:
    return fit_law(
        f"CPU of {rows[0].kind} over {rows[0].ranks}, {where}",
        {term: [row.terms[term] for row in rows] for term in rows[0].terms},
        [row.cpu_seconds for row in rows],
        [f"{row.size} bytes" for row in rows],
    )


def busy_share(measured: Measurements, of: Round) -> float:
    """Return the share of the cores that ranks keep busy in a round; 1 if they share no cores.

    CPU seconds do not explain all of the time between two ranks that wait for each other: a thread
    has to wake up, a core has to leave its sleep state, and sometimes all ranks wait at once. The
    rounds of a calibration measure this time, because they are programs whose CPU seconds are
    known. The share is the simulated time of a round, in which no core rests while a rank has work,
    divided by the measured time.
    """
    if of.seconds <= 0 or len(set(measured.hosts)) > 1:
        return 1.0
    programs = [_program(of, rank) for rank in range(of.ranks)]
    return min(1.0, run_shared(programs, measured.cores).seconds / of.seconds)


def _program(of: Round, rank: int) -> list[Operation]:
    """Return the operations of a rank in a round: pieces and collectives alternate."""
    pieces = [piece for piece in of.pieces if piece.piece != AROUND]
    joined = [timed for timed in of.collectives if _members(timed, of, rank)]
    operations: list[Operation] = []
    for piece, collective in zip_longest(pieces, joined):
        if piece is not None:
            operations.append(Compute(Span(None, piece.piece), piece.cpu_seconds))
        if collective is not None:
            members = _members(collective, of, rank)
            operations += _collective(collective, members, rank) * collective.in_a_row
    return operations


def _collective(timed: CollectiveTime, members: tuple[int, ...], rank: int) -> list[Operation]:
    if timed.kind == "all-reduce":
        return all_reduce(
            Span(None, timed.kind), members, timed.cpu_seconds, timed.size / NUMBER_BYTES, rank
        )
    return [Collective(Span(None, timed.kind), timed.cpu_seconds, members)]


def _members(timed: CollectiveTime, of: Round, rank: int) -> tuple[int, ...]:
    """Return the members of a rank's group in a collective, empty if the rank is in no group."""
    first = rank - rank % timed.ranks
    members = tuple(range(first, first + timed.ranks))
    return members if members[-1] < of.ranks else ()
