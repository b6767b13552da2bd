"""What a test leaves open: threads, descriptors, processes of engines, shared memory."""

import contextlib
import gc
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import psutil

from tests.processes import below

MOST_DESCRIPTORS = 8
"""Sockets and pipes that a library may open at its first use and keep."""
SOON = 0.25
"""Seconds in which the thread of a run ends by itself; a collection costs 50 ms of CPU."""
KEPT = "mimokit-engines", "asyncio_"
"""The thread of a cluster, which lasts as long, and the pool of an event loop, likewise."""
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Held:
    """What this process, and the processes that engines have started, hold at a time.

    Attributes:
        threads: those of mimokit, and all that the interpreter would wait for.
        descriptors: number of sockets and pipes.
        processes: that engines have started; a data loader's workers, say.
        shared: files of shared memory that are named after these processes.
    """

    threads: frozenset[threading.Thread]
    descriptors: int
    processes: frozenset[psutil.Process]
    shared: frozenset[str]


def held(engines: list[int]) -> Held:
    """Return what is held now.

    Args:
        engines: process ids.
    """
    threads = [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("mimokit-") or not thread.daemon
    ]
    return Held(
        frozenset(thread for thread in threads if not thread.name.startswith(KEPT)),
        sum(map(_is_connection, os.listdir("/proc/self/fd"))),
        frozenset(chain.from_iterable(map(below, engines))),
        frozenset(filter(_of([os.getpid(), *engines]), os.listdir(SHARED_MEMORY))),
    )


def leaks(before: Held, engines: list[int], patience: float = 120.0) -> list[str]:
    """Name what is held and was not before, once it has had some time to end."""
    began = time.monotonic()
    while (named := _named(before, held(engines))) and time.monotonic() < began + patience:
        if time.monotonic() > began + SOON:
            gc.collect()
        time.sleep(0.05)
    return named


def _named(before: Held, now: Held) -> list[str]:
    more = now.descriptors - before.descriptors
    return [
        *(f"the thread {thread.name!r}" for thread in now.threads - before.threads),
        *([f"{more} sockets and pipes"] if more > MOST_DESCRIPTORS else []),
        *(
            f"the process {process.pid} of an engine"
            for process in now.processes - before.processes
        ),
        *(f"{SHARED_MEMORY}/{name}" for name in now.shared - before.shared),
    ]


def _is_connection(descriptor: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(("socket:", "pipe:"))
    return False


def _of(processes: list[int]) -> Callable[[str], bool]:
    """Return whether a name has the number of a process, as torch names shared memory."""
    numbers = set(map(str, processes))
    return lambda name: not numbers.isdisjoint(re.findall(r"\d+", name))
