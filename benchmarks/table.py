"""How benchmarks print their figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def show(title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows of name, measured, target, unit and ok."""
    table = Table("what", "measured", "target", "", title=title, title_justify="left")
    for row in rows:
        unit, target = row["unit"], row["target"]
        wanted = "" if target is None else str(target)
        if isinstance(target, float | int):
            wanted = f"at most {target:g} {unit}".strip()
        verdict = "" if target is None else ("reached" if row["ok"] else "MISSED")
        table.add_row(row["name"], f"{row['measured']:.3g} {unit}".strip(), wanted, verdict)
    Console().print(table)
