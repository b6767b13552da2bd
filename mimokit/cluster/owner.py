"""What a run needs of the cluster that has started it."""

from __future__ import annotations

from typing import Any, Protocol

from mimokit.cluster.pool import Engine
from mimokit.cluster.worker.stack import Place


class RunOwner(Protocol):
    """What a run needs of its cluster."""

    def tell(self, engine: Engine, message: str, content: dict[str, Any]) -> None:
        """Send a control message to an engine."""

    def kill(self, engine: Engine) -> None:
        """End an engine by force."""

    def pid_here(self, engine: Engine) -> int | None:
        """The process id of an engine on this host, None of one elsewhere."""

    def place(self, engine: Engine) -> Place | None:
        """Where the main thread of an engine is, None if its process does not answer."""

    def in_reach(self, engine: Engine) -> bool:
        """Whether the host of an engine can be spoken to."""

    def written_stack(self, engine: Engine) -> str | None:
        """The stack of an engine that does not answer, None if there is none."""

    def check(self) -> None:
        """Raise ClusterError if engines cannot be heard of any more."""

    def ended(self) -> None:
        """Every rank of the run is back or gone."""


class NoOwner:
    """Stands for the cluster of a run that has ended."""

    def tell(self, engine: Engine, message: str, content: dict[str, Any]) -> None:
        """No rank listens any more."""

    def kill(self, engine: Engine) -> None:
        """The engine is no longer that of the run."""

    def pid_here(self, engine: Engine) -> int | None:
        """Nobody waits for a rank."""
        return None

    def place(self, engine: Engine) -> Place | None:
        """Nobody waits for a rank."""
        return None

    def in_reach(self, engine: Engine) -> bool:
        """Nobody waits for a rank."""
        return True

    def written_stack(self, engine: Engine) -> str | None:
        """Nobody waits for a rank."""
        return None

    def check(self) -> None:
        """Nobody waits for a rank."""

    def ended(self) -> None:
        """It has heard of this before."""
