"""What a view of runs begins with: by how much one is slower than another, and where."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mimokit import charts
from mimokit.analysis import RunDifference, Runs, difference_of_runs, read_trace, traced_iteration
from mimokit.charts import _renderer
from mimokit.charts.timeline.spans import TimelineGroup, of_trace, timeline_view
from mimokit.config import ConfigError
from mimokit.planning.types import LayoutPlan
from mimokit.result_files import RunFile

MOST_RANKS = 8
"""Ranks whose timelines are drawn, those that grew most."""
GREW = 1.1
"""Times as long as in the fast run from which a span is lit."""


def run_difference(runs: Runs, pair: tuple[str, str] | None) -> dict[str, Any]:
    """Return what makes one of two runs slower, as JSON; empty where they cannot be compared.

    `sentences` begin with the headline, `picture` is the waterfall as SVG, `timeline` has the same
    traced ranks of both, or is None.
    """
    if pair is None:
        return {}
    try:
        difference = difference_of_runs(runs, *pair)
    except ValueError:
        return {}
    return {
        "sentences": difference.sentences(),
        "picture": _renderer.svg(charts.waterfall(difference).to_dict()) or "",
        "timeline": _timelines(runs, difference),
    }


def _timelines(runs: Runs, difference: RunDifference) -> dict[str, Any] | None:
    """Return a lane of the slow run above one of the fast run for each rank."""
    names = difference.slow, difference.fast
    files = [runs.folders[name] / RunFile.TRACE for name in names]
    try:
        steps = [traced_iteration(read_trace(file)) for file in files]
    except ValueError:  # of a trace that is missing or broken, as the details of its run say
        return None
    known = set(steps[0]["rank"]) & set(steps[1]["rank"])
    grown = difference.ranks.abs().sum(axis=1).to_dict()
    ranks = sorted(sorted(known, key=lambda rank: -grown.get(rank, 0.0))[:MOST_RANKS])
    plans = [_plan(runs, name) for name in names]
    lanes = [
        of_trace(table[table["rank"].isin(ranks)], plan, "").spans
        for table, plan in zip(steps, plans, strict=True)
    ]
    groups = []
    for place, rank in enumerate(ranks):
        of_rank = [[span for span in spans if span.lane == place] for spans in lanes]
        spans = [replace(span, lane=lane) for lane, own in enumerate(of_rank) for span in own]
        groups.append(TimelineGroup(f"rank {rank}", names, tuple(spans)))
    plan = next((plan for plan in plans if plan is not None), None)
    modules = plan.modules if plan else dict.fromkeys(steps[0]["module"].dropna())
    drawn = timeline_view(
        groups, modules, "s", f"Lit: what takes over 10 % longer than in {difference.fast}."
    )
    return {**drawn, "lit": list(_lit(drawn))}


def _lit(drawn: dict[str, Any]) -> Iterator[int]:
    """Yield the numbers of the spans of slow lanes, which are even, that grew."""
    fast: dict[tuple[int, int, int], float] = {}
    seen: Counter[tuple[int, int]] = Counter()
    for lane, _, start, stop, words in drawn["spans"]:
        seen[lane, words] += 1
        fast[lane, words, seen[lane, words]] = stop - start
    seen.clear()
    for number, (lane, _, start, stop, words) in enumerate(drawn["spans"]):
        seen[lane, words] += 1
        if lane % 2 == 0 and stop - start > GREW * fast.get(
            (lane + 1, words, seen[lane, words]), 0
        ):
            yield number


def _plan(runs: Runs, name: str) -> LayoutPlan | None:
    try:
        return runs.plan(name)
    except (ConfigError, OSError):
        return None
