"""A stand-in for a GPU: a device whose data lies on the CPU, and that refuses to mix with the CPU.

A rank's tensors are those that were made on `DEVICE`, moved there, or computed from such. What
autograd makes in C++ has no place of its own and goes with both. Nothing here knows of kernels,
streams or backends: it finds tensors that are made in the wrong place, and the code in which the
host waits for the device, as it reads a tensor of it or gives it one.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

DEVICE, HOST = torch.device("cpu", 0), torch.device("cpu")
"""Both are the CPU to torch, which tells them apart by their names alone."""

_INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.copy_)
_TO_HOST = (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.tolist)
_READS = (
    *_TO_HOST,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.nonzero,
)
_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_DEVICE_OF: Any = torch.Tensor.device.__get__  # type: ignore[attr-defined]


class WrongDeviceError(AssertionError):
    """Tensors of two devices are mixed, or one of the rank's is read as if it were on the CPU."""


class TwoDevices(TorchFunctionMode):
    """Knows the device of every tensor that functions of torch make in Python.

    Attributes:
        waits: file and function of every call that reads a tensor of the device, or moves one there
            from memory that is not pinned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._places: Any = WeakTensorKeyDictionary()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch after checking where its tensors are."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        if function == _DEVICE_OF:
            return self._places.get(args[0], function(*args))
        if function == _SET_DATA:
            self._put(args[0], self._places.get(args[1]))
            return function(*args, **kwargs)
        self._check(function, args, tensors)
        place = self._place_of_result(function, tensors, (*args, *kwargs.values()))
        self._note_wait(function, tensors, place)
        result = function(*args, **kwargs)
        moved = function in _MOVES and function is not torch.Tensor.copy_
        if moved and result is args[0] and self._places.get(result) != place:
            result = torch.ops.aten.alias(result)  # the tensor itself stays where it is
        for leaf in tree_leaves(result):
            if torch.is_tensor(leaf) and (leaf is not tensors[0] if tensors else True):
                self._put(leaf, place)
        return result

    def _note_wait(
        self, function: Any, tensors: list[torch.Tensor], place: torch.device | None
    ) -> None:
        before = self._places.get(tensors[0]) if tensors else None
        moved = function in _MOVES and {before, place} == {DEVICE, HOST}
        if moved or (function in _READS and before == DEVICE):
            code = sys._getframe(2).f_code
            self.waits.append(f"{Path(code.co_filename).name} {code.co_name}")

    def _put(self, tensor: torch.Tensor, place: torch.device | None) -> None:
        if place is not None and not tensor.is_meta:
            self._places[tensor] = place

    def _check(self, function: Any, args: Any, tensors: list[torch.Tensor]) -> None:
        named = getattr(function, "__name__", str(function))
        all_known = all(tensor in self._places for tensor in tensors)
        single = named.startswith("_fused_") and all_known  # takes no numbers of the host
        places = {self._places.get(each) for each in tensors if each.dim() or single} - {None}
        if function is torch.Tensor.numpy and DEVICE in places:
            raise WrongDeviceError("a tensor of the rank's device is read as an array")
        if len(places) < 2 or function in _MOVES:
            return
        if function in _INDEXED and self._places.get(tensors[0]) == DEVICE:
            values = args[2] if function is torch.Tensor.__setitem__ else None
            if not torch.is_tensor(values) or not values.dim() or self._places.get(values) != HOST:
                return  # by numbers of the host
        shapes = ", ".join(f"{tuple(t.shape)} on {self._places.get(t)}" for t in tensors)
        raise WrongDeviceError(f"{named} mixes tensors of the rank's device and the host: {shapes}")

    def _place_of_result(
        self, function: Any, tensors: list[torch.Tensor], given: tuple[Any, ...]
    ) -> torch.device | None:
        named = [value for value in given if isinstance(value, (torch.device, str))]
        for value in named:
            if str(value).startswith("cpu"):
                return torch.device(value)
        if function in _TO_HOST or not tensors:
            return HOST
        places = {self._places.get(tensor) for tensor in tensors} - {None}
        return DEVICE if DEVICE in places else next(iter(places), None)


@contextlib.contextmanager
def two_devices() -> Iterator[TwoDevices]:
    """Let this process have a device, for whatever asks mimokit or Megatron for one."""
    with contextlib.ExitStack() as stack:
        for module in list(sys.modules.values()):
            if module is not None and "rank_device" in vars(module):
                stack.enter_context(mock.patch.object(module, "rank_device", return_value=DEVICE))
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", return_value=DEVICE))
        yield stack.enter_context(TwoDevices())
