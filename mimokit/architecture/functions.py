"""What a network computes between its matrices: activation, epsilon, rotary positions, windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.units import listed

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu")
"""Activations that can run; "gelu" is the exact one, "quick_gelu" is x * sigmoid(1.702 x)."""

SCALINGS = ("linear", "llama3")
"""Kinds of rotary scaling that can run."""


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary frequencies are changed for longer sequences.

    Attributes:
        kind: "linear" divides all of them; "llama3" divides the low ones (Llama 3.1); any other is
            as its file names it, and cannot run.
        factor: that they are divided by.
        low: llama3: wavelengths longer than `original_positions / low` are divided by `factor`.
        high: llama3: wavelengths shorter than `original_positions / high` stay as they are.
        original_positions: llama3: positions that the model was trained for at first.
    """

    kind: str
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class NetworkFunctions:
    """What a network computes between its matrices.

    Attributes:
        activation: one of `ACTIVATIONS`; any other is as its file names it, and cannot run.
        epsilon: of the norms.
        rotary_scaling: of their frequencies, or None.
        window: tokens that attention reaches back over, itself included; 0 for all.
        positions: longest sequence in tokens; 0 where none is stated.
        unknown: fields of the file that change what is computed, and that cannot run.
    """

    activation: str
    epsilon: float
    rotary_base: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None
    window: int = 0
    positions: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def obstacles(self) -> Mapping[str, str]:
        """What cannot run: field -> what is wrong with it, and what can."""
        fields: dict[str, str] = {}
        if self.activation not in ACTIVATIONS:
            fields["activation"] = (
                f"its activation is {self.activation!r}; {listed(ACTIVATIONS)} can run"
            )
        scaling = self.rotary_scaling
        if scaling is not None and scaling.kind not in SCALINGS:
            fields["rotary_scaling"] = (
                f"its rotary scaling is {scaling.kind!r}; {listed(SCALINGS)} can run"
            )
        if self.window and not 0 < self.positions <= self.window:
            fields["window"] = (
                f"its attention has a sliding window of {self.window:,} tokens; a window can run "
                "if it is as long as the longest sequence"
            )
        if self.unknown:
            fields["fields"] = f"it sets {listed(self.unknown)}, which cannot run"
        return fields
