"""How views deal with the kernel while a cell runs, and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython


class EndOfCell:
    """Calls a function after every cell.

    A notebook that is executed headless listens only while a cell runs; a run that ends within a
    cell must therefore leave its picture before that cell ends.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._shell = get_ipython()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._after_cell)

    def _after_cell(self, *_: Any) -> None:
        self._call()

    def forget(self) -> None:
        """Stop calling."""
        if self._shell is not None:
            with contextlib.suppress(ValueError):
                self._shell.events.unregister("post_run_cell", self._after_cell)
            self._shell = None


def defer_shell_choice(comm: Any) -> None:
    """Have messages from the browser handled by the subshell they ask for.

    From 7.4 on ipykernel hands them to the shell that sent last, which may be the main one; there
    they would wait for the cell that runs.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked_for: asked_for
