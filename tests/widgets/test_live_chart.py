"""The live chart without a kernel: what it sends, what it says, what stays."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mimokit_widgets import LiveChart
from mimokit_widgets.live_rows import STEP_COLUMNS, RowQueue, to_row
from tests.charts.fakes import samples
from tests.widgets.fake_run import FakeRun

Messages = list[dict[str, Any]]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    sent: Messages = []
    monkeypatch.setattr(LiveChart, "send", lambda self, content, *_: sent.append(content))
    return sent


def test_every_sample_is_sent_once_and_in_order(messages: Messages) -> None:
    run = FakeRun()
    made = samples()
    run.give(made[:50])
    chart = LiveChart(run)
    for start in range(50, len(made), 37):
        run.give(made[start : start + 37])
        time.sleep(0.03)
    run.end()
    chart.wait()
    received: list[Any] = []
    for message in messages:
        assert message["start"] == len(received)
        received += message["rows"]
    assert received == chart._rows.everything()
    steps = [row for row in received if row[0] == 0]
    rank, iteration = (1 + STEP_COLUMNS.index(name) for name in ("rank", "iteration"))
    assert [(row[iteration], row[rank]) for row in steps] == [
        (sample["iteration"], sample["rank"]) for sample in made if sample["kind"] == "step"
    ]
    assert len(received) == len(made)


def test_samples_of_many_threads_all_arrive(messages: Messages) -> None:
    run = FakeRun()
    chart = LiveChart(run)
    made = samples(iterations=100)
    threads = [threading.Thread(target=run.give, args=(made[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.end()
    chart.wait()
    assert sum(len(message["rows"]) for message in messages) == len(made)


def test_a_view_opened_late_gets_the_whole_history() -> None:
    run = FakeRun()
    run.give(samples(iterations=5))
    chart = LiveChart(run)
    assert chart.get_state("_history")["_history"] == chart._rows.everything()
    assert len(chart.get_state("_history")["_history"]) == 40
    run.end()
    chart.wait()


def test_a_finished_run_leaves_a_picture(messages: Messages) -> None:
    run = FakeRun()
    run.give(samples())
    chart = LiveChart(run)
    run.end()
    chart.wait()
    assert chart.status == "finished"
    assert chart.sentence.startswith("40 iterations in ")
    assert chart._picture is not None
    assert set(chart._picture) == {
        "application/vnd.vegalite.v5+json",
        "image/svg+xml",
        "text/plain",
    }
    assert chart._picture["text/plain"].startswith("Training finished. 40 iterations")


def test_a_failed_run_says_so_in_one_sentence_and_keeps_what_it_has(messages: Messages) -> None:
    run = FakeRun()
    chart = LiveChart(run)
    run.give(samples(iterations=7))
    run.end(RuntimeError("Rank 3 ran out of memory.\nTraceback ..."))
    chart.wait()
    assert chart.status == "failed"
    assert chart.sentence == "After 7 iterations: Rank 3 ran out of memory."
    assert len(chart._rows) == 56
    assert chart._picture is not None
    assert "image/svg+xml" in chart._picture


def test_a_run_that_fails_before_its_first_step(messages: Messages) -> None:
    run = FakeRun()
    chart = LiveChart(run)
    run.end(RuntimeError("Rank <0> is gone."))
    chart.wait()
    assert chart._picture == {
        "text/html": "<p><b>Training failed.</b> After 0 iterations: Rank &lt;0&gt; is gone.</p>",
        "text/plain": "Training failed. After 0 iterations: Rank <0> is gone.",
    }


def test_a_run_without_performance_monitor_still_shows_its_loss(messages: Messages) -> None:
    run = FakeRun()
    chart = LiveChart(run)
    kept = ("kind", "rank", "iteration", "time", "loss")
    run.give([{name: sample[name] for name in kept} for sample in samples(iterations=9)])
    run.end()
    chart.wait()
    assert chart._picture is not None
    assert "image/svg+xml" in chart._picture
    assert chart.sentence.startswith("9 of 40 iterations")


def test_a_picture_that_cannot_be_drawn_does_not_hide_how_the_run_ended(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise ValueError("no ink")

    monkeypatch.setattr("mimokit_widgets.live_chart.final_picture", broken)
    run = FakeRun()
    chart = LiveChart(run)
    run.end(RuntimeError("Rank 1 died."))
    chart.wait()
    assert chart._picture == {
        "text/plain": "Training failed. After 0 iterations: Rank 1 died. "
        "Its charts could not be drawn: no ink"
    }


def test_the_stop_button_stops_the_run_once(messages: Messages) -> None:
    run = FakeRun()
    chart = LiveChart(run)
    run.give(samples(iterations=3))
    chart._on_message(chart, {"type": "stop"}, [])
    chart._on_message(chart, {"type": "stop"}, [])
    chart.wait()
    assert run.stopped == 1
    assert chart.status == "stopped"
    assert chart.sentence.startswith("3 of 40 iterations in ")


def test_a_gap_is_healed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    chart = LiveChart(run)
    sent: list[str] = []
    monkeypatch.setattr(chart, "send_state", lambda key=None: sent.append(key))
    chart._on_message(chart, {"type": "resync"}, [])
    assert sent == ["_history"]
    run.end()
    chart.wait()


def test_history_is_sent_again_only_when_it_has_doubled(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    chart = LiveChart(FakeRun())
    monkeypatch.setattr(chart, "send_state", _record(lengths, chart))
    for sample in samples(iterations=60):
        chart._rows.add(sample)
        chart._send_new_rows()
    assert lengths == [64, 128, 256]


def _record(lengths: list[int], chart: LiveChart) -> Callable[[str], None]:
    return lambda key: lengths.append(len(chart._rows)) if key == "_history" else None


def test_state_that_the_browser_needs() -> None:
    run = FakeRun()
    run.end()
    chart = LiveChart(run)
    chart.wait()
    assert chart.total_iterations == 40
    assert chart._layout_in_words == (
        "colocated on 8 ranks: images TP1·DP8, language_module TP4·DP2"
    )
    assert [phase["name"] for phase in chart._phases] == [
        "images forward",
        "language_module forward",
        "images backward",
        "language_module backward",
        "communication",
        "optimizer",
        "data",
        "other",
    ]


def test_numbers_that_json_does_not_know_become_none() -> None:
    row = to_row({"kind": "step", "rank": 0, "iteration": 1, "loss": float("nan")}, ["a"])
    assert row is not None
    assert row[1 + STEP_COLUMNS.index("loss")] is None
    assert to_row({"kind": "something else"}, []) is None


def test_the_queue_gives_every_row_once() -> None:
    queue = RowQueue([])
    for sample in samples(iterations=2, ranks=2):
        queue.add(sample)
    assert queue.take()[0] == 0
    assert queue.take() == (4, [])


def test_importing_is_quick_and_does_not_need_altair_or_torch() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); from mimokit_widgets import LiveChart; "
        "print('altair' in sys.modules or 'torch' in sys.modules, time.perf_counter() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, seconds = done.stdout.split()
    assert heavy == "False"
    assert float(seconds) < 3.0  # 0.4 s on an idle machine
