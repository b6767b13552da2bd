"""The result of a prediction over samples: a row per policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.prediction.layout import Layout
from mimokit.prediction.over_samples.passes import BatchWork
from mimokit.prediction.over_samples.policy import PREDICTED_ONLY, Policy
from mimokit.tables import Section
from mimokit.units import gib_text, seconds_text

Floats = NDArray[np.float64]
HOURS = 24


def lost_share(seconds: Floats, even: Floats) -> float:
    """Return the share of the mean step that is lost to uneven work."""
    return max(0.0, 1 - float(even.mean()) / float(seconds.mean()))


@dataclass(frozen=True)
class PolicyPrediction:
    """The steps of drawn global batches under one policy.

    Attributes:
        seconds: [batches], of the slowest rank of each.
        even: [batches], if the work of each batch were the same on all ranks and micro-batches.
        computed: seconds of all passes.
        dollars_per_day: what the difference of both costs; None: no price is known.
        memory: bytes of the fullest rank at most, see `largest_memory`.
    """

    policy: Policy
    seconds: Floats = field(repr=False)
    even: Floats = field(repr=False)
    computed: BatchWork = field(repr=False)
    dollars_per_day: float | None
    memory: float

    @property
    def p50(self) -> float:
        """Seconds of the median step."""
        return float(np.quantile(self.seconds, 0.5))

    @property
    def p95(self) -> float:
        """Seconds that one of twenty steps exceeds."""
        return float(np.quantile(self.seconds, 0.95))

    @property
    def mean(self) -> float:
        """Seconds of the mean step, which decide a day's steps."""
        return float(self.seconds.mean())

    @property
    def lost(self) -> float:
        """The share of the mean step that is lost to stragglers."""
        return lost_share(self.seconds, self.even)

    @cached_property
    def passes(self) -> dict[str, Floats]:
        """Module -> [batches, micro-batches, replicas], seconds of its slowest stage."""
        return self.computed.per_replica()

    @property
    def work(self) -> dict[str, Floats]:
        """Module -> [batches, replicas], seconds of its passes in a step."""
        return {name: passes.sum(axis=1) for name, passes in self.passes.items()}

    @property
    def lost_by_module(self) -> dict[str, float]:
        """Module -> the share of its passes in which its mean replica waits for its slowest."""
        return {name: float(waits.mean()) for name, waits in self.waits.items()}

    @property
    def waits(self) -> dict[str, Floats]:
        """Module -> [replicas], the share of passes in which each waits for the slowest."""
        return {
            name: (1 - work / np.maximum(work.max(axis=-1, keepdims=True), 1e-300)).mean(axis=0)
            for name, work in self.work.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "policy": str(self.policy),
            "p50": self.p50,
            "p95": self.p95,
            "mean": self.mean,
            "lost": self.lost,
            "lost_by_module": self.lost_by_module,
            "dollars_per_day": self.dollars_per_day,
            "memory": self.memory,
        }


@dataclass(frozen=True)
class SamplesPrediction:
    """Steps of one layout over drawn samples, under several policies.

    Attributes:
        alike: seconds of a step whose samples are all the mean one, as `predict` has it.
        samples: of a global batch.
        capacity: bytes of a device.
    """

    layout: Layout
    alike: float
    samples: int
    source: str
    policies: tuple[PolicyPrediction, ...]
    capacity: float

    @property
    def best(self) -> PolicyPrediction:
        """The policy with the least mean step, of those with all samples that fit if any do."""
        known = [each for each in self.policies if each.policy.text_only] or self.policies
        return min(known, key=lambda each: (each.memory > self.capacity, each.mean))

    def __str__(self) -> str:
        lines = [f"{self.layout}", f"{self.source}, {self.samples:,} samples a step"]
        lines += [
            f"{each.policy}: {seconds_text(each.p50)} (p50), {seconds_text(each.p95)} (p95), "
            f"{each.lost:.0%} lost to stragglers, {gib_text(each.memory)} at most"
            for each in self.policies
        ]
        return "\n".join(lines)

    def section(self) -> Section:
        """Return the policies as a table."""
        modules = list(self.policies[0].passes)
        priced = self.policies[0].dollars_per_day is not None
        columns = ("samples", "p50", "p95", "memory at most", "lost to stragglers", *modules)
        rows = [
            [
                str(each.policy),
                seconds_text(each.p50),
                seconds_text(each.p95),
                gib_text(each.memory),
                f"{each.lost:.1%}",
                *(f"{each.lost_by_module[name]:.1%}" for name in modules),
                *([f"{each.dollars_per_day:,.0f}"] if priced else []),
            ]
            for each in self.policies
        ]
        heading = f"Steps over samples of {self.source}"
        columns = (*columns, *(["$ a day"] if priced else []))
        return Section(heading, columns, rows, [*self._said()], unwrapped=columns[:4])

    def _said(self) -> Iterator[str]:
        yield (
            f"All samples alike: {seconds_text(self.alike)}. Under the name of a module: the share "
            "of its passes in which its mean replica waits for its slowest. Memory is that of the "
            f"fullest rank with the largest drawn samples, of {gib_text(self.capacity)}."
        )
        over = [str(each.policy) for each in self.policies if each.memory > self.capacity]
        if over:
            yield (
                f"Too large: {'; '.join(over)}. Take smaller micro-batches; colocated encoders "
                "hold those of runtime.encoder_microbatches."
            )
        if any(isinstance(each.policy.packing, int) for each in self.policies):
            yield PREDICTED_ONLY

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "layout": self.layout.to_json(),
            "alike": self.alike,
            "source": self.source,
            "samples": self.samples,
            "policies": [each.to_json() for each in self.policies],
        }
