"""What a planner's predictions and searches suppose: the prediction section of its draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.paths import PREDICTION, mapping_at

GPU = "h100"
SOFTWARE = "megatron-bridge"


@dataclass(frozen=True)
class Supposed:
    """What is supposed.

    Attributes:
        gpu: a name, or a hardware file.
        software: the training stack.
        price: dollars per GPU-hour, None where nobody says.
    """

    gpu: str = GPU
    software: str = SOFTWARE
    price: float | None = None


def supposed_of(draft: Draft) -> Supposed:
    """Return what a draft supposes; what is left out, or cannot be, is as where nobody says."""
    section = mapping_at(draft.content, PREDICTION)
    gpu, software, price = (
        section.get(field) for field in ("gpu", "software", "price_per_gpu_hour")
    )
    return Supposed(
        gpu if isinstance(gpu, str) and gpu else GPU,
        software if isinstance(software, str) and software else SOFTWARE,
        float(price) if _is_price(price) else None,
    )


def _is_price(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12
