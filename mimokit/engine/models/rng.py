"""Random states per module, on a CPU and on CUDA.

Megatron forks the state of its tracker around attention dropout, even at a rate of zero. This
tracker takes its place. Each module of a rank has separate states.
"""

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from mimokit.engine.device import rank_device
from mimokit.engine.megatron import CPU_ONLY, use_tracker
from mimokit.engine.parallel.row import SampleRow

# Megatron's own offset between the default and the tensor-parallel state
# (megatron.core.tensor_parallel.random.model_parallel_cuda_manual_seed).
_TENSOR_PARALLEL_OFFSET = 2718
_DEFAULT_NAME = "model-parallel-rng"


def module_seed(seed: int, module: str) -> int:
    """Return the seed of a module: equal on all its ranks, different for every module name."""
    return (seed + zlib.crc32(module.encode())) % 2**31


def seed_weights(seed: int, module: str | None = None) -> None:
    """Seed what weights are drawn from, on a CPU without tracebacks for GPUs that are not there."""
    seed = seed if module is None else module_seed(seed, module)
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(seed)


@dataclass(frozen=True)
class MaskRows:
    """Which samples a module computes: masks of dropout are drawn for them, see `dropout.py`.

    Attributes:
        step: optimizer steps before this one.
        pairs: number of every row's sample in the global batch, and of the row among the items of
            its sample.
    """

    step: int
    pairs: Sequence[tuple[int, int]]

    @property
    def samples(self) -> torch.Tensor:
        """The samples of the rows, [rows] int32."""
        return self._table[:, 0]

    @property
    def items(self) -> torch.Tensor:
        """The items of the rows, [rows] int32."""
        return self._table[:, 1]

    @cached_property
    def _table(self) -> torch.Tensor:
        """Made when it is first read: most models drop nothing."""
        table = torch.tensor(self.pairs, dtype=torch.int32, device=rank_device())
        return table.reshape(-1, 2)


def mask_rows(step: int, samples: Sequence[int], items: Sequence[int] | None = None) -> MaskRows:
    """Return the rows of some samples.

    Args:
        samples: numbers in the global batch.
        items: of every sample; None: each sample is one row.
    """
    counts = [1] * len(samples) if items is None else items
    pairs = [(n, item) for n, own in zip(samples, counts, strict=True) for item in range(own)]
    return MaskRows(step, pairs)


@dataclass(frozen=True)
class _Computed:
    """What a rank computes at the moment: a module, of which samples, and how long these are.

    Attributes:
        lengths: tokens of the samples without padding.
        row: in which they are, one after another; None: each is a column of the batch.
    """

    module: str = ""
    rows: MaskRows | None = None
    lengths: Sequence[int] | None = None
    row: SampleRow | None = None


def _state() -> torch.Tensor:
    return torch.get_rng_state() if CPU_ONLY else torch.cuda.get_rng_state()


def _set_state(state: torch.Tensor) -> None:
    if CPU_ONLY:
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state)


