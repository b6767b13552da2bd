"""Which rank reads which sample of a micro-batch, if their sizes are known before they are read.

A permutation of the samples of a global micro-batch lets every replica have about the same work,
and no frame has to travel for it (DistTrain's reordering within a micro-batch, arXiv 2408.04275,
section 5.2). Every replica keeps its number of samples. Loss and gradients are sums over the
samples of a micro-batch, so they do not depend on their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mimokit.planning.frames.plan import check_loads, check_ranks
from mimokit.units import counted

DIGITS, NEGLIGIBLE = 9, 1e-9
"""Digits of a relative time, and the relative gain, below which a difference is rounding."""
GOOD_ENOUGH = 3e-3
"""Relative distance from the lowest possible time at which no better order is looked for."""
MOST_PLACES = 16
"""Places of the slowest replica from which an exchange is looked for."""
MOST_EXCHANGES = 8
"""Exchanges per sample after which the search ends; each lowers the time, most searches need less
than one per sample."""
FEW_SAMPLES = 6
"""Samples up to which all orders are tried instead."""


@dataclass(frozen=True)
class SampleWork:
    """What the samples of a micro-batch cost one module, or modules that wait only together.

    Attributes:
        seconds: [samples], time of each on its replica, in any unit that all works share.
        replicas: number that have an equal and contiguous share of the samples each.
    """

    seconds: np.ndarray = field(repr=False)
    replicas: int

    @classmethod
    def of(cls, seconds: Any, replicas: int) -> SampleWork:
        """Return a checked work.

        Raises:
            ValueError: a time is negative or not finite, or the replicas do not divide the samples.
        """
        sizes, number = check_loads(seconds), check_ranks(replicas, "replicas")
        if len(sizes) % number:
            raise ValueError(
                f"{counted(number, 'replica')} cannot share {counted(len(sizes), 'sample')} "
                "evenly; give a number of replicas that divides them."
            )
        return cls(sizes, number)

    def per_replica(self, order: Any) -> np.ndarray:
        """Return the time of every replica, [replicas], for samples in an order."""
        by_replica = self.seconds[np.asarray(order)].reshape(self.replicas, -1)
        return np.asarray(by_replica.sum(axis=1))


def slowest(works: Sequence[SampleWork], order: Any) -> float:
    """Return the time of a micro-batch: of every work, that of its slowest replica."""
    return float(sum(work.per_replica(order).max() for work in works))


def order_samples(works: Sequence[SampleWork]) -> tuple[int, ...]:
    """Return an order of the samples of a micro-batch in which no replica has much more work.

    Exchanges of two samples, each the one that lowers the time of the micro-batch the most, from
    the largest samples dealt out first and from the order as it is; the best end is taken. For
    up to 6 samples it is the best order. It is never worse than the order as it is, which stays
    where nothing is gained.

    Args:
        works: of the modules, over the same samples.

    Returns:
        [samples], the sample at every place; replica r of a work takes the places
        [r * samples / replicas, (r + 1) * samples / replicas).

    Raises:
        ValueError: there is no work, or works have different numbers of samples.
    """
    counts = {len(work.seconds) for work in works}
    if len(counts) != 1:
        raise ValueError(
            f"The works have {sorted(counts)} samples; give at least one, all of the same samples."
        )
    best = start = np.arange(counts.pop())
    if len(start) <= FEW_SAMPLES:
        return tuple(_best_of_all(works, start).tolist())
    goal = _least(works) * (1 + GOOD_ENOUGH)
    keys = [work.seconds / (work.seconds.mean() or 1.0) for work in works]
    for key in (np.sum(keys, axis=0), *keys, None):
        if slowest(works, best) <= goal:
            break
        begin = start if key is None else _dealt(works, key)
        other = _exchanged(works, begin, goal)
        if slowest(works, other) < slowest(works, best) * (1 - NEGLIGIBLE):
            best = other
    return tuple(best.tolist())


def _least(works: Sequence[SampleWork]) -> float:
    return float(sum(max(w.seconds.sum() / w.replicas, w.seconds.max(initial=0)) for w in works))


def _dealt(works: Sequence[SampleWork], key: np.ndarray) -> np.ndarray:
    finest = max(works, key=lambda work: work.replicas).replicas
    room = len(key) // finest
    loads, counts = np.zeros(finest), np.zeros(finest, dtype=np.int64)
    order = np.empty(len(key), dtype=np.int64)
    for sample in np.argsort(-key, kind="stable"):
        replica = int(np.where(counts < room, loads, np.inf).argmin())
        order[replica * room + counts[replica]] = sample
        counts[replica] += 1
        loads[replica] += key[sample]
    return order


def _exchanged(works: Sequence[SampleWork], order: np.ndarray, goal: float) -> np.ndarray:
    order, samples = order.copy(), len(order)
    replica_of = [np.arange(samples) // max(samples // work.replicas, 1) for work in works]
    for _ in range(MOST_EXCHANGES * samples):
        loads = [work.per_replica(order) for work in works]
        if sum(load.max() for load in loads) <= goal:
            break
        pair = _best_exchange(works, order, loads, replica_of)
        if pair is None:
            break
        order[list(pair)] = order[list(pair)[::-1]]
    return order


def _best_of_all(works: Sequence[SampleWork], start: np.ndarray) -> np.ndarray:
    if not slowest(works, start):
        return start
    orders = _all_orders(len(start))
    times = sum(
        work.seconds[orders].reshape(len(orders), work.replicas, -1).sum(axis=2).max(axis=1)
        for work in works
    )
    # Every rank must find the same order, also where its sums are rounded differently.
    best: np.ndarray = orders[np.round(times / slowest(works, start), DIGITS).argmin()]
    return best


@lru_cache
def _all_orders(samples: int) -> np.ndarray:
    """Return [orders, samples], the ascending one first."""
    return np.array(list(itertools.permutations(range(samples))))


def _best_exchange(
    works: Sequence[SampleWork],
    order: np.ndarray,
    loads: Sequence[np.ndarray],
    replica_of: Sequence[np.ndarray],
) -> tuple[int, int] | None:
    """Return two places whose exchange lowers the time the most, or the spread at the same time.

    One of them is on the slowest replica of some work; no other exchange lowers the time.
    """
    slow = [of == load.argmax() for of, load in zip(replica_of, loads, strict=True)]
    places = np.flatnonzero(np.any(slow, axis=0))
    if len(places) > MOST_PLACES:
        places = places[np.linspace(0, len(places) - 1, MOST_PLACES).astype(np.int64)]
    time, spread = np.zeros((2, len(places), len(order)))
    for work, load, of in zip(works, loads, replica_of, strict=True):
        seconds, slowest_of = work.seconds[order], of[places]
        gives = np.where(of == slowest_of[:, None], 0.0, seconds[places, None] - seconds)
        givers, takers = load[slowest_of, None] - gives, load[of] + gives
        third = {replica: _third(load, replica)[of] for replica in set(slowest_of.tolist())}
        rest = np.stack([third[replica] for replica in slowest_of.tolist()])
        time += np.maximum(np.maximum(givers, takers), rest)
        change = givers**2 + takers**2 - load[slowest_of, None] ** 2 - load[of] ** 2
        spread += change / (load.mean() or 1.0) ** 2
    relative = np.round(time / (sum(load.max() for load in loads) or 1.0), DIGITS).ravel()
    fastest = np.flatnonzero(relative == relative.min())
    best = int(fastest[spread.ravel()[fastest].argmin()])
    if (relative[best], spread.ravel()[best]) < (1.0, -NEGLIGIBLE):
        place, other = divmod(best, len(order))
        return int(places[place]), other
    return None


def _third(load: np.ndarray, other: int) -> np.ndarray:
    rest = load.copy()
    rest[other] = 0.0
    largest = int(rest.argmax())
    most = np.full(len(load), rest[largest])
    rest[largest] = 0.0
    most[largest] = rest.max()
    return most
