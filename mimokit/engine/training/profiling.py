"""PyTorch's profiler over the steps in the runtime config, and marks for Nsight."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import RuntimeConfig
from mimokit.engine.megatron import CPU_ONLY
from mimokit.samples import Emit, ProfileSample

PART_BYTES = 2**18
"""A file travels in parts of this size, so that other samples come between them."""


class Profile:
    """Called at the end of every iteration."""

    def __init__(self, runtime: RuntimeConfig, profile: Any | None) -> None:
        self._runtime = runtime
        self._profile = profile

    def step(self, iteration: int) -> None:
        """End an iteration."""
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
def profiler(runtime: RuntimeConfig, emit: Emit) -> Iterator[Profile]:
    """Profile the steps [profile_start_step, profile_end_step) if the config asks for it.

    With `use_pytorch_profiler` every rank emits its file: the process that takes the samples has
    the run's folder, which the ranks may not reach. A run that ends earlier emits what it has. On
    CUDA, `enable_profiling` also starts and stops a profiler attached from outside (Nsight).
    """
    with contextlib.ExitStack() as stack:
        profile = None
        if runtime.enable_profiling and runtime.use_pytorch_profiler:
            profile = stack.enter_context(_torch_profiler(runtime, emit))
        yield Profile(runtime, profile)


def _torch_profiler(runtime: RuntimeConfig, emit: Emit) -> Any:
    start, stop = runtime.profile_start_step, runtime.profile_end_step
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(
            wait=max(start - 1, 0), warmup=min(start, 1), active=max(stop - start, 1), repeat=1
        ),
        on_trace_ready=partial(_send, emit),
    )


def _send(emit: Emit, profile: Any) -> None:
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        # The name that TensorBoard's plugin expects: worker, time, ending.
        file = Path(folder) / f"rank{rank}.{time.time_ns()}.pt.trace.json.gz"
        profile.export_chrome_trace(str(file))
        content = file.read_bytes()
    pieces = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    for number, piece in enumerate(pieces):
        emit(
            ProfileSample(rank=rank, name=file.name, part=number, parts=len(pieces), content=piece)
        )
