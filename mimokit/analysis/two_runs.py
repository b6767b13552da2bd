"""Two runs: by how much a step of one takes longer, in which parts and on which ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from mimokit.analysis.comparison import Comparison
from mimokit.analysis.runs import Runs
from mimokit.analysis.step_figures import WAITING, StepFigures, step_figures
from mimokit.step_kinds import REMAINDER, Phase
from mimokit.tables import Report, Section
from mimokit.units import counted, seconds_text

PARTS = {
    Phase.FORWARD.column: "forward",
    Phase.BACKWARD.column: "backward",
    Phase.OPTIMIZER.column: "optimizer",
    Phase.DATA.column: "data loading",
    Phase.COMMUNICATION.column: "communication",
    WAITING: "waiting",
    REMAINDER: "rest and reports",
}
"""Column -> the part of a step that it is; they add up to the step."""
SMALL = 0.02
"""Share of the difference below which a part is not named."""
MOST_NAMED = 4
MOST_RANKS = 16
"""Ranks with a row in a terminal."""


@dataclass(frozen=True, repr=False)
class RunDifference(Report):
    """What makes a step of one run longer than one of another.

    Attributes:
        slow, fast: names of the runs.
        seconds: median of the slow run minus that of the fast one, of a `unit`.
        unit: "step", or "sample" where their steps have different numbers of samples.
        parts: part -> seconds of the mean rank, in the order of a step; they add up to `seconds`.
        ranks: a row per rank, a column per part, likewise; empty where the ranks of the runs are
            not the same.
        notes: what else differs, and what makes figures uncertain.
    """

    slow: str
    fast: str
    seconds: float
    unit: str
    parts: pd.Series
    ranks: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def largest(self) -> list[tuple[str, float]]:
        """The parts that are worth naming, the largest first."""
        ordered = self.parts.reindex(self.parts.abs().sort_values(ascending=False).index)
        named = ordered[ordered.abs() >= SMALL * max(abs(self.seconds), 1e-12)]
        return [(str(part), float(seconds)) for part, seconds in named.items()]

    @property
    def headline(self) -> str:
        """The difference and its largest parts in one sentence."""
        parts = ", ".join(f"{part} {_signed(more)}" for part, more in self.largest[:MOST_NAMED])
        more = ", …" if len(self.largest) > MOST_NAMED else ""
        return (
            f"{self.slow} is {seconds_text(self.seconds)} slower per {self.unit} than "
            f"{self.fast}: {parts}{more}."
        )

    def sentences(self) -> list[str]:
        """Return the headline, the rank that grew most, and what else differs."""
        return [self.headline, *self._of_ranks(), *self.notes]

    def _of_ranks(self) -> Iterator[str]:
        work = self.ranks.reindex(columns=list(PARTS.values())[:4]).sum(axis=1)
        if len(work) > 1 and work.max() - work.median() > SMALL * abs(self.seconds):
            typical = _signed(float(work.median()))
            yield (
                f"Rank {work.idxmax()} works {seconds_text(float(work.max()))} longer; the median "
                f"rank {typical}."
            )

    def __str__(self) -> str:
        return "\n".join(self.sentences())

    def __repr__(self) -> str:
        return f"<RunDifference: {self.headline}>"

    def sections(self) -> Sequence[Section]:
        """Return the sentences, and a row per rank below the mean of all, in milliseconds."""
        headline, *others = self.sentences()
        rows = [("mean rank", *map(_milliseconds, self.parts))]
        for rank, row in list(self.ranks.iterrows())[:MOST_RANKS]:
            rows.append((f"rank {rank}", *map(_milliseconds, row)))
        heading = f"{self.slow} minus {self.fast}, milliseconds of a {self.unit}"
        table = Section(heading, ("", *self.parts.index), rows)
        return Section(headline, sentences=others), table


def difference_of_runs(runs: Runs, first: str, other: str) -> RunDifference:
    """Say what makes the steps of one of two runs longer than those of the other.

    All figures are medians of the iterations after the warm-up. Where the steps have different
    numbers of samples, the figures are those of one sample.

    Raises:
        ValueError: a run was not loaded, or no iteration of it was measured.
    """
    known = {name: step_figures(runs, name)[0] for name in (first, other)}
    figures: list[StepFigures] = []
    for name, measured in known.items():
        if measured is None:
            raise ValueError(f"Run '{name}': no iteration was measured, so it is not compared.")
        figures.append(measured)
    samples = [_number(each, "samples_per_step") for each in figures]
    unlike = samples[0] != samples[1] and None not in samples
    share = [1 / (count or 1) if unlike else 1.0 for count in samples]
    steps = [each.step * part for each, part in zip(figures, share, strict=True)]
    slow = 0 if steps[0] >= steps[1] else 1
    tables = [_by_rank(each) * part for each, part in zip(figures, share, strict=True)]
    if not all(WAITING in table for table in tables):  # an earlier version timed them together
        tables = [_with_waiting(table) for table in tables]
    gap, longer, shorter = abs(steps[0] - steps[1]), tables[slow], tables[1 - slow]
    names = {column: words for column, words in PARTS.items() if column in longer}
    parts = (longer.mean() - shorter.mean())[list(names)]
    parts[REMAINDER] += gap - parts.sum()  # medians of parts do not add up to that of the step
    same = list(longer.index) == list(shorter.index) and len(longer) > 1
    ranks = (longer - shorter)[list(names)] if same else pd.DataFrame()
    return RunDifference(
        figures[slow].name,
        figures[1 - slow].name,
        gap,
        "sample" if unlike else "step",
        parts.rename(names),
        ranks.rename(columns=names),
        tuple(_notes(figures[slow], figures[1 - slow])),
    )


def pair_of(runs: Runs, comparison: Comparison | None) -> tuple[str, str] | None:
    """Return the two runs that a page begins with; None where fewer were measured.

    The baseline, and the best run; where the baseline is best, the one that is farthest from it.
    """
    if comparison is None:
        return None
    names = [name for name in map(str, comparison.table["name"]) if name in runs.folders]
    others = [name for name in names if name != comparison.baseline]
    if comparison.baseline not in names or not others:
        return None
    return comparison.baseline, others[-1] if names[0] == comparison.baseline else names[0]


def _by_rank(run: StepFigures) -> pd.DataFrame:
    """Return a row per rank, a column per part: seconds that add up to the step of the rank."""
    table = pd.DataFrame(
        {
            column: run.ranks[column].fillna(0.0) if run.has(column) else 0.0
            for column in PARTS
            if column != REMAINDER and (column != WAITING or run.has(column))
        },
        index=run.ranks.index,
    )
    if WAITING in table:
        table[Phase.COMMUNICATION.column] -= table[WAITING]
    table[REMAINDER] = run.ranks["total_time"] - table.sum(axis=1)
    return table


def _with_waiting(table: pd.DataFrame) -> pd.DataFrame:
    waited = table.get(WAITING, 0.0)
    column = Phase.COMMUNICATION.column
    return table.assign(**{column: table[column] + waited}).drop(columns=WAITING, errors="ignore")


def _notes(slow: StepFigures, fast: StepFigures) -> Iterator[str]:
    for column, noun in (("world_size", "rank"), ("samples_per_step", "sample")):
        now, before = _number(slow, column), _number(fast, column)
        if now is not None and before is not None and now != before:
            of_step = " in a step" if noun == "sample" else ""
            yield f"{slow.name} has {counted(int(now), noun)}{of_step}, {fast.name} {before:,.0f}."


def _number(run: StepFigures, column: str) -> float | None:
    value = run.row.get(column)
    return float(value) if isinstance(value, int | float) and value == value else None


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '−'}{seconds_text(abs(seconds))}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:+,.1f}".replace("-", "−")
