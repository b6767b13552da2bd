"""Found faults, false alarms and the cost of looking: `python -m tests.benchmarks.culprit`."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table

from mimokit.cluster import EngineCluster
from tests.experiment.culprit.faults import FAULTS

console = Console(width=160)


def found(cluster: EngineCluster, names: list[str]) -> None:
    """Plant every fault and print how it is named."""
    right, seen = 0, 0
    chosen = [fault for fault in FAULTS if not names or any(n in fault.name for n in names)]
    for fault in chosen:
        begun = time.perf_counter()
        try:
            explanation = fault.explained(cluster)
            wrong, verdict = fault.wrong(explanation), explanation.verdict
            seen += explanation.divergence is not None
        except Exception as error:
            wrong = verdict = f"{type(error).__name__}: {error}"
        right += not wrong
        seconds = time.perf_counter() - begun
        console.print(f"{'WRONG' if wrong else 'right'} {seconds:5.1f} s  {fault.name}: {verdict}")
    table = Table("planted", "found", "named rightly")
    table.add_row(str(len(chosen)), str(seen), str(right))
    console.print(table)


if __name__ == "__main__":
    with EngineCluster(n=4) as engines:
        found(engines, sys.argv[1:])
