"""Where the function of a run is, for those who wait for it."""

from __future__ import annotations

import contextlib
import faulthandler
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from mimokit.cluster.rank import is_waiting
from mimokit.cluster.worker.rounds import Call, Rounds, frames_within, rounds_of

_ROOM = Path(__file__).parents[1]
CALLERS = {str(_ROOM / "worker" / "task.py")}
"""The file that calls the function of a run; what is outside of it says nothing."""
STACK_SIGNAL = signal.SIGUSR1
"""Has an engine write its stack into its log, also while its code lets no other thread run."""


WAITING = re.compile(r"\.(wait|item|tolist|cpu|synchronize|fsync)\(")
"""What a line calls that waits in C++: for messages of other ranks, a device, or a disk."""
OF_OTHERS = re.compile(r"/(torch|megatron)/")
"""The folders of packages in which a rank waits for nothing but ranks and devices."""
ASKED_OF_OTHERS = {"is_completed", "query"}
"""What a loop calls that polls for messages of other ranks, or for a device."""


@dataclass(frozen=True)
class Place:
    """Where the main thread of a rank is.

    Attributes:
        cpu_seconds: how long it has run so far; None where that is not known.
        waits: whether it waits for other ranks, a device or a disk, where it waits at all.
        rounds: what several looks at it have in common; "" if it does not go round in a loop,
            "sleeps" if it sleeps there, "runs" if not.
        work_seconds: CPU time of the other threads of the process, except that which looks, and of
            processes that it has started.
        delay_seconds: for how long it has waited for a core so far.
        clock: when, in seconds.
    """

    stack: str
    cpu_seconds: float | None = None
    waits: bool = False
    rounds: Rounds = ""
    calls: Sequence[Call] = ()
    work_seconds: float = 0.0
    clock: float = 0.0
    delay_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return vars(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Place:
        """Return the place that `to_json` has described."""
        return cls(**{**content, "calls": [Call(*call) for call in content.get("calls", ())]})


def main_place() -> Place:
    """Return where the main thread is; takes a fifth of a second if it may be in a loop."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    if main is None or frame is None:
        return Place("")
    if _waits(frames_within(frame, CALLERS)):
        return Place(_text(frame), _cpu_seconds(main), waits=True)
    del frame  # it would keep what the function has freed meanwhile
    rounds, calls = rounds_of(main, CALLERS)
    frame = sys._current_frames()[main]
    frames = frames_within(frame, CALLERS)
    waits = _waits(frames) or (rounds != "" and _asks_others(frames)) or _waits_for_disk()
    text, cpu_seconds = _text(frame), _cpu_seconds(main)
    work = _all_cpu_seconds() - (cpu_seconds or 0.0) - time.thread_time()
    return Place(text, cpu_seconds, waits, rounds, calls, work, time.monotonic(), _delay())


def _text(frame: FrameType) -> str:
    calls = traceback.extract_stack(frame)
    inner = [place for place, call in enumerate(calls) if call.filename in CALLERS]
    return "".join(traceback.format_list(calls[inner[-1] + 1 if inner else 0 :]))


def _waits(frames: Sequence[FrameType]) -> bool:
    if is_waiting():
        return True
    if not frames:
        return False
    (innermost,) = traceback.extract_stack(frames[-1], limit=1)
    return waits_for_ranks(innermost.filename, innermost.line or "")


def _asks_others(frames: Sequence[FrameType]) -> bool:
    return any(ASKED_OF_OTHERS.intersection(frame.f_code.co_names) for frame in frames[-2:])


def waits_for_ranks(file: str, line: str) -> bool:
    """Whether the innermost call of a rank that does not run waits for other ranks or a device."""
    return bool(OF_OTHERS.search(file) or WAITING.search(line))


def _cpu_seconds(thread: int) -> float | None:
    if not hasattr(time, "pthread_getcpuclockid"):  # macOS
        return None
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def _delay() -> float:
    """Return for how long the main thread was ready and had no core; 0 where Linux says nothing."""
    thread = threading.main_thread().native_id
    try:
        told = Path(f"/proc/self/task/{thread}/schedstat").read_text()
        return int(told.split()[1]) / 1e9
    except (OSError, LookupError, ValueError):
        return 0.0


def _waits_for_disk() -> bool:
    with contextlib.suppress(OSError, LookupError):
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] == "D"
    return False


def _all_cpu_seconds() -> float:
    process = psutil.Process()
    seconds: float = time.process_time() + sum(process.cpu_times()[2:4])
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:2])
    return seconds


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
    outer = [place for place, line in enumerate(lines) if any(caller in line for caller in CALLERS)]
    return "".join(lines[: outer[0] if outer else len(lines)])
