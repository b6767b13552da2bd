"""One line of a layer's time: work that a reader can count, the rate assumed, and the seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.prediction.step_time.breakdown import TimeBreakdown


@dataclass(frozen=True)
class Term:
    """Work of one kind in one pass of a layer.

    Attributes:
        part: field of `TimeBreakdown` that it counts in.
        seconds: that it adds to the pass.
        operations: floating-point operations.
        bytes: moved through memory, or between ranks by a collective.
        launches: kernels, products or collectives.
        rate: operations or bytes per second that are assumed; 0: none.
        hidden: seconds that run beside other work and are not in `seconds`.
    """

    part: str
    name: str
    seconds: Numbers
    operations: Numbers = 0.0
    bytes: Numbers = 0.0
    launches: Numbers = 0.0
    rate: Numbers = 0.0
    hidden: Numbers = 0.0

    def times(self, factor: Numbers) -> Term:
        """Return the same work several times."""
        counted = ("seconds", "operations", "bytes", "launches", "hidden")
        return replace(self, **{name: getattr(self, name) * factor for name in counted})


def breakdown(terms: Iterable[Term]) -> TimeBreakdown:
    """Return the seconds of terms by part."""
    parts: dict[str, Numbers] = {}
    for term in terms:
        parts[term.part] = parts.get(term.part, 0.0) + term.seconds
    return TimeBreakdown(**parts)
