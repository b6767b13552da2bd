"""Says what a rank held for each module when it had no memory for more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch

from mimokit.engine.training.memory import memory_meter
from mimokit.units import bytes_text, parts_text

Held = Mapping[str, Mapping[str, int]]
"""Module -> part -> bytes."""
_OF_TORCH_ON_CPU = "DefaultCPUAllocator"


class OutOfMemory(MemoryError):  # noqa: N818
    """A rank had no memory for more; its message says for what the rank held how much."""


@contextlib.contextmanager
def telling_what_is_held(when: str, held: Callable[[], Held]) -> Iterator[None]:
    """Have a failed allocation in this block raise `OutOfMemory`.

    Args:
        when: the allocation failed, as the end of a sentence.
        held: returns what the rank holds, and what was kept for backward passes at most so far.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OutOfMemory(f"no memory was left {when}: {held_text(held())} ({cause})") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of Python, of torch on a CPU or of torch on a GPU failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return not isinstance(error, OutOfMemory)
    return _OF_TORCH_ON_CPU in str(error)


def held_text(held: Held) -> str:
    """Return what a rank holds in words, with what the process or the device has in use."""
    modules = [f"'{module}' {parts_text(parts)}" for module, parts in held.items()]
    meter = memory_meter()
    meter.start()
    use = bytes_text(meter.read().allocated)
    return f"{use} in use, of which {'; '.join(modules)}" if modules else f"{use} in use"
