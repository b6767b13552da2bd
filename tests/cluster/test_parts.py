"""Parts of a cluster: separate worlds, runs and failures at the same time."""

import gc
import time
from pathlib import Path

import pytest

from mimokit.cluster import ClusterError, EngineCluster, RankDied
from tests.cluster.functions import all_reduce_forever, process_id, train_until_stopped
from tests.cluster.test_failures import PATIENCE, works
from tests.cluster.test_streaming import wait_for_samples


def meet(folder: str, own: str, other: str) -> tuple[int, int]:
    """Wait for the rank of the other part that has the same number; both run at the same time."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    Path(folder, f"{own}{rank}").touch()
    while not Path(folder, f"{other}{rank}").exists():
        time.sleep(0.01)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total), dist.get_world_size()


def test_parts_run_at_the_same_time_and_fail_alone(cluster: EngineCluster, tmp_path: Path) -> None:
    pids = cluster.run(process_id, world_size=8)
    with cluster.part([1, 0]) as left, cluster.part(range(4, 8)) as right:
        assert (len(left), left.pids) == (2, (pids[1], pids[0]))
        assert "a part of 8" in repr(right)
        runs = [
            left.submit(meet, str(tmp_path), "left", "right"),
            right.submit(meet, str(tmp_path), "right", "left", world_size=2),
        ]
        assert [run.result(PATIENCE) for run in runs] == [[(2, 2)] * 2] * 2
        _fails_alone(left, right, pids)
        with pytest.raises(ClusterError, match="engines 0–1, 4–7 are in use by a part of this"):
            cluster.run(process_id)
        busy = left.submit(all_reduce_forever, "none", 0)
        wait_for_samples(busy, 20)
    with pytest.raises(ClusterError, match="the run was aborted"):
        busy.result(PATIENCE)
    assert works(cluster)
    now = cluster.run(process_id)
    assert now[2:4] == pids[2:4]
    # Where others of a part are slow to come back after an abort they are replaced, too.
    assert now[5] != pids[5]


def _fails_alone(left: EngineCluster, right: EngineCluster, pids: list[int]) -> None:
    """A rank of the one part dies, and is replaced, while the other goes on."""
    goes_on = left.submit(train_until_stopped)
    wait_for_samples(goes_on, 2)
    with pytest.raises(RankDied) as caught:
        right.run(all_reduce_forever, "kill", 1, world_size=4)
    assert (caught.value.rank, caught.value.pid) == (1, pids[5])
    assert works(right)
    assert not goes_on.done
    goes_on.stop()
    assert len(set(goes_on.result(PATIENCE))) == 1


def test_a_part_that_closes_leaves_no_engine_to_be_replaced_twice(
    cluster: EngineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, replaced = cluster._pool.replace, []

    def replace_later(slots: list[int]) -> None:
        replaced.extend(slots)
        time.sleep(1)  # long enough for the cluster to look at its engines in the meantime
        replace(slots)

    monkeypatch.setattr(cluster._pool, "replace", replace_later)
    with cluster.part([6]) as part, pytest.raises(RankDied):
        part.run(all_reduce_forever, "kill", 0)
    assert works(cluster)
    assert replaced == [6]


def test_engines_in_use_are_refused(cluster: EngineCluster) -> None:
    cluster.form_world(2)
    run = cluster.submit(train_until_stopped)
    wait_for_samples(run, 2)
    with pytest.raises(ClusterError, match="engines 0–1 are in use by a run of train_until"):
        cluster.part([1, 2])
    other = cluster.part([2, 3])
    assert other.run(process_id) == list(cluster.pids[2:4])
    assert not run.done
    run.stop()
    run.result(PATIENCE)
    with pytest.raises(ClusterError, match="engine 3 is in use by a part of this cluster"):
        cluster.part([3, 4])
    with other.part([1]), pytest.raises(ClusterError, match="engine 1 is in use by a part"):
        other.run(process_id)
    other.close()
    other.close()
    with pytest.raises(ClusterError, match="this cluster is closed"):
        other.run(process_id)
    forgotten = cluster.part(range(8))
    assert works(forgotten)
    del forgotten
    deadline = time.monotonic() + PATIENCE
    while cluster._formation.lent and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert works(cluster)


@pytest.mark.parametrize(
    ("slots", "sentence"),
    [
        ([], "is over different engines of it, got"),
        ([1, 1], "is over different engines of it, got"),
        (["1"], "is over different engines of it, got"),
        ([7, 8], "a part cannot have the engines .*: this cluster has 0 to 7"),
    ],
)
def test_engines_that_are_not_there(
    cluster: EngineCluster, slots: list[int], sentence: str
) -> None:
    with pytest.raises(ClusterError, match=sentence):
        cluster.part(slots)
