"""Seconds of a micro-batch in a module by its load, from the costs of the closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.modules import EncoderBranch
from mimokit.config.sizes import ParallelSizes
from mimokit.prediction.frames import frame_links
from mimokit.prediction.module_costs import load_of
from mimokit.prediction.step_time import module_step
from mimokit.prediction.step_time.pipeline import places
from mimokit.prediction.step_time.stage import dealt
from mimokit.prediction.task import PredictionTask
from mimokit.prediction.workload import language_of

Floats = NDArray[np.float64]
KNOTS = 33
"""Loads at which a cost is computed where there are more different ones; between them it is a line.
Costs are sums of rates, so that lines bend in few places."""
LENGTHS = 5
"""Lengths of sequences, likewise."""


@dataclass(frozen=True)
class Seconds:
    """Seconds of forward and of backward of micro-batches in each stage: [stages, *loads]."""

    forward: Floats
    backward: Floats

    @property
    def busiest(self) -> Floats:
        """Both together in the slowest stage."""
        slowest: Floats = (self.forward + self.backward).max(axis=0)
        return slowest

    def of_batch(self, batch: int) -> Seconds:
        """Return those of one batch; one may stand for all."""
        chosen = slice(batch, batch + 1) if self.forward.shape[1] > 1 else slice(None)
        return Seconds(self.forward[:, chosen], self.backward[:, chosen])

    def plus(self, other: Seconds) -> Seconds:
        """Return both, one after the other."""
        return Seconds(self.forward + other.forward, self.backward + other.backward)


def encoder_seconds(
    task: PredictionTask, branch: EncoderBranch, sizes: ParallelSizes, items: Floats
) -> Seconds:
    """Return the seconds of an encoder on replicas that have so many items; of none, 0."""
    given = load_of(branch, task.model, sizes, task.workload, task.system).inputs

    def at(loads: Floats) -> Floats:
        step = module_step(branch, sizes, replace(given, sequences=loads), task.system, 1.0)
        return np.stack(np.broadcast_arrays(*step.busy(sizes.pipeline)))

    forward, backward = interpolated(at, items)
    there = items > 0
    depth = int(sizes.pipeline)
    return Seconds(
        np.broadcast_to(np.where(there, forward, 0.0), (depth, *items.shape)),
        np.broadcast_to(np.where(there, backward, 0.0), (depth, *items.shape)),
    )


def exchange_seconds(
    task: PredictionTask, branch: EncoderBranch, sizes: ParallelSizes, items: Floats
) -> Seconds:
    """Return the seconds of frames that travel between replicas, of the busiest one's items."""
    links = frame_links(task, branch, int(sizes.data), int(sizes.tensor * sizes.context))
    forward, backward = links.passes(items * task.workload.input_of(branch).length)
    return Seconds(forward[None], backward[None])


def language_seconds(task: PredictionTask, tokens: Floats | None, pairs: Floats | None) -> Seconds:
    """Return the seconds of the language model in rows of so many tokens.

    Args:
        tokens: of each row; None: of full sequences.
        pairs: sum of the squares of the tokens of its samples. Samples of pairs / tokens tokens,
            tokens^2 / pairs of them, cost the same, see `EncoderInput.packed`.

    Returns:
        [stages, *rows], or [stages, 1, 1, 1].
    """
    layout, model = task.layout, language_of(task.model)
    sizes = dealt(model, layout.modules[layout.language], task.system)
    given = load_of(model, task.model, sizes, task.workload, task.system).inputs

    def at(loads: Floats, lengths: Floats) -> Floats:
        rows = replace(given, seq=lengths, sequences=loads / lengths)
        stages = module_step(model, sizes, rows, task.system, 1.0).stages
        passes = [(stage.forward.total, stage.backward.total) for stage in stages]
        return np.stack([np.broadcast_arrays(*each, loads)[:2] for each in passes])

    if tokens is None or pairs is None:
        full = np.full((1, 1, 1), float(given.sequences * given.seq))
        every = at(full, np.full_like(full, float(given.seq)))
    else:
        every = interpolated_twice(at, tokens, pairs / np.maximum(tokens, 1.0))
        every = np.where(tokens > 0, every, 0.0)
    stages = places(int(sizes.pipeline))
    return Seconds(every[stages, 0], every[stages, 1])


def interpolated(at: Callable[[Floats], Floats], loads: Floats) -> Floats:
    """Return what a function of loads is at many: exactly at a few, else on lines between knots.

    Args:
        at: [loads] -> [..., loads].
    """
    knots = _knots(loads, KNOTS)
    values = at(knots)
    flat = loads.ravel()
    lines = [np.interp(flat, knots, row) for row in values.reshape(-1, len(knots))]
    return np.stack(lines).reshape(*values.shape[:-1], *loads.shape)


def interpolated_twice(
    at: Callable[[Floats, Floats], Floats], first: Floats, second: Floats
) -> Floats:
    """Return what a function of two loads is at many, likewise."""
    there = first > 0
    if not there.any():
        return np.zeros((3, 2, *first.shape))
    knots, others = _knots(first[there], KNOTS), _knots(second[there], LENGTHS)
    pairs = np.repeat(knots, len(others)), np.tile(others, len(knots))
    values = at(*pairs)
    table = values.reshape(*values.shape[:-1], len(knots), len(others))
    (low, share), (below, part) = _between(first, knots), _between(second, others)
    high, above = np.minimum(low + 1, len(knots) - 1), np.minimum(below + 1, len(others) - 1)
    left = (1 - part) * table[..., low, below] + part * table[..., low, above]
    right = (1 - part) * table[..., high, below] + part * table[..., high, above]
    mixed: Floats = (1 - share) * left + share * right
    return mixed


def _knots(loads: Floats, most: int) -> Floats:
    each = np.unique(loads[loads > 0])
    if len(each) == 0:
        return np.ones(1)
    return each if len(each) <= most else np.linspace(each[0], each[-1], most)


def _between(values: Floats, knots: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the knot below each value, and how far it is on the way to the next."""
    low = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(knots) - 1)
    high = np.minimum(low + 1, len(knots) - 1)
    width = np.where(high > low, knots[high] - knots[low], 1.0)
    return low, np.clip((values - knots[low]) / width, 0.0, 1.0)
