"""The store of a torchrun job, as a board where ranks leave texts for each other.

Every process of the network reaches it, and what ranks read there says what they import and call.
So texts are signed, with a key that only the user's own processes can read.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.signature import signed, verified
from mimokit.cluster.torchrun.key import SAME_KEY, user_key
from mimokit.cluster.world import EngineFacts

POLL_SECONDS = 0.02
START_TIMEOUT = timedelta(minutes=5)
WRONG_SECONDS = 10.0
"""How long the first text of another rank may be there and not be signed with this job's key."""
AGENT_GONE = "the agent of this torchrun job is gone: start the job again with --resume"


class JobStore:
    """Keys and texts that all ranks of a job see.

    A wait polls: a blocking call of torch's client would keep all other threads from the store. A
    text that is not signed with the key of the job is not there. Every method raises ClusterError
    where the store is gone, which ends with its agent.

    Args:
        key: of the user; the texts of this job are signed with one that is made of it.

    Attributes:
        rank: of this process in the job.
    """

    def __init__(self, store: Any, rank: int, size: int, key: bytes) -> None:
        self._store = store
        self._key = key
        self.rank = rank
        self.size = size

    @classmethod
    def from_environment(cls) -> JobStore:
        """Connect to the store that torchrun describes in the environment."""
        from torch.distributed.rendezvous import rendezvous

        store, rank, size = next(rendezvous("env://", timeout=START_TIMEOUT))
        return cls(store, rank, size, user_key())

    def put(self, key: str, text: str) -> None:
        """Leave a text."""
        with _reached():
            self._store.set(key, signed(self._key, key, text.encode()))

    def take(self, key: str) -> bytes | None:
        """Return a text and remove it; None if there is none yet."""
        text = self.look(key)
        if text is not None:
            with _reached():
                self._store.delete_key(key)
        return text

    def look(self, key: str) -> bytes | None:
        """Return a text; None if there is none yet."""
        found = self._found(key)
        return None if found is None else verified(self._key, key, found)

    def wait(self, key: str, given_up: Callable[[], bool] = lambda: False) -> bytes | None:
        """Wait for a text; None if it is given up meanwhile."""
        while (text := self.look(key)) is None:
            if given_up():
                return None
            time.sleep(POLL_SECONDS)
        return text

    def exchange_facts(self, facts: EngineFacts) -> tuple[EngineFacts, ...]:
        """Tell the others where this rank sits, and return where all sit, in rank order."""
        # What was signed for another job of this user must not hold in this one.
        texts = self._gather("facts", json.dumps([asdict(facts), secrets.token_hex(16)]))
        self._key = self.key_of(repr(texts))
        self._gather("ready", "")
        told = (json.loads(text)[0] for text in texts)
        return tuple(EngineFacts(**{**facts, "gpus": tuple(facts["gpus"])}) for facts in told)

    def key_of(self, purpose: str) -> bytes:
        """Return a key that only the ranks of this job can make."""
        return hmac.digest(self._key, purpose.encode(), "sha256")

    def _gather(self, name: str, text: str) -> list[bytes]:
        self.put(f"{name}/{self.rank}", text)
        return [self._first(f"{name}/{rank}", rank) for rank in range(self.size)]

    def _first(self, key: str, rank: int) -> bytes:
        """Wait for a text, which must be signed soon after it is there."""
        wrong: float | None = None
        while (text := self.look(key)) is None:
            if wrong is None and self._found(key) is not None:
                wrong = time.monotonic()
            if wrong is not None and time.monotonic() - wrong > WRONG_SECONDS:
                raise ClusterError(
                    f"what rank {rank} says in the store of this job is not signed with the key "
                    f"of rank {self.rank}: {SAME_KEY}"
                )
            time.sleep(POLL_SECONDS)
        return text

    def _found(self, key: str) -> bytes | None:
        with _reached():
            return bytes(self._store.get(key)) if self._store.check([key]) else None


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ClusterError(AGENT_GONE) from error


def started_by_torchrun() -> bool:
    """Return whether the environment describes a job."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
