"""The figures of one run from which its findings are computed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from mimokit.analysis.run_info import busy_machine
from mimokit.analysis.runs import Runs
from mimokit.analysis.table_file import records
from mimokit.config import ConfigError
from mimokit.planning.types import LayoutPlan
from mimokit.step_kinds import MODULE_PHASES, REMAINDER, CommunicationPart, Phase

WORK = tuple(phase.column for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.DATA))
"""What a rank does alone; the rest of a step it communicates, waits or reports."""
WAITING = CommunicationPart.WAITING.column
PART_WORDS = {
    Phase.OPTIMIZER.column: "optimizer",
    Phase.DATA.column: "data loading",
    Phase.COMMUNICATION.column: "communication",
    WAITING: "waiting for other ranks",
    REMAINDER: "the rest, reports included",
}
"""Column -> what it holds, in words."""


def rank_work(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds that every rank works in a step: a row per iteration, a column per rank.

    Work is forward, backward, optimizer and data loading; the rest of a step a rank communicates,
    waits for others or reports.
    """
    known = [name for name in WORK if name in ranks.columns]
    work = ranks[["iteration", "rank"]].assign(work=ranks[known].fillna(0.0).sum(axis=1))
    return work.pivot_table(index="iteration", columns="rank", values="work")


@dataclass(frozen=True)
class StepFigures:
    """Medians of one run without its warm-up; `plan` is None if its config cannot be read."""

    name: str
    row: dict[str, Any]
    iterations: pd.DataFrame
    by_rank: pd.DataFrame
    by_module: pd.DataFrame
    plan: LayoutPlan | None

    @cached_property
    def step(self) -> float:
        """Median seconds of a step."""
        return float(self.iterations["total_time"].median())

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """A row per rank: the median of every column, and `work`, in seconds of a step."""
        table = self.by_rank.drop(columns=["run", "iteration"]).groupby("rank").median()
        table["work"] = self.work.median()
        return table.fillna({"work": 0.0})  # of a rank whose times are no numbers

    @cached_property
    def work(self) -> pd.DataFrame:
        """Seconds that every rank works: a row per iteration, a column per rank."""
        return rank_work(self.by_rank)

    @cached_property
    def modules(self) -> pd.DataFrame:
        """A row per module and rank on which it is: the median of every column."""
        table = self.by_module.drop(columns=["run", "iteration"])
        return table.groupby(["module", "rank"], observed=True).median()

    @cached_property
    def peers(self) -> list[list[int]]:
        """The ranks with the same work: the same modules, and the same stage of a pipeline."""
        groups: dict[object, list[int]] = {}
        modules_of: dict[int, list[str]] = {}
        for module, rank in self.modules.index:
            modules_of.setdefault(rank, []).append(module)
        pipeline = None if self.plan is None else self.plan.pipeline
        stages = {rank: stage.index for rank, stage in pipeline.by_rank()} if pipeline else {}
        for rank in map(int, self.ranks.index):
            groups.setdefault((tuple(modules_of.get(rank, ())), stages.get(rank)), []).append(rank)
        return list(groups.values())

    def has(self, column: str) -> bool:
        """Whether any rank measured a column."""
        return column in self.ranks.columns and bool(self.ranks[column].notna().any())

    def mean(self, column: str) -> float:
        """Return the mean over ranks of their medians of a column; 0 if it was not measured."""
        return float(self.ranks[column].fillna(0.0).mean()) if self.has(column) else 0.0

    @cached_property
    def has_passes(self) -> bool:
        """Whether any rank timed forward or backward."""
        return any(self.mean(phase.column) > 0 for phase in MODULE_PHASES)

    @property
    def transfer(self) -> float:
        """Seconds of communication on the mean rank, waiting for other ranks left out."""
        return max(0.0, self.mean(Phase.COMMUNICATION.column) - self.mean(WAITING))

    def share(self, seconds: float) -> float:
        """Return seconds as a share of the step."""
        return seconds / self.step if self.step > 0 else 0.0

    @cached_property
    def parts(self) -> pd.DataFrame:
        """Where a step goes: a row per part, in the order of a step, as a mean over the ranks.

        Columns: part, module ("" for a part of no module), column, seconds, share of the step.
        Forward and backward are those of modules. Waiting is a separate part, and not in
        communication, if the run has measured it.
        """
        count = len(self.ranks)
        rows = []
        names = dict.fromkeys(self.modules.index.get_level_values(0))
        for phase in MODULE_PHASES:
            for module in names:
                if phase.column in self.modules.columns:
                    total = float(self.modules.loc[module, phase.column].sum())
                    rows.append((f"{phase} of {module}", module, phase.column, total / count))
        if not rows:  # no rank measured its modules
            rows = [
                (str(phase), "", phase.column, self.mean(phase.column)) for phase in MODULE_PHASES
            ]
        for column in (Phase.OPTIMIZER.column, Phase.DATA.column):
            rows.append((PART_WORDS[column], "", column, self.mean(column)))
        column, words = Phase.COMMUNICATION.column, PART_WORDS[Phase.COMMUNICATION.column]
        if self.has(WAITING):
            rows.append((words, "", column, self.transfer))
            rows.append((PART_WORDS[WAITING], "", WAITING, self.mean(WAITING)))
        else:
            rows.append((f"{words} and waiting", "", column, self.mean(column)))
        rest = self.step - sum(row[-1] for row in rows)
        words = PART_WORDS[REMAINDER] if self.has_passes else "what was not timed"
        rows.append((words, "", REMAINDER, max(0.0, rest)))
        table = pd.DataFrame(rows, columns=["part", "module", "column", "seconds"])
        return table.assign(share=table["seconds"] / self.step if self.step > 0 else np.nan)


