"""Where a process that mimokit starts finds modules.

Whoever can write into the working directory must not have code run: it is searched last, once
code of a user is looked for. In `sys.path` it is the empty text then, as in a notebook.
"""

import os
import sys
from collections.abc import Callable
from typing import TypeVar

Loaded = TypeVar("Loaded")


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a new process that executes a module of Python.

    `-m` alone would search the working directory before the standard library.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def handed_on() -> str:
    """Return `PYTHONPATH` of a new process, which finds what this one finds.

    The working directory is not in it unless this process got it by its name: whatever is in it
    comes before the standard library, and is searched for a `sitecustomize`.
    """
    return os.pathsep.join(path for path in sys.path if path)


def find_in_working_directory() -> None:
    """Have imports search the working directory, after all else."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append("")


def found(load: Callable[[], Loaded]) -> Loaded:
    """Return what is loaded, from the working directory too where a module is not found."""
    try:
        return load()
    except ModuleNotFoundError:
        find_in_working_directory()
        return load()
