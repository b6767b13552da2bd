"""Where a planner begins that was given nothing."""

from __future__ import annotations

from typing import Any

from mimokit.config import load_preset

START = "llava_7b_colocated"


def start() -> dict[str, Any]:
    """Return the sections of a sensible start: a vision-language model on eight ranks."""
    return load_preset(START).to_mapping()
