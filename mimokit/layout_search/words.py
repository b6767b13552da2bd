"""How a search words times, parts and sizes."""

from __future__ import annotations

from mimokit.prediction import PART_WORDS, Prediction
from mimokit.units import gib_text, seconds_text

COLUMNS = (
    "mode",
    "GPUs",
    "layout",
    "step",
    "tokens/s",
    "TFLOP/s per GPU",
    "MFU",
    "memory",
)


def row_of(prediction: Prediction) -> tuple[str, ...]:
    """Return a prediction as the cells of a table with `COLUMNS`."""
    return (
        prediction.layout.mode,
        f"{prediction.layout.gpus:,}",
        str(prediction.layout).split(": ", 1)[1],
        seconds_text(prediction.seconds),
        f"{prediction.tokens_per_second:,.0f}",
        f"{prediction.tflops_per_gpu:.0f}",
        f"{prediction.utilisation:.1%}",
        gib_text(prediction.peak_memory),
    )


def differences(slow: Prediction, quick: Prediction) -> dict[str, float]:
    """Return the seconds that one prediction loses to another, by part, largest first."""
    gaps = {
        name: slow.parts.get(name, 0.0) - quick.parts.get(name, 0.0)
        for name in dict.fromkeys([*slow.parts, *quick.parts])
    }
    return dict(sorted(gaps.items(), key=lambda item: -abs(item[1])))


def differences_text(slow: Prediction, quick: Prediction, most: int = 3) -> str:
    """Return the largest differences in words."""
    gaps = list(differences(slow, quick).items())[:most]
    shown = [
        f"{PART_WORDS.get(name, name)} {'+' if value > 0 else '−'}{seconds_text(abs(value))}"
        for name, value in gaps
        if abs(value) >= 0.001 * quick.seconds
    ]
    return ", ".join(shown) or "less than a thousandth in every part"
