"""The live monitor without a kernel: what it sends, what it says, what stays."""

import gc
import json
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
import traitlets

import mimokit
from make.site.check import external_references
from mimokit.config import StrategyConfig
from mimokit.experiment.restarts import Restart
from mimokit.samples import CalibrationSample, StepSample, module_column
from mimokit_widgets import LiveMonitor
from mimokit_widgets.live import rows as live_rows
from mimokit_widgets.live.rows import EVALUATION, STEP, RowHeader, RowQueue, phase_columns
from tests.charts.fakes import samples
from tests.layouts import digits_config
from tests.waiting import wait_until
from tests.widgets.fake_run import FakeRun

Messages = list[dict[str, Any]]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    sent: Messages = []
    monkeypatch.setattr(LiveMonitor, "send", lambda self, content, *_: sent.append(content))
    return sent


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def monitor(run: FakeRun, messages: Messages) -> Iterator[LiveMonitor]:
    monitor = LiveMonitor(run)
    yield monitor
    run.end()
    monitor.wait()


def page_that_stays(run: FakeRun, monitor: LiveMonitor) -> str:
    run.end()
    monitor.wait()
    return monitor._in_html()


def test_every_sample_is_sent_once_and_in_order(messages: Messages) -> None:
    run = FakeRun()
    made = samples()
    run.give(made[:50])
    monitor = LiveMonitor(run)
    for start in range(50, len(made), 37):
        run.give(made[start : start + 37])
        time.sleep(0.03)
    run.end()
    monitor.wait()
    received: list[Any] = []
    for message in messages:
        assert message["start"] == len(received)
        received += message["rows"]
    assert received == monitor._rows.history()["rows"]
    steps = [row for row in received if row[0] == STEP]
    columns = monitor._header["step"]
    rank, iteration = (1 + columns.index(name) for name in ("rank", "iteration"))
    assert [(row[iteration], row[rank]) for row in steps] == [
        (sample.iteration, sample.rank) for sample in made if isinstance(sample, StepSample)
    ]
    assert len(received) == len(made)


