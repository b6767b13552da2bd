"""Whether a layout has room in memory, as a probability, and what too little room costs.

Peaks are predicted within an error that is known for each training stack. Near a GPU's memory the
allocator frees what it kept and asks for it again in every micro-batch, which takes most of a step.
"""

from dataclasses import replace

import numpy as np

from mimokit.architecture.layers_on_stage import ROUNDING
from mimokit.config.sizes import Numbers, ParallelSizes
from mimokit.prediction.deployment_modes import LayoutCost
from mimokit.prediction.module_costs import LanguageCost
from mimokit.prediction.step_time import System

TIGHT, SHARP = 0.95, 1 / 3
"""Share of the memory there is above which allocators without expandable segments begin to retry,
and within which share of the error of peaks. In the Playbook 22 of 158 layouts predicted at 50 to
70 GiB took 1.6 times as long as predicted without retries, or longer; above 12 of 20."""
NEVERTHELESS = 0.01
"""Probability that a run starts that should not: 1 of 193 in the Playbook."""
FEW = 8
"""Micro-batches up to which pipelines of tied models ran without a sharded optimizer."""
_LOGISTIC = 1.702
"""Slope at which the logistic curve is a normal distribution within 0.01."""


def chance_below(limit: float, peak: Numbers, error: float) -> Numbers:
    """Return the probability that a predicted peak is really below a limit."""
    apart = (limit - peak) / (error * np.maximum(peak, 1.0))
    return 1 / (1 + np.exp(-_LOGISTIC * np.clip(apart, -60, 60)))


def fit_chance(language: LanguageCost, layers: int, peak: float, system: System) -> float:
    """Return the probability that a layout starts, and that its fullest rank fits on a GPU."""
    fits = float(chance_below(_room(system), peak, system.software.memory_error))
    return fits if _starts(language, layers, system) else fits * NEVERTHELESS


def _room(system: System) -> float:
    return system.hardware.memory_bytes - system.software.outside_bytes


def _starts(language: LanguageCost, layers: int, system: System) -> bool:
    """Return whether a training stack accepts a pipeline."""
    software, sizes, count = system.software, language.sizes, language.micro_batches
    if has_empty_stage(layers, sizes) or (software.fills_pipelines and count < sizes.pipeline - 1):
        return False
    tied = software.ties_sharded and getattr(language.load.module, "tied", False)
    over_domains = sizes.pipeline > 1 and sizes.ranks > system.hardware.domain_ranks
    unsharded = sizes.data > 1 and not sizes.distributed_optimizer
    return not (tied and over_domains and unsharded and count > FEW)


def has_empty_stage(layers: int, sizes: ParallelSizes) -> bool:
    """Return whether a stage gets nothing at all, where layers are dealt.

    They are dealt one by one, and behind them their norm, the logits, the cast of these to fp32 and
    the loss, each on the stage after that at whose end all products up to it pass their share.
    """
    products = layers + float(sizes.logits_as_layers)
    if products == layers:
        return False
    last, stage = int(sizes.pipeline) - 1, 0
    for reached in (*range(layers + 1), layers, products, products):
        stage += stage < last and reached > products * (stage + 1) / (last + 1) + ROUNDING
    return stage < last


def with_retries(cost: LayoutCost, system: System) -> LayoutCost:
    """Return the cost with the seconds that retries of the allocator are expected to take."""
    software = system.software
    if not software.retries:
        return cost
    limit = TIGHT * _room(system)
    likely = 1 - chance_below(limit, cost.memory, SHARP * software.memory_error)
    waits = software.retries * likely * (cost.seconds - cost.update)
    return replace(cost, seconds=cost.seconds + waits)
