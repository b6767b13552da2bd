"""From measured pieces and collectives to the CPU seconds of a rank."""

from __future__ import annotations

from collections.abc import Sequence

from mimokit.plan.calibration.fit import Fit, fit_law
from mimokit.plan.calibration.measurements import CollectiveTime, PieceTime
from mimokit.plan.shared_cores.costs import CoreCosts


def fit_core_costs(
    pieces: Sequence[PieceTime], collectives: Sequence[CollectiveTime]
) -> tuple[CoreCosts, tuple[Fit, ...]]:
    """Return the laws of all pieces and collectives, and how well they hold.

    Raises:
        ConfigError: too few measurements, or times that are none.
    """
    names = tuple(dict.fromkeys(piece.piece for piece in pieces))
    by_piece = {name: _piece_law(name, [p for p in pieces if p.piece == name]) for name in names}
    groups = sorted({(one.kind, one.ranks) for one in collectives})
    by_group = {
        (kind, ranks): _collective_law(
            [one for one in collectives if (one.kind, one.ranks) == (kind, ranks)]
        )
        for kind, ranks in groups
    }
    laws: dict[str, dict[int, dict[str, float]]] = {}
    for (kind, ranks), fit in by_group.items():
        laws.setdefault(kind, {})[ranks] = dict(fit.constants)
    costs = CoreCosts({name: dict(fit.constants) for name, fit in by_piece.items()}, laws)
    return costs, (*by_piece.values(), *by_group.values())


def _piece_law(name: str, rows: Sequence[PieceTime]) -> Fit:
    terms = {term: [row.terms[term] for row in rows] for term in rows[0].terms}
    labels = [", ".join(f"{value:g} {term}" for term, value in row.terms.items()) for row in rows]
    return fit_law(f"CPU of '{name}'", terms, [row.cpu_seconds for row in rows], labels)


def _collective_law(rows: Sequence[CollectiveTime]) -> Fit:
    return fit_law(
        f"CPU of {rows[0].kind} over {rows[0].ranks}",
        {term: [row.terms[term] for row in rows] for term in rows[0].terms},
        [row.cpu_seconds for row in rows],
        [f"{row.size} bytes" for row in rows],
    )
