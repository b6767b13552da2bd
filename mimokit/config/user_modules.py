"""The modules of user code, read again from their files where engines live longer than a run."""

import hashlib
import importlib
import importlib.util
import io
import os
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimokit.import_path import find_in_working_directory

_KEPT = frozenset({"__main__", "mimokit", "mimokit_widgets", "megatron", "torch"})
"""Never forgotten, wherever they lie: their classes are in use when user code is read."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_reading = threading.RLock()


@contextmanager
def without_bytecode() -> Iterator[None]:
    """Leave no bytecode of what is imported: it is taken for that of an edit in the same second."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def forget(names: Iterable[str], *directories: str) -> None:
    """Forget modules of the user's, so that the next import reads their files.

    What lies next to a named module, or in one of the directories, is forgotten with it, as the
    module may have imported it. What is installed is kept.
    """
    named = tuple(names)
    if named or directories:
        find_in_working_directory()
    _drop(
        {_directory_of(name) for name in named} | {os.path.realpath(path) for path in directories}
    )


@contextmanager
def read_again(names: Iterable[str]) -> Iterator[None]:
    """Import modules of the user's from their files as they are now, in this block alone.

    Afterwards this process has the modules that it had, whose functions a notebook may hold.
    """
    named = tuple(names)
    if named:
        find_in_working_directory()
    with _reading, without_bytecode():
        directories = {_directory_of(name) for name in named}
        before = _drop(directories)
        try:
            yield
        finally:
            _drop(directories)
            sys.modules.update(before)


@dataclass(frozen=True)
class ReadAfresh:
    """A value that a process gets without this wrapper, with the user's files as they are then.

    `named` are modules that it will import later.
    """

    value: Any
    named: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        return _unwrapped, (self.named, cloudpickle.dumps(self.value))


def _unwrapped(named: tuple[str, ...], content: bytes) -> Any:
    # What a function of a notebook imports when it is called mostly lies where the notebook is.
    forget(named, os.getcwd())
    with without_bytecode():
        return _AfreshUnpickler(content).load()


class _AfreshUnpickler(pickle.Unpickler):
    """Imports each module of the user's that a pickle names afresh."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._read: set[str] = set()

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) == ("cloudpickle.cloudpickle", "subimport"):
            return self._imported
        self._forget_once(module_name)
        return super().find_class(module_name, global_name)

    def _imported(self, name: str) -> Any:
        self._forget_once(name)
        return importlib.import_module(name)

    def _forget_once(self, name: str) -> None:
        directory = _directory_of(name)
        if directory is not None and directory not in self._read:
            self._read.add(directory)
            _drop({directory})


def files_of(names: Iterable[str]) -> dict[str, str]:
    """Return the files of imported modules of the user's, with the digests of their content.

    What was imported from the directories of these modules counts with them.
    """
    modules = _imported_from({_directory_of(name) for name in names})
    files = {file for module in modules.values() if (file := getattr(module, "__file__", None))}
    return {file: _digest(Path(file)) for file in sorted(files)}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _drop(directories: set[str | None]) -> dict[str, Any]:
    modules = _imported_from(directories)
    if directories - {None}:
        importlib.invalidate_caches()
        _remove_bytecode(directories, modules)
    for name in modules:
        sys.modules.pop(name, None)
    return modules


def _imported_from(directories: Set[str | None]) -> dict[str, Any]:
    if not directories - {None}:
        return {}
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    own = {top for top in tops if _directory_of(top) in directories - {None}}
    return {name: sys.modules[name] for name in list(sys.modules) if name.partition(".")[0] in own}


def _remove_bytecode(directories: Iterable[str | None], modules: Mapping[str, Any]) -> None:
    # Python compares seconds and sizes: it would take it for that of a later edit in that second.
    cached = [
        path for folder in directories for path in Path(folder or "", "__pycache__").glob("*.pyc")
    ]
    cached += [
        Path(path) for module in modules.values() if (path := getattr(module, "__cached__", None))
    ]
    for path in cached:
        with suppress(OSError, ValueError):
            source = Path(importlib.util.source_from_cache(path))
            if int(source.stat().st_mtime) >= int(path.stat().st_mtime):
                path.unlink()


def _directory_of(name: str) -> str | None:
    top = name.partition(".")[0]
    if not top or top in _KEPT or top in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    if place is None or not os.path.isabs(place):
        return None
    directory = os.path.realpath(os.path.dirname(place))
    return None if _INSTALLED.intersection(Path(directory).parts) else directory
