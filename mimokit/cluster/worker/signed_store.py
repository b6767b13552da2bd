"""A store of torch.distributed whose entries only the ranks of a world can write."""

from __future__ import annotations

import hmac
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

SIZE = 32
"""Bytes of a signature."""


class SignedStore(Store):
    """Signs the values of another store.

    Ranks find each other by the addresses in the store of their world, and every process that
    reaches its port can write there: without a signature it takes the place of a rank. Counters
    stay unsigned; torch reads from them when to go on, and nothing else.
    """

    def __init__(self, store: Any, key: bytes) -> None:
        """Take the store, and a key that all ranks of the world have and nobody else."""
        super().__init__()
        self._store, self._key = store, key
        # What torch holds of a clone would not keep it alive.
        self._clones: list[SignedStore] = []

    def set(self, name: str, value: str | bytes) -> None:
        """Write an entry."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(name, signed(self._key, name, content))

    def get(self, name: str) -> bytes:
        """Wait for an entry, and return its value.

        Raises:
            RuntimeError: no rank of this world has written it.
        """
        value = verified(self._key, name, bytes(self._store.get(name)))
        if value is None:
            raise RuntimeError(
                f"the entry {name!r} in the store of this world was not written by one of its "
                "ranks: another process of this machine or network interferes"
            )
        return value

    def add(self, name: str, amount: int) -> int:
        """Add to a counter, and return its value."""
        return int(self._store.add(name, amount))

    def check(self, names: list[str]) -> bool:
        """Return whether entries are there."""
        return bool(self._store.check(names))

    def wait(self, names: list[str], timeout: timedelta | None = None) -> None:
        """Wait for entries."""
        self._store.wait(names, *(() if timeout is None else (timeout,)))

    def delete_key(self, name: str) -> bool:
        """Remove an entry, and return whether it was there."""
        return bool(self._store.delete_key(name))

    def num_keys(self) -> int:
        """Return the number of entries."""
        return int(self._store.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long `get` and `wait` wait."""
        self._store.set_timeout(timeout)

    def clone(self) -> SignedStore:
        """Return a store of the same entries, with a separate connection."""
        self._clones.append(SignedStore(self._store.clone(), self._key))
        return self._clones[-1]


def signed(key: bytes, name: str, value: bytes) -> bytes:
    """Return a value behind its signature, which holds under this name alone."""
    return _signature(key, name, value) + value


def verified(key: bytes, name: str, text: bytes) -> bytes | None:
    """Return the value of `signed`, None if it was signed with another key or name, or not."""
    signature, value = text[:SIZE], text[SIZE:]
    return value if hmac.compare_digest(signature, _signature(key, name, value)) else None


def _signature(key: bytes, name: str, value: bytes) -> bytes:
    return hmac.digest(key, b"%d %s %s" % (len(name), name.encode(), value), "sha256")
