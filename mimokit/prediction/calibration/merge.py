"""Measurements of all ranks, merged into one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from mimokit.prediction.calibration.measurements import (
    CollectiveTime,
    Measurements,
    PieceTime,
    RankMeasurements,
    Round,
)


def merge(ranks: Sequence[RankMeasurements]) -> Measurements:
    """Return medians over ranks, and means for the CPU seconds of collectives.

    The cost of a collective differs between ranks with their position and order of arrival, and a
    step pays for all of them. If ranks share cores, times are multiplied by ranks per core.
    """
    first = ranks[0]
    hosts = tuple(rank.host for rank in ranks)
    cores = max(
        sum(rank.cores for rank in ranks if rank.host == host) for host in dict.fromkeys(hosts)
    )
    busiest = max(hosts.count(host) for host in hosts)
    slower = max(1.0, busiest / cores) if first.shares_cores else 1.0
    products = tuple(
        replace(one, seconds=slower * statistics.median(r.products[i].seconds for r in ranks))
        for i, one in enumerate(first.products)
    )
    attention = {
        name: statistics.median(rank.attention[name] for rank in ranks) / slower
        for name in first.attention
    }
    return Measurements(
        device=first.device,
        hosts=hosts,
        memory_bytes=min(rank.memory_bytes for rank in ranks),
        memory_bandwidth=statistics.median(rank.memory_bandwidth for rank in ranks) / slower,
        cores=cores,
        sharing=slower,
        products=products,
        attention=attention,
        rounds=tuple(_round(ranks, one.ranks) for one in first.rounds),
    )


def _round(ranks: Sequence[RankMeasurements], at_work: int) -> Round:
    """Return the round on `at_work` ranks. The first ranks are active in all rounds."""
    rounds = [one for rank in ranks for one in rank.rounds if one.ranks == at_work]
    return Round(
        at_work,
        tuple(_piece(rounds, i) for i in range(len(rounds[0].pieces))),
        _collectives(rounds),
        statistics.median(one.seconds for one in rounds) if ranks[0].shares_cores else 0.0,
    )


def _piece(rounds: Sequence[Round], index: int) -> PieceTime:
    """Return a piece with median times. All ranks measure the same pieces."""
    return replace(
        rounds[0].pieces[index],
        seconds=statistics.median(one.pieces[index].seconds for one in rounds),
        cpu_seconds=statistics.median(one.pieces[index].cpu_seconds for one in rounds),
    )


def _collectives(rounds: Sequence[Round]) -> tuple[CollectiveTime, ...]:
    rows: dict[tuple[str, int, int], list[CollectiveTime]] = defaultdict(list)
    for rank in rounds:
        for one in rank.collectives:
            rows[one.kind, one.ranks, one.size].append(one)
    return tuple(
        replace(
            same[0],
            across=any(one.across for one in same),
            seconds=statistics.median(one.seconds for one in same),
            cpu_seconds=statistics.fmean(one.cpu_seconds for one in same),
        )
        for same in rows.values()
    )
