"""What a function may call while it runs on a rank; without effect outside a cluster.

Imports nothing heavy, so that training code can use it under plain `torchrun` too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mimokit.cluster.worker.session import RankRun

_current: RankRun | None = None
_waits = 0
_on_leave: list[Callable[[], None]] = []


def set_current(side: RankRun | None) -> None:
    """Name the run in progress on this rank, or none."""
    global _current, _waits
    _current, _waits = side, 0


def emit(sample: Mapping[str, Any]) -> None:
    """Stream one sample (a mapping of picklable values) back to the client.

    Samples travel in batches; none is lost, their order per rank is kept, and all of them are with
    the client before the function's result is. Outside a cluster this does nothing.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: if the sample cannot be pickled.
    """
    if _current is not None:
        _current.emit(sample)


def flush() -> None:
    """Send the samples that wait for others; they have left this process when it returns."""
    if _current is not None:
        _current.flush()


def should_stop() -> bool:
    """Whether the client has asked this run to stop; always False outside a cluster.

    A local flag: ranks may see it at different steps, so a loop with collectives in it must agree
    on it (for example by an all-reduce) before it leaves.
    """
    return _current is not None and _current.stopping


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Say that the function waits for a disk, or for a thread that writes, and is at work.

    A rank whose function has waited without a sign for some seconds is ended where the run may
    begin again; within this block it is not.
    """
    global _waits
    _waits += 1
    try:
        yield
    finally:
        _waits -= 1


def is_waiting() -> bool:
    """Whether the function is in a block of `waiting`."""
    return _waits > 0


def on_leave(function: Callable[[], None]) -> None:
    """Have a function called each time this process leaves its world, after its groups are gone.

    For a library that keeps state about the world in module globals. The function is also called
    before the process joins its first world, and must then change nothing.
    """
    if function not in _on_leave:
        _on_leave.append(function)


def call_on_leave() -> None:
    """Call the functions given to `on_leave`, in their order."""
    for function in _on_leave:
        function()
