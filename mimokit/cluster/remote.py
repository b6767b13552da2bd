"""Engines that a cluster uses and does not start: those of others, or a part of another's."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from mimokit.cluster.errors import NEEDS_ANOTHER, ClusterError, EnginesMissing
from mimokit.cluster.link import EngineLink
from mimokit.cluster.local.pool import LocalPool
from mimokit.cluster.patience import slowdown
from mimokit.cluster.pool import Engine, Linked, WeakListener
from mimokit.progress import Bar
from mimokit.units import counted

CONNECT_SECONDS = 30.0


class ConnectedPool(Linked):
    """Engines that are not ours: they are used, watched, and left running."""

    runs: Path | None = None

    def __init__(
        self,
        n: int | None,
        profile: str | None,
        cluster_file: str | Path | None,
        listener: WeakListener,
        progress: Bar,
    ) -> None:
        self.link = EngineLink(_connect(profile, cluster_file))
        self._listener = listener
        self._lock = threading.Lock()
        self._killed: set[int] = set()
        try:
            self._slots = self._wait_for_engines(n, progress)
        except BaseException:
            self.link.close()
            raise
        self.link.client._registration_callbacks.append(self._on_registration)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot."""
        return tuple(
            Engine(slot, engine_id, None, NEEDS_ANOTHER)
            for slot, engine_id in enumerate(self._slots)
        )

    @property
    def description(self) -> str:
        """How the engines were started."""
        return "connected"

    def alive(self, slot: int) -> bool:
        """Whether the engine in the slot can be spoken to."""
        engine_id = self._slots[slot]
        return engine_id not in self._killed and engine_id in self.link.live_ids()

    def check(self) -> None:
        """Raise ClusterError if no engine can be heard of any more."""
        if self.link.controller_is_silent():
            raise ClusterError("the controller of this cluster does not answer any more")

    def kill(self, engine: Engine) -> None:
        """End an engine by force, through its nanny."""
        self._killed.add(engine.engine_id)
        self.link.signal(engine.engine_id, signal.SIGKILL)

    def in_reach(self, engine: Engine) -> bool:
        """Whether the nanny next to an engine answers."""
        return self.link.has_nanny(engine.engine_id)

    def written_stack(self, engine: Engine) -> str | None:
        """Its log is not ours to read."""
        return None

    def replace(self, slots: list[int]) -> None:
        """Take in engines that have joined the cluster meanwhile; we cannot start any."""
        self.check()
        with self._lock:
            self._take_spare(slots)

    def _take_spare(self, slots: list[int]) -> None:
        used = self._killed.union(self._slots)
        spare = [engine_id for engine_id in self.link.live_ids() if engine_id not in used]
        if len(spare) < len(slots):
            raise EnginesMissing(
                f"{len(slots)} of {len(self._slots)} engines have died and this cluster was not "
                f"started here: start {len(slots) - len(spare)} more engines where it runs"
            )
        for slot, engine_id in zip(slots, spare, strict=False):
            self._slots[slot] = engine_id

    def close(self) -> None:
        """Disconnect; the engines go on."""
        self.link.close()

    def _wait_for_engines(self, n: int | None, progress: Bar) -> list[int]:
        deadline = time.monotonic() + CONNECT_SECONDS * slowdown()
        while True:
            there = self.link.live_ids()
            progress.update(min(len(there), n or len(there)))
            if len(there) >= (n or 1):
                return sorted(there)[: n or len(there)]
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the cluster has {counted(len(there), 'engine')}, {n or 1} are needed: start "
                    "more"
                )
            time.sleep(0.05)

    def _on_registration(self, event: dict[str, object]) -> None:
        if event["event"] == "register":
            # An engine that is started again may get its old id.
            self._killed.discard(int(str(event["id"])))
        elif event["event"] == "unregister":
            self._listener.hear_of_death(int(str(event["id"])), None)


def _connect(profile: str | None, cluster_file: str | Path | None) -> object:
    import ipyparallel
    from IPython.core.profiledir import ProfileDirError

    from mimokit.cluster.connection_file import connection_of

    try:
        connection = connection_of(profile, cluster_file, CONNECT_SECONDS)
        return ipyparallel.Client(connection, timeout=CONNECT_SECONDS)
    except ClusterError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ProfileDirError) as error:
        place = f"profile {profile!r}" if cluster_file is None else f"{cluster_file}"
        raise ClusterError(f"no running cluster was found by {place}: {error}") from error


class PoolPart(Linked):
    """Engines of a pool that others share; only what is asked of the part concerns them alone."""

    runs: Path | None = None

    def __init__(
        self, pool: EnginePool, slots: Sequence[int], give_back: Callable[[], None]
    ) -> None:
        """Take some engines of a pool.

        Args:
            slots: their places in it, which become 0, 1, and so on.
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

    def in_reach(self, engine: Engine) -> bool:
        """Whether the host of an engine can be spoken to."""
        return self._pool.in_reach(engine)

    def written_stack(self, engine: Engine) -> str | None:
        """Return the stack that an engine writes into its log, None if that cannot be read."""
        return self._pool.written_stack(engine)

    def replace(self, slots: list[int]) -> None:
        """Start new engines in the slots of dead ones."""
        self._pool.replace([self._slots[slot] for slot in slots])

    def close(self) -> None:
        """Give the engines back; they go on."""
        self._give_back()


EnginePool: TypeAlias = LocalPool | ConnectedPool | PoolPart
"""A fixed number of slots with an engine in each."""


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
