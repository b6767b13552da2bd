"""What local clusters do at the moment, and their end, asked from any process of their owner."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mimokit.cluster.local.callers import Caller, call
from mimokit.cluster.local.entries import ClusterEntry, clear, entries, entry_of
from mimokit.cluster.patience import slowdown
from mimokit.cluster.run_record import last_record

END_SECONDS = 5.0
"""How long the server of an idle machine may take to answer, or to end."""


@dataclass(frozen=True)
class ClusterState:
    """A cluster that is there.

    Attributes:
        client: the process that uses it, None if none does.
        engines: how many live; None if the engine server does not answer.
        run: the function of the last run that was recorded, None if there is none.
    """

    entry: ClusterEntry
    client: int | None
    engines: int | None
    run: str | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        return {
            "name": self.entry.name,
            "engines": self.engines,
            "stays": self.entry.stays,
            "client": self.client,
            "run": self.run,
            "pid": self.entry.pid,
            "directory": self.entry.directory,
        }


def clusters() -> list[ClusterState]:
    """Return the local clusters of this user, by name."""
    return [_state(entry) for entry in entries()]


def end_cluster(name: str) -> None:
    """End a cluster with all that runs on it; raises ClusterError if there is none of this name."""
    entry = entry_of(name)
    with contextlib.suppress(psutil.NoSuchProcess):
        server = psutil.Process(entry.pid)
        with contextlib.suppress(OSError), _called(entry) as caller:
            caller.say({"command": "end"})
        try:
            server.wait(END_SECONDS * slowdown())
        except psutil.TimeoutExpired:
            server.kill()  # the kernel ends the engines with it
            server.wait()
    clear(entry)


def _state(entry: ClusterEntry) -> ClusterState:
    told: dict[str, Any] = {"client": None, "engines": None}
    with contextlib.suppress(OSError):
        told = _asked(entry) or told
    record = last_record(entry.runs)
    run = None if record is None else record.name
    return ClusterState(entry, told["client"], told["engines"], run)


def _called(entry: ClusterEntry) -> contextlib.closing[Caller]:
    return contextlib.closing(call(Path(entry.directory)))


def _asked(entry: ClusterEntry) -> dict[str, Any] | None:
    with _called(entry) as caller:
        caller.be_patient(END_SECONDS * slowdown())
        caller.say({"command": "look"})
        answers = caller.receive()
    return answers[0] if answers else None
