"""The health of a model on its ranks, as a table and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mimokit.experiment.health.measures import all_reduce_note, relative_spread
from mimokit.experiment.health.rank_faults import RanksHealth, differences, miscounted, not_finite
from mimokit.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from mimokit.engine.inference.health import RankHealth


@dataclass(frozen=True)
class HealthReport(RanksHealth):
    """What the ranks of a model have found.

    Whether the shards are the right ones only a comparison with another model says:
    `check_weights`.

    Attributes:
        calibrated_seconds: of a small collective, by the calibration; None without one.
    """

    ranks: tuple[RankHealth, ...]
    tensor_parallel: int
    calibrated_seconds: float | None = None

    COLUMNS = (
        "rank", "private memory", "not finite", "random state", "all-reduce", "collectives",
        "waiting", "forward",
    )  # fmt: skip

    @property
    def wrong(self) -> tuple[str, ...]:
        """A sentence for each thing that is wrong."""
        digests = {rank: health.digests for rank, health in enumerate(self.ranks)}
        return (
            *not_finite({rank: health.not_finite for rank, health in enumerate(self.ranks)}),
            *(
                # A wrong parameter makes later outputs wrong: the first name is the cause.
                replace(difference, names=difference.names[:1]).sentence()
                for difference in differences(digests, self.tensor_parallel)
            ),
            *(
                miscounted(rank, health.counted, "a forward pass", health.planned)
                for rank, health in enumerate(self.ranks)
                if health.counted != health.planned
            ),
        )

    @property
    def spread(self) -> float:
        """Largest less smallest private memory, as a share of their mean."""
        return relative_spread([health.private_bytes for health in self.ranks])

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what differs between ranks, and need not be wrong."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        yield f"Private memory differs by {self.spread:.0%} of its mean."
        computing = [health.forward_seconds - health.waiting_seconds for health in self.ranks]
        if len(self.ranks) > 1:
            yield (
                f"Rank {computing.index(max(computing))} computed longest between collectives: "
                f"{seconds_text(max(computing))} of a forward pass."
            )
        states = len({health.random_state for health in self.ranks})
        if states > 1:
            yield f"Ranks have {states} random states; no part of this model draws."
        slowest = max(health.all_reduce_seconds for health in self.ranks)
        yield from all_reduce_note(slowest, self.calibrated_seconds)

    def _values(self) -> list[dict[str, Any]]:
        return [{**vars(health), "not_finite": list(health.not_finite)} for health in self.ranks]

    def _rows(self) -> list[list[str]]:
        return [
            [
                str(rank), bytes_text(health.private_bytes), str(len(health.not_finite)),
                f"{health.random_state:08x}", seconds_text(health.all_reduce_seconds),
                f"{health.counted} of {health.planned}", seconds_text(health.waiting_seconds),
                seconds_text(health.forward_seconds),
            ]
            for rank, health in enumerate(self.ranks)
        ]  # fmt: skip
