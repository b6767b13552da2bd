"""What a cluster asks of its engines, whether it started them or not."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mimokit.cluster.errors import STARTED_AGAIN
from mimokit.cluster.link import EngineLink
from mimokit.progress import shown


@dataclass(frozen=True)
class Engine:
    """One engine; its slot in the cluster stays when it is replaced, its id does not.

    Attributes:
        engine_id: the controller's name for it.
        pid: its process id, None where not known.
        remedy: what becomes of its slot when it has died, as the end of a sentence.
        host: the name of its host, None if that is this one or not known.
    """

    slot: int
    engine_id: int
    pid: int | None
    remedy: str = STARTED_AGAIN
    host: str | None = None


class PoolListener(Protocol):
    """Told, from a background thread, what has become of engines."""

    def hear_of_death(self, engine_id: int, signal: str | None) -> None:
        """The process of an engine is gone."""

    def hear_of_failure(self, reason: str) -> None:
        """No engine can be heard of any more."""


class EnginePool(Protocol):
    """A fixed number of slots with an engine in each.

    Attributes:
        runs: the folder in which ranks record what they send, None where nobody comes later.
    """

    link: EngineLink
    runs: Path | None

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot, dead or alive."""

    @property
    def description(self) -> str:
        """How the engines were started, in a few words."""

    def alive(self, slot: int) -> bool:
        """Whether the engine in the slot can be spoken to."""

    def check(self) -> None:
        """Raise ClusterError if no engine can be heard of any more."""

    def kill(self, engine: Engine) -> None:
        """End an engine by force; returns at once, and the engine is not alive any more."""

    def in_reach(self, engine: Engine) -> bool:
        """Whether the host of an engine can be spoken to."""

    def written_stack(self, engine: Engine) -> str | None:
        """Return the stack that an engine writes into its log, None if that cannot be read."""

    def replace(self, slots: list[int]) -> None:
        """Start new engines in the slots of dead ones.

        Raises:
            ClusterError: if engines cannot be started.
        """

    def close(self) -> None:
        """End what this pool has started."""


class WeakListener:
    """Passes on what a pool reports, and keeps no forgotten cluster alive, nor its engines."""

    def __init__(self, listener: PoolListener) -> None:
        self._listener = weakref.ref(listener)

    def hear_of_death(self, engine_id: int, signal: str | None) -> None:
        """Pass on a death."""
        if (listener := self._listener()) is not None:
            listener.hear_of_death(engine_id, signal)

    def hear_of_failure(self, reason: str) -> None:
        """Pass on a failure."""
        if (listener := self._listener()) is not None:
            listener.hear_of_failure(reason)


class StartProgress:
    """Shows how many of `total` engines are there; silent where `total` is 0."""

    def __init__(self, total: int) -> None:
        self._context = shown("Starting engines", total, wanted=total > 0)
        self._bar = self._context.__enter__()

    @classmethod
    def none(cls) -> StartProgress:
        """A progress that shows nothing."""
        return cls(0)

    def show(self, count: int) -> None:
        """Show that `count` engines are there."""
        self._bar.update(count)

    def close(self) -> None:
        """Take the bar away."""
        self._context.__exit__(None, None, None)
