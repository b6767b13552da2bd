"""What a caller gives to a cluster: checked, and packed for the engines."""

import linecache
import os
from collections.abc import Sequence

from mimokit.cluster.call_file import Take
from mimokit.cluster.errors import ClusterError


def packed(call: object, take: Take | None = None) -> bytes:
    """Return a function with its arguments as bytes for the engines.

    Raises:
        ClusterError: the function or an argument cannot be pickled.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(call, protocol=5, buffer_callback=take))
    except Exception as error:
        raise ClusterError(
            f"the function or its arguments cannot be sent to the engines: {error}"
        ) from error


def check_arguments(n: int | None, launch: str | None, timeout: float) -> None:
    """Reject arguments of `EngineCluster` that cannot be meant.

    Raises:
        ClusterError: one sentence for the first of them.
    """
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ClusterError(f"n must be at least 1 engine, got {n!r}")
    if launch not in (None, "fork", "plain"):
        raise ClusterError(f'launch must be "fork", "plain" or None, got {launch!r}')
    if timeout <= 0:
        raise ClusterError(f"timeout must be more than 0 seconds, got {timeout!r}")


def may_fork(launch: str | None) -> bool:
    """Return whether engines are forked.

    Raises:
        ClusterError: forking was asked for on a system without it.
    """
    if launch == "fork" and not hasattr(os, "fork"):
        raise ClusterError('launch="fork" is not to be had on this system: use launch="plain"')
    # Elsewhere than on Linux system libraries may refuse to work after a fork.
    return launch == "fork" or (launch is None and os.uname().sysname == "Linux")


def checked_ranks(ranks: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Return distinct ranks of a world of a size; all of them for None.

    Raises:
        ClusterError: a rank is repeated or outside the world.
    """
    chosen = tuple(range(size)) if ranks is None else tuple(ranks)
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(size)):
        raise ClusterError(
            f"ranks {list(chosen)} are not different ranks of a world of {size} (0 to {size - 1})"
        )
    return chosen


def cell_sources() -> dict[str, list[str]]:
    """Return name in frames -> lines, for the notebook cells that Python remembers.

    No file has this text, so tracebacks in other processes need it.
    """
    return {
        name: list(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and "ipykernel" in name and not os.path.exists(name)
    }


def join_only() -> None:
    """What `form_world` runs: joining the world is all it is for."""
