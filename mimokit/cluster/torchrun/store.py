"""The store of a torchrun job, as a board where ranks leave texts for each other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from mimokit.cluster.world import EngineFacts

POLL_SECONDS = 0.02
START_TIMEOUT = timedelta(minutes=5)


class JobStore:
    """Keys and texts that all ranks of a job see.

    A wait polls: a blocking call of torch's client would keep all other threads from the store.

    Attributes:
        rank: of this process in the job.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size

    @classmethod
    def from_environment(cls) -> JobStore:
        """Connect to the store that torchrun describes in the environment."""
        from torch.distributed.rendezvous import rendezvous

        store, rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
        return cls(store, rank, size)

    def put(self, key: str, text: str) -> None:
        """Leave a text."""
        self._store.set(key, text)

    def take(self, key: str) -> bytes | None:
        """Return a text and remove it; None if there is none yet."""
        text = self.look(key)
        if text is not None:
            self._store.delete_key(key)
        return text

    def look(self, key: str) -> bytes | None:
        """Return a text; None if there is none yet."""
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def wait(self, key: str, given_up: Callable[[], bool] = lambda: False) -> bytes | None:
        """Wait for a text; None if it is given up meanwhile."""
        while (text := self.look(key)) is None:
            if given_up():
                return None
            time.sleep(POLL_SECONDS)
        return text

    def exchange_facts(self, facts: EngineFacts) -> tuple[EngineFacts, ...]:
        """Tell the others where this rank sits, and return where all sit, in rank order."""
        self.put(f"facts/{self.rank}", json.dumps(asdict(facts)))
        texts = [self.wait(f"facts/{rank}") for rank in range(self.size)]
        return tuple(EngineFacts(**json.loads(text)) for text in texts if text is not None)


def started_by_torchrun() -> bool:
    """Return whether the environment describes a job."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