class ModuleRngTracker:
    """Named generator states of every module; `fork` runs a block on one of them.

    The interface is that of Megatron's `CudaRNGStatesTracker`.
    """

    _COMPUTED = ""
    """Key in `get_states` beside the names of states, which are not empty."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self.states_: dict[str, torch.Tensor] = {}
        self._computed = _Computed()
        self._forked: str | None = None

    def is_initialized(self) -> bool:
        """Return whether any state was added."""
        return bool(self.states_)

    def get_states(self) -> dict[str, Any]:
        """Return all states by name, and what is computed at the moment.

        Megatron keeps this while a recomputed block runs forward and hands it to `set_states` where
        the backward pass runs the block again, which is outside of `computing`.
        """
        return {**self.states_, self._COMPUTED: self._computed}

    def set_states(self, states: dict[str, Any]) -> None:
        """Replace all states and what is computed."""
        self.states_ = {name: state for name, state in states.items() if name != self._COMPUTED}
        self._computed = states[self._COMPUTED]

    def add(self, name: str, seed: int) -> None:
        """Add a state.

        Raises:
            ValueError: if a state of that name exists.
        """
        if name in self.states_:
            raise ValueError(f"The random state {name!r} exists already; reset the tracker first.")
        generator = torch.Generator(device=rank_device())
        self.states_[name] = generator.manual_seed(seed).get_state()

    @property
    def module(self) -> str:
        """The module that is computed at the moment."""
        return self._computed.module

    @property
    def rows(self) -> MaskRows | None:
        """The samples that are computed at the moment; None where no schedule says it."""
        return self._computed.rows

    @property
    def lengths(self) -> Sequence[int] | None:
        """Tokens of these samples without padding; None where all tokens count."""
        return self._computed.lengths

    @property
    def row(self) -> SampleRow | None:
        """The row in which these samples are; None: each is a column of the batch."""
        return self._computed.row

    @contextlib.contextmanager
    def computing(
        self,
        module: str,
        rows: MaskRows | None = None,
        lengths: Sequence[int] | None = None,
        row: SampleRow | None = None,
    ) -> Iterator[None]:
        """Inside the block `fork()` uses the state of this module."""
        before, self._computed = self._computed, _Computed(module, rows, lengths, row)
        try:
            yield
        finally:
            self._computed = before

    @contextlib.contextmanager
    def fork(self, name: str = _DEFAULT_NAME) -> Iterator[None]:
        """Run a block with a named state, then restore the state before.

        A block inside a block of the same state goes on with it, so that the two draw different
        numbers.
        """
        key = f"{self._computed.module}/{name}"
        if key == self._forked:
            yield
            return
        before, outer = _state(), self._forked
        self._forked = key
        _set_state(self.states_[key])
        try:
            yield
        finally:
            self.states_[key] = _state()
            _set_state(before)
            self._forked = outer


_TRACKER = ModuleRngTracker()


def seed_modules(seed: int, tensor_ranks: dict[str, int]) -> None:
    """Seed the tracker for the modules of this rank.

    Args:
        tensor_ranks: module -> tensor-parallel rank of this process in it.
    """
    _TRACKER.reset()
    # For code that does not name its module, such as Megatron's own forward.
    _TRACKER.add(f"/{_DEFAULT_NAME}", seed + _TENSOR_PARALLEL_OFFSET)
    for module, tensor_rank in tensor_ranks.items():
        state = module_seed(seed, module) + _TENSOR_PARALLEL_OFFSET + tensor_rank
        _TRACKER.add(f"{module}/{_DEFAULT_NAME}", state)
    use_tracker(_TRACKER)


@contextlib.contextmanager
def random_state_of(
    module: str,
    rows: MaskRows | None = None,
    lengths: Sequence[int] | None = None,
    row: SampleRow | None = None,
) -> Iterator[None]:
    """Run a block with the random state of one module, which computes these samples.

    Args:
        lengths: see `computing_lengths`, as for `row`.
    """
    with _TRACKER.computing(module, rows, lengths, row):
        yield


@contextlib.contextmanager
def computing_other_rows(**changes: Any) -> Iterator[None]:
    """Run a block in which the module that computes has other rows.

    Args:
        changes: of the fields of `MaskRows`, where there are any.
    """
    rows = _TRACKER.rows
    with _TRACKER.computing(_TRACKER.module, None if rows is None else replace(rows, **changes)):
        yield


def rows_computed() -> MaskRows | None:
    """Return the samples that this rank computes at the moment, also where it recomputes."""
    return _TRACKER.rows


@contextlib.contextmanager
def computing_lengths(
    lengths: Sequence[int] | None, row: SampleRow | None = None
) -> Iterator[None]:
    """Run a block in which samples have as many tokens without padding, and may be in a row."""
    with _TRACKER.computing(_TRACKER.module, _TRACKER.rows, lengths, row):
        yield


def lengths_computed() -> Sequence[int] | None:
    """Return the tokens of the samples that this rank computes; None: padding is not known."""
    return _TRACKER.lengths


def row_computed() -> SampleRow | None:
    """Return the row of the samples that this rank computes; None: they are in none."""
    return _TRACKER.row


def default_state() -> torch.Tensor:
    """Return the state of torch's generator, [bytes]: the same on all ranks of a tensor group."""
    return _state()


_OF_TORCH, _OF_CPU, _TRACKED = "default", "cpu", "tracked "
"""Names of states: torch's generator on the device, on the CPU, and those of the tracker."""


def random_states() -> dict[str, torch.Tensor]:
    """Return every random state of torch on this rank: name -> state, [bytes]."""
    tracked = {f"{_TRACKED}{key}": state for key, state in _TRACKER.states_.items()}
    return {_OF_TORCH: _state(), _OF_CPU: torch.get_rng_state(), **tracked}


def set_random_states(states: Mapping[str, torch.Tensor]) -> None:
    """Go on from what `random_states` returned; what this rank does not have is left out."""
    for name, state in states.items():
        key = name.removeprefix(_TRACKED)
        if key in _TRACKER.states_:
            _TRACKER.states_[key] = state
    if _OF_CPU in states:
        torch.set_rng_state(states[_OF_CPU])
    if _OF_TORCH in states:
        _set_state(states[_OF_TORCH])


def states_inside(modules: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return module -> the state of its tensor parallel regions, [bytes]; equal in replicas."""
    return {name: _TRACKER.states_[f"{name}/{_DEFAULT_NAME}"] for name in modules}