def test_samples_of_many_threads_all_arrive(
    run: FakeRun, monitor: LiveMonitor, messages: Messages
) -> None:
    made = samples(iterations=100)
    threads = [threading.Thread(target=run.give, args=(made[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.end()
    monitor.wait()
    assert sum(len(message["rows"]) for message in messages) == len(made)


def test_a_view_opened_late_gets_the_whole_history() -> None:
    run = FakeRun()
    run.give(samples(iterations=5))
    monitor = LiveMonitor(run)
    history = monitor.get_state("_history")["_history"]
    assert history == monitor._rows.history()
    assert (history["count"], history["every"], len(history["rows"])) == (40, 1, 40)
    run.end()
    monitor.wait()


@pytest.mark.parametrize(
    ("iterations", "ended", "status", "sentence"),
    [
        (40, None, "finished", "40 iterations in "),
        (7, "Rank 3 is out of memory.\nTraceback", "failed",
         "After 7 iterations: Rank 3 is out of memory."),
        (0, "Rank <0> is gone.", "failed", "After 0 iterations: Rank <0> is gone."),
        (3, "stop", "stopped", "3 of 40 iterations in "),
        (4, "abort", "aborted", "4 of 40 iterations in "),
    ],
)  # fmt: skip
def test_how_a_run_ended_is_said_in_one_sentence_with_its_picture(
    run: FakeRun,
    monitor: LiveMonitor,
    iterations: int,
    ended: str | None,
    status: str,
    sentence: str,
) -> None:
    run.give(samples(iterations=iterations) if iterations else [])
    if ended in ("stop", "abort"):
        for _ in range(2):
            monitor._on_message(monitor, {"type": ended}, [])
        assert run.stopped == (ended == "stop")
    else:
        run.end(None if ended is None else RuntimeError(ended))
    monitor.wait()
    assert monitor.status == status
    assert monitor.sentence.startswith(sentence)
    said = monitor._saved.bundle()
    assert said["text/plain"] == f"Training {status}. {monitor.sentence}"
    assert f"<p>{escape(said['text/plain'])}</p>" in said["text/html"]


def test_a_monitor_does_not_keep_a_run_that_is_over(messages: Messages) -> None:
    run = FakeRun()
    monitor, kept = LiveMonitor(run), weakref.ref(run)
    run.give(samples(iterations=3))
    run.end()
    monitor.wait()
    del run
    gc.collect()
    assert kept() is None


def test_wrong_parameters_and_restarts_are_said_while_the_run_goes_on(
    run: FakeRun, monitor: LiveMonitor
) -> None:
    run.give(samples(iterations=2))
    run.restarts = (Restart(2, 0, "rank <1> was killed by SIGKILL", 1.5),)
    run.wrong = ("Ranks 0 and 1 have different bits of a.b, which must be alike.",)
    run.give(samples(iterations=5)[16:])
    wait_until(lambda: monitor.health and monitor.restarts)
    assert monitor.status == "training"
    page = page_that_stays(run, monitor)
    assert monitor.health == run.wrong[0]
    assert run.wrong[0] in page
    shown = {"step": 2, "resumed": 0, "cause": "rank <1> was killed by SIGKILL"}
    assert saved_state(page)["restarts"] == monitor.restarts == [shown]


def test_a_run_without_performance_monitor_still_shows_its_loss(
    run: FakeRun, monitor: LiveMonitor
) -> None:
    run.give(
        [
            StepSample(one.iteration, rank=one.rank, time=one.time, loss=one.loss)
            for one in samples(iterations=9)
            if isinstance(one, StepSample)
        ]
    )
    run.end()
    monitor.wait()
    assert monitor.sentence.startswith("9 of 40 iterations")
    state = saved_state(monitor._in_html())
    place = 1 + state["_header"]["step"].index("loss")
    assert all(row[place] is not None for row in state["_history"]["rows"])


def test_marks_are_sorted_and_lie_within_the_run(monitor: LiveMonitor) -> None:
    for iteration in (30, 7, 30):
        monitor.mark(iteration)
    assert monitor.marks == [7, 30]
    with pytest.raises(ValueError, match="iteration 40 is none of this run's, which are 0 to 39"):
        monitor.mark(40)
    with pytest.raises(traitlets.TraitError):
        monitor.marks = ["seven"]


def saved_state(page: str) -> dict[str, Any]:
    """Return what a page gives to its view; the third of its arguments."""
    call = re.search(r"^show\((.*)\);$", page, re.MULTILINE)
    assert call is not None
    state: dict[str, Any] = json.loads(f"[{call[1]}]")[2]
    return state


def test_the_page_that_stays_holds_every_row_and_asks_for_nothing(
    run: FakeRun, monitor: LiveMonitor
) -> None:
    run.give(samples())
    monitor.mark(12)
    page = page_that_stays(run, monitor)
    state = saved_state(page)
    assert state["_history"] == monitor._rows.history()
    assert (state["status"], state["marks"]) == ("finished", [12])
    assert external_references(page) == []


def test_a_page_in_the_middle_of_a_run_says_where_it_was(
    run: FakeRun, monitor: LiveMonitor
) -> None:
    run.give(samples(iterations=11))
    memory = monitor._saved.bundle()
    assert memory["text/plain"] == "Training: 11 of 40 iterations when this was saved."
    assert len(saved_state(memory["text/html"])["_history"]["rows"]) == 11 * 8 + 1


def test_nothing_in_a_run_can_end_the_script_that_holds_it(monitor: LiveMonitor) -> None:
    monitor.sentence = "</script><script>alert(1)</script><!--"
    page = monitor._in_html()
    assert page.count("</script") == 1
    assert "<!--" not in page
    assert "&lt;/script&gt;" in page
    assert saved_state(page)["sentence"] == monitor.sentence


def test_a_long_run_is_thinned_by_whole_iterations() -> None:
    header, made = RowHeader.of([]), samples(iterations=103)
    whole, thin, place = RowQueue(header), RowQueue(header, 300), 1 + header.step.index("iteration")
    for number, sample in enumerate(made, 1):
        whole.add(sample)
        thin.add(sample)
        rows = thin.history()["rows"]
        assert sum(row[0] == STEP for row in rows) <= 300 + 8
        newest = [one for one in made[:number] if isinstance(one, StepSample)][-1]
        assert header.row(newest) in rows
    rows, kept = whole.history()["rows"], thin.history()
    assert rows == whole.take()[1] == thin.take()[1]
    assert (kept["count"], kept["every"]) == (len(made), 4)
    steps = [row for row in kept["rows"] if row[0] == STEP]
    iterations = {row[place] for row in steps}
    assert iterations == {*range(0, 103, 4), 102}
    tests = [row for row in rows if row[0] == EVALUATION]
    assert [row for row in kept["rows"] if row[0] == EVALUATION] == tests
    assert steps == [row for row in rows if row[0] == STEP and row[place] in iterations]
    assert (whole.last, whole.seconds) == (thin.last, thin.seconds)


def test_a_page_of_a_long_run_says_that_it_is_thinned(run: FakeRun, monitor: LiveMonitor) -> None:
    monitor._rows.most = 100
    run.give(samples())
    history = saved_state(page_that_stays(run, monitor))["_history"]
    assert (history["count"], history["every"]) == (324, 4)
    assert monitor.sentence.startswith("40 iterations in ")


def test_a_gap_is_healed_on_request(monitor: LiveMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(monitor, "send_state", lambda key=None: sent.append(key))
    monitor._on_message(monitor, {"type": "resync"}, [])
    assert sent == ["_history"]


def test_history_is_sent_again_only_when_it_has_doubled(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    monitor = ended_monitor()
    monkeypatch.setattr(monitor, "send_state", _record(lengths, monitor))
    for sample in samples(iterations=60):
        monitor._rows.add(sample)
        monitor._send_new_rows()
    assert lengths == [64, 128, 256]


def ended_monitor(**run: Any) -> LiveMonitor:
    """Return a monitor whose thread has ended, so that it sends when the test says so."""
    over = FakeRun()
    vars(over).update(run)
    over.end()
    monitor = LiveMonitor(over)
    monitor.wait()
    return monitor


def test_rows_leave_in_order_whichever_threads_send_them(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, made = ended_monitor(), samples(iterations=4)
    taken, overtaken = threading.Event(), threading.Event()
    take = monitor._rows.take

    def slowly() -> tuple[int, list[Any]]:
        rows = take()
        if not taken.is_set():
            taken.set()
            overtaken.wait(0.3)
        return rows

    monkeypatch.setattr(monitor._rows, "take", slowly)
    monitor._rows.add(made[0])
    first = threading.Thread(target=monitor._send_new_rows)
    first.start()
    taken.wait()
    monitor._rows.add(made[1])
    monitor._send_new_rows()
    overtaken.set()
    first.join()
    assert [message["start"] for message in messages] == [0, 1]


def test_nothing_changes_what_is_said_of_a_run_that_has_ended(messages: Messages) -> None:
    monitor = ended_monitor(restarts=(Restart(2, 0, "rank 1 was killed", 1.5),), wrong=("Odd.",))
    monitor._look(remember=True)
    assert monitor.health == "Odd."
    assert [restart["step"] for restart in monitor.restarts] == [2]


def _record(lengths: list[int], monitor: LiveMonitor) -> Callable[[str], None]:
    return lambda key: lengths.append(monitor._rows.count) if key == "_history" else None


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (1, "homogeneous on 1 rank, 1 replica of 1 rank with fedavg"),
        (3, "homogeneous on 3 ranks, 3 replicas of 1 rank with fedavg"),
    ],
)
def test_the_layout_in_words_counts_replicas(run: FakeRun, replicas: int, words: str) -> None:
    config = digits_config()
    config.strategy = StrategyConfig(name="fedavg", replicas=replicas)
    run.plan = mimokit.plan(config)
    run.end()
    assert LiveMonitor(run)._layout_in_words.split(":")[0] == words


def test_the_layout_in_words_has_every_size_that_takes_ranks(run: FakeRun) -> None:
    run.plan = mimokit.plan("preset:llava_7b_heterogeneous")
    run.end()
    assert LiveMonitor(run)._layout_in_words == (
        "heterogeneous on 24 ranks: images TP2·DP2·PP2, language_module TP4·DP2·PP2"
    )


def test_state_that_the_browser_needs() -> None:
    monitor = ended_monitor()
    assert monitor.total_iterations == 40
    assert [module["name"] for module in monitor._modules] == ["images", "language_module"]
    assert monitor._layout_in_words == (
        "colocated on 8 ranks: images TP1·DP8, language_module TP4·DP2"
    )
    assert [phase["name"] for phase in monitor._phases] == [
        "images forward",
        "language_module forward",
        "images backward",
        "language_module backward",
        "communication",
        "waiting for other ranks",
        "optimizer",
        "data",
        "other",
    ]


def test_the_predicted_step_is_known_where_there_is_hardware() -> None:
    assert ended_monitor()._planned is None
    run: Any = FakeRun()
    run.end()
    run.config = mimokit.load_experiment_config("preset:llava_7b_colocated")
    monitor = LiveMonitor(run, hardware="h100")
    monitor.wait()
    predicted = mimokit.predict(run.config, gpu="h100")
    assert monitor._planned == {
        "seconds": predicted.seconds,
        "low": predicted.low,
        "high": predicted.high,
        "words": "predicted",
    }
    with pytest.raises(ValueError, match="no_such_gpu"):
        LiveMonitor(run, hardware="no_such_gpu")


def test_numbers_that_json_does_not_know_become_none() -> None:
    header = RowHeader.of(["a"])
    row = header.row(StepSample(1, loss=float("nan")))
    assert row is not None
    assert row[1 + header.step.index("loss")] is None
    assert header.row(CalibrationSample("something else")) is None


def test_a_row_has_a_value_for_every_column_of_its_header() -> None:
    header = RowHeader.of(["images", "language_module"])
    for sample in samples(iterations=10, ranks=1):
        row = header.row(sample)
        assert row is not None
        columns = header.step if row[0] == STEP else header.evaluation
        values = dict(zip(columns, row[1:], strict=True))
        unknown = {name for name, value in values.items() if value is None}
        assert unknown <= {"validation_loss", "replica"}
        assert unknown == set() or row[0] == STEP
        assert values["loss"] == pytest.approx(sample.loss, rel=1e-5)
        assert set(header.to_json()["over"]) == set(header.step)


def test_the_store_reads_only_columns_that_rows_have() -> None:
    """The browser names columns; one that Python does not send would end its picture."""
    store = (Path(live_rows.__file__).parent / "store.js").read_text()
    asked = columns_asked(store)
    assert {"rank", "iteration", "total_time", "loss", "exact_match"} <= asked
    header = RowHeader.of([])
    assert asked <= {*header.step, *header.evaluation}
    assert not re.search(r"row\[[1-9]", store), "by name, never by place"


def columns_asked(source: str) -> set[str]:
    return set(re.findall(r'\bat\("(\w+)"\)', source)) | set(
        re.findall(r'\breduced\([\w.]+, "(\w+)"\)', source)
    )


def test_a_column_that_is_not_sent_is_found() -> None:
    planted = 'const memory = at("memory_reserved"); all.loss = reduced(all.loss, "grad_norm");'
    assert columns_asked(planted) == {"memory_reserved", "grad_norm"}
    assert not columns_asked(planted) & set(RowHeader.of([]).step)


def test_every_live_column_is_drawn() -> None:
    """A column that is marked live and that no chart reads would travel for nothing."""
    store = (Path(live_rows.__file__).parent / "store.js").read_text()
    columns = set(phase_columns(["m"]).values()) | {module_column("m", "tokens_per_sec")}
    assert set(RowHeader.of(["m"]).step) == (columns_asked(store) | columns) - (
        set(RowHeader.of([]).evaluation) - set(RowHeader.of([]).step)
    )


def test_the_queue_gives_every_row_once() -> None:
    queue = RowQueue(RowHeader.of([]))
    for sample in samples(iterations=2, ranks=2):
        queue.add(sample)
    assert queue.take()[0] == 0
    assert queue.take() == (4, [])
