"""The bytes that a rank holds for each of its modules: its states, and what autograd keeps.

Nothing of the system is asked: a process on a CPU also holds code, pools and pages that it does not
return, which no prediction is about. Bytes are those of storages, each counted once.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.main_weights import main_weight, on_rank
from mimokit.engine.steps import Step

ACTIVATIONS = "activations"


class _KeptTensor:
    """A tensor that autograd keeps until it forgets this object."""

    __slots__ = ("_forget", "tensor")

    def __init__(self, tensor: torch.Tensor, forget: Callable[[int], None]) -> None:
        self.tensor, self._forget = tensor, forget

    def __del__(self) -> None:
        self._forget(self.tensor.untyped_storage().data_ptr())


class KeptBytes:
    """What autograd keeps for the backward passes of modules, between two points in time.

    Parameters are left out. A tensor belongs to the module in whose step it was kept first;
    `observe` says whose step begins. A backward pass on a thread of its own, as of CUDA, is not
    seen: what recomputation keeps for a moment is missing there.

    Attributes:
        most: module -> the most bytes that were kept for it at a time.
        ended: the block in which they were counted has ended.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self.most: dict[str, int] = dict.fromkeys(modules, 0)
        self.ended = False
        self._module = next(iter(modules), "")
        self._weights = {
            on_rank(parameter).untyped_storage().data_ptr()
            for module in modules.values()
            for parameter in module.parameters()
        }
        self._gathered = [getattr(module, "gathered_weights", ()) for module in modules.values()]
        self._now: dict[str, int] = defaultdict(int)
        self._storages: dict[int, list[Any]] = {}  # address -> [times kept, bytes, module]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is kept in this block."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept.tensor):
            yield
        self.ended = True

    def observe(self, step: Step) -> None:
        """See a step that begins."""
        if step.module in self.most:
            self._module = step.module

    def _keep(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if self._is_weight(address) or not storage.nbytes():
            return _KeptTensor(tensor, _nothing)
        known = self._storages.get(address)
        if known is not None:
            known[0] += 1
        else:
            size, module = storage.nbytes(), self._module
            self._storages[address] = [1, size, module]
            self._now[module] += size
            self.most[module] = max(self.most.get(module, 0), self._now[module])
        return _KeptTensor(tensor, self._forget)

    def _is_weight(self, address: int) -> bool:
        return address in self._weights or any(address in now for now in self._gathered)

    def _forget(self, address: int) -> None:
        known = self._storages[address]
        known[0] -= 1
        if not known[0]:
            del self._storages[address]
            self._now[known[2]] -= known[1]


def _nothing(address: int) -> None:
    """Forget nothing: a parameter is not counted."""


def bytes_of_states(
    modules: Mapping[str, ModuleDataParallel], optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, int]]:
    """Return module -> bytes of weights, of gradients, and of what an optimizer keeps.

    The last are main weights and states, of this rank's entries where they are sharded.
    """
    held = {}
    for name, module in modules.items():
        parameters = list(module.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        mains = [main_weight(parameter) for parameter in trained]
        copies = [m for m, parameter in zip(mains, trained, strict=True) if m is not parameter]
        states = [
            value
            for main in mains
            for value in optimizer.state.get(main, {}).values()
            if torch.is_tensor(value) and value.dim()
        ]
        held[name] = {
            "weights": _bytes_of(parameters),
            "gradients": _bytes_of(
                parameter.main_grad for parameter in trained if hasattr(parameter, "main_grad")
            ),
            "optimizer": _bytes_of(_apart(copies, parameters)) + _bytes_of(states),
        }
    return held


def _apart(copies: Iterable[torch.Tensor], weights: Iterable[torch.Tensor]) -> Iterator[Any]:
    storages = {on_rank(weight).untyped_storage().data_ptr() for weight in weights}
    yield from (c for c in copies if c.untyped_storage().data_ptr() not in storages)


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    own = map(on_rank, tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in own)
