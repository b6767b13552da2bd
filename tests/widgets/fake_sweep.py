"""A sweep that goes on when the test says so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimokit.experiment.sweeps.records import ExperimentRecord, ExperimentStatus


def waiting(name: str) -> ExperimentRecord:
    status = ExperimentStatus.WAITING
    return ExperimentRecord(name, status, 4, 0, 30, None, None, "", Path("none") / name)


class FakeSweep:
    def __init__(self, *names: str) -> None:
        self.experiments = tuple(map(waiting, names))
        self.done = False
        self.stopped = 0
        self.skipped: list[str | None] = []
        self._callbacks: list[Callable[[], None]] = []

    def change(self, name: str, **values: Any) -> None:
        if "status" in values:
            values["status"] = ExperimentStatus(values["status"])
        self.experiments = tuple(
            replace(one, **values) if one.name == name else one for one in self.experiments
        )
        for callback in self._callbacks:
            callback()

    def end(self) -> None:
        self.done = True
        for callback in self._callbacks:
            callback()

    def on_change(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def stop(self) -> None:
        self.stopped += 1

    def skip(self, name: str | None = None) -> None:
        if name == "colocated":
            raise RuntimeError("colocated has ended already; nothing is skipped.\nTraceback")
        self.skipped.append(name)
        self.change(name or "", status="skipped")


def sweep_in_progress(folder: Path) -> FakeSweep:
    """Return a sweep of which each experiment is in another state; one has a table of metrics."""
    run = FakeSweep("homogeneous", "colocated", "heterogeneous", "tp8", "broken", "last")
    (folder / "colocated").mkdir()
    (folder / "colocated" / "metrics.csv").write_text(
        "iteration,total_time,tokens_per_sec,warmup\n0,1,1.0,1\n1,1,900.0,0\n2,1,1100.0,0\n3,1,5.0,0"
    )
    run.change("homogeneous", status="completed", iteration=30, loss=0.8123456, seconds=12.34)
    run.change("colocated", status="completed", iteration=30, loss=0.75, seconds=9.9,
               directory=folder / "colocated")  # fmt: skip
    run.change("heterogeneous", status="running", ranks=8, iteration=12, loss=1.25, seconds=3.0,
               directory=folder / "heterogeneous")  # fmt: skip
    run.change("tp8", status="refused", ranks=None, iterations=None,
               message="World: 16 ranks are needed; the cluster has 8.")  # fmt: skip
    run.change("broken", status="failed", iteration=7, seconds=2.0,
               message="rank 2 raised KeyError: <'image'>\nin step 7")  # fmt: skip
    return run
