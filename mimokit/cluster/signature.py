"""Sign what processes of one user leave for each other where others can write, too."""

from __future__ import annotations

import hmac

SIZE = 32
"""Bytes of a signature."""


def signed(key: bytes, name: str, value: bytes) -> bytes:
    """Return a value behind its signature, which holds under this name alone."""
    return _signature(key, name, value) + value


def verified(key: bytes, name: str, text: bytes) -> bytes | None:
    """Return the value of `signed`, None if it was signed with another key or name, or not."""
    signature, value = text[:SIZE], text[SIZE:]
    return value if hmac.compare_digest(signature, _signature(key, name, value)) else None


def _signature(key: bytes, name: str, value: bytes) -> bytes:
    return hmac.digest(key, b"%d %s %s" % (len(name), name.encode(), value), "sha256")
