"""The health of a training run: what its ranks hold, their random states, collectives and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mimokit.experiment.health.measures import NOT_MEASURED, RankMeasures, RunMeasures
from mimokit.experiment.health.rank_faults import Fault, Planned, rank_faults
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.tensor_collectives import CollectiveSpan
from mimokit.samples import HealthSample
from mimokit.tables import Report, Section
from mimokit.units import bytes_text, counted, seconds_text, span_text

HEADING = "Health of the ranks"
COLUMNS = (
    "rank", "after iteration", "parameters", "differ from a lower rank", "not finite",
    "random state", "collectives", "private memory", "peak", "waiting", "communication", "step",
)  # fmt: skip
MOST_SENTENCES = 4


@dataclass(frozen=True)
class RankDifference:
    """A rank with other bits than a lower one.

    Attributes:
        ranks: the lower one and it.
        names: of the tensors or shards.
    """

    ranks: tuple[int, int]
    names: tuple[str, ...]


@dataclass(frozen=True)
class RunHealth(Report):
    """What the ranks of a run said about themselves.

    Whether the layout computes the model, `verify` says.

    Attributes:
        ranks: what each said after the first iteration with something wrong, else after the last.
        faults: of their random states and collectives after that iteration.
        unplanned: ranks that had collectives of which none are planned.
        lost: a sentence about the first loss that is not finite.
    """

    ranks: tuple[HealthSample, ...]
    differences: tuple[RankDifference, ...]
    faults: tuple[Fault, ...] = ()
    planned: Planned = field(default_factory=dict)
    measures: RunMeasures = field(default_factory=RunMeasures)
    unplanned: tuple[int, ...] = ()
    lost: str | None = None

    @classmethod
    def of(
        cls, samples: Iterable[HealthSample], plan: LayoutPlan, planned: Planned | None = None
    ) -> RunHealth:
        """Return the health that samples show.

        Args:
            plan: of the run: ranks of different replicas of a layout may differ.
            planned: collectives of the ranks without a module of the user; None: not known.
        """
        found = cls._of(samples, plan, planned)
        if planned is None:
            return found
        counted = (one.rank for one in found.ranks if any(one.collectives.values()))
        unplanned = tuple(rank for rank in counted if rank not in planned)
        return replace(found, planned=planned, unplanned=unplanned)

    @classmethod
    def _of(
        cls, samples: Iterable[HealthSample], plan: LayoutPlan, planned: Planned | None
    ) -> RunHealth:
        """Return what is wrong after the first iteration with something wrong."""
        iterations: dict[int, dict[int, HealthSample]] = {}
        for sample in samples:
            iterations.setdefault(sample.iteration, {})[sample.rank] = sample
        together = plan.of_replica(0).world_size
        ranks: Sequence[HealthSample] = ()
        for iteration in sorted(iterations):
            ranks = [one for _, one in sorted(iterations[iteration].items())]
            differences = tuple(_differences(ranks, together))
            faults = rank_faults(ranks, plan, planned)
            if differences or faults or any(one.not_finite for one in ranks):
                return cls(tuple(ranks), differences, faults)
        return cls(tuple(ranks), ())

    @property
    def wrong(self) -> tuple[str, ...]:
        """A sentence for each thing that is wrong; for the last ones together if there are many."""
        faults = (one.sentence for one in self.faults)
        lost = [] if self.lost is None else [self.lost]
        found = [*lost, *self._not_finite(), *self._different(), *faults]
        more = len(found) - MOST_SENTENCES
        return (*found[:MOST_SENTENCES], *([f"And {more:,} more."] if more > 0 else []))

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def _not_finite(self) -> Iterator[str]:
        for one in self.ranks:
            if one.not_finite:
                yield (
                    f"Rank {one.rank} has an entry that is not finite in "
                    f"{_named(one.not_finite)} after iteration {one.iteration}."
                )

    def _different(self) -> Iterator[str]:
        for one in self.differences:
            yield (
                f"Ranks {one.ranks[0]} and {one.ranks[1]} have different bits of "
                f"{_named(one.names)} after iteration {self.ranks[0].iteration}, which must be "
                "alike."
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what differs between ranks, and need not be wrong."""
        measured = bool(self.measures.ranks) or not self.ranks
        return (*self._unplanned(), *(self.measures.notes if measured else (NOT_MEASURED,)))

    def _unplanned(self) -> Iterator[str]:
        if self.unplanned:
            many = "s" if len(self.unplanned) > 1 else ""
            yield (
                f"No collectives are planned for rank{many} {span_text(self.unplanned)}, where a "
                "module or a forward step of the user runs; those that were counted are compared "
                "with nothing."
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        measured = {one.rank: one for one in self.measures.ranks}
        return {
            "healthy": self.healthy,
            "wrong": list(self.wrong),
            "notes": list(self.notes),
            "ranks": [
                {
                    **asdict(one),
                    "planned_collectives": self._planned_of(one.rank),
                    "measured": asdict(measured[one.rank]) if one.rank in measured else None,
                }
                for one in self.ranks
            ],
        }

    def _planned_of(self, rank: int) -> dict[str, Any] | None:
        """Return plain data; None where nothing is planned."""
        if rank not in self.planned:
            return None
        return {module: asdict(span) for module, span in self.planned[rank].items()}

    def section(self) -> Section:
        """Return a row per rank, and below them what is wrong."""
        return Section(HEADING, COLUMNS, self._rows(), self._sentences())

    def _sentences(self) -> tuple[str, ...]:
        if not self.ranks and self.lost is None:
            return ("No rank has finished an iteration.",)
        return (*(self.wrong or ("Nothing is wrong.",)), *self.notes)

    def _rows(self) -> list[list[str]]:
        others = {one.ranks[1]: one for one in self.differences}
        measured = {one.rank: one for one in self.measures.ranks}
        return [
            [
                str(one.rank), str(one.iteration), f"{len(one.digests):,}",
                f"{len(others[one.rank].names):,}" if one.rank in others else "0",
                f"{len(one.not_finite):,}", f"{one.random_state:08x}",
                self._collectives(one), *_cells(measured.get(one.rank)),
            ]
            for one in self.ranks
        ]  # fmt: skip

    def _collectives(self, one: HealthSample) -> str:
        """Return the collectives counted of those planned, of all tensor parallel groups."""
        planned = self.planned.get(one.rank)
        counted = f"{sum(one.collectives.values()):,}"
        if planned is None:
            return f"{counted}, none planned" if one.rank in self.unplanned else counted
        return f"{counted} of {sum(planned.values(), CollectiveSpan(0, 0))}"


def _cells(one: RankMeasures | None) -> tuple[str, ...]:
    if one is None:
        return ("-",) * 5
    times = one.waiting, one.communication, one.step
    return bytes_text(one.memory), bytes_text(one.peak), *map(seconds_text, times)


def _differences(ranks: Sequence[HealthSample], together: int) -> Iterator[RankDifference]:
    """Yield the ranks that differ from the first that has a tensor, in its replica of the layout.

    Args:
        ranks: what each has, after one iteration, in order.
        together: neighbours that form a replica.
    """
    first: dict[tuple[int, str], HealthSample] = {}
    for one in ranks:
        names: dict[int, list[str]] = {}
        for name, digest in one.digests.items():
            known = first.setdefault((one.rank // together, name), one)
            if known.digests[name] != digest:
                names.setdefault(known.rank, []).append(name)
        for lower, different in names.items():
            yield RankDifference((lower, one.rank), tuple(different))


def _named(names: Sequence[str]) -> str:
    others = len(names) - 1
    return names[0] + (f" and {counted(others, 'other')}" if others else "")
