"""What happens inside the steps of a schedule, in the layers of a module: for traces.

Layers enter `inside` at these places. Without a listener that costs one look at an empty list.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch

from mimokit.engine.part_times import now


class Inside(StrEnum):
    """A kind of work inside a step.

    Attributes:
        GATHER_KEYS: keys and values of all context-parallel ranks are gathered.
        DISPATCH: tokens are sent to the ranks of their experts.
        COMBINE: what experts gave returns to the ranks of the tokens.
        RECOMPUTE: a layer or its attention runs forward again in a backward pass.
        REDUCE_SCATTER: gradients are summed over replicas, of which each keeps its part.
        ALL_REDUCE: gradients are summed over replicas.
    """

    GATHER_KEYS = "gather-keys"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    RECOMPUTE = "recompute"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"


Listener = Callable[[Inside, float, float], None]
"""Called with what ended, and when it began and ended on this rank's clock."""

_listeners: list[Listener] = []
_OUTSIDE = -1
"""What torch says where no backward pass runs."""


@contextmanager
def inside(kind: Inside) -> Iterator[None]:
    """Tell the listeners how long the block takes."""
    if not _listeners:
        yield
        return
    begun = now()
    yield
    ended = now()
    for listener in _listeners:
        listener(kind, begun, ended)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let a listener hear of what ends in the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell_of_recomputation(module: torch.nn.Module) -> None:
    """Let listeners hear of passes of a module inside a backward pass."""
    begun: list[float] = []

    def begin(*_: object) -> None:
        if _listeners and torch._C._current_graph_task_id() != _OUTSIDE:
            begun.append(now())

    def end(*_: object) -> None:
        if begun:
            start, ended = begun.pop(), now()
            for listener in _listeners:
                listener(Inside.RECOMPUTE, start, ended)

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
