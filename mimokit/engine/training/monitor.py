"""Times, throughput, memory and FLOP/s of every step on this rank."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from mimokit.config import ExperimentSections
from mimokit.engine.collectives import gather_json
from mimokit.engine.device import rank_device
from mimokit.engine.part_times import (
    Mark,
    PartTimes,
    StepPart,
    begin_marks,
    now,
    seconds_at,
    set_mark,
)
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.steps import Step
from mimokit.engine.training.flops import StepFlops
from mimokit.engine.training.memory import memory_meter
from mimokit.engine.training.phase_times import PhaseTimes
from mimokit.engine.training.tracer import Arrivals, BegunStep, Meeting, clock_offset
from mimokit.result_files import write_metrics
from mimokit.samples import ModuleSample, Row, StepSample, by_iteration, from_wire, to_wire

NO_STEP: Meeting = ("", None, None)
"""In place of a step: what comes until the next one belongs to none."""


@dataclass(frozen=True)
class Watched:
    """What a monitor reads in addition to the steps of a schedule.

    Attributes:
        modules: module -> times of its reduction and update.
        peak_flops: FLOP/s of all ranks together at most; None if it is not known.
        replicas: of the layout, which do as much each: rates are those of all together.
    """

    modules: Mapping[str, PartTimes] = field(default_factory=dict)
    messages: PartTimes = field(default_factory=PartTimes)
    arrivals: Arrivals | None = None
    flops: StepFlops | None = None
    peak_flops: float | None = None
    warmup_iterations: int = 0
    replicas: int = 1


class PerformanceMonitor:
    """Collects one row per iteration on this rank.

    Times are seconds. The phases forward, backward, optimizer, data, communication and report, and
    what is none of them, add up to the step. What is measured:

    - communication_time is the sum of collective_time (bridges on shared ranks, ranks that share a
      received message, the reduction of gradients with their norm, the exchange with other replicas
      of the layout) and point_to_point_time (messages between stages). It includes the wait for
      them. The collectives inside a module (tensor parallel) are part of its forward and backward.
    - waiting_time is the part of it in which a peer was not ready. Of a message it ends when its
      header has arrived; a message that is not taken at the end of a step counts as a whole, as the
      sender cannot see when its peer begins to take it. Of bridges on shared ranks and of the
      reduction it ends when the last rank arrives. The wait for ranks that share a received
      message, or for other replicas, does not count. Phases timed by hand have no waiting_time.
    - report_time, the sum of loss and tokens over all ranks, includes the wait for ranks whose
      optimizer took longer.
    - Of a module: its bridges and messages, its reduction, its update. Its steps do not include a
      part of what all modules of a rank do together, such as the gradient norm.
    - On CUDA all of that are times of the work, not of its launch, though no step waits for the
      device: marks in its queue are read once the step has ended.
    - Memory is bytes; see `mimokit.engine.training.memory`. FLOP/s are the model FLOPs of a step,
      divided by its time; see `mimokit.architecture.flops`.
    """

    def __init__(
        self,
        module_names: Sequence[str],
        world_size: int,
        rank: int = 0,
        watched: Watched | None = None,
    ) -> None:
        self._modules = tuple(module_names)
        self._world_size = world_size
        self._rank = rank
        self._watched = watched or Watched()
        self._memory = memory_meter()
        self.rows: list[StepSample] = []
        self._reset()

    def _reset(self) -> None:
        self._begun: list[BegunStep] = []
        self._times: dict[str, float] = defaultdict(float)
        self._open: dict[str, float] = {}
        self._started = 0.0

    def start_step(self) -> None:
        """Begin an iteration."""
        self._reset()
        for times in (*self._watched.modules.values(), self._watched.messages):
            times.take()
        if self._watched.arrivals is not None:
            self._watched.arrivals.start_step(self._begun)
        self._memory.start()
        self._started = begin_marks()

    def start_phase(self, name: str) -> None:
        """Begin a phase; phases of different names may overlap."""
        self._open[name] = now()

    def end_phase(self, name: str) -> None:
        """End a phase; a KeyError is raised if it has not begun."""
        self._times[name] += now() - self._open.pop(name)

    def observe(self, step: Step) -> None:
        """Observe a step of a schedule: it ends the step before and begins a new one.

        Whatever can wait is done in `end_step`, where it takes a tenth of the time: between two
        steps of a model nothing of the monitor is in the processor's caches.
        """
        self._begun.append(((step.name, step.module, step.microbatch), set_mark()))

    def end_step(
        self,
        iteration: int,
        *,
        samples: int = 0,
        tokens: Mapping[str, int] | None = None,
        language_tokens: int = 0,
        loss: float | None = None,
        grad_norm: float | None = None,
        **further: float,
    ) -> StepSample:
        """End an iteration and return its measurements.

        Args:
            samples: samples of all ranks in this step.
            tokens: module -> tokens it computed over all ranks.
            language_tokens: tokens of the language model over all ranks, padding included.
        """
        end = set_mark()
        total = seconds_at(end) - self._started
        phases = self._phases(end)
        rates = total / self._watched.replicas  # seconds for the work of one replica
        self._add_rates(phases.modules, tokens or {}, samples, rates)
        use = self._memory.read()
        achieved, share = self._achieved(tokens or {}, total)
        sample = StepSample(
            iteration=iteration,
            total_time=total,
            tokens_per_sec=language_tokens / rates,
            samples_per_sec=samples / rates,
            tokens_per_sec_per_rank=language_tokens / total / self._world_size,
            samples_per_sec_per_rank=samples / total / self._world_size,
            memory_allocated=use.allocated,
            memory_reserved=use.reserved,
            memory_peak=use.peak,
            loss=loss,
            grad_norm=grad_norm,
            flops_per_sec=achieved,
            model_flop_utilisation=share,
            warmup=float(iteration < self._watched.warmup_iterations),
            time=time.time(),
            rank=self._rank,
            modules={name: ModuleSample(**values) for name, values in phases.modules.items()},
            further={**phases.others, **further},
            **phases.own,  # type: ignore[arg-type]
        )
        self.rows.append(sample)
        return sample

    def _phases(self, end: Mark) -> PhaseTimes:
        phases = PhaseTimes(self._modules)
        moments = [seconds_at(mark) for mark in (*(mark for _, mark in self._begun), end)]
        lasted = {}
        for (step, _), (moment, stop) in zip(self._begun, pairwise(moments), strict=True):
            if step != NO_STEP:
                lasted[step] = stop - moment
                phases.add_phase(step[1], step[0], lasted[step])
        for name, seconds in self._times.items():
            phases.add_phase(None, name, seconds)
        for module, times in self._watched.modules.items():
            seconds_of = times.take()
            phases.add_reduction(module, seconds_of[StepPart.REDUCTION])
            phases.add_update(module, seconds_of[StepPart.UPDATE])
        seconds_of = self._watched.messages.take()
        # Messages are those of a stage, and a rank that has a stage has no other module.
        here = list(self._watched.modules)
        stage = here[0] if len(here) == 1 else None
        phases.add_wait(stage, seconds_of[StepPart.PEER])
        phases.move_to_collective(stage, seconds_of[StepPart.GROUP])
        if self._watched.arrivals is not None:
            for meeting, seconds in self._watched.arrivals.waits.items():
                phases.add_wait(meeting[1], min(max(seconds, 0.0), lasted.get(meeting, 0.0)))
        return phases

    def _add_rates(
        self, rows: dict[str, Row], tokens: Mapping[str, int], samples: int, seconds: float
    ) -> None:
        for module, count in tokens.items():
            rows[module]["tokens_per_sec"] = count / seconds
            rows[module]["samples_per_sec"] = samples / seconds
        if self._watched.flops is not None:
            for module, operations in self._watched.flops.of_modules(tokens).items():
                rows[module]["flops_per_sec"] = operations / seconds

    def _achieved(
        self, tokens: Mapping[str, int], seconds: float
    ) -> tuple[float | None, float | None]:
        flops, peak = self._watched.flops, self._watched.peak_flops
        if flops is None:
            return None, None
        whole = sum(flops.of_modules(tokens).values()) / seconds
        return flops.of_rank(tokens) / seconds, None if peak is None else whole / peak

    def log_metrics(self, iteration: int) -> Row:
        """Return the measurements of an iteration: column -> value.

        Raises:
            KeyError: if the iteration has no metrics.
        """
        for sample in reversed(self.rows):
            if sample.iteration == iteration:
                return sample.row()
        raise KeyError(f"No metrics of iteration {iteration}; it has not ended.")

    def save_metrics(self, directory: str | Path) -> None:
        """Write `metrics.csv` and `metrics_by_rank.csv` on rank 0. Collective.

        The first has one row per iteration, with the times of the slowest rank, for which the
        others waited, and the largest memory. The second has one row per iteration and rank.
        """
        by_rank = gather_json([to_wire(sample) for sample in self.rows])
        if dist.get_rank() == 0:
            samples = (from_wire(message) for messages in by_rank for message in messages)
            steps = [sample for sample in samples if isinstance(sample, StepSample)]
            write_metrics(directory, list(by_iteration(steps)))


def watch_ranks(model: RankModel, config: ExperimentSections, peak_flops: float | None) -> Watched:
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
    own = math.nan if peak is None else peak
    total = torch.tensor(own, dtype=torch.float64, device=rank_device())
    dist.all_reduce(total)
    return None if total.isnan() else float(total)
