"""Writes and reads an object graph so that reading runs nothing that a file brings along.

Classes and functions are written as names. The reader knows only those that a fit of the same
arguments holds before it goes on, calls none of the functions, and imports nothing.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import cloudpickle
import numpy as np
import torch


@dataclass(frozen=True)
class Known:
    """Classes and functions of an object graph, by name; equal names are numbered in order."""

    by_name: Mapping[str, Any]
    names: Mapping[int, str]
    """`id` -> name."""


_BY_TORCH = ("torch", "torch.storage", "torch._utils", "torch._tensor", "torch.serialization",
            "_codecs", "copyreg")  # fmt: skip
"""Modules whose classes and functions torch itself writes and reads in its safe way."""


def known_in(*graph: Any) -> Known:
    """Return classes and functions of an object graph; raises what pickling it raises."""
    collector = _Collector(io.BytesIO(), protocol=2)
    collector.dump(graph)
    return Known(collector.found, collector.names)


def save(value: Any, path: Path, known: Known) -> None:
    """Write a graph; what is not known is written by value, and cannot be read by `load`."""

    class Pickler(_Pickler):
        names = known.names

    # By a path torch would not say why the system has refused to write.
    with path.open("wb") as stream:
        torch.save(value, stream, pickle_module=_module(Pickler, pickle.Unpickler))


def load(path: Path, device: torch.device, known: Known) -> Any:
    """Read a graph; raises `pickle.UnpicklingError` if it needs what is not known."""
    held = known.by_name
    classes = [(one, f"known.{name}") for name, one in held.items() if isinstance(one, type)]
    numpy_array = np.empty(0).__reduce__()[0]
    numbers = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + "?efd"}
    allowed = [np.ndarray, np.dtype, numpy_array, *numbers, *classes]

    def named(name: str) -> Any:
        if name not in held:
            raise pickle.UnpicklingError(f"this fit holds no {name}")
        return held[name]

    by_name = [(named, f"{__name__}.{_named.__name__}")]
    with torch.serialization.safe_globals(cast("list[Any]", allowed + by_name)):
        return torch.load(path, map_location=device, weights_only=True)


def load_trusted(
    path: Path, device: torch.device, known: Known, moved: Callable[[str], str]
) -> Any:
    """Read a graph by pickle, which runs what is in it; `moved` renames modules."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            if (module, name) == (__name__, _named.__name__):
                return known.by_name.__getitem__
            return super().find_class(moved(module), name)

    pickler = _module(cloudpickle.Pickler, Unpickler)
    return torch.load(path, map_location=device, weights_only=False, pickle_module=pickler)


class _Collector(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles nothing to disk, but notes classes and functions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.found: dict[str, Any] = {}
        self.names: dict[int, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        """Note a class or function; of tensors nothing is needed."""
        if isinstance(value, torch.Tensor):
            return "tensor"
        if id(value) not in self.names and _is_named(value):
            stem = f"{value.__module__}.{value.__qualname__}"
            numbered = (f"{stem}#{number}" for number in itertools.count(2))
            name = next(one for one in itertools.chain([stem], numbered) if one not in self.found)
            self.found[name], self.names[id(value)] = value, name
        return self.names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        """Take optimizers with all their attributes."""
        reduced = _reduced(value)
        return super().reducer_override(value) if reduced is None else reduced


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes the names of what is known."""

    names: Mapping[int, str] = {}

    def reducer_override(self, value: Any) -> Any:
        """Write a name, or an object in a way that torch reads safely."""
        if id(value) in self.names:
            return _named, (self.names[id(value)],)
        reduced = _reduced(value)
        return super().reducer_override(value) if reduced is None else reduced


def _reduced(value: Any) -> Any:
    if isinstance(value, torch.optim.Optimizer):
        # torch's own way leaves out attributes of subclasses. A scheduler puts a function in
        # place of `step` that cannot be saved.
        state = {key: one for key, one in vars(value).items() if key != "step"}
        return object.__reduce_ex__(_Stateless(), 2)[0], (type(value),), state
    if type(value) is defaultdict:
        return defaultdict, (value.default_factory, dict(value))
    return None


class _Stateless:
    """Is reduced by `copyreg.__newobj__`, which has no public name."""


def _is_named(value: Any) -> bool:
    """Return whether a value is a class or function that torch does not read by itself."""
    if not isinstance(value, type | FunctionType | BuiltinFunctionType) or value is type:
        return False
    if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType | None):
        return False
    return value.__module__ not in _BY_TORCH and value is not _named


def _named(name: str) -> Any:
    """Stand in a file for a class or function; the reader puts its own in place of this."""
    raise pickle.UnpicklingError(f"{name} can only be read as part of a checkpoint")


def _module(pickler: Any, unpickler: Any) -> Any:
    return SimpleNamespace(
        Pickler=pickler,
        Unpickler=unpickler,
        dump=cloudpickle.dump,
        dumps=cloudpickle.dumps,
        load=pickle.load,
        __name__="cloudpickle",
    )
