"""What the ranks of a run measured in their last iterations: memory, waiting, a small all-reduce.

A run measures this anyway. Ranks end an iteration with an all-reduce of a few numbers over the
world: the last rank that arrives there waits for no other, so the shortest `report_time` of an
iteration is the time of a small all-reduce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from mimokit.planning.types import LayoutPlan
from mimokit.samples import StepSample
from mimokit.units import bytes_text, seconds_text, span_text

LAST = 32
"""Iterations of which a median is taken."""
NOT_MEASURED = "Memory and times are not measured (runtime.enable_performance_monitoring)."


@dataclass(frozen=True)
class RankMeasures:
    """What a rank measured: medians of its last iterations, and memory at the end of the last.

    Attributes:
        memory: bytes of its process, or of its GPU.
        peak: bytes, most in these iterations.
        waiting: seconds of a step in which it waited for others.
        communication: seconds of a step, which include them.
    """

    rank: int
    memory: int
    peak: int
    waiting: float
    communication: float
    step: float


@dataclass(frozen=True)
class Spread:
    """How far the memory of ranks with the same modules differs.

    Attributes:
        ranks: they hold the same stages of the same modules.
        share: largest less smallest, as a share of their mean.
    """

    ranks: tuple[int, ...]
    share: float
    most: int
    bytes: int

    def __str__(self) -> str:
        """Return a sentence."""
        return (
            f"Private memory of ranks {span_text(self.ranks)} differs by {self.share:.0%} of its "
            f"mean; rank {self.most} holds most, {bytes_text(self.bytes)}."
        )


@dataclass(frozen=True)
class RunMeasures:
    """What the ranks of a run measured.

    Attributes:
        spreads: of memory, for each set of ranks with the same modules.
        all_reduce: seconds of a small one over a replica of the layout; None if not measured.
    """

    ranks: tuple[RankMeasures, ...] = ()
    spreads: tuple[Spread, ...] = ()
    all_reduce: float | None = None
    calibrated: float | None = None

    @classmethod
    def of(
        cls, steps: Iterable[StepSample], plan: LayoutPlan, calibrated: float | None = None
    ) -> RunMeasures:
        """Return what steps say; warmup steps are used only if all steps are warmup."""
        measured = [step for step in steps if step.measured]
        used = [step for step in measured if not step.warmup] or measured
        of_ranks: dict[int, list[StepSample]] = defaultdict(list)
        for step in used:
            of_ranks[step.rank].append(step)
        ranks = tuple(_of_rank(rank, of_ranks[rank]) for rank in sorted(of_ranks))
        together = plan.of_replica(0).world_size
        return cls(ranks, tuple(_spreads(ranks, plan)), _all_reduce(used, together), calibrated)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what differs between ranks, and need not be wrong."""
        return (*map(str, self.spreads), *self._waiting(), *self._small_all_reduce())

    def _waiting(self) -> Iterator[str]:
        least = min(self.ranks, key=lambda rank: rank.waiting, default=None)
        most = max(self.ranks, key=lambda rank: rank.waiting, default=None)
        if least is not None and most is not None and least.waiting < most.waiting:
            yield (
                f"Rank {least.rank} waits least for others, {seconds_text(least.waiting)} of a "
                f"step of {seconds_text(least.step)}; rank {most.rank} waits longest, "
                f"{seconds_text(most.waiting)}."
            )

    def _small_all_reduce(self) -> Iterator[str]:
        if self.all_reduce is not None and self.calibrated is not None:
            times = self.all_reduce / self.calibrated if self.calibrated else float("inf")
            yield (
                f"A small all-reduce takes {seconds_text(self.all_reduce)}, {times:.1f} times the "
                f"{seconds_text(self.calibrated)} of the calibration."
            )


def _of_rank(rank: int, steps: Sequence[StepSample]) -> RankMeasures:
    return RankMeasures(
        rank=rank,
        memory=steps[-1].memory_allocated or 0,
        peak=max(step.memory_peak or 0 for step in steps),
        waiting=median(step.waiting_time or 0.0 for step in steps),
        communication=median(step.communication_time or 0.0 for step in steps),
        step=median(step.total_time or 0.0 for step in steps),
    )


def _spreads(ranks: Sequence[RankMeasures], plan: LayoutPlan) -> Iterator[Spread]:
    layout, alike = plan.of_replica(0), defaultdict(list)
    for measures in ranks:
        place = measures.rank % layout.world_size
        stages = tuple(
            (name, module.coordinates(place)["pp"])
            for name, module in layout.modules.items()
            if place in module.ranks
        )
        alike[stages].append(measures)
    for group in alike.values():
        most = max(group, key=lambda measures: measures.memory)
        if len(group) > 1 and most.memory:
            memory = [measures.memory for measures in group]
            share = (max(memory) - min(memory)) / (sum(memory) / len(memory))
            ranks_of_group = tuple(measures.rank for measures in group)
            yield Spread(ranks_of_group, share, most.rank, most.memory)


def _all_reduce(steps: Iterable[StepSample], together: int) -> float | None:
    if together == 1:
        return None
    by_iteration: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in steps:
        if step.report_time is not None:
            by_iteration[step.rank // together, step.iteration].append(step.report_time)
    of_replicas: dict[int, list[float]] = defaultdict(list)
    for (replica, _), times in by_iteration.items():
        if len(times) == together:  # else the last rank may be missing
            of_replicas[replica].append(min(times))
    return max((median(times) for times in of_replicas.values()), default=None)
