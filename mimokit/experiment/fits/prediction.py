"""Predicted times of a fit on a network, next to the measured ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.engine.fits.records import NodeStep
from mimokit.planning.strategies import StrategyPlan
from mimokit.prediction.network import (
    Network,
    StrategyPrediction,
    StrategyTimeline,
    predict_strategy,
    strategy_timeline,
)
from mimokit.result_files import MEASURED_SECONDS, PREDICTED_SECONDS

Times = Mapping[int, Mapping[int, NodeStep]]
"""step -> node -> its record."""


@dataclass(frozen=True)
class FitTimes:
    """What the nodes of a fit have measured, and when the network lets them end their steps.

    Nodes of one machine share its cores: one of them computes a step longer than another, and
    which one changes from step to step. What they wait for each other therefore follows from the
    time of each step; means of nodes are too short.

    Attributes:
        busy: seconds of compute, [step, node].
        whole: seconds of the step with its exchanges, likewise.
        timeline: predicted from `busy`.
    """

    plan: StrategyPlan
    network: Network
    busy: NDArray[np.float64]
    whole: NDArray[np.float64]
    timeline: StrategyTimeline

    @classmethod
    def of(cls, plan: StrategyPlan, network: Network, times: Times, steps: int) -> FitTimes:
        """Return the times of the first `steps` steps, which all nodes have reported."""
        records = [
            [times[step][node] for node in range(plan.nodes)] for step in range(1, steps + 1)
        ]
        busy, whole = (
            np.array([[getattr(step, name) for step in group] for group in records])
            for name in ("busy_seconds", "seconds")
        )
        return cls(plan, network, busy, whole, strategy_timeline(plan, network, busy, steps))

    def prediction(self) -> StrategyPrediction:
        """Predict rounds and the time of the whole fit.

        A round has the waiting of the mean round of the fit.
        """
        line, (steps, nodes) = self.timeline, self.busy.shape
        waited = sum(line.seconds("wait")) / (steps * nodes)
        mean = float(self.busy.mean())
        measured = replace(self.network, speeds=(), spread=waited / mean if nodes > 1 else 0.0)
        predicted_round = predict_strategy(self.plan, measured, mean, steps=steps)
        return replace(predicted_round, wall_seconds=line.wall_seconds)

    def columns(self) -> dict[int, dict[str, float]]:
        """Return step -> predicted and measured seconds until all nodes have completed it."""
        ends = {0: np.zeros(self.plan.nodes)}
        for block in self.timeline.blocks:
            row = ends.setdefault(block.step, np.zeros(self.plan.nodes))
            row[block.node] = max(row[block.node], block.stop)
        measured = self.whole.cumsum(axis=0)
        seconds = {0: {PREDICTED_SECONDS: 0.0, MEASURED_SECONDS: 0.0}}
        last, since = 0, np.zeros(self.plan.nodes)
        for step, busy in enumerate(self.busy, start=1):
            since = since + busy
            if step in ends:
                last, since = step, np.zeros(self.plan.nodes)
            predicted = float((ends[last] + since).max())
            whole = float(measured[step - 1].max())
            seconds[step] = {PREDICTED_SECONDS: predicted, MEASURED_SECONDS: whole}
        return seconds
