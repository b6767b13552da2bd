"""Engines that are stopped, not dead: short pauses do no harm, long ones are named and ended."""

import itertools
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from mimokit.cluster import (
    ClusterError,
    EngineCluster,
    RankAbsent,
    RankDied,
    RankError,
    RankFrozen,
    link,
    standstill,
)
from mimokit.cluster.link import EngineLink
from mimokit.cluster.process import is_stopped
from mimokit.cluster.verdict import Busy, only_echoes, verdict
from mimokit.cluster.watch import LOOK_SECONDS
from mimokit.cluster.worker.stack import Place, waits_for_ranks
from mimokit.cluster.worker.task import Failure, RankOutcome
from tests.cluster.functions import all_reduce_forever, process_id, train_until_stopped
from tests.cluster.test_failures import PATIENCE, wait_until_told, works
from tests.cluster.test_streaming import wait_for_samples
from tests.rows import rows
from tests.symptoms import acted_on_after

PATIENT, IMPATIENT = 600.0, 1.0
"""Seconds an engine may be stopped: more than a test takes, and few."""


def test_a_stopped_rank_is_named_killed_and_replaced(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted_on_after(monkeypatch, "stopped", IMPATIENT)
    acted_on_after(monkeypatch, "silent", PATIENT)  # of those that come back
    before = cluster.run(process_id, world_size=4)
    run = cluster.submit(all_reduce_forever, "none", 0)
    wait_for_samples(run, 8)
    os.kill(before[2], signal.SIGSTOP)
    with pytest.raises(RankFrozen) as caught:
        run.result(PATIENCE)
    assert (caught.value.rank, caught.value.pid) == (2, before[2])
    assert str(caught.value) == (
        f"rank 2 (process {before[2]}) was stopped by a signal, did not go on and was killed; "
        "the next run starts it again"
    )
    assert works(cluster)
    after = cluster.run(process_id)
    assert [rank for rank in range(4) if after[rank] != before[rank]] == [2]
    assert not psutil.pid_exists(before[2])


def test_a_short_pause_does_no_harm(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted_on_after(monkeypatch, "stopped", PATIENT)
    before = cluster.run(process_id, world_size=2)
    run = cluster.submit(train_until_stopped)
    wait_for_samples(run, 4)
    os.kill(before[1], signal.SIGSTOP)
    time.sleep(2.5 * LOOK_SECONDS)
    assert not run.done
    os.kill(before[1], signal.SIGCONT)
    run.stop()
    assert len(set(run.result(PATIENCE))) == 1
    assert cluster.run(process_id) == before


def test_an_engine_that_is_stopped_before_a_run_is_named_and_replaced(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted_on_after(monkeypatch, "stopped", IMPATIENT)
    pid = cluster.run(process_id, world_size=4)[1]
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):  # a busy machine stops it later
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match=rf"engine 1 \(process {pid}\) was stopped"):
        assert works(cluster)
    assert pid not in cluster.pids


@pytest.mark.parametrize(
    ("trouble", "line"), [("lock", r"lock\.acquire\(\)"), ("poll", r"while not came\.is_set\(\)")]
)
def test_a_rank_that_waits_for_itself_is_named_and_its_run_is_ended_if_it_may_begin_again(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch, trouble: str, line: str
) -> None:
    monkeypatch.setattr(standstill, "FIRST_SECONDS", 0.5)
    acted_on_after(monkeypatch, "idle", 2.0)
    cluster.form_world(4)
    run = cluster.submit(all_reduce_forever, trouble, 2)
    told = rf"stands still: rank 2 did nothing for .* where a step takes (?s:.*){line}"
    with pytest.warns(RuntimeWarning, match=told):
        wait_until_told(run)
    assert not run.done
    run.end_idle()
    with pytest.raises(
        RankFrozen, match=r"rank 2 .* did nothing for .*, and was killed; "
    ) as error:
        run.result(PATIENCE)
    assert re.search(line, error.value.traceback or "")


def test_a_rank_that_one_look_has_missed_is_named_at_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standstill, "slowdown", lambda: 1.0)
    ran = iter([3.0, 3.1, 3.2, 3.2])  # a signal let it run between the first looks
    watch = standstill.Standstill(lambda rank: Place("lock", next(ran)))
    named = []
    for tenth in range(250):
        while not all(map(standstill._answered, watch._looks)):
            time.sleep(0.001)
        named.append((tenth, watch.idle([0], tenth / 10)))
    while not all(map(standstill._answered, watch._looks)):
        time.sleep(0.001)
    assert all(not places for tenth, places in named if tenth < 240), "not asked four times"
    assert watch.idle([0], 25.0) == {0: Place("lock", 3.2)}


def test_ranks_that_compute_wait_or_move_are_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "slowdown", lambda: 1.0)
    clock = itertools.count(1.0)
    answers: dict[int, Callable[[], Place | None]] = {
        0: lambda: Place("in user code", next(clock)),
        1: lambda: Place("all_reduce", 3.0, waits=True),
        2: lambda: Place("lock", 3.0),
        3: lambda: None,
        4: lambda: Place("where no clock is", None),
        5: lambda: Place("waits for a thread", 3.0, work_seconds=(at := next(clock)), clock=at),
    }
    watch = standstill.Standstill(lambda rank: answers[rank]())

    def looked(silence: float) -> dict[int, Place | None]:
        for _ in range(100):
            if idle_ranks := watch.idle(range(6), silence):
                return idle_ranks
            time.sleep(0.01)
        return {}

    assert watch.idle(range(6), 0.5) == watch.idle(range(6), 4.0) == {}
    assert looked(9.0) == {2: Place("lock", 3.0), 3: None}
    assert watch.idle(range(6), 0.0) == {}  # a rank has reported since
    answers[2] = answers[0]
    assert watch.idle(range(6), 4.0) == {}
    assert looked(9.0) == {3: None}


