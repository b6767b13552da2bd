"""From measured pieces and collectives to the CPU seconds of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mimokit.prediction.calibration.fit import Fit, fit_law
from mimokit.prediction.calibration.handover import busy_share
from mimokit.prediction.calibration.measurements import (
    CollectiveTime,
    Measurements,
    PieceTime,
    Round,
)
from mimokit.prediction.local_cpu.cost_model import CoreCosts, SharedCosts


def fit_shared_costs(measured: Measurements) -> tuple[SharedCosts, tuple[Fit, ...]]:
    """Return the laws of all pieces and collectives, and how well they hold.

    Raises:
        ConfigError: too few measurements, or times that are none.
    """
    fitted = {one.ranks: _fit_round(one) for one in measured.rounds}
    costs = {
        one.ranks: replace(fitted[one.ranks][0], busy=busy_share(measured, one))
        for one in measured.rounds
    }
    return SharedCosts(costs), tuple(fit for _, fits in fitted.values() for fit in fits)


def _fit_round(measured: Round) -> tuple[CoreCosts, tuple[Fit, ...]]:
    pieces, collectives = measured.pieces, measured.collectives
    where = f"{measured.ranks} ranks at work"
    names = tuple(dict.fromkeys(piece.piece for piece in pieces))
    by_piece = {
        name: _piece_law(where, name, [p for p in pieces if p.piece == name]) for name in names
    }
    groups = sorted({(one.kind, one.ranks) for one in collectives})
    by_group = {
        (kind, ranks): _collective_law(
            where, [one for one in collectives if (one.kind, one.ranks) == (kind, ranks)]
        )
        for kind, ranks in groups
    }
    laws: dict[str, dict[int, dict[str, float]]] = {}
    for (kind, ranks), fit in by_group.items():
        laws.setdefault(kind, {})[ranks] = dict(fit.constants)
    costs = CoreCosts({name: dict(fit.constants) for name, fit in by_piece.items()}, laws)
    return costs, (*by_piece.values(), *by_group.values())


def _piece_law(where: str, name: str, rows: Sequence[PieceTime]) -> Fit:
    terms = {term: [row.terms[term] for row in rows] for term in rows[0].terms}
    labels = [", ".join(f"{value:g} {term}" for term, value in row.terms.items()) for row in rows]
    return fit_law(f"CPU of '{name}', {where}", terms, [row.cpu_seconds for row in rows], labels)


def _collective_law(where: str, rows: Sequence[CollectiveTime]) -> Fit:
    return fit_law(
        f"CPU of {rows[0].kind} over {rows[0].ranks}, {where}",
        {term: [row.terms[term] for row in rows] for term in rows[0].terms},
        [row.cpu_seconds for row in rows],
        [f"{row.size} bytes" for row in rows],
    )
