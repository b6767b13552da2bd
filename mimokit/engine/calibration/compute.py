"""Matrix products, attention and memory of one rank, while the other ranks do the same."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from mimokit.engine.calibration.clock import timed
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import CPU_ONLY
from mimokit.prediction.calibration.measurements import ProductTime

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
CPU_WIDTHS, CUDA_WIDTHS = (64, 128, 256, 512), (512, 1024, 2048, 4096, 8192)
CPU_ROWS, CUDA_ROWS = (64, 256, 1024), (1024, 4096, 16384)
SECONDS_PER_SIZE = 0.03
"""A size is repeated for about so long."""
SPIN_SECONDS, SPIN_MARGIN = 0.5, 0.1
"""The cores are shared for so long; before and after, some ranks may not spin yet or any more."""


def product_times() -> list[ProductTime]:
    """Measure products of several sizes, in every precision."""
    widths, rows = (CPU_WIDTHS, CPU_ROWS) if CPU_ONLY else (CUDA_WIDTHS, CUDA_ROWS)
    return [
        _product_time(name, count, width)
        for name in PRECISIONS
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
    once = timed(function, 1).cpu_seconds
    timing = timed(function, int(min(max(SECONDS_PER_SIZE / max(once, 1e-7), 3), 300)))
    return timing.cpu_seconds if CPU_ONLY else timing.seconds


def attention_rates() -> dict[str, float]:
    """Return operations per second of a causal attention core, by precision."""
    heads, tokens, width = (8, 256, 64) if CPU_ONLY else (32, 4096, 128)
    found = {}
    for name, kind in PRECISIONS.items():
        query = torch.randn(1, heads, tokens, width, device=rank_device()).to(kind)

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