@pytest.mark.parametrize(("other_waits", "named_after"), [(True, 6.0), (False, 60.0)])
def test_a_busy_machine_is_no_excuse_for_a_rank_that_all_others_wait_for(
    monkeypatch: pytest.MonkeyPatch, other_waits: bool, named_after: float
) -> None:
    """Where another works, this may wait for it, and work takes ten times as long there."""
    monkeypatch.setattr(standstill, "slowdown", lambda: 10.0)
    clock = itertools.count(1.0)
    places = {
        0: lambda: Place("other", next(clock), waits=other_waits),
        1: lambda: Place("lock", 3),
    }
    watch = standstill.Standstill(lambda rank: places[rank]())
    for second in itertools.count():
        while not all(map(standstill._answered, watch._looks)):
            time.sleep(0.001)
        if named := watch.idle([0, 1], float(second)):
            break
    assert named == {1: Place("lock", 3)}
    assert named_after <= second <= 2 * named_after + 1


def test_a_rank_without_a_core_is_not_accused() -> None:
    before = Place("computes", 3.0, clock=1.0)
    assert standstill.does_nothing(before, replace(before, clock=6.0, delay_seconds=0.1))
    assert not standstill.does_nothing(before, replace(before, clock=6.0, delay_seconds=4.9))


@rows(
    "file, line, waits",
    ("/lib/torch/distributed/distributed_c10d.py", "work.wait()", True),
    ("/home/me/mimokit/engine/bridges/messages.py", "request.wait()", True),
    ("/home/me/loop.py", "loss = total.item()", True),
    ("/home/me/loop.py", "lock.acquire()", False),
    ("/usr/lib/python3.11/threading.py", "waiter.acquire()", False),
    ("/home/me/loop.py", "os.fsync(file.fileno())", True),
    ("/home/me/loop.py", "time.sleep(3600)", False),
)
def test_a_wait_for_other_ranks_is_told_from_other_waits(file: str, line: str, waits: bool) -> None:
    assert waits_for_ranks(file, line) == waits


def _outcome(communication: bool, text: str = "text", interrupted: bool = False) -> RankOutcome:
    failure = Failure("Error", text, "trace", interrupted, communication)
    return RankOutcome(None, failure, 0, False)


def test_the_likeliest_cause_is_named() -> None:
    echo, own = _outcome(communication=True), _outcome(communication=False)
    silent = RankFrozen(2, 7, "did not answer and was killed")
    assert only_echoes({0: echo, 3: RankOutcome(b"", None, 0, True)})
    assert not only_echoes({0: echo, 1: own})
    assert not only_echoes({0: RankOutcome(b"", None, 0, True)})
    assert isinstance(verdict({0: echo, 2: silent}), RankFrozen)
    # A rank that works while others break off is not the cause, unless they have waited for it.
    slow = {2: Busy("in load"), 3: _outcome(False, interrupted=True)}
    broken = verdict({0: echo, **slow})
    assert isinstance(broken, RankError)
    assert broken.rank == 0
    waited = _outcome(True, "Timed out waiting 30000ms for recv operation to complete")
    absent = verdict({0: waited, 1: _outcome(True, interrupted=True), **slow})
    assert isinstance(absent, RankAbsent)
    assert (absent.rank, absent.traceback) == (2, "in load")
    assert str(absent).startswith(
        "rank 2 did not come to a collective of other ranks (rank 0 waited there: Timed out"
    )
    raised = verdict({0: echo, 2: silent, 3: own})
    assert isinstance(raised, RankError)
    assert (raised.rank, raised.traceback) == (3, "trace")
    died = verdict({0: own, 2: silent, 3: RankDied(3, 8, "SIGKILL")})
    assert died is not None
    assert str(died) == "rank 3 (process 8) was killed by SIGKILL; the next run starts it again"
    assert died.traceback is None


class _Unanswered(EngineLink):
    def start(self, engine_id: int, task: object, events: object) -> None:
        """Send nothing."""


def test_a_call_that_waits_looks_whether_that_is_of_use() -> None:
    unanswered = _Unanswered(SimpleNamespace(session=SimpleNamespace()))

    def look(engine_id: int) -> None:
        raise ClusterError(f"the controller of engine {engine_id} has died")

    with pytest.raises(ClusterError, match="the controller of engine 5 has died"):
        unanswered.call([5], process_id, PATIENT, look)


def test_a_controller_that_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    assert link.PING_SECONDS + link.SILENT_SECONDS + LOOK_SECONDS <= 10.0
    answers: list[Future[None]] = []

    def send(*arguments: object, **keywords: object) -> Future[None]:
        answers.append(Future())
        return answers[-1]

    client = SimpleNamespace(session=SimpleNamespace(), _query_stream=None, _send=send)
    controller = EngineLink(client)
    assert not controller.controller_is_silent()
    monkeypatch.setattr(link, "SILENT_SECONDS", 0.0)
    assert controller.controller_is_silent()
    assert len(answers) == 1
    answers[0].set_result(None)
    assert not controller.controller_is_silent()
    monkeypatch.setattr(link, "PING_SECONDS", 0.0)
    assert controller.controller_is_silent()
    assert len(answers) == 2
