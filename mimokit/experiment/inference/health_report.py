"""The health of a model on its ranks, as a table and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimokit.tables import Report, Section
from mimokit.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from mimokit.engine.inference.health import RankHealth


@dataclass(frozen=True)
class HealthReport(Report):
    """What the ranks of a model have found.

    Whether the shards are the right ones only a comparison with another model says:
    `check_weights`.

    Attributes:
        ranks: of every rank.
        tensor_parallel: neighbours that must agree.
        calibrated_seconds: of a small collective, by the calibration; None without one.
    """

    ranks: tuple[RankHealth, ...]
    tensor_parallel: int
    calibrated_seconds: float | None = None

    @property
    def wrong(self) -> tuple[str, ...]:
        """A sentence for each thing that is wrong."""
        return (*self._not_finite(), *self._different(), *self._uncounted())

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    @property
    def spread(self) -> float:
        """Largest less smallest private memory, as a share of their mean."""
        held = [one.private_bytes for one in self.ranks]
        return (max(held) - min(held)) / (sum(held) / len(held) or 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what differs between ranks, and need not be wrong."""
        slow = max(self.ranks, key=lambda one: one.forward_seconds - one.waiting_seconds)
        found = [f"Private memory differs by {self.spread:.0%} of its mean."]
        if len(self.ranks) > 1:
            found.append(
                f"Rank {self.ranks.index(slow)} computed longest between collectives: "
                f"{seconds_text(slow.forward_seconds - slow.waiting_seconds)} of a forward pass."
            )
        states = len({one.random_state for one in self.ranks})
        if states > 1:
            found.append(f"Ranks have {states} random states; no part of this model draws.")
        if self.calibrated_seconds is not None:
            slowest = max(one.all_reduce_seconds for one in self.ranks)
            found.append(
                f"A small all-reduce takes {seconds_text(slowest)}; the calibration says "
                f"{seconds_text(self.calibrated_seconds)}."
            )
        return tuple(found)

    def _not_finite(self) -> list[str]:
        return [
            f"Rank {rank} has an entry that is not finite in {one.not_finite[0]}"
            + (f" and in {len(one.not_finite) - 1} others." if one.not_finite[1:] else ".")
            for rank, one in enumerate(self.ranks)
            if one.not_finite
        ]

    def _different(self) -> list[str]:
        """Return for each rank the first thing in which it differs from its group's first rank."""
        found = []
        for rank, one in enumerate(self.ranks):
            first = rank - rank % self.tensor_parallel
            wanted = self.ranks[first].digests
            name = next((each for each in wanted if one.digests.get(each) != wanted[each]), None)
            if name is not None:
                found.append(
                    f"Ranks {first} and {rank} have different bits of {name}, which must be alike."
                )
        return found

    def _uncounted(self) -> list[str]:
        return [
            f"Rank {rank} had {one.counted} collectives in a forward pass, and {one.planned} are "
            "planned."
            for rank, one in enumerate(self.ranks)
            if one.counted != one.planned
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "healthy": self.healthy,
            "wrong": list(self.wrong),
            "notes": list(self.notes),
            "ranks": [{**vars(one), "not_finite": list(one.not_finite)} for one in self.ranks],
        }

    def section(self) -> Section:
        """Return a row per rank, and below them what is wrong."""
        sentences = (*(self.wrong or ("Nothing is wrong.",)), *self.notes)
        return Section("Health of the ranks", COLUMNS, _rows(self.ranks), sentences)


COLUMNS = [
    "rank", "private memory", "not finite", "random state", "all-reduce", "collectives", "waiting",
    "forward",
]  # fmt: skip


def _rows(ranks: Sequence[RankHealth]) -> list[list[str]]:
    return [
        [
            str(rank), bytes_text(one.private_bytes), str(len(one.not_finite)),
            f"{one.random_state:08x}", seconds_text(one.all_reduce_seconds),
            f"{one.counted} of {one.planned}", seconds_text(one.waiting_seconds),
            seconds_text(one.forward_seconds),
        ]
        for rank, one in enumerate(ranks)
    ]  # fmt: skip
