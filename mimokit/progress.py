"""How far something is: one line on a terminal or in a notebook, gone when it is done.

    with shown("Converting", total=4) as bar:
        for number, file in enumerate(files):
            bar.update(number, file.name)

It is silent where nobody looks: where stderr is no terminal and the process no notebook's kernel.
What takes more than two seconds shows itself; callers need not.
"""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID


SECONDS_BETWEEN_LINES = 0.1
"""Between two updates of a line in a notebook."""


class Bar(Protocol):
    """What is shown of one task."""

    def update(self, done: float | None = None, text: str | None = None) -> None:
        """Show how much of the total is done, and what is going on; None leaves it as it is."""


@contextmanager
def shown(text: str, total: float | None = None, wanted: bool = True) -> Iterator[Bar]:
    """Show a task until the block ends.

    Args:
        text: what is going on.
        total: what `update` counts to; None: it is not known, and only the time is shown.
    """
    if wanted and _is_notebook():
        line = _NotebookLine(text, total)
        try:
            yield line
        finally:
            line.clear()
    elif wanted and sys.stderr.isatty():
        from rich.console import Console

        with bars(Console(stderr=True), transient=True) as display:
            yield _Shown(display, display.add_task(text, total=total))
    else:
        yield SILENT


def is_watched() -> bool:
    """Whether somebody sees what is shown: stderr is a terminal, or this is a notebook's kernel."""
    return sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    shell_here = getattr(builtins, "get_ipython", None)  # IPython sets it while a cell runs
    kernel = None if shell_here is None else getattr(shell_here(), "kernel", None)
    return kernel is not None and "ipyparallel" not in type(kernel).__module__  # an engine


class _NotebookLine:
    """A line of text below a cell; rich's display closes a widget that nbclient still writes to."""

    def __init__(self, text: str, total: float | None) -> None:
        from IPython.display import display

        self._text, self._total, self._done = text, total, 0.0
        self._last = time.monotonic()
        self._handle: Any = display({"text/plain": f"{text} …"}, raw=True, display_id=True)

    def update(self, done: float | None = None, text: str | None = None) -> None:
        self._done, self._text = self._done if done is None else done, text or self._text
        if time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            share = "" if not self._total else f" {self._done / self._total:.0%}"
            self._handle.update({"text/plain": f"{self._text} …{share}"}, raw=True)

    def clear(self) -> None:
        self._handle.update({"text/plain": ""}, raw=True)


def bars(console: Console, *extra: ProgressColumn, transient: bool = False) -> Progress:
    """Return rich's display of several tasks, in the style of all of them."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        _count_column(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        *extra,
        console=console,
        transient=transient,
    )


def _count_column() -> ProgressColumn:
    from rich import progress
    from rich.text import Text

    class Count(progress.MofNCompleteColumn):
        def render(self, task: Any) -> Text:
            countable = task.total is not None and float(task.total) > 1
            return super().render(task) if countable else Text("")

    return Count()


class _Shown:
    def __init__(self, display: Progress, task: TaskID) -> None:
        self._display, self._task = display, task

    def update(self, done: float | None = None, text: str | None = None) -> None:
        self._display.update(self._task, completed=done, description=text)


class _Silent:
    def update(self, done: float | None = None, text: str | None = None) -> None: ...


SILENT: Bar = _Silent()
"""Shows nothing."""
