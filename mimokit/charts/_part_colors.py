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


def part_colors(parts: pd.DataFrame, modules: Sequence[str] = ()) -> dict[str, str]:
    """Return part -> colour, in the order of stacking."""
    known = parts[["part", "module", "column"]].drop_duplicates()
    known = known.sort_values("column", key=lambda column: column.map(_ORDER.index), kind="stable")
    of_modules = known["column"].isin([phase.column for phase in MODULE_PHASES])
    passes = _palette.pass_colors([*modules, *known.loc[of_modules, "module"]])
    colors = {**passes, **_palette.PHASE_COLORS, CommunicationPart.WAITING: _palette.WAITING}
    return {
        row["part"]: colors[f"{row['module']} {row['column'].removesuffix('_time')}".strip()]
        for row in records(known)
    }
