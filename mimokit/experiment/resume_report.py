"""The report of `resume_check`: a resumed run against one that was not interrupted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mimokit.experiment.verification_report import largest, relative
from mimokit.tables import Report, Section, plain_fields
from mimokit.units import counted

COLUMNS = ("step", "loss", "without a stop", "difference")


@dataclass(frozen=True, repr=False)
class ResumeReport(Report):
    """A run that was resumed against one that was not interrupted.

    Attributes:
        saved_layout, layout: of the checkpoint, and of the run that goes on, in words.
        findings: a sentence for each thing that is not as it was; none if the resume is right.
        first: the number of steps before the checkpoint.
        losses: of the steps after it, resumed.
        expected: the same without a stop.
    """

    name: str
    saved_layout: str
    layout: str
    tolerance: float
    findings: tuple[str, ...]
    first: int
    losses: tuple[float, ...]
    expected: tuple[float, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """The result in words."""
        if not self.passed:
            return f"The resume is wrong: {' '.join(self.findings)}"
        steps = counted(len(self.losses), "step")
        most = largest(relative(*pair) for pair in zip(self.losses, self.expected, strict=True))
        how = "bit for bit" if self.tolerance == 0 else f"to {self.tolerance:.0e}"
        return (
            "Weights, optimizer, learning rate, loss scale, random states and data position are "
            f"those that were saved, and {steps} after it agree {how} with a run without a stop "
            f"(losses to {most:.1e})."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**plain_fields(self), "passed": self.passed}

    def section(self) -> Section:
        """Return a row per step, and below them the verdict."""
        lines = (f"saved: {self.saved_layout}", f"resumed: {self.layout}", self.verdict)
        return Section("Resumed against a run without a stop", COLUMNS, list(self._rows()), lines)

    def _rows(self) -> Iterator[list[str]]:
        for number, (loss, other) in enumerate(zip(self.losses, self.expected, strict=True)):
            step = str(self.first + number + 1)
            yield [step, f"{loss:.6f}", f"{other:.6f}", f"{relative(loss, other):.1e}"]
