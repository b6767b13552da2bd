"""Some engines of a cluster, as a separate pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.pool import Engine, EnginePool


class PoolPart:
    """Engines of a pool that others share; only what is asked of the part concerns them alone."""

    def __init__(
        self, pool: EnginePool, slots: Sequence[int], give_back: Callable[[], None]
    ) -> None:
        """Take some engines of a pool.

        Args:
            slots: their places in it, which become 0, 1, and so on.
            give_back: called when the part is closed.
        """
        self.link = pool.link
        self._pool = pool
        self._slots = tuple(slots)
        self._give_back = give_back

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot."""
        engines = self._pool.engines
        return tuple(replace(engines[slot], slot=place) for place, slot in enumerate(self._slots))

    @property
    def description(self) -> str:
        """How the engines were started."""
        return f"{self._pool.description}, a part of {len(self._pool.engines)}"

    def alive(self, slot: int) -> bool:
        """Whether the engine in the slot can be spoken to."""
        return self._pool.alive(self._slots[slot])

    def check(self) -> None:
        """Raise ClusterError if no engine can be heard of any more."""
        self._pool.check()

    def kill(self, engine: Engine) -> None:
        """End an engine by force; returns at once."""
        self._pool.kill(engine)

    def written_stack(self, engine: Engine) -> str | None:
        """Return the stack that an engine writes into its log, None if that cannot be read."""
        return self._pool.written_stack(engine)

    def replace(self, slots: list[int]) -> None:
        """Start new engines in the slots of dead ones."""
        self._pool.replace([self._slots[slot] for slot in slots])

    def close(self) -> None:
        """Give the engines back; they go on."""
        self._give_back()


def checked_slots(slots: Sequence[int], size: int) -> tuple[int, ...]:
    """Return distinct slots of a cluster of a size.

    Raises:
        ClusterError: one is repeated, no slot of the cluster, or there is none.
    """
    chosen = tuple(slots)
    whole = all(isinstance(slot, int) and not isinstance(slot, bool) for slot in chosen)
    if not whole or not chosen or len(set(chosen)) != len(chosen):
        raise ClusterError(
            f"a part of a cluster is over different engines of it, got {list(chosen)!r}"
        )
    if not set(chosen) <= set(range(size)):
        raise ClusterError(
            f"a part cannot have the engines {list(chosen)}: this cluster has 0 to {size - 1}"
        )
    return chosen
