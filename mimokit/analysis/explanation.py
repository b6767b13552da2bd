"""Where the time of a run went, in words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mimokit.analysis import findings as causes
from mimokit.analysis import pipeline_findings
from mimokit.analysis.findings import Finding
from mimokit.analysis.runs import Runs, load_runs
from mimokit.analysis.step_figures import StepFigures, step_figures
from mimokit.analysis.table_file import records
from mimokit.step_kinds import MODULE_PHASES
from mimokit.tables import Report, Section
from mimokit.units import counted, listed, seconds_text

FINDERS: Sequence[Callable[[StepFigures], Iterator[Finding]]] = (
    causes.straggler,
    pipeline_findings.bubble,
    pipeline_findings.imbalance,
    causes.uneven_steps,
    causes.data_loading,
    causes.communication,
    causes.optimizer,
    causes.rest,
    causes.outliers,
    causes.drift,
    causes.memory,
)
"""What is looked for; waiting that none of them explains is looked for last."""
PART_HEADINGS = ("part of the step", "seconds", "share")


@dataclass(frozen=True)
class Explanation(Report):
    """Where the time of one run went.

    Attributes:
        step: median seconds of a step, warm-up left out; NaN if none was measured.
        parts: where a step goes, the largest part first; see `StepFigures.parts`.
        findings: what stands out, the largest share of the step first.
        summary: one or two sentences about the step as a whole.
        missing: what could not be looked at, and what makes figures uncertain.
    """

    run: str
    step: float
    parts: pd.DataFrame
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the findings, in their order."""
        return [finding.kind for finding in self.findings]

    def sentences(self) -> list[str]:
        """Return everything as sentences, findings with their advice."""
        said = [f"{finding.sentence} Try: {finding.advice}" for finding in self.findings]
        return [*self.summary, *said, *self.missing]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the parts of the step as texts, under PART_HEADINGS."""
        return [
            (str(row["part"]), seconds_text(row["seconds"]), f"{row['share']:.1%}")
            for row in records(self.parts)
        ]

    def __str__(self) -> str:
        return "\n".join([f"{self.run}:", *self.sentences()])

    def sections(self) -> Sequence[Section]:
        """Return everything in sentences, and below them the parts of the step."""
        said = Section(f"Where the time of {self.run} went", sentences=self.sentences())
        parts = Section("Parts of the step", PART_HEADINGS, self.rows())
        return (said, parts) if len(self.parts) else (said,)


def explain(run: Runs | str | Path, name: str | None = None) -> Explanation:
    """Say in words where the time of a run went, and what to try.

    All figures are medians of the iterations after the warm-up. Only what costs 5 % of a step or
    more is a finding. Idle time in a pipeline comes from the planned schedule with the measured
    times of its stages, so that neither a trace nor a second run is needed.

    Args:
        run: one run, as `runs["name"]` or its folder; or many, with a name.

    Raises:
        RunFolderError: this path has no run.
        ValueError: there are several runs and no name, or none of this name.
    """
    runs = run if isinstance(run, Runs) else load_runs(run)
    if name is None and len(runs) > 1:
        raise ValueError(
            f"There are {counted(len(runs), 'run')}, {listed(runs.names)}; name the one to explain."
        )
    chosen = runs.names[0] if name is None else name
    figures, missing = step_figures(runs, chosen)
    problems = (*runs[chosen].endings(), *runs[chosen].unhealthy(), *missing)
    if figures is None:
        no_parts = pd.DataFrame(columns=["part", "module", "column", "seconds", "share"])
        return Explanation(chosen, float("nan"), no_parts, (), (), problems)
    findings = [finding for find in FINDERS for finding in find(figures)]
    findings += causes.waiting(figures, sum(finding.explains for finding in findings))
    findings.sort(key=lambda finding: -finding.share)
    return Explanation(
        run=chosen,
        step=figures.step,
        parts=_largest_first(figures.parts),
        findings=tuple(findings),
        summary=tuple(_summary(figures, findings)),
        missing=problems,
    )


def _largest_first(parts: pd.DataFrame) -> pd.DataFrame:
    return parts.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)


def _summary(run: StepFigures, findings: Sequence[Finding]) -> Iterator[str]:
    parts = _largest_first(run.parts)
    first = parts.iloc[0]
    modules = parts[parts["column"].isin([phase.column for phase in MODULE_PHASES])]
    yield (
        f"A step of {run.name} takes {seconds_text(run.step)}; the largest part, "
        f"{first['share']:.0%}, is {first['part']}."
    )
    if len(modules) and run.has_passes:
        totals = modules.groupby("module", sort=False)["share"].sum().sort_values(ascending=False)
        each = [f"{name} {share:.0%}" for name, share in totals.items()]
        verb = "is the slowest module" if len(each) > 1 else "is the only module"
        yield (
            f"{totals.index[0]} {verb}: forward and backward on the mean rank take {listed(each)}."
        )
    if not findings and run.has_passes:
        yield "Nothing stands out: ranks work equally long and hardly wait for each other."
