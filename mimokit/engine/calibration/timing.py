"""Times of code that runs many times: how they are taken, and those of matrix products, attention
and memory on one rank, while the other ranks do the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from mimokit.engine.device import rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.prediction.calibration.measurements import ProductTime

CHUNKS = 3
"""Repetitions are timed in this number of parts, of which the median counts."""


@dataclass(frozen=True)
class Timing:
    """The time of one call.

    Attributes:
        seconds: of the wall clock; on CUDA between two events around the calls.
        cpu_seconds: of this process; for laps see `Stopwatch`.
    """

    seconds: float
    cpu_seconds: float


def timed(function: Callable[[], object], repeats: int) -> Timing:
    """Return the median over parts of `repeats` calls; a first call is not counted."""
    function()
    per_chunk = max(1, repeats // CHUNKS)
    parts = [_chunk(function, per_chunk) for _ in range(min(CHUNKS, repeats))]
    return Timing(
        statistics.median(part.seconds for part in parts),
        statistics.median(part.cpu_seconds for part in parts),
    )


def _chunk(function: Callable[[], object], count: int) -> Timing:
    if not CPU_ONLY:
        return _chunk_on_cuda(function, count)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        function()
    return Timing((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)


def _chunk_on_cuda(function: Callable[[], object], count: int) -> Timing:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    cpu = time.process_time()
    begin.record()
    for _ in range(count):
        function()
    end.record()
    cpu = time.process_time() - cpu
    end.synchronize()
    return Timing(begin.elapsed_time(end) / 1000 / count, cpu / count)


def own_seconds() -> float:
    """Return the CPU seconds of this thread.

    With CUDA those of the process, as autograd then computes in separate threads.
    """
    return time.thread_time() if CPU_ONLY else time.process_time()


def others_seconds() -> float:
    """Return the CPU seconds of this process's other threads, mostly gloo's; with CUDA 0."""
    return time.process_time() - own_seconds()


class Stopwatch:
    """Records the time between `start` and `stop`, over several rounds.

    The CPU seconds of a lap are those of `own_seconds`; concurrent work of gloo's threads belongs
    to the collective before.
    """

    def __init__(self) -> None:
        self.laps: list[Timing] = []
        self._wall = self._cpu = 0.0

    def start(self) -> None:
        """Begin a lap."""
        torch.cuda.synchronize()
        self._wall, self._cpu = time.perf_counter(), own_seconds()

    def stop(self) -> None:
        """End the lap; on CUDA when its work is done."""
        torch.cuda.synchronize()
        self.laps.append(Timing(time.perf_counter() - self._wall, own_seconds() - self._cpu))

    def mean(self, uncounted: int = 0) -> Timing:
        """Return the mean lap.

        A median would leave out costs that occur in few laps, such as caches that another rank has
        filled: a tenth of the cost of collectives.

        Args:
            uncounted: number of first laps to leave out.
        """
        laps = self.laps[uncounted:]
        return Timing(
            statistics.fmean(lap.seconds for lap in laps),
            statistics.fmean(lap.cpu_seconds for lap in laps),
        )


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CPU_WIDTHS, CUDA_WIDTHS = (64, 128, 256, 512), (512, 1024, 2048, 4096, 8192)
CPU_ROWS, CUDA_ROWS = (64, 256, 1024), (1024, 4096, 16384)
SECONDS_PER_SIZE = 0.03
"""A size is repeated for about so long."""
SPIN_SECONDS, SPIN_MARGIN = 0.5, 0.1
"""The cores are shared for so long; before and after, some ranks may not spin yet or any more."""


def product_times(precisions: Sequence[str]) -> list[ProductTime]:
    """Measure products of several sizes, in some precisions."""
    widths, rows = (CPU_WIDTHS, CPU_ROWS) if CPU_ONLY else (CUDA_WIDTHS, CUDA_ROWS)
    return [
        _product_time(name, count, width)
        for name in precisions
        for width in widths
        for count in rows
    ]


def _product_time(precision: str, rows: int, width: int) -> ProductTime:
    kind, device = PRECISIONS[precision], rank_device()
    left = torch.randn(rows, width, device=device).to(kind)
    right = torch.randn(width, width, device=device).to(kind)

    def multiply() -> torch.Tensor:
        return left @ right

    return ProductTime(precision, rows, width, _busy(multiply))


def _busy(function: Callable[[], object]) -> float:
    """Return the seconds of a call in which this rank computes.

    On a shared CPU a wall clock would include the time slices of other ranks.
    """

    def busy(count: int) -> float:
        timing = timed(function, count)
        return timing.cpu_seconds if CPU_ONLY else timing.seconds

    return busy(int(min(max(SECONDS_PER_SIZE / max(busy(1), 1e-7), 3), 300)))


def attention_rates(precisions: Sequence[str]) -> dict[str, float]:
    """Return operations per second of a causal attention core, by precision."""
    heads, tokens, width = (8, 256, 64) if CPU_ONLY else (32, 4096, 128)
    found = {}
    for name in precisions:
        query = torch.randn(1, heads, tokens, width, device=rank_device()).to(PRECISIONS[name])

        def attend(query: torch.Tensor = query) -> torch.Tensor:
            return F.scaled_dot_product_attention(query, query, query, is_causal=True)

        seconds = _busy(attend)
        found[name] = 2.0 * heads * tokens * (tokens / 2) * 2 * width / seconds
    return found


def memory_bandwidth() -> float:
    """Return the bytes per second at which a large tensor is read and written."""
    numbers = 2**22 if CPU_ONLY else 2**28
    values = torch.ones(numbers, device=rank_device())
    copy = torch.empty_like(values)
    seconds = _busy(lambda: copy.copy_(values))
    return 2.0 * 4 * numbers / seconds


def cores() -> float:
    """Return the CPU seconds per second that this rank gets while all spin. Collective."""
    dist.barrier()
    _spin(SPIN_MARGIN)
    wall, cpu = time.perf_counter(), time.process_time()
    _spin(SPIN_SECONDS)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    _spin(SPIN_MARGIN)
    return share


def _spin(seconds: float) -> None:
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        pass