def step_figures(runs: Runs, name: str) -> tuple[StepFigures | None, list[str]]:
    """Return the figures of a run, and sentences about data that is missing for some findings.

    The figures are None if no iteration was measured.
    """
    run = runs[name]
    row = records(run.runs)[0]
    steps = run.settled(run.iterations)
    missing: list[str] = []
    if "total_time" not in steps.columns or steps["total_time"].notna().sum() == 0:
        return None, ["No iteration was measured: metrics.csv has no total_time."]
    by_rank = run.settled(run.ranks)
    if by_rank.empty:
        missing.append("The run has no metrics_by_rank.csv: its ranks cannot be distinguished.")
        by_rank = steps.assign(rank=0)
    try:
        plan = run.plan(name)
    except (ConfigError, OSError) as error:
        plan = None
        reason = str(error).splitlines()[0]
        missing.append(f"The plan is not known: bubbles cannot be computed ({reason})")
    tables = (steps, by_rank, run.settled(run.modules))
    measured, by_rank, by_module = (table.replace([np.inf, -np.inf], np.nan) for table in tables)
    figures = StepFigures(name, row, measured, by_rank, by_module, plan)
    if not figures.has_passes:
        missing.append(
            "No rank timed forward and backward: they are in what was not timed. A monitor of a "
            "loop sees them if the schedules of mimokit.engine run between its start_step and "
            "end_step, or if the loop times phases named forward and backward."
        )
    if not figures.has(WAITING):
        missing.append(
            "The run does not distinguish waiting from communication (it has no waiting_time): "
            "communication includes the waiting for other ranks."
        )
    if len(steps) < 10:
        count = len(steps)
        noun = "iteration" if count == 1 else "iterations"
        missing.append(f"Only {count} {noun} after the warm-up: figures may be chance.")
    if busy := busy_machine(row):
        missing.append(busy)
    cores, ranks = (float(row[name] or "nan") for name in ("cores", "world_size"))
    if cores < ranks and not isinstance(row["accelerators"], str):
        missing.append(
            f"The {ranks:.0f} ranks shared {cores:.0f} cores: the time of every part includes "
            "waiting for a core."
        )
    return figures, missing


def stage_times(
    figures: StepFigures, ranks: Sequence[int], around: Collection[str]
) -> tuple[float, float]:
    """Return the median forward and backward seconds of a stage in a step, loading included."""
    inside = figures.modules[~figures.modules.index.get_level_values(0).isin(list(around))]
    by_rank = (
        inside[[phase.column for phase in MODULE_PHASES]].groupby("rank").sum().loc[list(ranks)]
    )
    loading = figures.ranks.loc[list(ranks), Phase.DATA.column].fillna(0.0)
    forward = by_rank[Phase.FORWARD.column] + loading
    return float(forward.median()), float(by_rank[Phase.BACKWARD.column].median())
