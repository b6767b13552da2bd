"""Ranks that raise, die, hang, or are interrupted; after each the same cluster works on."""

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest

from mimokit.cluster import (
    ClusterError,
    ClusterRun,
    EngineCluster,
    RankAbsent,
    RankDied,
    RankError,
    RankFrozen,
    RunAborted,
    link,
    patience,
)
from mimokit.cluster.worker import membership
from tests.cluster.functions import (
    all_reduce_forever,
    change_modes,
    describe_rank,
    modes,
    process_id,
    sleep_after_some_steps,
)
from tests.cluster.test_streaming import wait_for_samples
from tests.processes import interrupt_in
from tests.symptoms import acted_on_after

TROUBLE_AT = 0.3
TIMEOUT = 2.0
"""Seconds that collectives wait for a rank that does not come, on an idle machine."""
PATIENCE = 180.0
"""Seconds to wait for what must come, also on a busy machine: see `benchmarks.failure_reports`."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace no rank that is slow to come back after an abort."""
    acted_on_after(monkeypatch, "silent", PATIENCE)


@pytest.mark.usefixtures("patient")
def test_an_exception_on_one_rank(cluster: EngineCluster) -> None:
    before = cluster.run(process_id, world_size=8)
    with pytest.raises(RankError) as caught:
        cluster.run(all_reduce_forever, "raise", 3, TROUBLE_AT)
    assert caught.value.rank == 3
    assert caught.value.type_name == "ValueError"
    assert str(caught.value).startswith("rank 3 raised ValueError: the third wheel came off\n")
    assert 'raise ValueError("the third wheel came off")' in caught.value.traceback_text
    assert works(cluster)
    assert cluster.run(process_id) == before


def test_a_run_that_fails_leaves_the_modes_of_torch_as_they_were(cluster: EngineCluster) -> None:
    cluster.run(modes, world_size=2)
    with pytest.raises(RankError, match="halfway"):
        cluster.run(change_modes)
    assert cluster.run(modes) == [(True, "torch.float32")] * 2


@pytest.mark.usefixtures("patient")
def test_a_rank_killed_in_an_all_reduce(cluster: EngineCluster) -> None:
    before = cluster.run(process_id, world_size=8)
    with pytest.raises(RankDied) as caught:
        cluster.run(all_reduce_forever, "kill", 5, TROUBLE_AT)
    assert (caught.value.rank, caught.value.pid, caught.value.signal) == (5, before[5], "SIGKILL")
    assert str(caught.value).startswith(f"rank 5 (process {before[5]}) was killed by SIGKILL")
    assert works(cluster)
    after = cluster.run(process_id)
    assert [rank for rank in range(8) if after[rank] != before[rank]] == [5]


def leave(rank: int, status: int) -> None:
    if int(os.environ["RANK"]) == rank:
        os._exit(status)


def abort_without_descriptors() -> None:
    """Without a moment between, in which another thread could hand the words on."""
    ctypes.PyDLL(None).dprintf(2, b"terminate called: accept: Too many open files\n")
    os.abort()


def test_an_exit_status_is_said(cluster: EngineCluster) -> None:
    cluster.form_world(2)
    with pytest.raises(RankDied, match=r"rank 1 .* has ended with exit status 3; ") as caught:
        cluster.run(leave, 1, 3)
    assert (caught.value.signal, caught.value.status) == (None, 3)


def test_a_rank_that_gloo_ends_for_lack_of_descriptors_says_so(cluster: EngineCluster) -> None:
    cluster.form_world(2)
    with pytest.raises(RankDied, match="killed by SIGABRT, as it had no descriptor left"):
        cluster.run(abort_without_descriptors)
    assert works(cluster)


def test_the_rank_that_hosts_the_store_is_killed(cluster: EngineCluster) -> None:
    cluster.form_world(8)
    with pytest.raises(RankDied, match="rank 0"):
        cluster.run(all_reduce_forever, "kill", 0, TROUBLE_AT)
    assert works(cluster)


def test_an_idle_engine_is_killed(cluster: EngineCluster) -> None:
    pid = cluster.run(process_id, world_size=8)[2]
    os.kill(pid, signal.SIGKILL)
    while cluster._formation._pool.alive(2):  # a busy machine notices it later
        time.sleep(0.01)
    assert works(cluster)
    assert pid not in cluster.pids


@pytest.mark.usefixtures("patient")
def test_abort_frees_ranks_that_wait_or_sleep(cluster: EngineCluster) -> None:
    before = cluster.run(process_id, world_size=8)
    run = cluster.submit(all_reduce_forever, "sleep", 1, TROUBLE_AT)
    wait_for_samples(run, 7)
    time.sleep(TROUBLE_AT + 0.5)
    run.abort()
    with pytest.raises(RunAborted, match="the run was aborted after"):
        run.result(PATIENCE)
    assert run.wait_ended(PATIENCE)
    assert works(cluster)
    assert cluster.run(process_id) == before


