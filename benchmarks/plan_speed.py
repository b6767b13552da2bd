"""How long `mimokit.plan` takes: `python -m benchmarks.plan_speed`."""

from __future__ import annotations

import statistics
import time
from typing import TypedDict

from rich.console import Console
from rich.table import Table

import mimokit
from mimokit.config import ExperimentConfig, ModuleParallelismConfig, StrategyConfig
from mimokit.config_files import load_preset
from mimokit.extras.strategies.exchanges import plan_strategy

REPEATS = 15
EXCHANGES, MILLISECONDS_OF_EXCHANGES = 100_000, 1_000.0
TARGETS = {8: 5.0, 1_024: 20.0, 16_384: 200.0}
"""Ranks -> milliseconds."""


class Row(TypedDict):
    """One measurement against its target."""

    name: str
    measured: float
    target: float
    unit: str
    ok: bool


def rows() -> list[Row]:
    """Measure the median of several plans for each world."""
    found: list[Row] = []
    for ranks, target in TARGETS.items():
        median = _median_milliseconds(colocated(ranks))
        found.append(
            {
                "name": f"mimokit.plan, {ranks:,} ranks",
                "measured": median,
                "target": target,
                "unit": "ms",
                "ok": median <= target,
            }
        )
    exchanging = _milliseconds_of_exchanges()
    found.append(
        {
            "name": f"exchanges of {EXCHANGES:,} steps over 64 nodes",
            "measured": exchanging,
            "target": MILLISECONDS_OF_EXCHANGES,
            "unit": "ms",
            "ok": exchanging <= MILLISECONDS_OF_EXCHANGES,
        }
    )
    return found


def colocated(ranks: int) -> ExperimentConfig:
    """Return the colocated preset on so many ranks: encoder TP1, language module TP8."""
    config = load_preset("llava_7b_colocated")
    config.model.module_parallelisms = {
        "images": ModuleParallelismConfig(data_parallel=ranks),
        "language_module": ModuleParallelismConfig(tensor_parallel=8, data_parallel=ranks // 8),
    }
    return config


def _median_milliseconds(config: ExperimentConfig) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        mimokit.plan(config)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def _milliseconds_of_exchanges() -> float:
    """Return how long the plan of a strategy takes to say who exchanges what in every step."""
    strategy = StrategyConfig(name="fedavg", island_size=2)
    times = []
    for _ in range(3):
        plan = plan_strategy(strategy, {"weight": (8, 8)}, 64, 1)
        begin = time.perf_counter()
        assert len(list(plan.exchanges(EXCHANGES))) == EXCHANGES
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def main() -> None:
    """Print the measurements as a table."""
    table = Table("what", "median", "at most", "")
    for row in rows():
        verdict = "ok" if row["ok"] else "too slow"
        unit = row["unit"]
        table.add_row(
            row["name"], f"{row['measured']:.2f} {unit}", f"{row['target']:g} {unit}", verdict
        )
    Console().print(table)


if __name__ == "__main__":
    main()
