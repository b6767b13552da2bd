"""Random states per module, also on a CPU.

Megatron forks the state of its CUDA tracker around attention dropout, even at a rate of zero. On a
CPU process this tracker takes its place. Each module of a rank has separate states.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator

import torch

from mimokit.engine.megatron import (
    CPU_ONLY,
    cuda_tracker_states,
    seed_cuda_tracker,
    use_tracker,
)

# Megatron's own offset between the default and the tensor-parallel state
# (megatron.core.tensor_parallel.random.model_parallel_cuda_manual_seed).
_TENSOR_PARALLEL_OFFSET = 2718
_DEFAULT_NAME = "model-parallel-rng"


def module_seed(seed: int, module: str) -> int:
    """Return the seed of a module: equal on all its ranks, different for every module name."""
    return (seed + zlib.crc32(module.encode())) % 2**31


class CpuRngTracker:
    """Named CPU generator states; `fork` runs a block on one of them.

    The interface is that of Megatron's `CudaRNGStatesTracker`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self.states_: dict[str, torch.Tensor] = {}
        self._module = ""

    def is_initialized(self) -> bool:
        """Return whether any state was added."""
        return bool(self.states_)

    def get_states(self) -> dict[str, torch.Tensor]:
        """Return all states by name."""
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace all states."""
        self.states_ = dict(states)

    def add(self, name: str, seed: int) -> None:
        """Add a state.

        Raises:
            ValueError: if a state of that name exists.
        """
        if name in self.states_:
            raise ValueError(f"The random state {name!r} exists already; reset the tracker first.")
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Inside the block `fork()` uses the state of this module."""
        before, self._module = self._module, name
        try:
            yield
        finally:
            self._module = before

    @contextlib.contextmanager
    def fork(self, name: str = _DEFAULT_NAME) -> Iterator[None]:
        """Run a block with a named state, then restore the state before."""
        key = f"{self._module}/{name}"
        before = torch.get_rng_state()
        torch.set_rng_state(self.states_[key])
        try:
            yield
        finally:
            self.states_[key] = torch.get_rng_state()
            torch.set_rng_state(before)


_TRACKER = CpuRngTracker()


def seed_modules(seed: int, tensor_ranks: dict[str, int]) -> None:
    """Seed the tracker for the modules of this rank.

    Args:
        tensor_ranks: module -> tensor-parallel rank of this process in it.
    """
    if not CPU_ONLY:
        seed_cuda_tracker(seed, next(iter(tensor_ranks.values()), 0))
        return
    _TRACKER.reset()
    # For code that does not name its module, such as Megatron's own forward.
    _TRACKER.add(f"/{_DEFAULT_NAME}", seed + _TENSOR_PARALLEL_OFFSET)
    for module, tensor_rank in tensor_ranks.items():
        state = module_seed(seed, module) + _TENSOR_PARALLEL_OFFSET + tensor_rank
        _TRACKER.add(f"{module}/{_DEFAULT_NAME}", state)
    use_tracker(_TRACKER)


@contextlib.contextmanager
def random_state_of(module: str) -> Iterator[None]:
    """Run a block with the random state of one module."""
    if not CPU_ONLY:
        yield
        return
    with _TRACKER.module(module):
        yield


def default_state() -> torch.Tensor:
    """Return the state of torch's generator, [bytes]: the same on all ranks of a tensor group."""
    return torch.get_rng_state() if CPU_ONLY else torch.cuda.get_rng_state()


def states_inside(modules: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return module -> the state of its tensor parallel regions, [bytes]; replicas have the same.

    On CUDA a rank has one for all of its modules, which counts as that of the first.
    """
    names = list(modules)
    if CPU_ONLY:
        return {name: _TRACKER.states_[f"{name}/{_DEFAULT_NAME}"] for name in names}
    return dict.fromkeys(names[:1], cuda_tracker_states()[_DEFAULT_NAME])
