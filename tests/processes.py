"""Which processes the tests have started, also those whose parents are gone."""

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "MIMOKIT_TESTS"
"""An environment variable that every process inherits from the tests that started it."""


@contextlib.contextmanager
def nothing_left_behind(patience: float = 120.0) -> Iterator[None]:
    """Mark all processes that are started within, and see that they end.

    Args:
        patience: seconds that they may take to end after the block.

    Raises:
        AssertionError: if processes are left; names them, and kills them.
    """
    mark, before = uuid.uuid4().hex, os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK)
        if before is not None:
            os.environ[MARK] = before
    deadline = time.monotonic() + patience
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = [_describe(process) for process in left]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, patience)
    assert not told, "left behind: " + "; ".join(told)


def interrupt_in(function: str, patience: float = 120.0) -> threading.Thread:
    """Send SIGINT to this process while its main thread is in a function, as Ctrl-C does.

    A timer would send it to whatever a busy machine has come to.

    Args:
        function: the name of one, anywhere on the stack.
        patience: seconds to wait for it; after that nothing is sent.
    """
    main = threading.main_thread().ident

    def watch() -> None:
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            frame = sys._current_frames().get(main or 0)
            while frame is not None and frame.f_code.co_name != function:
                frame = frame.f_back
            if frame is not None:
                time.sleep(0.3)  # until it waits
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def below(pid: int) -> Iterator[psutil.Process]:
    """Yield the processes that one has started, living, and what these have started.

    psutil would look at every process of the machine.
    """
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, file.read_text().split()):
                with contextlib.suppress(psutil.Error):
                    yield psutil.Process(child)
                yield from below(child)


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        test = process.environ().get("PYTEST_CURRENT_TEST", "no test")
        return f"process {process.pid} of {test}: {' '.join(process.cmdline())[:200]}"
    return f"process {process.pid}"
