"""Which of several failures is the root cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mimokit.cluster.errors import ClusterError, RankDied, RankError
from mimokit.cluster.worker.task import Failure, Outcome


@dataclass(frozen=True)
class Death:
    """The process of a rank is gone."""

    pid: int | None
    signal: str | None


RankReport: TypeAlias = Outcome | Death | ClusterError
"""What is known of one rank at the end of a run."""


def verdict(reports: dict[int, RankReport]) -> ClusterError | None:
    """The error to raise, None if no rank failed by itself.

    A death comes first, then a rank's own exception, and only then the broken connections, which
    are mostly the echo of one of the former. `reports` are in order of arrival.
    """
    for rank, report in reports.items():
        if isinstance(report, Death):
            return RankDied(rank, report.pid, report.signal)
    own = [
        (rank, report.failure)
        for rank, report in reports.items()
        if isinstance(report, Outcome) and report.failure and not report.failure.interrupted
    ]
    for rank, failure in sorted(own, key=lambda item: item[1].communication):
        return _rank_error(rank, failure)
    return next((report for report in reports.values() if isinstance(report, ClusterError)), None)


def _rank_error(rank: int, failure: Failure) -> RankError:
    return RankError(rank, failure.type_name, failure.message, failure.traceback_text)
