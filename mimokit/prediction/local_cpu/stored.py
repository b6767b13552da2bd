"""What a rank of mimokit's engine stores of every module: exact numbers, all of them fp32."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mimokit.architecture.from_config import modules_of_config
from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.architecture.tensors import stage_tensors
from mimokit.axes import Axis
from mimokit.config import ExperimentConfig
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.local_cpu.operation_counts import NUMBER_BYTES

MOMENTS = 2
"""Adam keeps two numbers per parameter."""


@dataclass(frozen=True)
class Stored:
    """The part of a module on one rank."""

    tensors: int
    numbers: int

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.tensors + other.tensors, self.numbers + other.numbers)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights; gradients take as many."""
        return NUMBER_BYTES * self.numbers

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of Adam's moments."""
        return MOMENTS * self.weight_bytes


def stored_on_rank(config: ExperimentConfig, plan: LayoutPlan, rank: int) -> dict[str, Stored]:
    """Return module -> what a rank stores of it; modules without the rank are left out."""
    found = {}
    for module in modules_of_config(config.model):
        ranks = plan.modules[module.name]
        if rank in ranks.ranks:
            sizes = ParallelSizes(pipeline=ranks.pipeline_parallel)
            stage = ranks.coordinates(rank)[Axis.PIPELINE]
            place = ranks.shard_place(rank)
            shapes = [one.cut.at(place).shape for one in stage_tensors(module, sizes, stage)]
            found[module.name] = Stored(len(shapes), sum(map(math.prod, shapes)))
    return found
