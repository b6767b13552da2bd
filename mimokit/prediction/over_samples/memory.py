"""Bytes of the fullest rank while it holds the largest of drawn micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from mimokit.prediction.deployment_modes import encoder_alive
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.over_samples.loads import BatchLoads
from mimokit.prediction.prediction import costs_of, layout_cost
from mimokit.prediction.task import PredictionTask
from mimokit.prediction.workload import branches_of


def largest_memory(
    task: PredictionTask,
    loads: BatchLoads,
    language: LanguageCost,
    encoders: Sequence[EncoderCost],
) -> float:
    """Return the bytes of the fullest rank, at most, in drawn batches.

    Each module has its largest samples at once: encoders those of the micro-batches whose
    activations they store, the language model those of one micro-batch.
    """
    layout, workload = task.layout, task.workload
    at_once = layout.encoder_microbatches or workload.encoder_microbatches
    inputs = dict(workload.inputs)
    costs = {cost.name: cost for cost in encoders}
    for branch in branches_of(task.model):
        if branch.name not in loads.items:
            continue
        cost = costs[branch.name]
        alive = float(encoder_alive(layout.mode, language, cost, encoders, at_once))
        # Rows of so many tokens are more or fewer micro-batches than the samples were.
        every = alive == float(cost.micro_batches)
        window = loads.micro_batches if every else ceil(alive)
        items = _most_in_a_row(loads.items[branch.name], window) / (alive * cost.sizes.micro_batch)
        inputs[branch.name] = replace(workload.input_of(branch), count=float(items))
    longest = workload.seq_length
    if loads.tokens is not None:
        longest = max(1, ceil(loads.tokens.max() / layout.modules[layout.language].micro_batch))
    largest = replace(workload, inputs=inputs, seq_length=longest, encoder_microbatches=at_once)
    known = costs_of(task.model, layout, largest, task.system)
    return float(layout_cost(layout.mode, *known, largest, task.system).memory)


def _most_in_a_row(values: NDArray[np.float64], window: int) -> float:
    """Return the largest sum of `window` micro-batches of a replica, one after the other."""
    sums = np.cumsum(np.pad(values, ((0, 0), (1, 0), (0, 0))), axis=1)
    window = min(window, values.shape[1])
    return float((sums[:, window:] - sums[:, :-window]).max())
