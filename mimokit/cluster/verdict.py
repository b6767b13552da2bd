"""What is known of the ranks at the end of a run, and which of it is the cause of its failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mimokit.cluster.errors import ClusterError, RankDied, RankError, RankFrozen
from mimokit.cluster.pool import Engine
from mimokit.cluster.worker.task import RankOutcome


@dataclass(frozen=True)
class Death:
    """The process of a rank is gone."""

    engine: Engine
    signal: str | None


@dataclass(frozen=True)
class Frozen:
    """A rank does not run or does not answer, and is killed.

    Attributes:
        how: the predicate of the sentence that says so.
    """

    engine: Engine
    how: str


RankReport: TypeAlias = RankOutcome | Death | Frozen | ClusterError
"""What is known of one rank at the end of a run."""

DEATH, OWN, SILENT, ECHO, UNKNOWN = range(5)
"""Kinds of failure; the lower one is the likelier cause of the others."""


def verdict(reports: Mapping[int, RankReport]) -> ClusterError | None:
    """The error to raise, None if no rank failed by itself.

    A death comes first, then a rank's own exception, then a rank that does not answer, and only
    then broken connections, which are mostly the echo of one of the former.

    Args:
        reports: in order of arrival.
    """
    failures = [
        (kind, rank, report)
        for rank, report in reports.items()
        if (kind := _kind(report)) is not None
    ]
    if not failures:
        return None
    _, rank, report = min(failures, key=lambda failure: failure[0])
    return _error(rank, report)


def only_echoes(reports: Mapping[int, RankReport]) -> bool:
    """Whether ranks have failed, but none of them is the likely cause."""
    kinds = {_kind(report) for report in reports.values()} - {None}
    return kinds == {ECHO}


def _kind(report: RankReport) -> int | None:
    """The kind of a failure, None where nothing failed or the client has ended it."""
    if isinstance(report, Death):
        return DEATH
    if isinstance(report, Frozen):
        return SILENT
    if isinstance(report, ClusterError):
        return UNKNOWN
    if report.failure is None or report.failure.interrupted:
        return None
    return ECHO if report.failure.communication else OWN


def _error(rank: int, report: RankReport) -> ClusterError:
    if isinstance(report, Death):
        return RankDied(rank, report.engine.pid, report.signal, report.engine.remedy)
    if isinstance(report, Frozen):
        return RankFrozen(rank, report.engine.pid, report.how, report.engine.remedy)
    if isinstance(report, ClusterError):
        return report
    assert report.failure is not None
    failure = report.failure
    return RankError(rank, failure.type_name, failure.message, failure.traceback_text)
