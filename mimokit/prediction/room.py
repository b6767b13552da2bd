"""Whether a layout has room in memory, as a probability, and what too little room costs.

Peaks are predicted within an error that is known for each training stack. Near a GPU's memory the
allocator frees what it kept and asks for it again in every micro-batch, which takes most of a step.
"""

from dataclasses import replace

import numpy as np

from mimokit.architecture.parallel_sizes import Numbers
from mimokit.architecture.parameters_on_rank import has_empty_stage
from mimokit.prediction.deployment_modes import LayoutCost
from mimokit.prediction.module_costs import LanguageCost
from mimokit.prediction.step_time import System

TIGHT = 0.885
"""Share of a GPU's memory above which allocators without expandable segments begin to retry: in the
Playbook all 9 pipelines above 70 of 79 GiB, and none below 55, took at least 1.6 times as long."""
EMPTY = 0.1
"""Probability that a run starts in which a stage got no layer: 12 of 138 in the Playbook."""
_LOGISTIC = 1.702
"""Slope at which the logistic curve is a normal distribution within 0.01."""


def chance_below(limit: float, peak: Numbers, error: float) -> Numbers:
    """Return the probability that a predicted peak is really below a limit."""
    apart = (limit - peak) / (error * np.maximum(peak, 1.0))
    return 1 / (1 + np.exp(-_LOGISTIC * np.clip(apart, -60, 60)))


def fit_chance(language: LanguageCost, layers: int, peak: float, system: System) -> float:
    """Return the probability that a layout starts, and that its fullest rank fits on a GPU."""
    fits = float(chance_below(system.hardware.memory_bytes, peak, system.software.memory_error))
    return fits * EMPTY if has_empty_stage(layers, language.sizes) else fits


def with_retries(cost: LayoutCost, system: System) -> LayoutCost:
    """Return the cost with the seconds that retries of the allocator are expected to take."""
    software = system.software
    if not software.retries:
        return cost
    limit = TIGHT * system.hardware.memory_bytes
    likely = 1 - chance_below(limit, cost.memory, software.memory_error)
    waits = software.retries * likely * (cost.seconds - cost.update)
    return replace(cost, seconds=cost.seconds + waits)