def test_a_run_right_after_an_abort_waits_for_its_end(cluster: EngineCluster) -> None:
    cluster.form_world(2)
    run = cluster.submit(all_reduce_forever, "none", 0)
    wait_for_samples(run, 20)
    run.abort()
    assert works(cluster)
    assert run.done


def test_a_rank_that_does_not_come_back_is_replaced(cluster: EngineCluster) -> None:
    before = cluster.run(process_id, world_size=4)
    run = cluster.submit(all_reduce_forever, "deaf", 1, 0.0)
    while not any("trouble" in sample for sample in run.samples):
        time.sleep(0.01)
    run.abort()
    with pytest.raises(RunAborted):
        run.result(PATIENCE)
    assert works(cluster)
    # Others that are slow to come back are replaced, too.
    assert cluster.run(process_id)[1] != before[1]


@pytest.mark.parametrize(
    ("trouble", "kind", "line"),
    [("deaf", RankAbsent, "time.sleep(60)"), ("hold", RankFrozen, "in _get_in_trouble")],
)
def test_a_rank_that_others_wait_for_is_named_with_its_stack(
    cluster: EngineCluster,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    kind: type[ClusterError],
    line: str,
) -> None:
    with monkeypatch.context() as patch:
        acted_on_after(patch, "silent", 1.0)
        patch.setattr(link, "ANSWER_SECONDS", 1.0)
        cluster.form_world(4)
        timeout = TIMEOUT * patience.slowdown()  # a rank that is only slow comes before that
        with pytest.raises(ClusterError) as caught:
            cluster.run(all_reduce_forever, trouble, 2, TROUBLE_AT, timeout=timeout)
    assert (type(caught.value), caught.value.rank) == (kind, 2), caught.value
    assert line in (caught.value.traceback or "")
    assert line in str(caught.value)
    assert works(cluster)


def test_ranks_that_all_sleep_are_told_with_their_stacks(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted_on_after(monkeypatch, "still", 1.0)
    cluster.form_world(2)
    with pytest.warns(RuntimeWarning, match="sleep_after_some_steps stands still") as told:
        _sleep_until_told(cluster)
    assert "ranks 0, 1:\n" in str(told[0].message)
    assert "time.sleep(0.01)" in str(told[0].message)
    assert len(told) == 1


def _sleep_until_told(cluster: EngineCluster) -> None:
    sleeping = cluster.submit(sleep_after_some_steps, 6)
    wait_until_told(sleeping)
    sleeping.stop()
    sleeping.result(PATIENCE)


def wait_until_told(run: ClusterRun) -> None:
    while not run._watch.standstill.told and run.elapsed < PATIENCE:
        time.sleep(0.05)


def test_limits_grow_with_the_load_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the average of a minute, and with what is ready to run now where that is more."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(patience, "LOAD", tmp_path / "loadavg")
    for load, ready, factor in (
        *((0.1, "", 1.0), (6.0, "", 3.0), (1000.0, "", patience.MOST)),
        *((0.1, "9/400", 4.0), (6.0, "1/400", 3.0), (0.1, "1/400", 1.0)),
    ):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        patience.LOAD.write_text(f"{load} 0.0 0.0 {ready} 4711\n" if ready else "")
        assert patience.slowdown() == factor
        assert membership._patience(30.0).total_seconds() == 30.0 * factor


def test_an_interrupted_run(cluster: EngineCluster) -> None:
    cluster.form_world(8)
    interrupt_in("result")
    with pytest.raises(KeyboardInterrupt):
        cluster.run(all_reduce_forever, "none", 0)
    assert works(cluster)


@pytest.mark.parametrize("moment", ["watch", "on_sample"])
def test_a_run_that_is_interrupted_before_it_is_waited_for(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    original = getattr(ClusterRun, moment)

    def interrupted(run: ClusterRun, *arguments: object) -> None:
        original(run, *arguments)
        raise KeyboardInterrupt

    works(cluster)  # its world is joined
    with monkeypatch.context() as patch:
        patch.setattr(ClusterRun, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cluster.run(all_reduce_forever, "none", 0, on_sample=print)
    assert works(cluster)


def test_an_exit_and_a_result_that_cannot_be_sent(cluster: EngineCluster) -> None:
    with pytest.raises(RankError, match="rank 0 raised SystemExit: 3"):
        cluster.run(lambda: exit(3), world_size=1)
    with pytest.raises(RankError, match="the result cannot be sent back"):
        cluster.run(lambda: (number for number in range(3)), world_size=1)


def test_a_run_whose_cluster_is_closed() -> None:
    with EngineCluster(n=1, preload=(), progress=False) as small:
        run = small.submit(all_reduce_forever, "none", 0)
    with pytest.raises(ClusterError, match="the cluster was closed during the run"):
        run.result(PATIENCE)
    with pytest.raises(ClusterError, match="this cluster is closed"):
        small.run(process_id)


def works(cluster: EngineCluster) -> bool:
    found = cluster.run(describe_rank)
    size = len(found)
    return all(one["sum"] == size * (size + 1) / 2 and one["size"] == size for one in found)
