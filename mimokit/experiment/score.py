"""How a result on held-out samples reads."""

from __future__ import annotations

import math


def score(exact_match: float, chance: float | None) -> str:
    """Return the share of samples that were exactly right, beside that of guessing if known."""
    text = f"exact match {exact_match:.1%} on held-out samples"
    return text if chance is None or math.isnan(chance) else f"{text}, chance {chance:.1%}"
