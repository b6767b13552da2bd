"""Which ranks compute on GPUs; no GPU is needed to decide it."""

import os
from contextlib import nullcontext as nothing
from typing import Any

import pytest
import torch

from mimokit.cluster import ClusterError, devices
from mimokit.cluster.backend import GLOO, NCCL, choose_backend
from mimokit.cluster.devices import gpus_of_host
from mimokit.cluster.local import starting
from mimokit.cluster.worker.membership import Membership
from mimokit.cluster.world import EngineFacts, lay_out, places_on_hosts
from mimokit.engine.device import rank_device


def facts(*hosts: tuple[str, tuple[str, ...]]) -> tuple[EngineFacts, ...]:
    return tuple(
        EngineFacts(pid=1, host=host, address="10.0.0.1", gpus=gpus, began=0.0)
        for host, gpus in hosts
    )


def chosen(*hosts: tuple[str, tuple[str, ...]]) -> str:
    return choose_backend(facts(*hosts), places_on_hosts([host for host, _ in hosts]))


def test_ranks_with_a_gpu_each_use_nccl_and_ranks_without_any_gloo() -> None:
    assert chosen(("a", ()), ("a", ()), ("b", ())) == GLOO
    assert chosen(("a", ("x", "y")), ("a", ("x", "y")), ("b", ("x",))) == NCCL
    # Under Slurm each task sees one GPU, which is another one than its neighbour's.
    assert chosen(("a", ("x",)), ("a", ("y",))) == NCCL


def test_ranks_that_would_share_a_gpu_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"2 ranks on a share the GPU x.*as many ranks as there"):
        chosen(("a", ("x", "y")), ("a", ("x", "y")), ("a", ("x", "y")))
    with pytest.raises(ClusterError, match="2 ranks on a share the GPU x"):
        chosen(("a", ("x",)), ("a", ("x",)))


def test_ranks_of_which_only_some_see_gpus_are_refused() -> None:
    with pytest.raises(ClusterError, match="rank 1 on b sees no GPU, but rank 0 on a sees 2 GPUs"):
        chosen(("a", ("x", "y")), ("b", ()))


def test_ranks_of_a_host_that_see_different_numbers_of_gpus_are_refused() -> None:
    sentence = "rank 0 on a sees 2 GPUs, but rank 1 on the same host sees 1; start all engines"
    for gpu in "xy":  # two ranks would share x; y they would not, by chance
        with pytest.raises(ClusterError, match=sentence):
            chosen(("a", ("x", "y")), ("a", (gpu,)))


@pytest.mark.parametrize(("visible", "number"), [(1, 0), (2, 1), (8, 1)])
def test_a_rank_joins_and_computes_on_the_gpu_that_its_backend_was_chosen_for(
    monkeypatch: pytest.MonkeyPatch, visible: int, number: int
) -> None:
    """One visible GPU per task is usual under Slurm; there the second rank has the number 0."""
    seen = [tuple(f"GPU {n}" for n in range(visible))] * 2 if visible > 1 else [("x",), ("y",)]
    hosts = facts(*[("a", gpus) for gpus in seen])
    spec = lay_out(hosts, (0, 1), 1, 1.0, b"", choose_backend(hosts, (0, 1)))[1]
    made: list[Any] = []
    monkeypatch.setattr(torch._C._distributed_c10d, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda *_, **options: made.append(options["device_id"]),
    )
    monkeypatch.setattr(os, "environ", dict(os.environ))
    Membership().join(spec)
    made.append(rank_device())
    assert made == [torch.device("cuda", number)] * 4


def test_gpus_are_counted_without_opening_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "version_of", lambda _: "2.13.0")
    for value, count in (("0,1,3", 3), ("", 0), ("-1", 0), ("GPU-4f, GPU-a0", 2)):
        monkeypatch.setenv(devices.VISIBLE, value)
        assert gpus_of_host() == count
    monkeypatch.setattr(devices, "version_of", lambda _: "2.13.0+cpu")
    assert gpus_of_host() == 0


def test_more_engines_than_gpus_compute_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    class StopError(Exception):
        pass

    def start(*args: object, env: dict[str, str], **options: object) -> None:
        started.append(env)
        raise StopError

    monkeypatch.setenv(devices.VISIBLE, "0,1")
    monkeypatch.setattr(starting.psutil, "Popen", start)
    for gpus, seen in ((1, ""), (4, "0,1")):
        monkeypatch.setattr(starting, "gpus_of_host", lambda gpus=gpus: gpus)
        with pytest.raises(StopError), pytest.warns() if gpus == 1 else nothing():
            starting.start_server(2, starting.StartOptions(True, (), 30.0))
        assert started.pop()[devices.VISIBLE] == seen
