"""Times, throughput and memory of every step on this rank."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from mimokit.config import MimoParallelismConfig, RuntimeConfig
from mimokit.engine.megatron import CPU_ONLY, HyperCommGrid
from mimokit.engine.steps import Step
from mimokit.engine.training.metrics import write_metrics
from mimokit.step_kinds import MODULE_PHASES, RANK_PHASES, StepKind

_PHASES = tuple(dict.fromkeys((*MODULE_PHASES, *RANK_PHASES)))
_COLUMNS = {str(kind): kind.phase.column for kind in StepKind}

Span = tuple[str | None, str]
"""(module, name of a phase)."""


class PerformanceMonitor:
    """Collects one row per iteration on this rank.

    Times are seconds. communication_time holds the bridges between modules, the messages between
    pipeline stages (and the wait for them: the bubble) and the reduction of gradients; the
    collectives inside a module (tensor parallel) are part of its forward and backward. Memory is
    bytes: of the CUDA allocator, on a CPU the resident memory of the process.

    Args:
        module_names: the modules on this rank, in order.
        world_size: ranks over which the rates per rank are counted.
    """

    def __init__(self, module_names: Sequence[str], world_size: int) -> None:
        self._modules = tuple(module_names)
        self._world_size = world_size
        self._process = psutil.Process()
        self.rows: list[dict[str, Any]] = []
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
            KeyError: if it was not begun.
        """
        self._end((None, name))

    def _begin(self, span: Span) -> None:
        self._open[span] = _now()

    def _end(self, span: Span) -> None:
        self._times[span] += _now() - self._open.pop(span)

    def observe(self, step: Step) -> None:
        """Follow a schedule: every step ends the phase before and begins its own."""
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
        **values: float,
    ) -> dict[str, Any]:
        """End an iteration and return its row.

        Args:
            iteration: 0-based.
            samples: samples of all ranks in this step.
            tokens: module -> tokens it computed over all ranks.
            language_tokens: tokens of the language model over all ranks, padding included.
            values: further columns, such as loss and grad_norm.
        """
        self._end_current()
        total = _now() - self._started
        row: dict[str, Any] = {"iteration": iteration, "total_time": total}
        row.update(self._phase_columns())
        allocated, reserved = self._memory()
        row.update(
            tokens_per_sec=language_tokens / total,
            samples_per_sec=samples / total,
            tokens_per_sec_per_rank=language_tokens / total / self._world_size,
            samples_per_sec_per_rank=samples / total / self._world_size,
            memory_allocated=allocated,
            memory_reserved=reserved,
            **values,
        )
        for module, count in (tokens or {}).items():
            row[f"{module}_tokens_per_sec"] = count / total
        self.rows.append(row)
        return row

    def _phase_columns(self) -> dict[str, float]:
        columns = {phase.column: 0.0 for phase in _PHASES}
        for module in self._modules:
            for phase in MODULE_PHASES:
                columns[phase.column_of(module)] = 0.0
        for (owner, name), seconds in self._times.items():
            column = _COLUMNS.get(name, f"{name}_time")
            columns[column] = columns.get(column, 0.0) + seconds
            if owner is not None:
                per_module = f"{owner}_{column}"
                columns[per_module] = columns.get(per_module, 0.0) + seconds
        return columns

    def _memory(self) -> tuple[int, int]:
        if CPU_ONLY:
            resident = int(self._process.memory_info().rss)
            return resident, resident
        return int(torch.cuda.memory_allocated()), int(torch.cuda.memory_reserved())

    def log_metrics(self, iteration: int) -> dict[str, Any]:
        """Return the row of an iteration.

        Raises:
            KeyError: if there is none.
        """
        by_iteration: dict[int, dict[str, Any]] = {row["iteration"]: row for row in self.rows}
        if iteration in by_iteration:
            return by_iteration[iteration]
        raise KeyError(f"No metrics of iteration {iteration}; it has not ended.")

    def save_metrics(self, directory: str | Path) -> None:
        """Write `metrics.csv` and `metrics_by_rank.csv` on rank 0. Collective.

        The first has one row per iteration: of times and memory the largest over the ranks, which
        is what the others waited for. The second has one row per iteration and rank.
        """
        rows: list[list[dict[str, Any]]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(rows, self.rows)
        if dist.get_rank() == 0:
            write_metrics(directory, dict(enumerate(rows)))


def create_performance_monitor(
    model_config: MimoParallelismConfig,
    runtime_config: RuntimeConfig,
    module_to_grid_map: Mapping[str, HyperCommGrid],
) -> PerformanceMonitor | None:
    """Return a monitor of the modules on this rank, None where the config wants none."""
    if not runtime_config.enable_performance_monitoring:
        return None
    return PerformanceMonitor(list(module_to_grid_map), dist.get_world_size())


def _now() -> float:
    """Seconds; on CUDA after the work queued so far is done."""
    torch.cuda.synchronize()
    return time.perf_counter()
