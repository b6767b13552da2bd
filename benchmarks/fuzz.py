"""Mutants of every file that is read: `python -m benchmarks.fuzz [COUNT [READER…]]`.

Each is read in a forked process with 5 s of CPU time and 1 GB on top of what the imports take, in
which nothing may start a program. A failure is named with its seed: `… 0 READER SEED` repeats it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
from rich.console import Console

from benchmarks.table import show
from tests.fuzzing.readers import READERS, Reader

COUNT = 10_000
PROCESSES = 2
TOGETHER = 100
SECONDS = 5.0
BYTES = 2**30
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.fork", "pty.spawn")


@dataclass
class Found:
    """What became of the mutants of a reader."""

    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    failures: dict[str, list[int]] = field(default_factory=dict)
    """Kind of failure -> seeds."""

    @property
    def failed(self) -> int:
        """How many were neither read nor refused."""
        return sum(map(len, self.failures.values()))


def measure(reader: Reader, count: int) -> Found:
    """Read so many mutants."""
    found, number = Found(), READERS.index(reader)
    batches = [(number, range(first, min(first + TOGETHER, count)))
               for first in range(0, count, TOGETHER)]  # fmt: skip
    with multiprocessing.get_context("fork").Pool(PROCESSES, _limit, maxtasksperchild=10) as pool:
        for results in pool.imap_unordered(_attempts, batches):
            for seed, kind, seconds in results:
                found.slowest = max(found.slowest, seconds)
                if kind is None or kind == "refused":
                    found.accepted += kind is None
                    found.refused += kind is not None
                else:
                    found.failures.setdefault(kind, []).append(seed)
            if (done := found.accepted + found.refused + found.failed) % (10 * TOGETHER) == 0:
                said = f"{done:,} of {count:,} {reader.name}: {found.failed} failed"
                Console().print(said, highlight=False)
    return found


def _limit() -> None:
    """Limit this process; it stays as it is until it ends."""
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp(prefix="mimokit-fuzz-"))
    size = psutil.Process().memory_info().vms + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    signal.signal(signal.SIGVTALRM, _too_slow)
    sys.addaudithook(_no_programs)


def _too_slow(number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS:g} s of CPU time")


def _no_programs(event: str, arguments: Any) -> None:
    if event in FORBIDDEN:
        raise AssertionError(f"a mutant starts a program: {event}{arguments!r:.200}")


def _attempts(batch: tuple[int, Sequence[int]]) -> list[tuple[int, str | None, float]]:
    number, seeds = batch
    return [_attempt(READERS[number], seed) for seed in seeds]


def _attempt(reader: Reader, seed: int) -> tuple[int, str | None, float]:
    """Return the seed, None if the mutant was accepted, "refused" or its failure, and seconds."""
    began = time.process_time()
    try:
        with tempfile.TemporaryDirectory() as folder:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                accepted = reader.attempt(Random(seed), Path(folder))
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        kind = None if accepted else "refused"
    except BaseException as error:
        kind = _kind(error)
    return seed, kind, time.process_time() - began


def _kind(error: BaseException) -> str:
    """Return the same text for failures of the same cause."""
    ours = [
        call for call in traceback.extract_tb(error.__traceback__) if "/mimokit/" in call.filename
    ]
    where = f"{ours[-1].filename.split('/mimokit/')[-1]}:{ours[-1].lineno}" if ours else "the test"
    return f"{type(error).__name__} at {where}: {str(error).splitlines()[:1]!r:.200}"


def rows(count: int = COUNT, readers: Sequence[Reader] = READERS) -> list[dict[str, Any]]:
    """Return the figures of the table."""
    return [row for reader in readers for row in _rows(reader, count)]


def _rows(reader: Reader, count: int) -> Iterator[dict[str, Any]]:
    found = measure(reader, count)
    for kind, seeds in Counter({k: len(v) for k, v in found.failures.items()}).most_common():
        Console().print(f"{reader.name}: {seeds} × {kind}", markup=False, highlight=False)
        Console().print(f"    seeds {found.failures[kind][:8]}", highlight=False)
    said = f"{count:,} {reader.name}: {found.accepted:,} read, {found.refused:,} refused"
    yield {"name": f"{said}, others", "measured": found.failed, "target": 0, "unit": "",
           "ok": found.failed == 0}  # fmt: skip
    yield {"name": f"{reader.name}, slowest", "measured": found.slowest, "target": SECONDS,
           "unit": "s", "ok": found.slowest <= SECONDS}  # fmt: skip


def main() -> None:
    """Show the table, or repeat one mutant."""
    named = {reader.name: reader for reader in READERS}
    arguments = sys.argv[1:]
    count = int(arguments[0]) if arguments else COUNT
    if count == 0:
        with tempfile.TemporaryDirectory() as folder:
            Console().print(named[arguments[1]].attempt(Random(int(arguments[2])), Path(folder)))
        return
    chosen = [named[name] for name in arguments[1:]] or READERS
    show("Files that are almost right", rows(count, chosen))


if __name__ == "__main__":
    main()
