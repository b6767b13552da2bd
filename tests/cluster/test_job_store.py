"""The store of a torchrun job: what others write into it is not there for its ranks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from mimokit.cluster import ClusterError
from mimokit.cluster.pool import Engine
from mimokit.cluster.torchrun import key, store
from mimokit.cluster.torchrun.cluster import TorchrunCluster
from mimokit.cluster.torchrun.member import Member
from mimokit.cluster.torchrun.store import JobStore
from mimokit.cluster.world import EngineFacts

FACTS = EngineFacts(pid=1, host="a", address="127.0.0.1", gpus=("GPU-a",), began=0.0)


def _job(board: dist.Store, *keys: bytes) -> list[JobStore]:
    """Return the stores of two ranks that have met."""
    stores = [JobStore(board, rank, 2, one) for rank, one in enumerate(keys)]
    with ThreadPoolExecutor() as threads:
        assert all(threads.map(lambda one: one.exchange_facts(FACTS) == (FACTS, FACTS), stores))
    return stores


def test_a_task_of_a_stranger_or_of_an_earlier_job_is_not_there() -> None:
    board, earlier = dist.HashStore(), dist.HashStore()
    leader, worker = _job(board, b"key", b"key")
    _job(earlier, b"key", b"key")[0].put("task/0", "of yesterday")
    for forged in (b"a task", b"x" * 32 + b"a task", earlier.get("task/0")):
        board.set("task/0", forged)
        assert worker.look("task/0") is None
        assert worker.take("task/0") is None
    leader.put("task/0", "a task")
    board.set("task/1", board.get("task/0"))
    assert (worker.wait("task/0"), worker.look("task/1")) == (b"a task", None)
    assert leader.key_of("world 0") == worker.key_of("world 0") != leader.key_of("world 1")


def test_a_rank_says_where_it_is() -> None:
    leader, worker = _job(dist.HashStore(), b"key", b"key")
    cluster = SimpleNamespace(_store=leader, _number=5)
    member, asked = SimpleNamespace(_store=worker), threading.Event()

    def watch() -> None:
        while not asked.wait(0.01):
            Member._say_where(member, 4)

    with ThreadPoolExecutor() as threads:
        threads.submit(watch)
        try:
            place = TorchrunCluster.place(cluster, Engine(1, 1, None))
        finally:
            asked.set()
    assert place is not None
    assert "in test_a_rank_says_where_it_is" in place.stack


def test_ranks_without_a_common_key_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WRONG_SECONDS", 0.1)
    with pytest.raises(ClusterError, match=r"not signed with the key of rank .*MIMOKIT_JOB_KEY"):
        _job(dist.HashStore(), b"one", b"another")


def test_a_store_that_is_gone_is_named() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    board = JobStore(client, 0, 1, b"key")
    board.put("a", "b")
    del server
    with pytest.raises(ClusterError, match="the agent of this torchrun job is gone"):
        board.look("a")


def test_the_key_of_a_user_is_read_by_nobody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(key.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ThreadPoolExecutor() as threads:
        (made,) = set(threads.map(lambda _: key.user_key(), range(8)))
    (file,) = (tmp_path / "state" / "mimokit").iterdir()
    assert (len(made), file.stat().st_mode & 0o777) == (64, 0o600)
    file.chmod(0o644)
    with pytest.raises(ClusterError, match="others can read it: delete it"):
        key.user_key()
    monkeypatch.setenv(key.VARIABLE, "secret")
    assert key.user_key() == b"secret"
