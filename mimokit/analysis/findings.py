"""What stands out in a run: one function per cause, each with its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from mimokit.analysis.bootstrap import difference, estimate_run
from mimokit.analysis.step_figures import PART_WORDS, WAITING, WORK, StepFigures
from mimokit.step_kinds import REMAINDER, CommunicationPart, Phase
from mimokit.units import gib_text, seconds_text

SMALL = 0.05
"""Share of a step below which a finding is not worth a sentence."""
UNEVEN = 0.10
"""A rank that works this much longer than the others with the same work stands out."""


@dataclass(frozen=True)
class Finding:
    """One reason for the time of a step.

    Attributes:
        kind: straggler, uneven steps, bubble, imbalance, waiting, data, communication, optimizer,
            rest, outliers, drift or memory.
        share: of the step that it costs, by which findings are ordered.
        figures: the numbers of the sentence and others: seconds, shares, ranks.
        explains: the mean share of the step for which ranks wait because of it.
    """

    kind: str
    share: float
    sentence: str
    advice: str
    figures: Mapping[str, float] = field(default_factory=dict)
    explains: float = 0.0


def straggler(run: StepFigures) -> Iterator[Finding]:
    """Find the rank that works longer than the other ranks with the same work in most steps."""
    slowest = max(
        (_slowest(run, peers) for peers in run.peers), key=lambda straggler: straggler.excess
    )
    if (
        not slowest.always
        or run.share(slowest.excess) < SMALL
        or slowest.excess < UNEVEN * slowest.typical
    ):
        return
    known = [name for name in WORK if name in run.ranks.columns]
    others = run.ranks.loc[slowest.peers, known].drop(slowest.rank).median()
    gaps = (run.ranks.loc[slowest.rank, known] - others).astype(float)
    phase, gap = str(gaps.idxmax()), float(gaps.to_numpy(dtype=np.float64).max())
    words = PART_WORDS.get(phase, phase.removesuffix("_time"))
    waits = slowest.excess * (len(run.ranks) - 1) / len(run.ranks)
    yield Finding(
        "straggler",
        run.share(slowest.excess),
        f"Rank {slowest.rank} is the slowest: it works "
        f"{seconds_text(slowest.typical + slowest.excess)} in a step, "
        f"{slowest.excess / slowest.typical:.0%} longer than the median of the ranks with the same "
        f"work ({seconds_text(slowest.typical)}), mostly in {words} "
        f"(+{seconds_text(gap)}). It is the slowest of them in {slowest.often:.0%} of the steps. "
        f"The others wait for it: {run.share(slowest.excess):.0%} of the step.",
        _STRAGGLER_ADVICE[phase],
        {
            "rank": slowest.rank,
            "seconds": slowest.excess,
            "typical": slowest.typical,
            "often": slowest.often,
        },
        run.share(waits),
    )


@dataclass(frozen=True)
class _Slowest:
    """The rank of some ranks with the same work that works longest, by medians of its steps."""

    peers: list[int]
    rank: int
    excess: float
    typical: float
    often: float

    @property
    def always(self) -> bool:
        return self.often >= 0.5


def _slowest(run: StepFigures, peers: list[int]) -> _Slowest:
    work = run.ranks.loc[peers, "work"]
    rank = _highest(work)
    if len(peers) == 1:
        return _Slowest(peers, rank, 0.0, float(work.iloc[0]), 1.0)
    typical = float(work.drop(rank).median())
    often = float((run.work[peers].idxmax(axis=1) == rank).mean())
    return _Slowest(peers, rank, float(work.max()) - typical, typical, often)


_STRAGGLER_ADVICE = {
    **dict.fromkeys(
        WORK,
        "Look at the device and the host of this rank: clocks, temperature, other processes. "
        "If it stays slow on another host, its samples are longer.",
    ),
    Phase.DATA.column: "Look at what this rank reads: its disk, and the share of long samples; "
    "raise data.num_workers.",
}


def uneven_steps(run: StepFigures) -> Iterator[Finding]:
    """Find that in every step another rank is the slowest, as with samples of differing length."""
    worst, who = 0.0, []
    for peers in run.peers:
        if len(peers) > 1:
            work, medians = run.work[peers], run.ranks.loc[peers, "work"]
            known = _slowest(run, peers).always
            always = float(medians.max() - medians.mean()) if known else 0.0
            spread = float((work.max(axis=1) - work.mean(axis=1)).median()) - always
            if spread > worst:
                worst, who = spread, peers
    if run.share(worst) < SMALL:
        return
    slowest = run.work[who].idxmax(axis=1).value_counts(normalize=True)
    yield Finding(
        "uneven steps",
        run.share(worst),
        f"The slowest rank changes from step to step (rank {slowest.index[0]} most often, in "
        f"{slowest.iloc[0]:.0%} of them): the slowest works {seconds_text(worst)} longer than the "
        f"mean, {run.share(worst):.0%} of the step.",
        "Let each rank have samples of about the same number of tokens (sort or pack them), or "
        "more samples per rank and step.",
        {"seconds": worst, "often": float(slowest.iloc[0])},
        run.share(worst),
    )


def data_loading(run: StepFigures) -> Iterator[Finding]:
    """Find that ranks spend their step on reading data."""
    seconds = run.mean(Phase.DATA.column)
    if run.share(seconds) < SMALL:
        return
    slow = run.ranks[Phase.DATA.column]
    yield Finding(
        "data",
        run.share(seconds),
        f"Loading data takes {seconds_text(seconds)} of a step on the mean rank, "
        f"{run.share(seconds):.0%}; rank {_highest(slow)} takes the longest, "
        f"{seconds_text(float(slow.max()))}.",
        "Raise data.num_workers and data.prefetch_factor, or prepare samples before the run.",
        {"seconds": seconds, "rank": float(_highest(slow)), "longest": float(slow.max())},
    )


def communication(run: StepFigures) -> Iterator[Finding]:
    """Find that communication takes long: reductions, bridges between modules, messages."""
    if not run.has(WAITING):
        yield from _with_waiting(run)
        return
    seconds = run.transfer
    if run.share(seconds) < 2 * SMALL:
        return
    kinds = {
        kind: run.mean(kind.column)
        for kind in (CommunicationPart.COLLECTIVE, CommunicationPart.POINT_TO_POINT)
    }
    larger = max(kinds, key=lambda kind: kinds[kind])
    collective, messages = (seconds_text(kinds[kind]) for kind in kinds)
    yield Finding(
        "communication",
        run.share(seconds),
        f"Communication takes {seconds_text(seconds)} of a step, {run.share(seconds):.0%}, waiting "
        f"left out (with it: collectives {collective}, messages between stages {messages}).",
        _COMMUNICATION_ADVICE[larger],
        {"seconds": seconds, **{str(kind): value for kind, value in kinds.items()}},
    )


_COMMUNICATION_ADVICE = {
    CommunicationPart.COLLECTIVE: "Use more samples per reduction of gradients, fewer replicas, or "
    "the same sizes in neighbouring modules, so that less crosses between ranks.",
    CommunicationPart.POINT_TO_POINT: "Put stages that talk to each other on one host, use fewer "
    "stages, or larger micro-batches.",
}


def _with_waiting(run: StepFigures) -> Iterator[Finding]:
    """Find that communication takes long in a run that does not distinguish it from waiting."""
    seconds = run.mean(Phase.COMMUNICATION.column)
    if run.share(seconds) >= 2 * SMALL:
        column = run.ranks[Phase.COMMUNICATION.column]
        yield Finding(
            "communication",
            run.share(seconds),
            f"Communication and waiting take {seconds_text(seconds)} of a step on the mean rank, "
            f"{run.share(seconds):.0%}: least on rank {_lowest(column)} "
            f"({seconds_text(float(column.min()))}), most on rank {_highest(column)} "
            f"({seconds_text(float(column.max()))}).",
            "What the rank with the least takes is about the transfer; what others take beyond "
            "it, they wait. Run it again with this version, which measures both.",
            {"seconds": seconds, "least": float(column.min()), "most": float(column.max())},
        )


def optimizer(run: StepFigures) -> Iterator[Finding]:
    """Find that the update of the weights takes long."""
    seconds = run.mean(Phase.OPTIMIZER.column)
    if run.share(seconds) >= 3 * SMALL:
        yield Finding(
            "optimizer",
            run.share(seconds),
            f"The optimizer takes {seconds_text(seconds)} of a step, {run.share(seconds):.0%}.",
            "Use more samples per step, a distributed optimizer, or freeze modules that need no "
            "training.",
            {"seconds": seconds},
        )


def rest(run: StepFigures) -> Iterator[Finding]:
    """Find that much of a step is in no phase, if its passes are in one."""
    if not run.has_passes:
        return
    parts = run.parts.set_index("column")
    seconds = float(parts["seconds"].astype(float)[REMAINDER])
    report = run.mean(Phase.REPORT.column)
    if run.share(seconds) >= 3 * SMALL:
        yield Finding(
            "rest",
            run.share(seconds),
            f"{seconds_text(seconds)} of a step, {run.share(seconds):.0%}, is the sum of loss and "
            f"tokens over all ranks ({seconds_text(report)}, which includes waiting for them) and "
            "Python between the phases.",
            "Use larger micro-batches, so that there is less Python per sample; a profile "
            "(runtime.use_pytorch_profiler) shows what it is.",
            {"seconds": seconds, "report": report},
        )


def waiting(run: StepFigures, explained: float) -> Iterator[Finding]:
    """Find waiting that no other finding explains."""
    seconds = run.mean(WAITING)
    left = run.share(seconds) - explained
    if left < SMALL:
        return
    column = run.ranks[WAITING]
    known = f", of which {explained:.0%} is explained above" if explained >= 0.005 else ""
    yield Finding(
        "waiting",
        left,
        f"Ranks wait for each other {seconds_text(seconds)} of a step, "
        f"{run.share(seconds):.0%}{known}: rank {_highest(column)} the longest "
        f"({seconds_text(float(column.max()))}), rank {_lowest(column)} the shortest "
        f"({seconds_text(float(column.min()))}).",
        "Rank by rank, the time of a step (charts.stragglers) shows for which rank they wait; a "
        "trace (trace=True) shows at which step of the schedule.",
        {"seconds": seconds, "rank": float(_highest(column)), "left": left},
    )


def outliers(run: StepFigures) -> Iterator[Finding]:
    """Find that some steps take far longer than the median."""
    times = run.iterations["total_time"].dropna()
    late = float(times.quantile(0.95))
    lost = float(times.mean()) - run.step
    if len(times) >= 20 and run.share(lost) >= SMALL and late > 1.25 * run.step:
        yield Finding(
            "outliers",
            run.share(lost),
            f"One step in twenty takes more than {seconds_text(late)}, against a median of "
            f"{seconds_text(run.step)}: the mean step is {run.share(lost):.0%} longer than the "
            "median.",
            "Look at which iterations they are: evaluations, checkpoints, garbage collection, or "
            "other work on the machine.",
            {"seconds": lost, "late": late},
        )


def drift(run: StepFigures) -> Iterator[Finding]:
    """Find that steps become slower, or faster, in the course of the run."""
    times = run.iterations["total_time"].dropna().to_numpy(dtype=np.float64)
    third = len(times) // 3
    if third < 10:
        return
    rng = np.random.default_rng(0)
    begin, end = (estimate_run(part, rng, 200) for part in (times[:third], times[-third:]))
    gap = difference(end, begin)
    low, high = gap.interval(0.99)
    if abs(gap.value) >= 2 * SMALL * begin.value and (low > 0 or high < 0):
        way = "slower" if gap.value > 0 else "faster"
        yield Finding(
            "drift",
            abs(gap.value) / run.step,
            f"Steps become {way}: the last third takes {seconds_text(end.value)}, the first third "
            f"{seconds_text(begin.value)} ({gap.value / begin.value:+.0%}).",
            "Look at temperature and memory over the run; a longer warm-up leaves a slow start out "
            "of the medians."
            if gap.value > 0
            else "Raise runtime.warmup_iterations, so that the slow start is left out.",
            {"first": begin.value, "last": end.value},
        )


def memory(run: StepFigures) -> Iterator[Finding]:
    """Find that memory nearly fills the host on which CPU ranks run."""
    limit = run.row.get("memory_bytes")
    column = "memory_peak" if run.has("memory_peak") else "memory_allocated"
    if (
        not isinstance(limit, int | float)
        or limit != limit
        or isinstance(run.row["accelerators"], str)
    ):
        return
    if not run.has(column) or "," in str(run.row.get("hosts", "")):
        return
    used = float(run.ranks[column].sum())
    if used >= 0.85 * limit:
        yield Finding(
            "memory",
            0.0,
            f"The ranks take {gib_text(used)} of the host's {gib_text(limit)} "
            f"({used / limit:.0%}).",
            "Use fewer ranks on this host, smaller micro-batches, or more pipeline stages.",
            {"bytes": used, "limit": float(limit)},
        )


def _highest(column: pd.Series[Any]) -> int:
    return int(str(column.idxmax()))


def _lowest(column: pd.Series[Any]) -> int:
    return int(str(column.idxmin()))
