"""torch's profiler and TensorBoard for the steps in the runtime config."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import RuntimeConfig
from mimokit.engine.megatron import CPU_ONLY


class Profile:
    """Called at the end of every iteration."""

    def __init__(self, runtime: RuntimeConfig, profile: Any | None, writer: Any | None) -> None:
        self._runtime = runtime
        self._profile = profile
        self._writer = writer

    def step(self, iteration: int, loss: float) -> None:
        """End an iteration."""
        if self._writer is not None:
            self._writer.add_scalar("loss", loss, iteration)
        if self._profile is not None:
            self._profile.step()
        if self._runtime.enable_profiling and not CPU_ONLY:
            self._mark_for_nsight(iteration + 1)

    def _mark_for_nsight(self, following: int) -> None:
        if following == self._runtime.profile_start_step:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        if following == self._runtime.profile_end_step:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def profiler(runtime: RuntimeConfig) -> Iterator[Profile]:
    """Profile the steps [profile_start_step, profile_end_step) if the config asks for it.

    With `use_pytorch_profiler` every rank writes a trace into `tensorboard_dir` (else
    `metrics_output_dir`, else the working directory); rank 0 writes the loss into
    `tensorboard_dir`. On CUDA, `enable_profiling` also starts and stops a profiler attached from
    outside (Nsight).

    Raises:
        RuntimeError: if TensorBoard files are asked for and tensorboard is not installed.
    """
    with contextlib.ExitStack() as stack:
        writer = None
        if runtime.tensorboard_dir is not None and dist.get_rank() == 0:
            writer = stack.enter_context(_summary_writer(runtime.tensorboard_dir))
        profile = None
        if runtime.enable_profiling and runtime.use_pytorch_profiler:
            profile = stack.enter_context(_torch_profiler(runtime))
        yield Profile(runtime, profile, writer)


def _torch_profiler(runtime: RuntimeConfig) -> Any:
    start, stop = runtime.profile_start_step, runtime.profile_end_step
    folder = runtime.tensorboard_dir or runtime.metrics_output_dir or "."
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(
            wait=max(start - 1, 0), warmup=min(start, 1), active=max(stop - start, 1), repeat=1
        ),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(
            folder, worker_name=f"rank{dist.get_rank()}"
        ),
    )


def _summary_writer(folder: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RuntimeError(
            "runtime.tensorboard_dir is given but tensorboard is not installed; "
            "install mimokit[lab] or leave tensorboard_dir out."
        ) from error
    return SummaryWriter(folder)
