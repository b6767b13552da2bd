"""Seconds of code that runs many times: matrix products, attention and memory on one rank.

On a CPU they are those in which this process computes, with the threads of gloo: a wall clock would
include the time slices of other ranks. With CUDA they are those between two events around calls.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from mimokit.engine.device import rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.prediction.calibration.measurements import ProductTime

CHUNKS = 3
"""Repetitions are timed in this number of parts, of which the median counts."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CPU_WIDTHS, CUDA_WIDTHS = (64, 128, 256, 512), (512, 1024, 2048, 4096, 8192)
CPU_ROWS, CUDA_ROWS = (64, 256, 1024), (1024, 4096, 16384)
SECONDS_PER_SIZE = 0.03
"""A size is repeated for about so long."""


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median over parts of `repeats` calls; a first call is not counted."""
    function()
    each = max(1, repeats // CHUNKS)
    return statistics.median(_chunk(function, each) for _ in range(min(CHUNKS, repeats)))


def _chunk(function: Callable[[], object], count: int) -> float:
    if not CPU_ONLY:
        return _chunk_on_cuda(function, count)
    begun = time.process_time()
    for _ in range(count):
        function()
    return (time.process_time() - begun) / count


def _chunk_on_cuda(function: Callable[[], object], count: int) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1000 / count


def _busy(function: Callable[[], object]) -> float:
    once = max(median_seconds(function, 1), 1e-7)
    return median_seconds(function, int(min(max(SECONDS_PER_SIZE / once, 3), 300)))


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
    return ProductTime(precision, rows, width, _busy(lambda: left @ right))


def attention_rates(precisions: Sequence[str]) -> dict[str, float]:
    """Return operations per second of a causal attention core, by precision."""
    heads, tokens, width = (8, 256, 64) if CPU_ONLY else (32, 4096, 128)
    rates = {}
    for name in precisions:
        query = torch.randn(1, heads, tokens, width, device=rank_device()).to(PRECISIONS[name])

        def attend(query: torch.Tensor = query) -> torch.Tensor:
            return F.scaled_dot_product_attention(query, query, query, is_causal=True)

        rates[name] = 2.0 * heads * tokens * (tokens / 2) * 2 * width / _busy(attend)
    return rates


def memory_bandwidth() -> float:
    """Return the bytes per second at which a large tensor is read and written."""
    numbers = 2**22 if CPU_ONLY else 2**28
    values = torch.ones(numbers, device=rank_device())
    copy = torch.empty_like(values)
    return 2.0 * 4 * numbers / _busy(lambda: copy.copy_(values))
