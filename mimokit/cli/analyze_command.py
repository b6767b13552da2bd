"""`mimokit analyze`: what results folders say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mimokit.cli.shared import Json, not_written
from mimokit.experiment.refusals import REFUSED

if TYPE_CHECKING:
    from mimokit.analysis import Comparison, Runs

_WIDTH = 200


def analyze(
    paths: Annotated[
        list[str],
        typer.Argument(help="Results folders: of a run, of a sweep, of many, or globs of them."),
    ],
    html: Annotated[
        Path | None, typer.Option(help="File for a page that opens without a network.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Run to compare with; by default `baseline`, or the first.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Column of metrics.csv to compare.")] = (
        "tokens_per_sec"
    ),
    by: Annotated[
        str, typer.Option(help="'run', or 'layout' to put repeated runs of one layout together.")
    ] = "run",
    hardware: Annotated[
        str | None,
        typer.Option(help="GPU or hardware file to predict for, in the page."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs, explain where their time went, and say what is broken in their folders."""
    from mimokit.analysis import load_runs

    with _one_sentence():
        if html is not None and not os.path.isdir(html.parent):
            raise not_written(html, f"folder {html.parent} does not exist")
        runs = load_runs(paths)
        comparison = _compared(runs, baseline, metric, by)
        if html is not None:
            _write(html, runs, baseline, metric, by, hardware)
    if as_json:
        typer.echo(json.dumps(_plain(runs, comparison)))
    else:
        _show(runs, comparison)
        if html is not None:
            typer.echo(f"Written to {html}")


def _compared(runs: Runs, baseline: str | None, metric: str, by: str) -> Comparison | None:
    from mimokit.analysis import compare

    return None if runs.iterations.empty else compare(runs, baseline, metric, by=by)


def _write(
    html: Path, runs: Runs, baseline: str | None, metric: str, by: str, hardware: str | None
) -> None:
    from mimokit import charts
    from mimokit.result_files import whole_file

    page = charts.report(runs, baseline, metric, by=by, hardware=hardware)
    try:
        with whole_file(html) as file:
            file.write(page)
    except OSError as error:
        raise not_written(html, error.strerror or str(error)) from None


def _show(runs: Runs, comparison: Comparison | None) -> None:
    from rich.console import Console

    from mimokit.analysis import difference_of_runs, explain
    from mimokit.analysis.memory_rows import held_section
    from mimokit.analysis.two_runs import pair_of

    width = None if sys.stdout.isatty() else _WIDTH  # of a file or a pipe none is known
    console = Console(soft_wrap=width is not None, width=width)
    pair = pair_of(runs, comparison)
    if pair is not None:
        console.print(difference_of_runs(runs, *pair), markup=False, highlight=False)
        console.print()
    console.print(runs)
    if comparison is not None:
        console.print()
        console.print(comparison, markup=False, highlight=False)
        console.print()
        looked_at = _looked_at(runs, comparison)
        console.print(explain(runs, looked_at), markup=False, highlight=False)
        held = runs.held[runs.held["run"] == looked_at]
        if len(held):
            console.print()
            console.print(held_section(held))


def _looked_at(runs: Runs, comparison: Comparison) -> str:
    if comparison.best in runs.names:
        return comparison.best
    layouts = runs.runs.set_index("run")["layout"]
    measured, unfinished = set(runs.iterations["run"].unique()), runs.unfinished()
    of_best = [name for name in runs if name in measured and layouts[name] == comparison.best]
    whole = [name for name in of_best if name not in unfinished]
    return next(iter(whole or of_best), runs.names[0])


def _plain(runs: Runs, comparison: Comparison | None) -> dict[str, Any]:
    from mimokit.analysis import difference_of_runs, explain
    from mimokit.analysis.two_runs import pair_of

    pair = pair_of(runs, comparison)
    gap = None if pair is None else difference_of_runs(runs, *pair)
    explanations = [explain(runs, name) for name in runs]
    return {
        "runs": _records(runs.runs),
        "comparison": None
        if comparison is None
        else {
            "metric": comparison.metric,
            "baseline": comparison.baseline,
            "confidence": comparison.confidence,
            "rows": _records(comparison.table),
            "sentences": comparison.sentences(),
        },
        "difference": None
        if gap is None
        else {
            **{name: getattr(gap, name) for name in ("slow", "fast", "seconds", "unit")},
            "parts": gap.parts.to_dict(),
            "ranks": {str(rank): row.to_dict() for rank, row in gap.ranks.iterrows()},
            "sentences": gap.sentences(),
        },
        "explanations": [
            {
                "run": explanation.run,
                "parts": _records(explanation.parts),
                "findings": [vars(finding) for finding in explanation.findings],
                "sentences": explanation.sentences(),
            }
            for explanation in explanations
        ],
        "held": _records(runs.held),
        "problems": [str(problem) for problem in runs.problems],
    }


def _records(table: Any) -> list[dict[str, Any]]:
    return list(json.loads(table.to_json(orient="records")))


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(REFUSED) from None
