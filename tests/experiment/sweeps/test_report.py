"""A sweep as bars in a terminal and as lines elsewhere, without a cluster."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from mimokit.experiment.sweeps.records import Board, ExperimentRecord, ExperimentStatus
from mimokit.experiment.sweeps.report import FAILED, Following
from mimokit.experiment.sweeps.runner import SweepResult
from mimokit.result_files import RunFile
from tests.charts.fakes import samples
from tests.rows import rows


class _Sweep:
    """A sweep whose experiments do what a test says."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.directory = folder
        self.asked: list[str] = []
        self._listeners: list[Callable[[str, Any], None]] = []
        self.board = Board(
            ExperimentRecord(
                name, ExperimentStatus.WAITING, 2, 0, 10, None, None, "", folder / name
            )
            for name in names
        )

    @property
    def experiments(self) -> tuple[ExperimentRecord, ...]:
        return self.board.records

    def on_change(self, callback: Callable[[Any], object]) -> None:
        self._noticing = self.board.listen(lambda: callback(self))

    def on_sample(self, callback: Callable[[str, Any], None]) -> None:
        self._listeners.append(callback)

    def wait_ended(self) -> bool:
        return True

    def log_interval(self, name: str) -> int:
        return 5

    def stop(self) -> None:
        self.asked.append("stop")

    def abort(self) -> None:
        self.asked.append("abort")

    def train(self, name: str) -> None:
        """Have an experiment run to its end."""
        self.board.update(name, status=ExperimentStatus.RUNNING)
        for sample in samples(iterations=10, ranks=1):
            self.board.update(name, iteration=sample.iteration + 1, loss=sample.loss)
            for listener in self._listeners:
                listener(name, sample)
        self.board.update(name, status=ExperimentStatus.COMPLETED, seconds=2.0)

    def fail(self, name: str, message: str) -> None:
        self.board.update(name, status=ExperimentStatus.FAILED, message=message)

    def result(self) -> SweepResult:
        self.board.close()
        self._noticing.join(10)
        return SweepResult(self.experiments, self.directory, pd.DataFrame())


def _shown(folder: Path, *, terminal: bool) -> tuple[int, str]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=160, color_system=None)
    sweep: Any = _Sweep(folder, "first", "[bold]second", "third")
    following = Following(sweep, console)
    sweep.train("first")
    sweep.fail("[bold]second", "rank 1 raised KeyError: [red]'page 7'")
    sweep.train("third")
    for name, wrong in (("first", ["Rank 1 holds other weights than rank 0."]), ("third", [])):
        (folder / name).mkdir()
        (folder / name / RunFile.HEALTH).write_text(json.dumps({"wrong": wrong}))
    return following.wait(), text.getvalue()


@rows("terminal", True, False)
def test_what_failed_is_named_at_the_end_and_nothing_is_markup(
    tmp_path: Path, terminal: bool
) -> None:
    status, text = _shown(tmp_path, terminal=terminal)
    assert status == FAILED
    _, _, end = text.partition("Not completed")
    assert "[bold]second" in end
    assert "rank 1 raised KeyError: [red]'page 7'" in end
    unhealthy = "The ranks of run first are not healthy: Rank 1 holds other weights than rank 0."
    assert unhealthy in end
    assert end.count("not healthy") == 1
    assert f"Results are in {tmp_path}" in end
    assert "read: exact match" in text


def test_lines_come_every_log_interval_and_when_something_ends(tmp_path: Path) -> None:
    _, text = _shown(tmp_path, terminal=False)
    lines = [line for line in text.splitlines() if line.startswith(("first", "[1/3]"))]
    begin = (
        "[1/3] first: started on 2 ranks",
        "first: iteration 0: loss 2.5000",
        "first: iteration 5: loss",
        "first: read: exact match",
        "[1/3] first: completed after 2.00 s, loss",
    )
    assert [line[: len(text)] for line, text in zip(lines, begin, strict=True)] == list(begin)
    assert "\x1b" not in text


def test_bars_go_over_experiments_and_iterations(tmp_path: Path) -> None:
    _, text = _shown(tmp_path, terminal=True)
    assert "experiments" in text
    assert "3/3" in text
    assert "first: completed after 2.00 s, loss" in text


def test_a_first_interrupt_stops_and_a_second_aborts(tmp_path: Path) -> None:
    sweep: Any = _Sweep(tmp_path, "first")
    following = Following(sweep, Console(file=io.StringIO()))
    following.interrupt()
    following.interrupt()
    assert sweep.asked == ["stop", "abort"]
    assert following.wait() == 130


@rows("terminal", True, False)
def test_what_a_resumed_sweep_leaves_out_or_runs_again_is_said(
    tmp_path: Path, terminal: bool
) -> None:
    text = io.StringIO()
    sweep: Any = _Sweep(tmp_path, "complete", "changed")
    sweep.board.update("complete", status=ExperimentStatus.SKIPPED, message="complete since then")
    sweep.board.update("changed", message="its config has changed")
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    assert Following(sweep, console).wait() == 0
    assert text.getvalue().count("complete: skipped (complete since then)") == 1
    assert "changed: waiting (its config has changed)" in text.getvalue()
