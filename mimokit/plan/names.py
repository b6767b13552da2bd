"""Refuse an unknown name and offer the nearest known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from mimokit.config.problems import ConfigError, Problem


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """Return the refusal of a name that is none of the known ones.

    Args:
        kind: what is named, "GPU" say: begins the sentence.
        name: the name that was given.
        known: the names there are.
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.4)
    right = f"did you mean {' or '.join(nearest)}?" if nearest else f"there are {', '.join(names)}."
    sentence = (
        f"{kind} '{name}': there is no such {kind if kind.isupper() else kind.lower()}; {right}"
    )
    return ConfigError([Problem(kind.lower(), "name", name, sentence)])
