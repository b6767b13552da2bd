"""The monitor of a training loop that a user wrote: the schedules tell it what they ran."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch.distributed as dist

from mimokit.config import ModelSection, RuntimeConfig
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.parallel.loss import one_over
from mimokit.engine.part_times import now, seconds_at, set_mark
from mimokit.engine.pipeline.executor import MicrobatchLoss
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.steps import Step, watch_loop
from mimokit.engine.training.monitor import NO_STEP, PerformanceMonitor, Watched
from mimokit.engine.training.phase_times import PHASE_COLUMNS
from mimokit.engine.training.step_counts import StepCounts, sum_numbers
from mimokit.samples import StepSample
from mimokit.step_kinds import StepKind


class LoopMonitor(PerformanceMonitor):
    """Fills its columns from the schedules that run between `start_step` and `end_step`.

    Steps of a schedule are taken off a phase that is timed by hand around them, if that has a
    column of its own: no second is counted twice.

    Args:
        seq_length: tokens of a sample.
    """

    def __init__(
        self,
        module_names: Sequence[str],
        world_size: int,
        rank: int,
        watched: Watched,
        seq_length: int,
    ) -> None:
        super().__init__(module_names, world_size, rank, watched)
        self._seq_length = seq_length
        self._counts: StepCounts | None = None
        self._samples = 0

    def start_step(self) -> None:
        """Begin an iteration; the schedules of this rank report to this monitor."""
        super().start_step()
        self._counts, self._samples = None, 0
        watch_loop(self)

    def end_phase(self, name: str) -> None:
        """End a phase.

        Raises:
            KeyError: if it has not begun.
        """
        begin, end = self._open[name], now()
        super().end_phase(name)
        if name in PHASE_COLUMNS:
            self._times[name] -= sum(
                max(0.0, min(stop, end) - max(start, begin)) for start, stop in self._spans(end)
            )

    def _spans(self, end: float) -> Iterator[tuple[float, float]]:
        moments = [*(seconds_at(mark) for _, mark in self._begun), end]
        for (meeting, _), (moment, stop) in zip(self._begun, pairwise(moments), strict=True):
            if meeting != NO_STEP:
                yield moment, stop

    def begin(self, model: RankModel) -> None:
        """Time the messages of a model whose schedule begins."""
        if model.communicator is not None:
            model.mailbox.times = self._watched.messages

    def pause(self) -> None:
        """End the last step of a schedule."""
        self._begun.append((NO_STEP, set_mark()))

    def count(
        self, model: RankModel, losses: Sequence[MicrobatchLoss], num_microbatches: int
    ) -> None:
        """Count what a schedule computed."""
        counts = StepCounts.of_rank(model, losses)
        if self._counts is not None:
            before = self._counts.numbers()
            counts = counts.of_numbers(
                {
                    part: [a + b for a, b in zip(numbers, before[part], strict=True)]
                    for part, numbers in counts.numbers().items()
                }
            )
        self._counts = counts
        self._samples += model.plan.batch.samples_per_microbatch * num_microbatches

    def end_step(self, iteration: int, **given: Any) -> StepSample:
        """End an iteration and return its measurements. Collective if a schedule ran in it.

        Args:
            iteration: 0-based.
            given: in place of what the schedules counted; see `PerformanceMonitor.end_step`.
        """
        watch_loop(None)
        return super().end_step(iteration, **{**self._counted(), **given})

    def _counted(self) -> Mapping[str, Any]:
        if self._counts is None:
            return {}
        self.observe(Step(StepKind.REPORT))
        counts = self._counts.of_numbers(sum_numbers(self._counts.numbers()))
        return {
            **counts.further_losses,
            "loss": counts.loss.total * one_over(counts.loss.number),
            "samples": self._samples,
            "language_tokens": self._samples * self._seq_length,
            "tokens": counts.module_tokens,
        }


def create_performance_monitor(
    model_config: ModelSection,
    runtime_config: RuntimeConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
    watched: Watched | None = None,
) -> PerformanceMonitor | None:
    """Return a monitor of the modules on this rank, or None if the config disables it.

    Args:
        model_config: says how many tokens a sample has.
        runtime_config: says whether to monitor.
        module_to_grid_map: the modules on this rank.
        watched: what else to read; `train` passes it. None: the schedules of a user's loop tell
            the monitor what they ran.
    """
    if not runtime_config.enable_performance_monitoring:
        return None
    names, world, rank = list(module_to_grid_map), dist.get_world_size(), dist.get_rank()
    if watched is not None:
        return PerformanceMonitor(names, world, rank, watched)
    watched = Watched(warmup_iterations=runtime_config.warmup_iterations)
    tokens = model_config.get_architecture(model_config.llm_module_name).seq_length
    return LoopMonitor(names, world, rank, watched, tokens)
