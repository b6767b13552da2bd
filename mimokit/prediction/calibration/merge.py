"""From what every rank measured to what holds for all of them."""

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
    """Return the medians over ranks, of the CPU seconds of collectives the means.

    What a collective costs a rank differs with its place and with who comes first, and a step pays
    for all of them. Where ranks share cores, a rank computes as fast as its share of them lets it.
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
    """Return the round on so many ranks: the first ranks are at work in all of them."""
    rounds = [one for rank in ranks for one in rank.rounds if one.ranks == at_work]
    return Round(
        at_work,
        tuple(_piece(rounds, i) for i in range(len(rounds[0].pieces))),
        _collectives(rounds),
        statistics.median(one.seconds for one in rounds) if ranks[0].shares_cores else 0.0,
    )


def _piece(rounds: Sequence[Round], index: int) -> PieceTime:
    """Return the median piece: all ranks measure the same ones."""
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
