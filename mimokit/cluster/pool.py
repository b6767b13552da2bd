"""What a cluster asks of its engines, whether it started them or not."""

import contextlib
import weakref
from dataclasses import dataclass
from typing import Any

from mimokit.cluster.errors import STARTED_AGAIN
from mimokit.cluster.link import EngineLink
from mimokit.cluster.worker.stack import Place


@dataclass(frozen=True)
class Engine:
    """One engine; its slot in the cluster stays when it is replaced, its id does not.

    Attributes:
        pid: its process id, None where not known.
        host: the name of its host, None if that is this one or not known.
    """

    slot: int
    engine_id: int
    pid: int | None
    remedy: str = STARTED_AGAIN
    host: str | None = None


class Linked:
    """Speaks to engines through the controller."""

    link: EngineLink

    def tell(self, engine: Engine, message: str, content: dict[str, Any]) -> None:
        """Send a control message to an engine."""
        with contextlib.suppress(OSError):
            self.link.control(engine.engine_id, message, content)

    def place(self, engine: Engine) -> Place | None:
        """Return where the main thread of an engine is, None if its process does not answer."""
        return self.link.place(engine.engine_id)


class WeakListener:
    """Tells a cluster what has become of engines, unless it is forgotten by then."""

    def __init__(self, listener: Any) -> None:
        self._listener = weakref.ref(listener)

    def hear_of_death(self, engine_id: int, signal: str | None, status: int | None = None) -> None:
        """Pass on a death."""
        if (listener := self._listener()) is not None:
            listener.hear_of_death(engine_id, signal, status)

    def hear_of_failure(self, reason: str) -> None:
        """Pass on a failure."""
        if (listener := self._listener()) is not None:
            listener.hear_of_failure(reason)
