"""Times, throughput, memory and FLOP/s of every step on this rank."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

from mimokit.engine.parallel.collectives import gather_json
from mimokit.engine.part_times import PartTimes, StepPart, now
from mimokit.engine.steps import Step
from mimokit.engine.training.arrivals import Arrivals, BegunStep, Meeting
from mimokit.engine.training.flops import StepFlops
from mimokit.engine.training.memory import memory_meter
from mimokit.engine.training.phase_times import PhaseTimes
from mimokit.result_files import write_metrics
from mimokit.samples import ModuleSample, Row, StepSample, from_wire, to_wire

NO_STEP: Meeting = ("", None, None)
"""In place of a step: what comes until the next one belongs to none."""


@dataclass(frozen=True)
class Watched:
    """What a monitor reads in addition to the steps of a schedule.

    Attributes:
        modules: module -> times of its reduction and update.
        arrivals: at collectives; None if they are not exchanged.
        flops: of a step; None if they are not known.
        peak_flops: FLOP/s of all ranks together at most; None if it is not known.
        warmup_iterations: that are marked in the samples.
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

    - communication_time includes the bridges between modules, the messages between pipeline stages
      (and the wait for them: the bubble), the reduction of gradients with their norm and the
      exchange with other replicas of the layout (and the wait for the slowest of them). The
      collectives inside a module (tensor parallel) are part of its forward and backward. It is the
      sum of collective_time (bridges on shared ranks, ranks that share a received message, the
      reduction, the exchange) and point_to_point_time (messages between stages).
    - waiting_time is the part of communication_time in which a peer was not ready. Of a message it
      ends when its header has arrived. Messages that are sent but not taken at the end of a step
      count as waiting as a whole, as the sender cannot see when its peer begins to take them. Of
      bridges on shared ranks and of the reduction it ends when the last of the ranks arrives. Where
      ranks share a received message, the wait for one of them counts as communication, but not as
      waiting, and so does the wait for other replicas. Phases timed by hand have no waiting_time.
    - report_time, the sum of loss and tokens over all ranks, includes the wait for ranks whose
      optimizer took longer.
    - Of a module: its bridges and messages, its reduction, its update. Its steps do not include a
      part of what all modules of a rank do together, such as the gradient norm.
    - Memory is bytes; see `mimokit.engine.training.memory`. FLOP/s are the model FLOPs of a step,
      divided by its time; see `mimokit.architecture.flops`.

    Args:
        module_names: the modules on this rank, in order.
        world_size: number of ranks, for the rates per rank.
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
        self._started = now()

    def start_phase(self, name: str) -> None:
        """Begin a phase; phases of different names may overlap."""
        self._open[name] = now()

    def end_phase(self, name: str) -> None:
        """End a phase.

        Raises:
            KeyError: if it has not begun.
        """
        self._times[name] += now() - self._open.pop(name)

    def observe(self, step: Step) -> None:
        """Observe a step of a schedule: it ends the step before and begins a new one.

        Between two steps of a model nothing of the monitor is in the processor's caches: whatever
        can wait until `end_step` is done there, where it takes a tenth of the time.
        """
        self._begun.append(((step.name, step.module, step.microbatch), now()))

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
            iteration: 0-based.
            samples: samples of all ranks in this step.
            tokens: module -> tokens it computed over all ranks.
            language_tokens: tokens of the language model over all ranks, padding included.
            loss: of the step, over all ranks.
            grad_norm: over all modules.
        """
        moment = now()
        total = moment - self._started
        phases = self._phases(moment)
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

    def _phases(self, end: float) -> PhaseTimes:
        found = PhaseTimes(self._modules)
        ends = [*(moment for _, moment in self._begun[1:]), end]
        lasted = {}
        for (step, moment), stop in zip(self._begun, ends, strict=False):
            name, module, _ = step
            if step == NO_STEP:
                continue
            lasted[step] = stop - moment
            found.add_phase(module, name, stop - moment)
        for name, seconds in self._times.items():
            found.add_phase(None, name, seconds)
        for module, times in self._watched.modules.items():
            taken = times.take()
            found.add_reduction(module, taken[StepPart.REDUCTION])
            found.add_update(module, taken[StepPart.UPDATE])
        taken = self._watched.messages.take()
        # Messages are those of a stage, and a rank that has a stage has no other module.
        here = list(self._watched.modules)
        stage = here[0] if len(here) == 1 else None
        found.add_wait(stage, taken[StepPart.PEER])
        found.move_to_collective(stage, taken[StepPart.GROUP])
        if self._watched.arrivals is not None:
            for meeting, seconds in self._watched.arrivals.waits.items():
                found.add_wait(meeting[1], min(max(seconds, 0.0), lasted.get(meeting, 0.0)))
        return found

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
        """Return the FLOP/s of this rank, and the share that all ranks reach of their peak."""
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

        The first has one row per iteration, with the largest times and memory over the ranks, for
        which the others waited. The second has one row per iteration and rank.
        """
        by_rank = gather_json([to_wire(sample) for sample in self.rows])
        if dist.get_rank() == 0:
            samples = (from_wire(message) for messages in by_rank for message in messages)
            write_metrics(directory, [one for one in samples if isinstance(one, StepSample)])
