"""Times, throughput and memory of every step on this rank."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from mimokit.config import MimoParallelismConfig, RuntimeConfig
from mimokit.engine.megatron import CPU_ONLY, HyperCommGrid
from mimokit.engine.steps import Step
from mimokit.samples import (
    MODULE_COLUMNS,
    STEP_COLUMNS,
    ModuleSample,
    Row,
    StepSample,
    module_column,
    write_metrics,
)
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, StepKind

_COLUMNS = {str(kind): kind.phase.column for kind in StepKind}
_MODULE_COLUMNS = tuple(phase.column for phase in MODULE_PHASES)
_RANK_COLUMNS = (*_MODULE_COLUMNS, *(phase.column for phase in RANK_PHASES))

Span = tuple[str | None, str]
"""(module, name of a phase)."""


class PerformanceMonitor:
    """Collects one row per iteration on this rank.

    Times are seconds. communication_time includes the bridges between modules, the messages between
    pipeline stages (and the wait for them: the bubble) and the reduction of gradients; the
    collectives inside a module (tensor parallel) are part of its forward and backward. Memory is
    bytes: of the CUDA allocator, on a CPU the resident memory of the process.

    Args:
        module_names: the modules on this rank, in order.
        world_size: number of ranks, for the rates per rank.
        rank: this rank.
    """

    def __init__(self, module_names: Sequence[str], world_size: int, rank: int = 0) -> None:
        self._modules = tuple(module_names)
        self._world_size = world_size
        self._rank = rank
        self._process = psutil.Process()
        self.rows: list[StepSample] = []
        self._reset()

    def _reset(self) -> None:
        self._times: dict[Span, float] = defaultdict(float)
        self._open: dict[Span, float] = {}
        self._current: Span | None = None
        self._started = 0.0

    def start_step(self) -> None:
        """Begin an iteration."""
        self._reset()
        self._started = _now()

    def start_phase(self, name: str) -> None:
        """Begin a phase; phases of different names may overlap."""
        self._begin((None, name))

    def end_phase(self, name: str) -> None:
        """End a phase.

        Raises:
            KeyError: if it has not begun.
        """
        self._end((None, name))

    def _begin(self, span: Span) -> None:
        self._open[span] = _now()

    def _end(self, span: Span) -> None:
        self._times[span] += _now() - self._open.pop(span)

    def observe(self, step: Step) -> None:
        """Observe a step of a schedule: it ends the phase before and begins a new one."""
        self._end_current()
        self._current = (step.module, step.name)
        self._begin(self._current)

    def _end_current(self) -> None:
        if self._current is not None:
            self._end(self._current)
            self._current = None

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
            further: further columns.
        """
        self._end_current()
        total = _now() - self._started
        own, modules, others = self._phase_times()
        for module, count in (tokens or {}).items():
            modules[module]["tokens_per_sec"] = count / total
        allocated, reserved = self._memory()
        sample = StepSample(
            iteration=iteration,
            total_time=total,
            tokens_per_sec=language_tokens / total,
            samples_per_sec=samples / total,
            tokens_per_sec_per_rank=language_tokens / total / self._world_size,
            samples_per_sec_per_rank=samples / total / self._world_size,
            memory_allocated=allocated,
            memory_reserved=reserved,
            loss=loss,
            grad_norm=grad_norm,
            time=time.time(),
            rank=self._rank,
            modules={name: ModuleSample(**values) for name, values in modules.items()},
            further={**others, **further},
            **own,
        )
        self.rows.append(sample)
        return sample

    def _phase_times(self) -> tuple[Row, dict[str, Row], Row]:
        """Return seconds by column: of the rank, of each module, and of phases timed by hand."""
        own = dict.fromkeys(_RANK_COLUMNS, 0.0)
        modules: dict[str, Row] = defaultdict(dict)
        for module in self._modules:
            modules[module] = dict.fromkeys(_MODULE_COLUMNS, 0.0)
        others: Row = {}
        for (owner, name), seconds in self._times.items():
            column = _COLUMNS.get(name, f"{name}_time")
            _add(own if column in STEP_COLUMNS else others, column, seconds)
            if owner is not None and column in MODULE_COLUMNS:
                _add(modules[owner], column, seconds)
            elif owner is not None:
                _add(others, module_column(owner, column), seconds)
        return own, modules, others

    def _memory(self) -> tuple[int, int]:
        if CPU_ONLY:
            resident = int(self._process.memory_info().rss)
            return resident, resident
        return int(torch.cuda.memory_allocated()), int(torch.cuda.memory_reserved())

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
        by_rank: list[list[StepSample]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(by_rank, self.rows)
        if dist.get_rank() == 0:
            write_metrics(directory, [sample for rows in by_rank for sample in rows])


def create_performance_monitor(
    model_config: MimoParallelismConfig,
    runtime_config: RuntimeConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
) -> PerformanceMonitor | None:
    """Return a monitor of the modules on this rank, or None if the config disables it."""
    if not runtime_config.enable_performance_monitoring:
        return None
    return PerformanceMonitor(list(module_to_grid_map), dist.get_world_size(), dist.get_rank())


def _now() -> float:
    """Seconds; on CUDA after the work queued so far is done."""
    torch.cuda.synchronize()
    return time.perf_counter()


def _add(row: Row, column: str, seconds: float) -> None:
    row[column] = row.get(column, 0.0) + seconds
