"""How much a layout in fewer bits than fp32 may differ from one process in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mimokit.engine.verify.compare import Noise

ALLOWED = 1.5
"""Times the difference of one process of fewer bits from fp32 that a layout of these may differ.

Measured in bf16 against fp32, nine layouts of three models: gradients differ by 0.9 to 1.3 times
what those of one process do, which is 1.0e-2 to 1.7e-2. Two processes that differ in their order
of summation alone are half as far apart, but right layouts are not: they round partial sums before
they add them.
"""

HALF_STEP: Mapping[str, float] = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8": 2.0**-8}
"""The largest relative error of rounding to a precision, which a loss may have in any case: it is
one number, and may happen to be right in one process.
"""

MOST_REPEATED = 4
"""Times what one process differs that several of them, whose weights begin a rounding apart, may
make of it. Measured in bf16, of each of 17 drawn models four processes, gradients and updates: of
14 models they were within a factor of 1.7 of each other, of two of 3 and 9, and of one, where the
largest was 34 %, which says nothing of a layout, of 15.
"""

MOST_NOISE = 0.25
"""The largest difference of one process of fewer bits from fp32 that can be a yardstick."""


@dataclass(frozen=True)
class Yardstick:
    """How much one process in a precision of fewer bits differs from one process in fp32.

    The differences are relative, the largest over all steps, modules and tensors; those of weights
    in terms of what the updates have changed.

    Attributes:
        processes: of which these are the largest; each begins with weights a rounding apart.
    """

    precision: str
    loss: float
    gradients: float
    weights: float
    processes: int = 1

    @property
    def proves(self) -> bool:
        """Whether the differences are so small that what they allow is no fault."""
        return all(value <= MOST_NOISE for value in (self.loss, self.gradients, self.weights))

    @property
    def limits(self) -> tuple[float, float, float]:
        """The largest differences of loss, gradients and weights that pass."""
        loss = max(ALLOWED * self.loss, HALF_STEP[self.precision])
        return loss, ALLOWED * self.gradients, ALLOWED * self.weights

    def nearly_allows(self, differences: tuple[float, float, float]) -> bool:
        """Whether they are above the limits, and may be below those of several processes."""
        pairs = list(zip(differences, self.limits, strict=True))
        above = any(difference > most for difference, most in pairs)
        return above and all(difference <= MOST_REPEATED * most for difference, most in pairs)

    def of_several(self, others: Iterable[Noise], processes: int) -> Yardstick:
        """Return the largest differences of the process and of so many others.

        One process is one draw of the errors of rounding, and may happen to be near fp32.
        """
        noise = list(others)

        def worst(first: float, others: Iterable[float]) -> float:
            return min(max(first, *others), MOST_REPEATED * first)

        return replace(
            self,
            loss=worst(self.loss, (step.loss for step in noise)),
            gradients=worst(self.gradients, (step.gradients for step in noise)),
            weights=worst(self.weights, (step.weights for step in noise)),
            processes=1 + processes,
        )

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {**asdict(self), "allowed": ALLOWED, "limits": list(self.limits)}

    def words(self) -> str:
        """Return what is allowed and why."""
        several = "" if self.processes == 1 else f", in the worst of {self.processes},"
        return (
            f"{self.precision} against fp32: at most {ALLOWED:g} times what one process in "
            f"{self.precision} differs, which is{several} loss {self.loss:.1e}, gradients "
            f"{self.gradients:.1e}, updates of weights {self.weights:.1e}, and of the loss at most "
            f"{HALF_STEP[self.precision]:.1e} in any case"
        )
