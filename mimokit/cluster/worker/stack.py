"""Where the function of a run is, for those who wait for it."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import threading
import traceback
from pathlib import Path

_ROOM = Path(__file__).parents[1]
CALLERS = {str(_ROOM / "worker" / "task.py"), str(_ROOM / "torchrun" / "member.py")}
"""The files that call the function of a run; what is outside of it says nothing."""
STACK_SIGNAL = signal.SIGUSR1
"""Has an engine write its stack into its log, also while its code lets no other thread run."""


def main_stack() -> str:
    """Return the calls of the main thread within the function of a run, the innermost last."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    if frame is None:
        return ""
    calls = traceback.extract_stack(frame)
    inner = [place for place, call in enumerate(calls) if call.filename in CALLERS]
    return "".join(traceback.format_list(calls[inner[-1] + 1 if inner else 0 :]))


def write_stack_on_signal() -> None:
    """Write the stack to the standard error of this process at each `STACK_SIGNAL`.

    Where ipykernel reads that through a pipe, a thread would have to run; its own has the number of
    the log file then, and no number otherwise.
    """
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)
    for file in filter(None, (sys.stderr, sys.__stderr__)):
        with contextlib.suppress(OSError, RuntimeError):
            faulthandler.register(STACK_SIGNAL, file=file, all_threads=False)
            return


def within_run(written: str) -> str:
    """Return what is written at `STACK_SIGNAL` without the calls around the function of a run."""
    lines = written.splitlines(keepends=True)
    outer = [place for place, line in enumerate(lines) if any(one in line for one in CALLERS)]
    return "".join(lines[: outer[0] if outer else len(lines)])
