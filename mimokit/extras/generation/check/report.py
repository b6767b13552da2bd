"""What a check of weights has found."""

import math
from dataclasses import dataclass
from typing import Any

from mimokit.extras.generation.check.inputs import ARITHMETIC, OUTPUT
from mimokit.tables import Report, Section
from mimokit.units import counted, span_text

COLUMNS = ("part", "largest difference", "on ranks", "passed")
ROUNDING = 1e-4
"""Relative difference that the rounding of `ARITHMETIC` does not explain, whatever the dtype of the
weights tolerates."""


@dataclass(frozen=True)
class LayerDifference:
    """How far a part of the network is from the oracle's.

    Attributes:
        name: "embedding", "decoder.layers.N", "decoder.final_layernorm" or "output_layer"; of a
            LLaVA with what is in front of its parameters' names, such as "language_model.".
        max_difference: largest over all ranks, relative to the oracle's largest entry.
    """

    name: str
    max_difference: float
    ranks: tuple[int, ...]

    @property
    def where(self) -> str:
        """Return the ranks in words: "on rank 2", "on ranks 0–3, which add up their parts"."""
        if len(self.ranks) == 1:
            return f"on rank {self.ranks[0]}"
        return f"on ranks {span_text(self.ranks)}, which add up their parts"


@dataclass(frozen=True, repr=False)
class CheckReport(Report):
    """A layout's forward pass against the oracle's; `layers` are in the order of the network.

    Attributes:
        tolerance: largest relative difference that passes.
        left_out: layers of the weights that predict further tokens, which no check computes.
    """

    layout: str
    oracle: str
    dtype: str
    tolerance: float
    layers: tuple[LayerDifference, ...]
    left_out: int = 0

    @property
    def max_logit_difference(self) -> float:
        """Largest difference of a logit (of a tower: of its output), relative to the largest."""
        return next(layer.max_difference for layer in self.layers if layer.name.endswith(OUTPUT))

    @property
    def first_wrong(self) -> LayerDifference | None:
        """The part that has the wrong shard, if the check has failed; else None."""
        return None if self.passed else self.first_beyond_rounding

    @property
    def first_beyond_rounding(self) -> LayerDifference | None:
        """The first part that differs by more than rounding explains, tolerated or not; or None."""
        least = min(self.tolerance, ROUNDING)
        return next((layer for layer in self.layers if not layer.max_difference <= least), None)

    @property
    def passed(self) -> bool:
        """Whether every part is at or under the tolerance (a NaN is not)."""
        return all(layer.max_difference <= self.tolerance for layer in self.layers)

    @property
    def verdict(self) -> str:
        """One sentence, and one more if a tolerated difference is not rounding."""
        wrong = self.first_wrong
        if wrong is None:
            return (
                f"{self.layout} computes what {self.oracle} computes: the largest difference is "
                f"{max(layer.max_difference for layer in self.layers):.1e} of the largest entry "
                f"({self._terms}).{self._doubt}{self._scope}"
            )
        return (
            f"{self.layout} does NOT compute what {self.oracle} computes: {wrong.name} is the "
            f"first part that differs, by {wrong.max_difference:.1e} of its largest entry "
            f"{wrong.where} ({self._terms})."
        )

    @property
    def _doubt(self) -> str:
        part = self.first_beyond_rounding
        if part is None:
            return ""
        return (
            f" Rounding in {self.arithmetic} does not explain the {part.max_difference:.1e} of "
            f"{part.name} {part.where}, which are tolerated."
        )

    @property
    def _scope(self) -> str:
        if not self.left_out:
            return ""
        return f" Not computed: {counted(self.left_out, 'layer')} that predict further tokens."

    @property
    def arithmetic(self) -> str:
        """The dtype in which both compute; see `ARITHMETIC`."""
        return ARITHMETIC[self.dtype]

    @property
    def _terms(self) -> str:
        return f"tolerance {self.tolerance:.0e}, {self.dtype} computed in {self.arithmetic}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data; null for what is not a number."""
        beyond = self.first_beyond_rounding
        return {
            "max_logit_difference": _finite(self.max_logit_difference),
            "tolerance": self.tolerance,
            "oracle": self.oracle,
            "dtype": self.dtype,
            "arithmetic": self.arithmetic,
            "left_out": self.left_out,
            "layers": [
                {
                    "name": layer.name,
                    "max_difference": _finite(layer.max_difference),
                    "rank": layer.ranks[0],
                    "ranks": list(layer.ranks),
                    "passed": layer.max_difference <= self.tolerance,
                }
                for layer in self.layers
            ],
            "first_beyond_rounding": beyond and beyond.name,
            "passed": self.passed,
        }

    def section(self) -> Section:
        """Return a row per part, and below them the verdict."""
        heading = f"{self.layout} against {self.oracle}"
        return Section(heading, COLUMNS, self._rows(), (self.verdict,))

    def _rows(self) -> list[list[str]]:
        return [
            [layer.name, f"{layer.max_difference:.1e}", span_text(layer.ranks),
             "yes" if layer.max_difference <= self.tolerance else "NO"]
            for layer in self.layers
        ]  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
