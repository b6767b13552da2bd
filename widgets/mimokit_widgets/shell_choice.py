"""Let messages from the browser be handled while a cell runs."""

from __future__ import annotations

from typing import Any


def let_the_browser_choose_the_shell(comm: Any) -> None:
    """Have messages from the browser handled by the subshell they ask for.

    From 7.4 on ipykernel hands them to the shell that sent last, which may be the main one; there
    they would wait for the cell that runs.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked_for: asked_for
