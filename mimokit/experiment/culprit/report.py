"""The report of `explain`: which tensor differs first, and what was compared."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mimokit.experiment.culprit.arrays import Array, OnRank, assembled
from mimokit.experiment.culprit.measures import Measured
from mimokit.planning.seams import BRIDGE, PROJECTOR, ROWS, Integers, Seam, SeamPhase
from mimokit.tables import Report, Section
from mimokit.units import counted

COLUMNS = ("step", "phase", "module", "seams", "largest", "allowed", "at")

CELLS = 48
"""Rows and columns of blocks in the picture of a tensor."""

ROWS_AROUND = 12
"""Rows of the table at most; with headings and sentences it has at most 20 lines."""
FEWER = 3
"""Rows that make room for tensors that were not compared, in the table and the sentence."""

NAMED = 3
"""Tensors that were not compared, in the sentence."""

BLOCKS = 16
"""Rectangles of the part of a rank at most that are drawn."""

Span = tuple[int, int]
"""[start, stop)."""

END = 34
"""Characters of a name in the table."""


@dataclass(frozen=True)
class Divergence:
    """The first seam that differs.

    Attributes:
        microbatch: 0-based; None for what is of a whole step.
        kind: what the tensor is instead, if that has a pattern.
        code: file and line of what computes it, if known.
    """

    found: Measured
    microbatch: int | None
    kind: str = ""
    code: str = ""
    arrays: tuple[Array, tuple[OnRank, ...]] | None = field(default=None, repr=False)

    @property
    def seam(self) -> Seam:
        """Which tensor."""
        return self.found.seam

    def cells(self) -> list[dict[str, Any]]:
        """Return the tensor in at most `CELLS` x `CELLS` blocks; see `charts.tensor_difference`."""
        if self.arrays is None:
            return []
        whole, parts = self.arrays
        actual, rows = assembled(whole, parts), []
        apart = np.nan_to_num(np.abs(actual - whole.values), nan=np.inf)
        height, width = (-(-length // CELLS) for length in apart.shape)
        for row in range(0, apart.shape[0], height):
            for column in range(0, apart.shape[1], width):
                block = apart[row : row + height, column : column + width]
                place = np.unravel_index(int(block.argmax()), block.shape)
                at = row + int(place[0]), column + int(place[1])
                rows.append(
                    {
                        "row": row, "row_stop": row + block.shape[0],
                        "column": column, "column_stop": column + block.shape[1],
                        "difference": float(apart[at]), "right": float(whole.values[at]),
                        "found": float(actual[at]),
                    }
                )  # fmt: skip
        return rows

    def borders(self) -> list[dict[str, Any]]:
        """Return the part of every rank as rectangles, unless these are many."""
        if self.arrays is None:
            return []
        return [
            {
                "rank": part.rank,
                "row": rows[0], "row_stop": rows[1],
                "column": columns[0], "column_stop": columns[1],
            }
            for part in self.arrays[1]
            for rows, columns in _blocks(part)
        ]  # fmt: skip

    def sentence(self, against: str) -> str:
        """Return what differs, where, by how much and what it is instead."""
        measure = self.found
        where = f"Step {self.seam.step + 1}" if self.seam.step >= 0 else "From the start"
        if self.microbatch is not None:
            where += f", micro-batch {self.microbatch}, {_samples(measure.samples)}"
        ranks = f" on {_numbers('rank', measure.ranks)}" if measure.ranks else ""
        by = "it is not there as a whole" if measure.missing else f"by {measure.difference:.1e}"
        if self.seam.phase == SeamPhase.WEIGHT and self.seam.step >= 0 and not measure.missing:
            by += " of what the update changes"
        if measure.spread and not measure.missing:
            by += f", {_ROUNDED} {measure.spread:.1e}"
        kind = f"; {self.kind}" if self.kind else ""
        code = f" It is made at {self.code}." if self.code else ""
        return (
            f"{where}: the first tensor that differs from {against} is {words_of(self.seam)}"
            f"{ranks}: {by}, {measure.allowed:.1e} is allowed{kind}.{code}"
        )


INITIAL_WEIGHT = "weight before the first step"


def words_of(seam: Seam) -> str:
    """Return a tensor in words."""
    module = f"module {seam.module!r}"
    if seam.phase == SeamPhase.NORM:
        return "the norm of all gradients before clipping"
    if not seam.phase.is_of_samples:
        if seam.step < 0:
            return f"the weight {seam.operation} of {module} before the first step"
        return f"the {seam.phase} {seam.operation} of {module}"
    forward = seam.phase == SeamPhase.FORWARD
    if seam.operation == BRIDGE:
        what = "the output" if forward else "the gradient of the output"
        return f"{what} of {module} behind its bridge"
    if seam.operation == ROWS:
        if forward:
            return f"the output of {module}"
        return f"the gradient that the next module gives to the output of {module}"
    if seam.operation.startswith(f"{ROWS} for "):
        giver = seam.operation.removeprefix(f"{ROWS} for ")
        return f"the gradient that module {giver!r} gives to the output of {module}"
    operation = "the projector" if seam.operation == PROJECTOR else seam.operation
    if forward:
        return f"the output of {operation} of {module} (forward)"
    return f"the gradient from {operation} of {module} (backward)"


@dataclass(frozen=True, repr=False)
class CulpritReport(Report):
    """A layout compared with one process, or another layout, tensor by tensor.

    Attributes:
        compared: every seam in the order of execution.
        not_compared: tensors that only one of the two has recorded.
        divergence: the first that differs; None: none does.
        is_deterministic: two runs of one process gave the same numbers.
    """

    name: str
    against: str
    steps: int
    compared: tuple[Measured, ...]
    not_compared: tuple[Seam, ...] = ()
    divergence: Divergence | None = None
    is_deterministic: bool = True

    @property
    def passed(self) -> bool:
        """Whether tensors were compared, and none differs by more than is allowed."""
        return bool(self.compared) and self.divergence is None

    @property
    def verdict(self) -> str:
        """A sentence that names the first tensor that differs, or says that none does."""
        prefix = ""
        if not self.is_deterministic:
            prefix = (
                "Two runs of one process gave different numbers: an operation is not "
                "deterministic, and what follows may be due to it. "
            )
        return f"{prefix}{self._answer()}{self._left_out()}"

    def _answer(self) -> str:
        if self.divergence is not None:
            return self.divergence.sentence(self.against)
        if not self.compared:
            return f"No tensor of {self.name!r} and {self.against} could be compared."
        closest = max(self.compared, key=lambda measure: measure.difference / measure.allowed)
        spread = f", {_ROUNDED} {closest.spread:.1e}" if closest.spread else ""
        return (
            f"{counted(len(self.compared), 'tensor')} of {counted(self.steps, 'step')} of "
            f"{self.name!r} are those of {self.against}: none differs by more than is allowed. "
            f"Closest to it is {words_of(closest.seam)} of step {closest.seam.step + 1}, by "
            f"{closest.difference:.1e}{spread}; {closest.allowed:.1e} is allowed."
        )

    def _left_out(self) -> str:
        if not self.not_compared:
            return ""
        names = list(dict.fromkeys(words_of(seam) for seam in self.not_compared))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        number = counted(len(self.not_compared), "tensor")
        return f" {number} could not be compared: {', '.join(names[:NAMED])}{more}."

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per tensor in the order of execution; see `charts.seams`."""
        return [
            {
                "number": number, "step": each.seam.step + 1, "phase": str(each.seam.phase),
                "module": each.seam.module or "all modules", "operation": each.seam.operation,
                "difference": min(each.difference, MOST), "allowed": each.allowed,
                "spread": each.spread,
                "share": min(each.difference / each.allowed, MOST),
                "ranks": ", ".join(map(str, each.ranks)),
                "by_rank": {
                    rank: min(apart / each.allowed, MOST) for rank, apart in each.by_rank.items()
                },
                "is_first": self.divergence is not None and each == self.divergence.found,
            }
            for number, each in enumerate(self.compared)
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        first = self.divergence
        return {
            "name": self.name,
            "against": self.against,
            "steps": self.steps,
            "passed": self.passed,
            "tensors": len(self.compared),
            "differing": sum(measure.differs for measure in self.compared),
            "not_compared": [str(seam) for seam in self.not_compared],
            "deterministic": self.is_deterministic,
            "verdict": self.verdict,
            "first": None
            if first is None
            else {
                "step": first.seam.step,
                "microbatch": first.microbatch,
                "samples": list(first.found.samples),
                "module": first.seam.module,
                "operation": first.seam.operation,
                "phase": str(first.seam.phase),
                "ranks": list(first.found.ranks),
                "difference": first.found.difference,
                "spread": first.found.spread,
                "allowed": first.found.allowed,
                "kind": first.kind,
                "code": first.code,
            },
        }

    def section(self) -> Section:
        """Return a row per step, phase and module; the last line is the sentence."""
        return Section(f"Against {self.against}", COLUMNS, list(self._rows()), (self.verdict,))

    def _rows(self) -> Iterator[list[str]]:
        groups: dict[tuple[int, SeamPhase, str], list[Measured]] = {}
        for measure in self.compared:
            key = measure.seam.step, measure.seam.phase, measure.seam.module
            groups.setdefault(key, []).append(measure)
        keys = list(groups)
        start, number = 0, ROWS_AROUND - (FEWER if self.not_compared else 0)
        if self.divergence is not None:
            seam = self.divergence.seam
            place = keys.index((seam.step, seam.phase, seam.module))
            start = max(0, min(place - number // 2, len(keys) - number))
        for step, phase, module in keys[start : start + number]:
            of_group = groups[step, phase, module]
            worst = max(of_group, key=lambda measure: measure.difference / measure.allowed)
            first = self.divergence is not None and self.divergence.found in of_group
            mark = " ← first" if first else ""
            at = self.divergence.seam if first and self.divergence is not None else worst.seam
            yield [
                *((str(step + 1), str(phase)) if step >= 0 else ("start", INITIAL_WEIGHT)),
                module, str(len(of_group)), f"{worst.difference:.1e}",
                f"{worst.allowed:.1e}", _end(at.operation, len(mark)) + mark,
            ]  # fmt: skip
        if self.not_compared:
            left_out = self.not_compared[0]
            name = _end(left_out.operation, 0)
            yield ["", "not compared", left_out.module, str(len(self.not_compared)), "", "", name]


_ROUNDED = "a rounding of the weights changes it by"

MOST = 1e12
"""In place of an infinite difference."""


def _end(name: str, taken: int) -> str:
    """Return a name that fits its column, of which some characters are taken.

    The table is read by lines; the sentence has the whole name.
    """
    left = END - taken
    return name if len(name) <= left else f"…{name[-left:].partition('.')[2]}"


def _blocks(part: OnRank) -> list[tuple[Span, Span]]:
    """Return the rows and columns of the rectangles of a part; none if they are too many."""
    blocks = list(itertools.product(_spans(part.rows), _spans(part.columns)))
    return blocks if len(blocks) <= BLOCKS else []


def _spans(places: Integers) -> list[Span]:
    """Return the runs of neighbours among places, as [start, stop)."""
    ordered = np.unique(places)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]


def _numbers(what: str, numbers: tuple[int, ...]) -> str:
    if len(numbers) > 1 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{what}s {numbers[0]} to {numbers[-1]}"
    text = ", ".join(map(str, numbers))
    return f"{what} {text}" if len(numbers) == 1 else f"{what}s {text}"


def _samples(samples: tuple[int, ...]) -> str:
    return _numbers("sample", samples)
