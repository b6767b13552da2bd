"""Colours of the parts of a step, for charts and views alike."""

from collections.abc import Sequence

import pandas as pd

from mimokit.analysis.table_file import records
from mimokit.charts import _palette
from mimokit.step_kinds import MODULE_PHASES, REMAINDER, CommunicationPart, Phase

_ORDER = (
    *(phase.column for phase in (*MODULE_PHASES, Phase.OPTIMIZER, Phase.DATA, Phase.COMMUNICATION)),
    CommunicationPart.WAITING.column,
    REMAINDER,
)
"""The columns of parts, in the order of stacking."""


def phase_colors(modules: Sequence[str]) -> dict[str, str]:
    """Return the colour of every phase in stacking order; keys as `phase_key` makes them."""
    return {**_palette.pass_colors(modules), **_palette.PHASE_COLORS}


def phase_key(module: str, phase: str) -> str:
    """Return what a phase is called in a legend."""
    return f"{module} {phase}".strip()


def part_colors(parts: pd.DataFrame, modules: Sequence[str] = ()) -> dict[str, str]:
    """Return part -> colour, in the order of stacking."""
    known = parts[["part", "module", "column"]].drop_duplicates()
    known = known.sort_values("column", key=lambda column: column.map(_ORDER.index), kind="stable")
    of_modules = known["column"].isin([phase.column for phase in MODULE_PHASES])
    colors = phase_colors([*modules, *known.loc[of_modules, "module"]])
    colors[CommunicationPart.WAITING] = _palette.WAITING
    return {
        row["part"]: colors[phase_key(row["module"], row["column"].removesuffix("_time"))]
        for row in records(known)
    }
