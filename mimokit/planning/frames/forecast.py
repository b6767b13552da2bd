"""What balancing the frames of a batch is going to save, and whether that is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mimokit.planning.frames.cost import FrameCost
from mimokit.planning.frames.partition import longest_first
from mimokit.planning.frames.plan import FramePlan, Numbers, check_loads, check_ranks, plan_frames
from mimokit.units import bytes_text, seconds_text, shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PLANNERS = {
    "plan_frames": "mimokit's: few frames travel",
    "lpt": "longest frame first, wherever it is read",
    "none": "every rank encodes what it reads",
}
"""Planner of a forecast -> what it does."""
EVEN = 1.1
"""Slowest rank over the mean below which frames are called even."""


@dataclass(frozen=True)
class FrameLinks:
    """What it costs to send frames and their outputs between ranks.

    Attributes:
        bytes_per_second: of one rank, in each direction.
        latency: seconds of one all-to-all or all-gather without its bytes.
        input_bytes: per patch, to the rank that encodes it.
        output_bytes: per patch, back; its gradient is as large.
        trained: the gradient of the outputs travels as well.
    """

    bytes_per_second: float
    latency: float
    input_bytes: float
    output_bytes: float
    trained: bool = True

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0:
            raise ValueError(f"bytes_per_second is {self.bytes_per_second:g}; it is above 0.")
        for name in ("latency", "input_bytes", "output_bytes"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; it is at least 0.")

    def seconds(self, patches_between: np.ndarray | csr_array) -> float:
        """Return how long one pass communicates, from patches [reading rank, encoding rank]."""
        at_home = patches_between.diagonal()
        busiest = max((patches_between.sum(axis=side) - at_home).max() for side in (0, 1))
        return float(sum(self.passes(np.float64(busiest))))

    def passes(self, busiest: np.ndarray | np.float64) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of forward and of backward, from patches of the busiest rank."""
        moves, back = np.greater(busiest, 0), busiest * self.output_bytes / self.bytes_per_second
        there = 2 * self.latency + busiest * self.input_bytes / self.bytes_per_second
        forward = self.latency + moves * (there + back)  # metadata is gathered in any case
        return forward, moves * self.trained * (self.latency + back)


@dataclass(frozen=True)
class FrameForecast:
    """A batch with and without frame parallel.

    Attributes:
        plan: which rank encodes which frame; its loads are seconds.
        before: [ranks], seconds that each encodes what it reads.
        patches_of_pairs: [reading rank, encoding rank], only where there are any.
        traffic_bytes: between ranks, all passes.
        base: seconds that the encoder takes on every rank, whatever frames it has; launches say.
            They are in `before` and `after`.
    """

    plan: FramePlan
    before: tuple[float, ...]
    patches_of_pairs: csr_array
    traffic_seconds: float
    traffic_bytes: float
    base: float = 0.0
    links: FrameLinks | None = None

    @property
    def patches_between(self) -> np.ndarray:
        """[reading rank, encoding rank], all: 2 GB for 16,384 ranks."""
        return np.asarray(self.patches_of_pairs.toarray())

    @property
    def after(self) -> tuple[float, ...]:
        """[ranks], seconds that each encodes what it is given."""
        return tuple(self.base + load for load in self.plan.load_per_rank)

    @property
    def saving(self) -> float:
        """Seconds saved; below 0 where communication costs more."""
        return max(self.before) - max(self.after) - self.traffic_seconds

    @property
    def worth_it(self) -> bool:
        """Whether it saves anything."""
        return self.saving > 0

    def __str__(self) -> str:
        if len(self.before) == 1:
            return (
                "Frame parallel has no effect: one replica encodes all frames, in "
                f"{seconds_text(self.before[0])}."
            )
        slowest, mean = max(self.before), sum(self.before) / len(self.before)
        what, travels = "Another order of the samples", "nothing travels"
        if self.traffic_bytes or self.traffic_seconds:
            what = "Frame parallel"
            travels = f"{bytes_text(round(self.traffic_bytes))} travel in "
            travels += seconds_text(self.traffic_seconds)
        after = f"{seconds_text(max(self.after))} instead of {seconds_text(slowest)}"
        if seconds_text(max(self.after)) == seconds_text(slowest):
            less = 1 - max(self.after) / slowest if slowest else 0.0
            after = f"{less:.1%} less than {seconds_text(slowest)}"
            after = after if less > 5e-4 else f"as long ({seconds_text(slowest)})"
        ratio = slowest / mean if mean else 1.0
        if ratio >= EVEN and self.after == self.before:
            return (
                f"Every rank encodes what it reads: the slowest encoder takes "
                f"{seconds_text(slowest)}, {ratio:.2f} times the mean."
            )
        if self.worth_it:
            return (
                f"{what} saves {seconds_text(self.saving)}: the slowest encoder takes "
                f"{after}, and {travels}."
            )
        why = f"the slowest encoder would take {after}"
        if ratio < EVEN:
            why = f"the slowest encoder takes only {ratio:.2f} times the mean"
        return f"Frame parallel is not worth it: {why}, and {travels}."


