"""Megatron's own global state, for tests that build its models as Megatron-LM does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def model_parallel(*sizes: int, **more: Any) -> Iterator[Any]:
    """Make the groups of `initialize_model_parallel` on this rank; yield `parallel_state`.

    A run before may have left the memory buffer that mimokit's layers need, and Megatron wants to
    open it itself.
    """
    from mimokit.engine.megatron import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(*sizes, **more)
    try:
        yield parallel_state
    finally:
        parallel_state.destroy_model_parallel()
