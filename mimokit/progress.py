"""How far something is: one line on a terminal or in a notebook, gone when it is done.

    with shown("Converting", total=4) as bar:
        for number, file in enumerate(files):
            bar.update(number, file.name)

It is silent where nobody looks: where stderr is no terminal and the process no notebook's kernel.
What takes more than two seconds shows itself; callers need not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID


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
    if not (wanted and is_watched()):
        yield _Silent()
        return
    from rich.console import Console

    with bars(Console(stderr=True), transient=True) as display:
        yield _Shown(display, display.add_task(text, total=total))


def is_watched() -> bool:
    """Whether somebody sees what is shown: stderr is a terminal, or this is a notebook's kernel."""
    return sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    running: Any = shell.get_ipython() if shell is not None else None
    kernel = getattr(running, "kernel", None)
    return kernel is not None and "ipyparallel" not in type(kernel).__module__  # an engine


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
    """Return a column `2/5`, empty where the total is unknown or counts no things."""
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
