"""Who watches a run, and what a monitor reads of a model: times of its parts, arrivals, FLOPs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.config import ExperimentConfig
from mimokit.engine.device import rank_device
from mimokit.engine.part_times import PartTimes
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.training.arrivals import Arrivals, clock_offset
from mimokit.engine.training.flops import StepFlops
from mimokit.engine.training.health import CollectiveCount
from mimokit.engine.training.monitor import PerformanceMonitor, Watched
from mimokit.engine.training.tracer import Tracer
from mimokit.samples import Emit


@dataclass(frozen=True)
class Watchers:
    """Who watches a run."""

    emit: Emit
    monitor: PerformanceMonitor | None
    tracer: Tracer | None
    collectives: CollectiveCount


def watch(model: RankModel, config: ExperimentConfig, peak_flops: float | None) -> Watched:
    """Time the parts of a model's steps from now on. Collective over the world.

    Args:
        peak_flops: FLOP/s of this rank at most; None if it is not known.
    """
    modules, messages = {}, PartTimes()
    for name, module in model.modules().items():
        module.times = modules[name] = PartTimes()
    if model.communicator is not None:
        model.mailbox.times = messages
    rank = dist.get_rank()
    return Watched(
        modules=modules,
        messages=messages,
        arrivals=Arrivals(model.plan, rank, clock_offset()),
        flops=StepFlops(config, model.plan, rank),
        peak_flops=_over_ranks(peak_flops),
        warmup_iterations=config.runtime.warmup_iterations,
        replicas=model.plan.batch.replicas,
    )


def _over_ranks(peak: float | None) -> float | None:
    """Return the sum over all ranks, None if one of them is not known."""
    own = math.nan if peak is None else peak
    total = torch.tensor(own, dtype=torch.float64, device=rank_device())
    dist.all_reduce(total)
    found = float(total)
    return None if math.isnan(found) else found
