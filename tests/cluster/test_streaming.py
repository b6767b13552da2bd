"""Samples come while the run goes on, all of them, in order."""

import time

import pytest

import mimokit.cluster
from mimokit.cluster import ClusterRun, EngineCluster, Sample
from tests.cluster.functions import emit_many, train_until_stopped
from tests.waiting import wait_until


def test_every_sample_comes_in_order(cluster: EngineCluster) -> None:
    run = cluster.submit(emit_many, 500, world_size=8)
    assert run.result() == [500] * 8
    samples = run.samples
    assert len(samples) == 4000
    for rank in range(8):
        mine = [sample for sample in samples if sample.rank == rank]
        assert [sample["step"] for sample in mine] == list(range(500))
        assert [sample.sequence for sample in mine] == list(range(500))


def test_a_callback_has_seen_every_sample_when_run_returns(cluster: EngineCluster) -> None:
    seen: list[Sample] = []
    cluster.run(emit_many, 100, world_size=4, on_sample=seen.append)
    assert len(seen) == 400


def test_samples_come_while_the_run_goes_on(cluster: EngineCluster) -> None:
    run = cluster.submit(train_until_stopped, world_size=2)
    wait_for_samples(run, 20)
    late: list[Sample] = []
    run.on_sample(late.append)
    assert not run.done
    run.stop()
    steps = run.result(timeout=180)
    run.drain()
    assert steps[0] == steps[1]
    assert len(run.samples) == len(late) == sum(steps)


def test_the_last_samples_of_a_failing_rank_come_too(cluster: EngineCluster) -> None:
    def fail() -> None:
        for step in range(10):
            mimokit.cluster.emit({"step": step})
        raise ValueError("enough")

    run = cluster.submit(fail, world_size=1)
    with pytest.raises(mimokit.cluster.RankError, match="enough"):
        run.result()
    assert [sample["step"] for sample in run.samples] == list(range(10))


def test_a_sample_that_cannot_be_sent_fails_where_it_is_emitted(cluster: EngineCluster) -> None:
    def fail() -> None:
        import threading

        mimokit.cluster.emit({"lock": threading.Lock()})

    with pytest.raises(mimokit.cluster.RankError, match="cannot pickle"):
        cluster.run(fail, world_size=1)


def test_what_a_rank_prints_is_shown(
    cluster: EngineCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run(lambda: print("hello"), world_size=1)
    deadline = time.monotonic() + 180
    text = ""
    while "[rank 0] hello" not in text and time.monotonic() < deadline:
        text += capsys.readouterr().out
        time.sleep(0.02)
    assert "[rank 0] hello" in text


def test_outside_a_cluster_nothing_happens() -> None:
    mimokit.cluster.emit({"step": 1})
    assert mimokit.cluster.should_stop() is False


def wait_for_samples(run: ClusterRun, count: int) -> None:
    wait_until(lambda: len(run.samples) >= count)
