"""The numbers of GPUs that a layout takes all of, next to one that no layout divides."""

from dataclasses import replace

import numpy as np

from mimokit.layout_search.candidates import Candidates
from mimokit.layout_search.cost_tables import enumerate_modules
from mimokit.layout_search.infeasible import any_fits
from mimokit.layout_search.task import SearchTask


def nearest_whole_counts(task: SearchTask) -> list[int]:
    """Return the next smaller and the next larger number of GPUs that a layout takes all of.

    Empty where a layout that fits takes all of the task. At most twice as many are looked for.
    """
    if _takes_all(task, task.gpus):
        return []
    counts = sorted(_counts(replace(task, gpus=2 * task.gpus)))
    below = [count for count in reversed(counts) if count < task.gpus]
    above = [count for count in counts if count > task.gpus]
    nearest = (next((n for n in side if _takes_all(task, n)), None) for side in (below, above))
    return [count for count in nearest if count is not None]


def _takes_all(task: SearchTask, gpus: int) -> bool:
    constraints = replace(task.constraints, least_gpus=gpus)
    return any_fits(replace(task, gpus=gpus, constraints=constraints))


def _counts(task: SearchTask) -> set[int]:
    """Return how many ranks language models have, without and with ranks of other modules added."""
    language, others, _ = enumerate_modules(task)
    shared = separate = _different(language)
    for other in others:
        separate = {count + more for count in separate for more in _different(other)}
    return {count for count in shared | separate if count <= task.gpus}


def _different(module: Candidates) -> set[int]:
    return {int(ranks) for ranks in np.unique(module.sizes.ranks)}
