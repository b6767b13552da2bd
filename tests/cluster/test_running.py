"""Running functions on ranks, and forming worlds again."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.cluster.call_file import LARGE
from tests.cluster.functions import describe_rank, process_id, train_until_stopped
from tests.rows import rows

TRIANGLE = {1: 1, 4: 10, 8: 36}


def test_results_are_in_rank_order(cluster: EngineCluster) -> None:
    found = cluster.run(describe_rank, 3, key="value", world_size=8)
    assert [one["rank"] for one in found] == list(range(8))
    assert {one["sum"] for one in found} == {36.0}
    assert all(one["arguments"] == ((3,), {"key": "value"}) for one in found)
    assert len({one["pid"] for one in found}) == 8


def test_functions_of_a_notebook_are_sent_by_value(cluster: EngineCluster) -> None:
    offset = 10

    class Answer:
        def __init__(self, value: int) -> None:
            self.value = value

    def ask(factor: int) -> Answer:
        return Answer(offset * factor)

    assert [one.value for one in cluster.run(ask, 4)] == [40] * 8


@pytest.mark.parametrize("bytes_", [LARGE // 2, 2 * LARGE])
def test_arrays_of_a_call_are_the_own_of_each_rank(cluster: EngineCluster, bytes_: int) -> None:
    given = np.arange(bytes_ // 8)

    def change(array: np.ndarray, other: dict[str, np.ndarray]) -> tuple[int, int, list[str]]:
        array[0] += 7
        mapped = [
            line.split()[5]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "/call-" in line
        ]
        return int(array[0]), int(other["same"].sum()), mapped

    own = np.ones(3, dtype=np.float32)
    found = cluster.run(change, given, other={"same": own}, world_size=4)
    assert [one[:2] for one in found] == [(7, 3)] * 4
    assert given[0] == 0
    cluster.run(process_id, world_size=4)  # begins once the run before has ended
    files = {Path(name) for one in found for name in one[2]}
    assert len(files) == int(bytes_ > LARGE)
    assert not any(file.exists() for file in files)


def test_worlds_one_after_another(cluster: EngineCluster) -> None:
    for size in (8, 4, 1, 8):
        check_world(cluster, size)


def check_world(cluster: EngineCluster, size: int) -> None:
    found = cluster.run(describe_rank, world_size=size)
    assert [one["size"] for one in found] == [size] * size
    assert {one["sum"] for one in found} == {TRIANGLE[size]}
    assert [one["environment"]["RANK"] for one in found] == [str(rank) for rank in range(size)]
    assert {one["environment"]["WORLD_SIZE"] for one in found} == {str(size)}
    assert cluster.world_size == size


def test_a_world_is_used_again(cluster: EngineCluster) -> None:
    ports = {
        one["environment"]["MASTER_PORT"]
        for _ in range(2)
        for one in cluster.run(describe_rank, world_size=4)
    }
    assert len(ports) == 1
    assert len(cluster.run(process_id)) == 4
    assert cluster.form_world(4).size == 4
    assert cluster.run(describe_rank)[0]["environment"]["MASTER_PORT"] not in ports


def test_nothing_is_left_of_the_last_world(cluster: EngineCluster) -> None:
    def leave_globals() -> None:
        from megatron.core import parallel_state

        # mimokit's door has made one already, which Megatron's own set-up does not expect.
        parallel_state.destroy_global_memory_buffer()
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)

    def look() -> tuple[bool, int | None, str | None]:
        import os

        import torch.distributed as dist
        from megatron.core import parallel_state

        size = dist.get_world_size() if dist.is_initialized() else None
        return parallel_state.model_parallel_is_initialized(), size, os.environ.get("WORLD_SIZE")

    cluster.run(leave_globals, world_size=8)
    assert cluster.run(look, world_size=4) == [(False, 4, "4")] * 4
    left = cluster.client[[engine.engine_id for engine in cluster.engines[4:]]]
    assert left.apply_sync(look) == [(False, None, None)] * 4


def test_some_ranks(cluster: EngineCluster) -> None:
    everyone = cluster.run(process_id, world_size=8)
    assert cluster.run(process_id, ranks=[5, 2]) == [everyone[5], everyone[2]]
    cluster.form_world(8)
    assert cluster.run(process_id, ranks=[7]) == everyone[7:]
    assert len(cluster.run(describe_rank)) == 8


def test_a_world_over_some_engines(cluster: EngineCluster) -> None:
    everyone = cluster.run(process_id, world_size=8)
    cluster.form_world(ranks=[6, 1])
    found = cluster.run(describe_rank)
    assert [one["pid"] for one in found] == [everyone[6], everyone[1]]
    assert [one["rank"] for one in found] == [0, 1]


def test_one_run_at_a_time(cluster: EngineCluster) -> None:
    run = cluster.submit(train_until_stopped, world_size=2)
    with pytest.raises(ClusterError, match=r"a run of .*train_until_stopped has been in progress"):
        cluster.run(process_id)
    run.stop()
    assert len(set(run.result())) == 1


def test_a_run_is_stopped_that_waits_in_the_queue_of_its_engines(cluster: EngineCluster) -> None:
    cluster.run(process_id, world_size=2)
    busy = cluster.client[[engine.engine_id for engine in cluster.engines[:2]]]
    before = busy.apply_async(time.sleep, 0.5)
    run = cluster.submit(train_until_stopped)
    run.stop()
    assert run.result(60.0) == [0, 0]
    before.get()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"world_size": 9}, "a world of 9 cannot be formed: this cluster has 8 engines"),
        ({"world_size": 0}, "a world of 0 cannot be formed: this cluster has 8 engines"),
        ({"world_size": 2, "ranks": [2]}, "ranks [2] are not different ranks of a world of 2"),
        ({"world_size": 2, "ranks": []}, "ranks [] are not different ranks of a world of 2"),
    ],
)
def test_bad_arguments(cluster: EngineCluster, asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(sentence)):
        cluster.run(process_id, **asked)  # type: ignore[arg-type]


def test_a_function_that_cannot_be_sent(cluster: EngineCluster) -> None:
    import threading

    with pytest.raises(ClusterError, match="cannot be sent to the engines"):
        cluster.run(lambda lock: None, threading.Lock())


def test_a_cluster_says_what_it_is(cluster: EngineCluster) -> None:
    cluster.run(process_id, world_size=8)
    assert repr(cluster) == "<EngineCluster of 8 engines (local, forked), world of 8>"
    assert "8 engines" in cluster._repr_html_()
    assert len(cluster) == 8


@rows(
    "arguments, sentence",
    ({"n": 0}, "n must be at least 1 engine, got 0"),
    ({"n": 2.5}, "n must be at least 1 engine, got 2.5"),
    ({"launch": "spoon"}, 'launch must be "fork", "plain" or None'),
    ({"timeout": 0}, "timeout must be more than 0 seconds"),
    ({"cluster_file": "/nowhere.json"}, "no running cluster was found by /nowhere.json"),
    ({"n": 1, "preload": ["no.such"], "progress": False}, "'no.such' cannot be imported"),
)
def test_a_cluster_that_cannot_be(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(sentence)):
        EngineCluster(**arguments)  # type: ignore[arg-type]
