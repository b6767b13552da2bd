"""What the cluster asks of its engines, whoever started them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mimokit.cluster.link import EngineLink


@dataclass(frozen=True)
class Engine:
    """One engine; its slot in the cluster stays when it is replaced, its id does not."""

    slot: int
    engine_id: int
    pid: int | None


class DeathListener(Protocol):
    """Told, from a background thread, that an engine's process is gone."""

    def __call__(self, engine_id: int, signal: str | None) -> None:
        """Hear of one death."""


class EnginePool(Protocol):
    """A fixed number of slots with an engine in each."""

    link: EngineLink

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot, dead or alive."""

    @property
    def description(self) -> str:
        """How the engines were started, in a few words."""

    def alive(self, slot: int) -> bool:
        """Whether the engine in the slot can be spoken to."""

    def kill(self, slot: int) -> None:
        """End an engine by force; returns at once."""

    def replace(self, slots: list[int]) -> None:
        """Start new engines in the slots of dead ones.

        Raises:
            ClusterError: if engines cannot be started.
        """

    def close(self) -> None:
        """End what this pool has started."""
