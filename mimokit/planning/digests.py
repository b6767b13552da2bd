"""Digests of what is read back as numbers: they tell of accidents, not of those who mean harm."""

import json
import os
from collections.abc import Mapping
from typing import Any

from xxhash import xxh3_64

from mimokit.config.text_file import open_regular

_DIGEST = "digest"
"""Key of the digest of a mapping's other content."""
_PIECE = 2**20
"""Bytes that are read at once: they stay in the cache of a core."""


def digest_text(digest: xxh3_64) -> str:
    """Return a digest as files have it."""
    return f"xxh3:{digest.hexdigest()}"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with its digest, as it is written to JSON."""
    return {**content, _DIGEST: _digest_of(content)}


def is_as_sealed(content: Mapping[str, Any]) -> bool:
    """Whether a mapping is what `sealed` has returned, or has no digest."""
    return bool(content.get(_DIGEST, _digest_of(content)) == _digest_of(content))


def _digest_of(content: Mapping[str, Any]) -> str:
    own = {key: value for key, value in content.items() if key != _DIGEST}
    return digest_text(xxh3_64(json.dumps(own, sort_keys=True).encode()))


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """Return the digest of a regular file; raises OSError if it cannot be read."""
    digest = xxh3_64()
    with open_regular(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest_text(digest)
