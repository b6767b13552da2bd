"""What is known of the ranks at the end of a run, and which of it is the cause of its failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mimokit.cluster.errors import ClusterError, RankAbsent, RankDied, RankError, RankFrozen
from mimokit.cluster.worker.task import RankOutcome


@dataclass(frozen=True)
class Busy:
    """The process of a rank answers, but its function could not be interrupted; it is killed.

    Attributes:
        stack: where the function is.
    """

    stack: str


RankReport: TypeAlias = RankOutcome | ClusterError | Busy
"""What is known of one rank at the end of a run; an error is that which the run may raise."""

DEATH, OWN, SILENT, ABSENT, ECHO, UNKNOWN = range(6)
"""Kinds of failure; the lower one is the likelier cause of the others."""

TIME_OUT_SIGNS = ("timed out", "timeout")
"""What gloo, NCCL and the store say when a rank has waited too long for another."""


def verdict(reports: Mapping[int, RankReport]) -> ClusterError | None:
    """The error to raise, None if no rank failed by itself.

    A death comes first, then a rank's own exception, then a rank that does not answer, then one
    that others waited for in vain, and only then broken connections, which are mostly the echo of
    one of the former.

    Args:
        reports: in order of arrival.
    """
    waited = _waited(reports)
    kinds = {rank: _kind(report, waited) for rank, report in reports.items()}
    failed = {rank: kind for rank, kind in kinds.items() if kind is not None}
    if not failed:
        return None
    rank = min(failed, key=failed.__getitem__)
    report = reports[rank]
    if failed[rank] == ABSENT:
        return RankAbsent(rank, str(waited), _place(report))
    if isinstance(report, ClusterError):
        return report
    assert isinstance(report, RankOutcome)
    assert report.failure is not None
    failure = report.failure
    return RankError(rank, failure.type_name, failure.message, failure.traceback_text)


def only_echoes(reports: Mapping[int, RankReport]) -> bool:
    """Whether ranks have failed, but none of them is the likely cause."""
    kinds = {_kind(report, None) for report in reports.values()} - {None}
    return kinds == {ECHO}


def _waited(reports: Mapping[int, RankReport]) -> str | None:
    for rank, report in reports.items():
        if isinstance(report, RankOutcome) and _kind(report, None) == ECHO:
            assert report.failure is not None
            told = report.failure.message.strip()
            if any(sign in told.lower() for sign in TIME_OUT_SIGNS):
                return f"rank {rank} waited there: {told}"
    return None


def _kind(report: RankReport, waited: str | None) -> int | None:
    if isinstance(report, RankDied):
        return SILENT if isinstance(report, RankFrozen) else DEATH
    if isinstance(report, ClusterError):
        return UNKNOWN
    if isinstance(report, Busy):
        return None if waited is None else ABSENT
    if report.failure is None:
        return None
    if report.failure.interrupted:
        # It was interrupted in a collective if that broke at the same time.
        return None if waited is None or report.failure.communication else ABSENT
    return ECHO if report.failure.communication else OWN


def _place(report: RankReport) -> str:
    if isinstance(report, Busy):
        return report.stack
    assert isinstance(report, RankOutcome)
    assert report.failure is not None
    return report.failure.traceback_text
