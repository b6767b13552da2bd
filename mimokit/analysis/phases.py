"""Where the time of a step goes: per phase and module, rank by rank."""

from __future__ import annotations

import pandas as pd

from mimokit.analysis.summary import without_warmup
from mimokit.samples import module_column, modules_of
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, REMAINDER


def module_names(steps: pd.DataFrame) -> list[str]:
    """Return the modules that a step table has times of, in the order of its columns."""
    return modules_of(steps.columns)


def phase_times(steps: pd.DataFrame, warmup_iterations: int = 0) -> pd.DataFrame:
    """Return the mean seconds per step of every rank, module and phase.

    Columns: rank, module ("" for phases that belong to no module), phase, seconds. The phase
    `other` is what is left of the step time; it is never negative.

    Args:
        steps: a step table with one row per rank and iteration.
        warmup_iterations: leading iterations that are left out.
    """
    used = without_warmup(steps, warmup_iterations)
    if "rank" not in used.columns:
        used = used.assign(rank=0)
    sources = _sources(used)
    rows: list[dict[str, object]] = []
    for rank, of_rank in used.groupby("rank", sort=True):
        accounted = 0.0
        for module, phase, column in sources:
            seconds = float(of_rank[column].mean())
            accounted += seconds
            rows.append({"rank": rank, "module": module, "phase": phase, "seconds": seconds})
        rest = max(0.0, float(of_rank["total_time"].mean()) - accounted)
        rows.append({"rank": rank, "module": "", "phase": REMAINDER, "seconds": rest})
    return pd.DataFrame(rows, columns=["rank", "module", "phase", "seconds"])


def _sources(steps: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return (module, phase, column) in the order in which phases are stacked."""
    found = [
        (module, str(phase), module_column(module, phase.column))
        for phase in MODULE_PHASES
        for module in module_names(steps)
    ]
    found += [("", str(phase), phase.column) for phase in RANK_PHASES]
    return [source for source in found if source[2] in steps.columns]
