"""Predicted times of a fit on a network, next to the measured ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from mimokit.engine.strategies.fit.records import NodeStep
from mimokit.planning.strategies import StrategyPlan
from mimokit.prediction.network import (
    Network,
    StrategyPrediction,
    predict_strategy,
    strategy_timeline,
)
from mimokit.result_files import MEASURED_SECONDS, PREDICTED_SECONDS

Times = Mapping[int, Mapping[int, NodeStep]]
"""step -> node -> its record."""


def as_computed(network: Network, times: Times, nodes: int) -> tuple[Network, float]:
    """Return the network with the measured speeds of the nodes, and the seconds of a step.

    A node's time is the mean over its steps: rounds add up what steps take.
    """
    busy = [
        statistics.fmean(group[node].busy_seconds for group in times.values() if node in group)
        for node in range(nodes)
    ]
    mean = statistics.fmean(busy)
    return replace(network, speeds=tuple(mean / one for one in busy)), mean


def predict(plan: StrategyPlan, network: Network, times: Times, steps: int) -> StrategyPrediction:
    """Predict the time of the whole fit from what its nodes have computed."""
    measured, seconds = as_computed(network, times, plan.nodes)
    return predict_strategy(plan, measured, seconds, steps=steps)


def time_columns(
    plan: StrategyPlan, network: Network, times: Times, steps: int
) -> dict[int, dict[str, float]]:
    """Return step -> predicted and measured seconds, for steps that all nodes have reported."""
    measured, seconds = as_computed(network, times, plan.nodes)
    ends, slowest = {0: 0.0}, max(measured.step_seconds(seconds, plan.nodes))
    for block in strategy_timeline(plan, measured, seconds, steps).blocks:
        ends[block.step] = max(ends.get(block.step, 0.0), block.stop)
    found: dict[int, dict[str, float]] = {0: {PREDICTED_SECONDS: 0.0, MEASURED_SECONDS: 0.0}}
    last, total = 0, [0.0] * plan.nodes
    for step in range(1, steps + 1):
        if len(times.get(step, {})) < plan.nodes:
            break
        last = step if step in ends else last
        total = [total[node] + times[step][node].seconds for node in range(plan.nodes)]
        predicted = ends[last] + (step - last) * slowest
        found[step] = {PREDICTED_SECONDS: predicted, MEASURED_SECONDS: max(total)}
    return found
