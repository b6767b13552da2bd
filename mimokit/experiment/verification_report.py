"""The report of `verify`: a layout against one process."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mimokit.experiment.yardstick import MOST_NOISE, MOST_REPEATED, Yardstick
from mimokit.planning.expert_choices import Rerouted
from mimokit.tables import Report, Section, plain_fields
from mimokit.units import counted

# Adam divides by the square root of the squared gradient plus epsilon: rounding noise in gradients
# that are zero in exact arithmetic (a key bias) becomes full-size updates under the usual 1e-8.
# An epsilon far above fp32 noise keeps the check about the layout. Measured, a squared loss in four
# layouts of the digits model, 5 steps: with 1e-8 the weights differ by 1e-4 to 2e-4, with 1e-4 by
# 4e-6 to 7e-6, with 1e-2 by 1e-6 (two of them), with 1 (plain momentum) by 1e-7; their gradients by
# 7e-7 in the first step of each. Their gradients were clipped to a norm of 1; where the norm is
# larger, the epsilon is as many times larger, since rounding noise is.
ADAM_EPSILON = 1e-2

NOISY_ADAM_EPSILON = 1.0
"""The same in fewer bits than fp32. Rounding errors are above 1e-2 there; with that epsilon updates
of nine right layouts differed by 0.4 to 2.3 times what those of one process do. With 1, updates are
as right as gradients.
"""

COLUMNS = ("step", "loss", "one process", "difference", "module", "gradient", "weight")

NO_SAMPLE = "it saw no sample"
FROZEN = "it is frozen"
NO_GRADIENT = "all its gradients are 0"

TWO_ROUNDINGS = 2
"""A layout and one process are each as far from exact numbers as rounding takes them."""

MOST_ROUNDED = 10
"""Times the tolerance that rounding may explain. Drawn layouts needed up to 1.5."""


@dataclass(frozen=True, repr=False)
class VerificationReport(Report):
    """A layout against the one-process oracle, which computes in fp32.

    Attributes:
        losses: of the layout, per step, mean over the unmasked tokens; of several replicas that
            whose loss differs most.
        gradient_differences: per step: module -> largest difference of a gradient entry over all
            ranks, relative to the largest entry of its tensor.
        weight_differences: the same for the weights after the step. In fewer bits than fp32, how
            much the update since the start differs.
        worst_parameters: module -> the parameter that differs most, of all steps and ranks.
        strategy: what exchanges between how many replicas; empty: the layout has one.
        rerouted: in fewer bits than fp32, the choices of experts that were others than in one
            process, of all steps and ranks: where scores nearly tie, tokens took its experts.
        nearly_tied: how far apart such scores are at most.
        adam_epsilon: the largest that the optimizer stepped with.
        unproved: module -> why its gradients and weights say nothing.
        gradient_rounding: per step: module -> largest difference of a gradient entry of one process
            from itself, if every weight is first changed by a unit in the last place; measured
            where a difference is above the tolerance, by less than `MOST_ROUNDED` times.
        weight_rounding: the same for the weights after the step.
        yardstick: of a layout in fewer bits than fp32, what it is judged by; None: the tolerance.
    """

    name: str
    data: str
    layout: dict[str, str]
    tolerance: float
    losses: tuple[float, ...]
    oracle_losses: tuple[float, ...]
    gradient_differences: tuple[dict[str, float], ...]
    weight_differences: tuple[dict[str, float], ...]
    worst_parameters: dict[str, str]
    strategy: str = ""
    rerouted: Rerouted = field(default_factory=Rerouted)
    nearly_tied: float = 0.0
    adam_epsilon: float = ADAM_EPSILON
    unproved: dict[str, str] = field(default_factory=dict)
    gradient_rounding: tuple[dict[str, float], ...] = ()
    weight_rounding: tuple[dict[str, float], ...] = ()
    yardstick: Yardstick | None = None

    @property
    def loss_differences(self) -> tuple[float, ...]:
        """Per step, relative to the oracle's loss."""
        pairs = zip(self.losses, self.oracle_losses, strict=True)
        return tuple(relative(loss, theirs) for loss, theirs in pairs)

    @property
    def max_loss_difference(self) -> float:
        """Largest over the steps."""
        return largest(self.loss_differences)

    @property
    def max_gradient_difference(self) -> float:
        """Largest over steps, modules, tensors and ranks."""
        return largest(value for step in self.gradient_differences for value in step.values())

    @property
    def max_weight_difference(self) -> float:
        """Largest over steps, modules, tensors and ranks."""
        return largest(value for step in self.weight_differences for value in step.values())

    @property
    def passed(self) -> bool:
        """Whether every difference is at or under the tolerance (a NaN is not).

        No token may choose experts that do not nearly tie with those of one process. Where the
        tolerance is below what rounding does to one process, twice that is the bound, up to
        `MOST_ROUNDED` times the tolerance.
        """
        if self.yardstick is not None:
            return self._is_comparable and self._times_allowed <= 1
        return self.max_loss_difference <= self.tolerance and not any(
            beyond for *_, beyond in self._above()
        )

    @property
    def is_near(self) -> bool:
        """Whether it fails by differences that rounding may explain; in fp32 not by the loss."""
        if self.yardstick is not None:
            return self._is_comparable and 1 < self._times_allowed <= MOST_REPEATED
        others = max(self.max_gradient_difference, self.max_weight_difference)
        return self.max_loss_difference <= self.tolerance < others <= self._most

    @property
    def _is_comparable(self) -> bool:
        """Whether a first step in fewer bits says something, and all tokens took their experts."""
        return self.yardstick is not None and (
            self.yardstick.proved_steps > 0 and not self.rerouted.wrong
        )

    @property
    def _times_allowed(self) -> float:
        gradients = [largest(step.values()) for step in self.gradient_differences]
        weights = [largest(step.values()) for step in self.weight_differences]
        assert self.yardstick is not None
        return self.yardstick.times_allowed(
            zip(self.loss_differences, gradients, weights, strict=True)
        )

    @property
    def _most(self) -> float:
        return MOST_ROUNDED * self.tolerance

    def _above(self) -> Iterator[tuple[str, int, str, float, float, bool]]:
        for what, of_steps, rounding in (
            ("gradients", self.gradient_differences, self.gradient_rounding),
            ("weights", self.weight_differences, self.weight_rounding),
        ):
            for step, differences in enumerate(of_steps):
                for module, difference in differences.items():
                    if difference <= self.tolerance:
                        continue
                    rounded = rounding[step][module] if rounding else 0.0
                    bound = min(TWO_ROUNDINGS * rounded, self._most)
                    within = difference <= bound
                    yield what, step, module, difference, rounded, not within

    @property
    def verdict(self) -> str:
        """A sentence about the layout, and one for each thing that limits what it says."""
        layout = ", ".join(f"{name} {sizes}" for name, sizes in self.layout.items())
        outcome = self._outcome()
        of_replicas = f" in {self.strategy}" if self.strategy else ""
        differences = (
            f"loss {self.max_loss_difference:.1e}, gradients {self.max_gradient_difference:.1e}, "
            f"weights {self.max_weight_difference:.1e}"
        )
        return (
            f"{layout}{of_replicas}: after {len(self.losses)} steps on {self.data} the layout "
            f"{outcome} ({differences}; {self._judged_by()}, "
            f"Adam epsilon {self.adam_epsilon:.0e}).{self._where()}{self._lost()}{self._rounded()}"
            f"{self._noisy()}"
            f"{self._rerouted()}"
            f"{self._large()}{self._unproved()}"
        )

    def _judged_by(self) -> str:
        if self.yardstick is None:
            return f"tolerance {self.tolerance:.0e}, fp32"
        return self.yardstick.words()

    def _outcome(self) -> str:
        if self.yardstick is not None and not self.yardstick.proved_steps:
            return "is neither proved nor refuted"
        if not self.passed:
            return "does NOT compute that"
        if set(self.unproved) == set(self.layout):
            return "has the loss of one process, and nothing was trained"
        return "computes what one process computes"

    def _lost(self) -> str:
        for step, pair in enumerate(zip(self.losses, self.oracle_losses, strict=True), 1):
            if not all(map(math.isfinite, pair)):
                return (
                    f" The loss of step {step} is {pair[0]}, and {pair[1]} in one process: numbers "
                    "that are not finite are never equal."
                )
        return ""

    def _rounded(self) -> str:
        above = list(self._above())
        if not self.gradient_rounding or not above:
            return ""
        what, step, module, difference, rounded, beyond = max(
            above, key=lambda row: (row[-1], row[3])
        )
        why = "more than rounding explains" if beyond else "by rounding alone"
        return (
            f" The {what} of module {module!r} differ by {difference:.1e} after step {step + 1}, "
            f"{why}: where every weight of one process changes by a unit in the last place, they "
            f"change by {rounded:.1e}, and a layout may differ by {TWO_ROUNDINGS} times that."
        )

    def _noisy(self) -> str:
        if self.yardstick is None or self.yardstick.proved_steps == len(self.losses):
            return ""
        proved = self.yardstick.proved_steps
        return (
            f" After step {proved + 1} one process in {self.yardstick.precision} differs from fp32 "
            f"by more than {MOST_NOISE:.0%}, which says "
            f"{'little about later steps' if proved else 'nothing about a layout'}; take fewer "
            "steps, a smaller learning rate, or a precision of more bits."
        )

    def _large(self) -> str:
        own = ADAM_EPSILON if self.yardstick is None else NOISY_ADAM_EPSILON
        if self.adam_epsilon <= own:
            return ""
        return (
            f" Gradients have a norm of up to {self.adam_epsilon / own:.3g} when the "
            f"optimizer takes them, so its epsilon is {own:.0%} of that: the update "
            "amplifies their rounding errors as little as those of clipped gradients."
        )

    def _unproved(self) -> str:
        sentences = (
            f" Nothing was proved for the {what} of module {module!r}: {why}."
            for module, why in self.unproved.items()
            for what in ["computation" if why == NO_SAMPLE else "gradients and the update"]
        )
        return "".join(sentences)

    def _rerouted(self) -> str:
        rerouted = self.rerouted
        of_all = f"of {counted(rerouted.choices, 'choice')} of experts"
        wrong = (
            f" {rerouted.wrong} {of_all} are not those of one process: their scores are up to "
            f"{rerouted.farthest:.1e} apart, of which rounding explains {self.nearly_tied:.1e}."
        )
        taken = (
            f" {rerouted.taken} {of_all} tie with those of one process but for rounding, which "
            f"explains scores that are {self.nearly_tied:.1e} apart; these tokens took its experts."
        )
        return (wrong if rerouted.wrong else "") + (taken if rerouted.taken else "")

    def _where(self) -> str:
        if self.passed or not self.worst_parameters:
            return ""
        module = max(self.worst_parameters, key=self._difference_of)
        return f" Most differs {self.worst_parameters[module]} of module {module!r}."

    def _difference_of(self, module: str) -> float:
        steps = (*self.gradient_differences, *self.weight_differences)
        return largest(step[module] for step in steps)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **plain_fields(self),
            "passed": self.passed,
            "precision": "fp32" if self.yardstick is None else self.yardstick.precision,
            "yardstick": None if self.yardstick is None else self.yardstick.to_json(),
            "max_loss_difference": self.max_loss_difference,
            "max_gradient_difference": self.max_gradient_difference,
            "max_weight_difference": self.max_weight_difference,
        }

    def section(self) -> Section:
        """Return a row per step and module, and below them the verdict."""
        rows = list(self._rows())
        return Section("Layout against one process", COLUMNS, rows, (self.verdict,))

    def _rows(self) -> Iterator[list[str]]:
        for step, loss in enumerate(self.losses):
            losses = [f"{loss:.6f}", f"{self.oracle_losses[step]:.6f}"]
            first = [str(step + 1), *losses, f"{self.loss_differences[step]:.1e}"]
            for module in self.layout:
                gradient = self.gradient_differences[step][module]
                weight = self.weight_differences[step][module]
                yield [*first, module, f"{gradient:.1e}", f"{weight:.1e}"]
                first = ["", "", "", ""]


def relative(loss: float, theirs: float) -> float:
    """Return a difference relative to the oracle's loss, which is 0 if every token is masked.

    What is not finite differs from everything.
    """
    if not math.isfinite(loss) or not math.isfinite(theirs):
        return math.inf
    if loss == theirs:
        return 0.0
    return abs(loss - theirs) / abs(theirs) if theirs else math.inf


def largest(values: Iterable[float]) -> float:
    """Return the maximum; a NaN counts as infinite."""
    return max((value if value == value else float("inf") for value in values), default=0.0)
