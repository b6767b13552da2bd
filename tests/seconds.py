"""Where the seconds of the tests go: `build/seconds.json`, and `python -m tests.seconds` prints it.

CPU seconds of a test are those of its worker and of all processes below it, engines too. Processes
whose parent has ended before them, as clusters that stay, are no longer below it: their seconds are
in no test.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.budget import excesses
from tests.processes import below

FILE = Path(__file__).parents[1] / "build" / "seconds.json"
SLOWEST = 10
"""How many tests the table in the terminal names."""
NO_TIME = 0.05
"""Seconds by the clock in which engines do little: to look at them takes 7 ms of CPU."""
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


@dataclass(frozen=True)
class Seconds:
    """What something took: seconds by the clock, and of all processors together."""

    wall: float
    cpu: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)


@dataclass(frozen=True)
class Spent:
    """What a session took.

    Attributes:
        tests: what each took, setup and teardown too.
        collection: CPU seconds of each process until it had imported all tests.
    """

    tests: dict[str, Seconds]
    collection: dict[str, float]

    def per(self, name: Callable[[str], str]) -> dict[str, Seconds]:
        """Return sums over the tests of one name, most CPU seconds first."""
        sums: dict[str, Seconds] = {}
        for test, seconds in self.tests.items():
            sums[name(test)] = sums.get(name(test), Seconds(0, 0)) + seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1].cpu))


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def room_of(test: str) -> str:
    """Return the first folder below `tests/`; of files that are in none `tests`."""
    parts = file_of(test).split("/")
    return parts[1] if len(parts) > 2 else "tests"


def cpu_seconds() -> float:
    """Return those of this process and of all that it has started, living or ended.

    Whoever waits for a process that has ended takes over its seconds, so that the sum only grows.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(_of_living())


def _of_living() -> Iterator[float]:
    try:  # one call, where `children` looks at every process of the machine
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    for process in below(os.getpid()):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            yield times.user + times.system + times.children_user + times.children_system


class SecondsPlugin:
    """Measures the tests of this process, and merges what the workers have measured."""

    def __init__(self, config: pytest.Config, file: Path = FILE) -> None:
        """Take where to write."""
        self._config = config
        self._file = file
        self._before = 0.0
        self._told: list[str] = []
        self.spent = Spent({}, {})

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Note what this process has taken until now."""
        self._before = cpu_seconds()
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.spent.collection[worker] = self._before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test; what others do in one of no time is told of the next that takes some."""
        began, own = time.perf_counter(), time.process_time()
        result = yield
        wall, own = time.perf_counter() - began, time.process_time() - own
        now = self._before + own if wall < NO_TIME else cpu_seconds()
        self.spent.tests[item.nodeid] = Seconds(wall, max(0.0, now - self._before))
        self._before = now
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker has measured; one that died has told nothing."""
        told = read_spent(getattr(node, "workeroutput", {}).get("seconds"))
        self.spent.tests.update(told.tests)
        self.spent.collection.update(told.collection)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over or write what was measured; fail a whole suite that exceeds its budget."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["seconds"] = asdict(self.spent)
        elif self.spent.tests:
            whole = is_whole(self._config) and session.exitstatus in ENDED
            write(self._file, self.spent, whole)
            if whole:
                over = excesses(cpu_of_rooms(self.spent))
                self._told = [*table(self.spent), *over]
                if over:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print where the seconds of a whole suite went."""
        if self._told:
            terminalreporter.section("seconds")
            for line in self._told:
                terminalreporter.write_line(line)


def is_whole(config: pytest.Config) -> bool:
    """Whether this is the suite, all of it: a share of something else says nothing."""
    option = config.option
    selects = ("keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly")
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and option.suite
        and not option.markexpr
        and not any(getattr(option, name, None) for name in selects)
    )


def cpu_of_rooms(spent: Spent) -> dict[str, float]:
    """Return the CPU seconds of each room."""
    return {room: seconds.cpu for room, seconds in spent.per(room_of).items()}


def write(file: Path, spent: Spent, whole: bool) -> None:
    """Write what rooms, files and tests took, and whether they are the whole suite."""
    sums = {"rooms": spent.per(room_of), "files": spent.per(file_of)}
    summed = {
        what: {name: asdict(seconds) for name, seconds in rows.items()}
        for what, rows in sums.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"whole": whole, **summed, **asdict(spent)}, indent=1))


def read_spent(told: Mapping[str, Any] | None) -> Spent:
    """Return what a worker or a file tells."""
    if not told:
        return Spent({}, {})
    tests = {test: Seconds(**seconds) for test, seconds in told["tests"].items()}
    return Spent(tests, dict(told["collection"]))


def table(spent: Spent) -> list[str]:
    """Return lines: collection, CPU seconds and clock per room, and the slowest tests."""
    collection = ", ".join(f"{name} {cpu:.1f}" for name, cpu in sorted(spent.collection.items()))
    rooms = spent.per(room_of)
    total = sum(rooms.values(), Seconds(0, 0))
    slowest = sorted(spent.tests.items(), key=lambda item: -item[1].cpu)[:SLOWEST]
    return [
        f"CPU seconds to collect: {collection}",
        "| room | CPU s | share | clock s |",
        "|---|---|---|---|",
        *(
            f"| {room} | {one.cpu:.0f} | {one.cpu / max(total.cpu, 1e-9):.1%} | {one.wall:.0f} |"
            for room, one in rooms.items()
        ),
        f"| all | {total.cpu:.0f} | | {total.wall:.0f} |",
        *(f"{one.cpu:7.1f} s CPU, {one.wall:6.1f} s: {test}" for test, one in slowest),
    ]


def shares(spent: Spent) -> str:
    """Return the table of `tests/budget.py` as it would have to be for this session."""
    rooms = cpu_of_rooms(spent)
    total = max(sum(rooms.values()), 1e-9)
    rows = [f'    "{room}": {100 * cpu / total:.1f},' for room, cpu in sorted(rooms.items())]
    return "\n".join(["SHARES: dict[str, float] = {", *rows, "}"])


def main(file: Path = FILE) -> None:
    """Print what the last session took."""
    if not file.is_file():
        sys.exit(f"{file} is not there: run the tests first.")
    told = json.loads(file.read_text())
    spent = read_spent(told)
    if not told["whole"]:
        print("Of a part of the suite:")
    print(*table(spent), "", shares(spent), sep="\n")


if __name__ == "__main__":
    main()
