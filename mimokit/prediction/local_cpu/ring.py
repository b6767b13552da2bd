"""Gloo's all-reduce: once around a ring of ranks to add up, once more to tell the sum."""

from __future__ import annotations

from collections.abc import Sequence

from mimokit.prediction.local_cpu.simulator import Collective, Operation, Recv, Send


def all_reduce(
    label: str, members: Sequence[int], seconds: float, numbers: float, rank: int
) -> list[Operation]:
    """Return what a rank does in an all-reduce.

    Args:
        label: of its operations.
        members: ranks of the group, in its order; more than one.
        seconds: CPU seconds of each of them.
        numbers: that are added up. Of many, every rank passes some on at any time; a single one is
            in the hands of one rank, and however many cores there are, only one works.
        rank: one of the members.
    """
    group = tuple(members)
    if numbers > 1:
        return [Collective(label, seconds, group)]
    ranks = len(group)
    hops = 2 * (ranks - 1)
    each = seconds * ranks / (2 * hops)
    found: list[Operation] = []
    for hop in range(hops):
        if group[hop % ranks] == rank:
            found.append(Send(label, each, (group, hop)))
        if group[(hop + 1) % ranks] == rank:
            found.append(Recv(label, each, (group, hop)))
    return found
