"""The computations of each stage and the messages over each edge, by micro-batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimokit.planning.schedule.graph import StageGraph

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Work:
    """Whether a stage computes, and whether an edge carries a message, in a micro-batch.

    Attributes:
        forward: [stages, micro-batches].
        backward: [stages, micro-batches].
        carry_forward: [edges, micro-batches].
        carry_backward: [edges, micro-batches].
    """

    forward: Flags
    backward: Flags
    carry_forward: Flags
    carry_backward: Flags


def work_of(
    graph: StageGraph,
    num_microbatches: int,
    frozen: Collection[str],
    absent: Collection[tuple[str, int]],
) -> Work:
    """Return what all stages compute and what all edges carry.

    A module has a forward in every micro-batch except those in which it is absent. It has a
    backward if it or a module before it is trained, and if a gradient reaches it.
    """
    order = [name for name, _ in graph.topology]
    fed = dict(graph.topology)
    present = {name: np.ones(num_microbatches, dtype=np.bool_) for name in order}
    for name, microbatch in absent:
        present[name][microbatch] = False
    trained = {name: name not in frozen for name in order}
    for name in order:
        for target in fed[name]:
            trained[target] |= trained[name]
    gradient: dict[str, Flags] = {}
    for name in reversed(order):
        reached = np.full(num_microbatches, not fed[name])
        for target in fed[name]:
            reached |= gradient[target]
        gradient[name] = present[name] & trained[name] & reached
    modules = [stage.module for stage in graph.stages]
    ends = [(modules[edge.source], modules[edge.destination]) for edge in graph.edges]
    shape = (len(ends), num_microbatches)
    return Work(
        forward=np.array([present[name] for name in modules]),
        backward=np.array([gradient[name] for name in modules]),
        carry_forward=np.array([present[a] & present[b] for a, b in ends]).reshape(shape),
        carry_backward=np.array([gradient[a] & gradient[b] for a, b in ends]).reshape(shape),
    )
