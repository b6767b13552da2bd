"""The sweep monitor without a kernel: what it shows, what its buttons do, what stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from make.site.check import external_references
from mimokit.analysis import load_runs
from mimokit.analysis.many_runs import predicted_step
from mimokit.units import seconds_text
from mimokit_widgets import SweepMonitor
from mimokit_widgets.view_models.sweep_rows import Medians
from tests.analysis.planted_runs import Planted, write_run
from tests.rows import rows
from tests.waiting import wait_until
from tests.widgets.fake_sweep import FakeSweep, sweep_in_progress

if TYPE_CHECKING:
    from mimokit.experiment.sweeps.runner import SweepRun
    from mimokit_widgets.sweep_monitor import Sweep

    def _fits(run: SweepRun) -> Sweep:
        return run


def rows_of(monitor: SweepMonitor) -> dict[str, dict[str, Any]]:
    return {row["cells"]["experiment"]: row for row in monitor._shown["rows"]}


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    return sweep_in_progress(tmp_path)


def test_every_experiment_has_a_row_in_order(sweep: FakeSweep) -> None:
    monitor = SweepMonitor(sweep)
    found = rows_of(monitor)
    assert list(found) == [one.name for one in sweep.experiments]
    assert found["homogeneous"]["cells"] == {
        "experiment": "homogeneous", "status": "completed", "ranks": "4",
        "iterations": "30 of 30", "loss": "0.8123", "tokens/s": "–", "step": "–",
        "communication": "–", "waiting": "–", "time": "12.34 s",
    }  # fmt: skip
    assert found["heterogeneous"]["cells"]["iterations"] == "12 of 30"
    assert found["heterogeneous"]["share"] == pytest.approx(0.4)
    assert found["tp8"]["cells"]["ranks"] == "–"
    assert found["last"]["cells"]["iterations"] == "–"
    json.dumps(monitor._shown, allow_nan=False)


def test_tokens_per_second_are_the_median_after_the_warm_up(sweep: FakeSweep) -> None:
    assert rows_of(SweepMonitor(sweep))["colocated"]["cells"]["tokens/s"] == "1,000"


def test_tokens_per_second_follow_a_table_that_grows(tmp_path: Path) -> None:
    medians, table = Medians(), tmp_path / "metrics.csv"
    assert medians.of(tmp_path).tokens is None
    table.write_text("iteration,tokens_per_sec\n0,100.0\n")
    assert medians.of(tmp_path).tokens == 100.0
    table.write_text("iteration,tokens_per_sec\n0,100.0\n1,300.0\n")
    assert medians.of(tmp_path).tokens == 200.0
    rows = "".join(f"{number},{float(number)}\n" for number in range(100_000))
    table.write_text(f"iteration,tokens_per_sec\n{rows}")
    assert 90_000 < (medians.of(tmp_path).tokens or 0) < 100_000  # of the last ones
    table.write_text("iteration,tokens_per_sec\n0,many\n")
    assert medians.of(tmp_path).tokens is None
    table.write_bytes(b"\xff\0")
    assert medians.of(tmp_path).tokens is None


def test_a_step_stands_next_to_its_prediction_and_waiting_apart(tmp_path: Path) -> None:
    sweep = FakeSweep("run")
    folder = write_run(tmp_path / "run", Planted(iterations=30, slow={3: 2.0}))
    sweep.change("run", status="completed", iteration=30, directory=folder)
    row = rows_of(SweepMonitor(sweep, hardware="h100"))["run"]
    runs = load_runs(folder)
    settled = runs.ranks[runs.ranks["iteration"] >= 5]
    waiting = settled["waiting_time"].sum() / settled["total_time"].sum()
    both = settled["communication_time"].sum() / settled["total_time"].sum()
    assert row["numbers"]["waiting"] == pytest.approx(waiting, rel=0.01)
    assert row["numbers"]["communication"] == pytest.approx(both - waiting, rel=0.01)
    predicted = predicted_step(runs.config("run"), "h100")[0]
    assert row["predicted"] == pytest.approx(predicted)
    assert row["cells"]["step"].endswith(f", predicted {seconds_text(predicted)}")
    assert rows_of(SweepMonitor(sweep))["run"]["predicted"] is None


def test_what_failed_says_so_in_one_line_with_its_rank(sweep: FakeSweep) -> None:
    monitor = SweepMonitor(sweep)
    assert rows_of(monitor)["broken"]["message"] == "rank 2 raised KeyError: <'image'> in step 7"
    assert "Without a result: tp8 and broken." in monitor._shown["head"]["sentence"]


def test_the_head_counts_and_the_bar_fills(sweep: FakeSweep) -> None:
    head = SweepMonitor(sweep)._shown["head"]
    assert head["sentence"].startswith(
        "4 of 6 experiments have ended: 2 completed, 1 failed and 1 refused; 1 running."
    )
    assert head["share"] == pytest.approx((4 + 0.4) / 6)
    assert not head["done"]


def test_it_follows_a_sweep_to_its_end(sweep: FakeSweep) -> None:
    monitor = SweepMonitor(sweep)
    sweep.change("heterogeneous", iteration=20)
    wait_until(lambda: rows_of(monitor)["heterogeneous"]["cells"]["iterations"] == "20 of 30")
    sweep.change("heterogeneous", status="completed", iteration=30)
    sweep.change("last", status="stopped")
    sweep.end()
    monitor.wait()
    assert monitor._shown["head"]["title"] == "Sweep ended"
    assert monitor._shown["head"]["share"] == 1.0
    assert all(row["ended"] for row in monitor._shown["rows"])


def test_a_sweep_that_has_ended_before_is_shown_alike(sweep: FakeSweep) -> None:
    sweep.end()
    head = SweepMonitor(sweep)._shown["head"]
    assert (head["title"], head["done"]) == ("Sweep ended", True)


def test_a_resumed_sweep_shows_what_was_complete(tmp_path: Path) -> None:
    sweep = FakeSweep("first", "second")
    words = "complete since an earlier sweep"
    sweep.change("first", status="skipped", iteration=30, loss=0.5, message=words)
    row = rows_of(SweepMonitor(sweep))["first"]
    assert (row["share"], row["ended"], row["message"]) == (1.0, True, words)
    assert (row["cells"]["iterations"], row["cells"]["loss"]) == ("30 of 30", "0.5000")


def test_buttons_stop_and_skip(sweep: FakeSweep) -> None:
    monitor = SweepMonitor(sweep)
    monitor._on_message(monitor, {"type": "skip", "name": "last"}, [])
    assert sweep.skipped == ["last"]
    assert rows_of(monitor)["last"]["status"] == "skipped"
    monitor._on_message(monitor, {"type": "stop"}, [])
    assert sweep.stopped == 1
    head = monitor._shown["head"]
    assert (head["title"], head["stopping"]) == ("Sweep, stopping", True)
    assert "No other experiment begins" in head["sentence"]


def test_a_button_that_cannot_do_it_says_why(sweep: FakeSweep) -> None:
    monitor = SweepMonitor(sweep)
    monitor._on_message(monitor, {"type": "skip", "name": "colocated"}, [])
    assert monitor._shown["head"]["error"] == "colocated has ended already; nothing is skipped."
    monitor._on_message(monitor, {"type": "stop"}, [])
    assert monitor._shown["head"]["error"] == ""


def test_what_stays_needs_neither_kernel_nor_network(sweep: FakeSweep) -> None:
    monitor = SweepMonitor(sweep)
    page = monitor._in_html()
    assert "Sweep, when this page was saved" in page
    assert "rank 2 raised KeyError: &lt;&#x27;image&#x27;&gt; in step 7" in page
    assert "1,000" in page
    assert external_references(page) == []
    assert "<script" not in page
    sweep.end()
    monitor.wait()
    assert "Sweep ended" in monitor._in_html()
    assert "Most tokens per second: colocated, 1,000." in monitor._in_html()


@rows("status", "failed", "stopped", "skipped")
def test_only_experiments_that_completed_are_ranked(tmp_path: Path, status: str) -> None:
    sweep = FakeSweep("slow", "fast", "killed")
    for name, rate in (("slow", 90), ("fast", 100), ("killed", 1000)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metrics.csv").write_text(f"iteration,tokens_per_sec\n0,{rate}\n1,{rate}\n")
        sweep.change(name, status="completed", iteration=30, directory=folder)
    sweep.change("killed", status=status, iteration=9)
    sweep.end()
    sentence = SweepMonitor(sweep)._shown["head"]["sentence"]
    assert sentence.endswith("Most tokens per second: fast, 100.")
    sweep.change("killed", status="skipped", iteration=30)  # complete since an earlier sweep
    sentence = SweepMonitor(sweep)._shown["head"]["sentence"]
    assert sentence.endswith("Most tokens per second: killed, 1,000.")
    sweep.change("slow", status="failed")
    sweep.change("killed", status="failed")
    assert "Most tokens" not in SweepMonitor(sweep)._shown["head"]["sentence"]


def test_a_loss_that_is_no_number_can_be_sent(tmp_path: Path) -> None:
    sweep = FakeSweep("a", "b")
    sweep.change("a", status="running", loss=float("nan"))
    sweep.change("b", status="running", loss=float("inf"))
    shown = SweepMonitor(sweep)._shown
    assert [row["cells"]["loss"] for row in shown["rows"]] == ["not finite", "not finite"]
    json.dumps(shown, allow_nan=False)
