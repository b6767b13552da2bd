"""What Megatron-Core and gloo need in a process without CUDA. With CUDA nothing here has effect."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

CPU_ONLY = not torch.cuda.is_available()


class _IdleStream:
    """Stands for a CUDA stream in a process without CUDA, where work runs in order anyway."""

    def __init__(self, *arguments: object, **options: object) -> None:
        """Take what CUDA's takes."""

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""

    def record_event(self) -> _IdleStream:
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""


def share_cores() -> None:
    """Let this rank take turns with the others of its machine; for threads that it starts later.

    More threads would compete for cores. A thread of gloo that receives asks for the lock of one
    that sends until it has it, so it must not interrupt that one: threads of this policy do not.
    """
    if CPU_ONLY:
        torch.set_num_threads(1)
        with contextlib.suppress(AttributeError, OSError):  # not on Linux, or not allowed
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def answer_for_cuda() -> None:
    """Replace the functions of `torch.cuda` that Megatron calls on a CPU process."""
    stream = _IdleStream()
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_stream = lambda device=None: stream  # type: ignore[assignment,return-value]
    torch.cuda.default_stream = lambda device=None: stream  # type: ignore[assignment,return-value]
    torch.cuda.Stream = _IdleStream  # type: ignore[assignment,misc]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment,return-value]


def _leave_eager(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    return function if function is not None else _leave_eager


@contextlib.contextmanager
def quick_import() -> Iterator[None]:
    """Import Megatron quietly, and on a CPU without `torch.compile`.

    Decorating a few fused functions loads torch's whole compiler. It takes two thirds of the import
    time, for kernels that a CPU run does not use.
    """
    compiler = torch.compile
    # A torch with CUDA libraries warns if there is a compiler for CUDA, but no device.
    extensions = logging.getLogger("torch.utils.cpp_extension")
    if CPU_ONLY:
        torch.compile = _leave_eager  # type: ignore[assignment]
        extensions.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compile = compiler
        extensions.disabled = False


def patch_functions() -> None:
    """Replace the functions of Megatron that make a tensor on "cuda", once it is imported."""
    from megatron.core.fusions import fused_softmax
    from megatron.core.models.common.embeddings import (
        rotary_pos_embedding,
        yarn_rotary_pos_embedding,
    )
    from megatron.core.tensor_parallel import layers, random
    from megatron.core.transformer import utils

    from mimokit.engine.megatron.experts import on_cpu
    from mimokit.engine.megatron.sums import Functional

    # Recomputation keeps the state of CUDA's generator beside that of the CPU and of the tracker.
    random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: None
    random._set_cuda_rng_state = lambda new_state, device=-1, graph_safe=False: None

    # From 0.19 on `MimoModel.forward` passes its language model no mask, whatever it is given; the
    # softmax then makes a causal one with device="cuda".
    fused_softmax.get_default_causal_mask = _causal_mask
    utils.get_default_causal_mask = _causal_mask
    fused_softmax.get_sliding_window_causal_mask = _window_mask
    on_cpu(torch.cuda.current_stream())
    # It pins memory and calls `.cuda()`.
    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = _positions_on_rank
    yarn_rotary_pos_embedding.get_pos_emb_on_this_cp_rank = _positions_on_rank
    layers.F = Functional()
    # Advice for CUDA devices, which every rank would print.
    layers.linear_with_grad_accumulation_and_async_allreduce.warned = True


def _positions_on_rank(
    embedding: torch.Tensor, dimension: int, group: dist.ProcessGroup
) -> torch.Tensor:
    ranks, rank = group.size(), group.rank()
    chunks = embedding.chunk(2 * ranks, dimension)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]), dimension)


def _causal_mask(tokens: int) -> torch.Tensor:
    """Return a mask [tokens, tokens] that is True where a token would attend to a later one."""
    device = torch.cuda.current_device()
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)


def _window_mask(queries: int, keys: int, window: tuple[int, int]) -> torch.Tensor:
    """Return a mask [queries, keys] that is True where a query would look out of its window."""
    before, after = window
    seen = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries - before)
    return ~seen.tril(keys - queries + after)
