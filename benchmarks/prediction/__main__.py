"""Judge the predictor by measured runs: `python -m benchmarks.prediction --data DIR`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.prediction.judge import Judgement, judge
from benchmarks.prediction.tables import DataError


def main() -> None:
    """Print the judgement as tables, or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tables")
    parser.add_argument(
        "--given", type=int, default=0, help="own runs of each group of tried layouts"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    try:
        found = judge(arguments.data, arguments.given)
    except DataError as error:
        sys.exit(str(error))
    if arguments.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        show(found)


def show(found: Judgement) -> None:
    """Print every table."""
    console = Console(width=160)
    for title, columns, rows in (
        (
            "Step time, models left out of the fit",
            ("rows of", "n", "mean %", "bias %", "largest %", "largest error in", "shipped mean %"),
            [[one.name, *one.summary.values()] for one in found.scores],
        ),
        (
            "Order within a workload",
            ("workload", "layouts", "Spearman", "ties aside", "swapped", "ties", "regret %"),
            [
                [
                    f"{one.table}: {one.workload}",
                    one.layouts,
                    one.spearman,
                    one.ties_aside,
                    one.wrong,
                    one.wrong_ties,
                    100 * one.regret,
                ]
                for one in found.orders
            ],
        ),
        (
            "Gain over homogeneous, %",
            ("layout", "measured", "predicted", "plausible networks", "sign"),
            [
                [
                    gain.label,
                    gain.measured,
                    gain.predicted,
                    f"{gain.low:.1f} to {gain.high:.1f}",
                    _sign(gain.counts, gain.right),
                ]
                for gain in found.gains
            ],
        ),
        (
            "Choice among tried layouts, %",
            (
                "model",
                "nodes",
                "layouts",
                "given",
                "ten fastest",
                "loss",
                "of three",
                "failures",
                "refused",
                "in band",
                "missed by most",
            ),
            [
                [
                    each.model,
                    each.nodes,
                    each.layouts,
                    each.given,
                    each.ten_fastest_percent,
                    each.loss_of_best_percent,
                    each.loss_of_best_of_three_percent,
                    _or_none(each.failures_foreseen_percent),
                    each.runners_refused_percent,
                    each.inside_band_percent,
                    _most_missed(each.moved),
                ]
                for each in found.choices
            ],
        ),
        (
            "Peak memory",
            ("run", "error %"),
            [[label, 100 * error] for label, error in found.memory.items()],
        ),
        (
            "Band that four of five rows stay in",
            ("kind", "error %"),
            [[kind, 100 * band] for kind, band in found.bands().items()],
        ),
        (
            "Left out of the fit together, later GPUs",
            ("rows", "mean %"),
            [[name, mean] for name, mean in found.folds.items()],
        ),
        (
            "Families left out of the fit",
            ("family", "n", "mean %", "bias %"),
            [[name, *figures] for name, figures in found.families().items()],
        ),
        (
            "Runs of a family given, error on its others",
            ("runs given", "mean %"),
            [[given, mean] for given, mean in found.given.items()],
        ),
        (
            "Rows that cannot be as printed",
            ("row", "why"),
            [[label, why] for label, why in found.flagged.items()],
        ),
        (
            "Without them",
            ("rows", "mean %"),
            [[name, mean] for name, mean in found.as_printed().items()] if found.flagged else [],
        ),
        (
            "Rows left out",
            ("why", "rows"),
            [[reason, count] for reason, count in found.skipped.items()],
        ),
        (
            "Targets",
            ("what", "reached", "target", ""),
            [
                [row["name"], row["measured"], row["target"], "reached" if row["ok"] else "MISSED"]
                for row in found.rows()
            ],
        ),
    ):
        if rows:
            console.print(_table(title, columns, rows))
    for sentence in found.on_bounds:
        console.print(f"On a bound: {sentence}", highlight=False)
    for sentence in found.misses():
        console.print(f"Missed: {sentence}", highlight=False)


def _or_none(percent: float | None) -> float | str:
    return "none failed" if percent is None else percent


def _most_missed(rows: tuple[tuple[str, float], ...]) -> str:
    return "; ".join(f"{layout} x {times:.2g}" for layout, times in rows[:1])


def _sign(counts: bool, right: bool) -> str:
    if not counts:
        return "within noise"
    return "right" if right else "WRONG"


def _table(title: str, columns: tuple[str, ...], rows: list[list[Any]]) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{one:.2f}" if isinstance(one, float) else str(one) for one in row))
    return table


if __name__ == "__main__":
    main()
