"""How much a layout in fewer bits than fp32 may differ from one process in fp32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, starmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mimokit.engine.verify.steps import Noise

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

FURTHER = (1, 2, 3, 4, 5, 6, 7)
"""Seeds of the weights of further processes. Of 13 processes of two drawn models the gradients of
the first step differed by 0.9e-2 to 1.3e-2 and 1.5e-2 to 2.2e-2, the weights after two by 1.2e-2 to
1.5e-2 and 1.8e-2 to 3.4e-2, and right layouts by 1.5 to 1.8 times the worst of the first four.
"""

MOST_NOISE = 0.25
"""The largest difference of one process of fewer bits from fp32 that can be a yardstick."""


@dataclass(frozen=True)
class Yardstick:
    """How much one process in a precision of fewer bits differs from one process in fp32.

    The differences are relative, the largest over all modules and tensors; those of weights in
    terms of what the updates have changed.

    Attributes:
        steps: the largest differences until each step; they grow, as roundings add up.
        processes: of which these are the largest; each begins with weights a rounding apart.
    """

    precision: str
    steps: tuple[Noise, ...]
    processes: int = 1

    @classmethod
    def of(cls, precision: str, runs: Sequence[Sequence[Noise]]) -> Yardstick:
        """Return that of the steps of one or several models in one process."""
        return cls(precision, tuple(_until_each_step(runs)))

    @property
    def proved_steps(self) -> int:
        """The number of steps in which one process differs too little to hide a fault."""
        return sum(
            max(step.loss, step.gradients, step.weights) <= MOST_NOISE for step in self.steps
        )

    @property
    def limits(self) -> list[tuple[float, float, float]]:
        """The largest differences of loss, gradients and weights that pass, of every step."""
        return [
            (
                max(ALLOWED * step.loss, HALF_STEP[self.precision]),
                ALLOWED * step.gradients,
                ALLOWED * step.weights,
            )
            for step in self.steps
        ]

    def times_allowed(self, differences: Iterable[tuple[float, float, float]]) -> float:
        """Return how many times its limit the worst difference is, of loss, gradients, weights."""
        pairs = zip(chain(*differences), chain(*self.limits), strict=True)
        return max(_ratio(difference, most) for difference, most in pairs)

    def of_several(self, others: Sequence[Sequence[Noise]], processes: int) -> Yardstick:
        """Return the largest differences of the process and of so many others.

        One process is one draw of the errors of rounding, and may happen to be near fp32.
        """
        worst = _until_each_step([self.steps, *others])
        steps = tuple(starmap(_capped, zip(self.steps, worst, strict=True)))
        return replace(self, steps=steps, processes=1 + processes)

    def to_json(self) -> dict[str, object]:
        """Return plain data: the largest differences, and of every step."""
        last, limits = self.steps[-1], [list(step) for step in self.limits]
        return {
            "precision": self.precision,
            **asdict(last),
            "processes": self.processes,
            "allowed": ALLOWED,
            "limits": limits[-1],
            "steps": [asdict(step) for step in self.steps],
            "limits_of_steps": limits,
        }

    def words(self) -> str:
        """Return what is allowed and why."""
        several = "" if self.processes == 1 else f", in the worst of {self.processes},"
        last = self.steps[-1]
        return (
            f"{self.precision} against fp32: at most {ALLOWED:g} times what one process in "
            f"{self.precision} differs until that step, which is{several} loss {last.loss:.1e}, "
            f"gradients {last.gradients:.1e}, updates of weights {last.weights:.1e} in the end, "
            f"and of the loss at most {HALF_STEP[self.precision]:.1e} in any case"
        )


def _until_each_step(runs: Sequence[Sequence[Noise]]) -> Iterator[Noise]:
    """Yield the largest differences of all runs until each step."""
    until: list[Noise] = []
    for step in zip(*runs, strict=True):
        until += step
        yield _each(lambda *values: max(values), *until)


def _capped(first: Noise, worst: Noise) -> Noise:
    return _each(lambda once, most: min(most, MOST_REPEATED * once), first, worst)


def _each(make: Callable[..., float], *steps: Noise) -> Noise:
    values = zip(*(asdict(step).values() for step in steps), strict=True)
    return type(steps[0])(*(make(*of_all) for of_all in values))


def _ratio(difference: float, most: float) -> float:
    if difference == 0:
        return 0.0
    return difference / most if most > 0 else math.inf