def forecast_frames(
    patches: Sequence[Sequence[int]],
    cost: FrameCost,
    links: FrameLinks,
    *,
    base: float = 0.0,
    planner: str = "plan_frames",
    tolerance: float = 0.01,
    ranks_per_node: int | None = None,
) -> FrameForecast:
    """Return what frame parallel does to a batch.

    Args:
        patches: for each rank, the patches of the frames that it reads.
        cost: of a frame, in seconds: forward, and backward if the encoder is trained.
        base: seconds that the encoder takes on every rank, whatever frames it has.
    """
    ranks = check_ranks(len(patches))
    home = np.repeat(np.arange(ranks), [len(frames) for frames in patches])
    sizes = np.array([size for frames in patches for size in frames], dtype=np.float64)
    loads = cost.loads(sizes)
    if planner == "plan_frames":
        plan = plan_frames(
            loads, ranks, home=home, tolerance=tolerance, ranks_per_node=ranks_per_node
        )
    else:
        plan = FramePlan.of(_assigned(planner, loads, home, ranks), loads, ranks, home)
    between = plan.traffic_of_pairs(sizes)
    away = float(between.sum() - between.diagonal().sum())
    passes = 2 if links.trained else 1
    return FrameForecast(
        plan=plan,
        before=tuple((base + np.bincount(home, weights=loads, minlength=ranks)).tolist()),
        patches_of_pairs=between,
        traffic_seconds=links.seconds(between),
        traffic_bytes=away * (links.input_bytes + passes * links.output_bytes),
        base=base,
        links=links,
    )


def _assigned(planner: str, loads: np.ndarray, home: np.ndarray, ranks: int) -> Any:
    if planner not in PLANNERS:
        raise ValueError(f"planner is {shown(planner)}; it is one of {', '.join(PLANNERS)}.")
    return home if planner == "none" else lpt_balance(loads, ranks)[0]


def lpt_balance(loads: Numbers, num_ranks: int) -> tuple[list[int], list[float]]:
    """Assign frames by LPT (longest processing time first).

    Frames are taken by descending load, then ascending index. Each goes to the least loaded rank,
    the lowest on ties. Ranks may end without frames.

    Args:
        loads: [frames], any unit.

    Returns:
        assignment [frames] and load_per_rank [ranks], whole numbers if the loads are.

    Raises:
        ValueError: a load is negative or not finite, or ranks is 0.
    """
    ranks, sizes = check_ranks(num_ranks), check_loads(loads)
    lpt = longest_first(sizes, ranks)
    totals = lpt.totals
    if np.asarray(loads).dtype.kind in "iub":
        totals = totals.astype(np.int64)
    return lpt.assignment().tolist(), totals.tolist()
