"""How busy ranks keep the cores that they share while they hand work over to each other.

Between two ranks that wait for each other lies more than their CPU seconds: a thread has to be
woken, a core has to come out of its sleep, and now and then all ranks wait at once. The rounds of a
calibration show how much: they are programs like those of a step, whose CPU seconds are known.
"""

from __future__ import annotations

from itertools import zip_longest

from mimokit.prediction.calibration.measurements import AROUND, CollectiveTime, Measurements, Round
from mimokit.prediction.local_cpu.operation_counts import NUMBER_BYTES
from mimokit.prediction.local_cpu.ring import all_reduce
from mimokit.prediction.local_cpu.simulator import Collective, Compute, Operation, run_shared


def busy_share(measured: Measurements, of: Round) -> float:
    """Return the share of the cores that ranks keep busy in a round; 1 where they share none.

    It is what the round would take if no core ever rested while a rank had work, over what it took.

    Args:
        measured: on the machine.
        of: the round, one of those measured.
    """
    if of.seconds <= 0 or len(set(measured.hosts)) > 1:
        return 1.0
    programs = [_program(of, rank) for rank in range(of.ranks)]
    return min(1.0, run_shared(programs, measured.cores).seconds / of.seconds)


def _program(of: Round, rank: int) -> list[Operation]:
    """Return what a rank does in a round: pieces and collectives in turn."""
    pieces = [piece for piece in of.pieces if piece.piece != AROUND]
    mine = [one for one in of.collectives if _members(one, of, rank)]
    found: list[Operation] = []
    for piece, collective in zip_longest(pieces, mine):
        if piece is not None:
            found.append(Compute(piece.piece, piece.cpu_seconds))
        if collective is not None:
            members = _members(collective, of, rank)
            found += _collective(collective, members, rank) * collective.in_a_row
    return found


def _collective(one: CollectiveTime, members: tuple[int, ...], rank: int) -> list[Operation]:
    if one.kind == "all-reduce":
        return all_reduce(one.kind, members, one.cpu_seconds, one.size / NUMBER_BYTES, rank)
    return [Collective(one.kind, one.cpu_seconds, members)]


def _members(one: CollectiveTime, of: Round, rank: int) -> tuple[int, ...]:
    """Return the neighbours that call a collective with a rank; none where no group had a place."""
    first = rank - rank % one.ranks
    members = tuple(range(first, first + one.ranks))
    return members if members[-1] < of.ranks else ()
