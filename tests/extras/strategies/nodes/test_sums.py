"""Nodes whose ranks share tensors add up a number alike, wherever it stands in what they send."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from mimokit.cluster import EngineCluster
from mimokit.engine.device import group_timeout
from mimokit.engine.run_of_rank import _group_of_peers
from mimokit.engine.strategies import communicate
from tests.two_devices import DEVICE, HOST, two_devices

NODES = 3
SIZES = (1, 2, 7, 300, 10_001)
FIRST = 7
"""Numbers of the long tensor from which on the short one holds them."""


def numbers(node: int, size: int, dtype: torch.dtype) -> Tensor:
    draws = torch.Generator().manual_seed(node)
    return torch.randn(size, generator=draws).mul_(10.0**node).to(dtype)


def added(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    first, *others = (numbers(node, size, dtype) for node in range(NODES))
    return sum(others, first)


@contextmanager
def peers() -> Iterator[int]:
    """Take a group as replicas have it as the nodes; yields the number of this one."""
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    number = store.add(f"sums/{rank}", 1)
    place = dist.PrefixStore(f"sums/{number}/peers", store), rank, dist.get_world_size()
    with communicate.among(_group_of_peers(*place, group_timeout())):
        communicate.start_ledger()
        yield rank


def sums(dtype: torch.dtype) -> list[Tensor]:
    with peers() as node:
        return [communicate.all_reduce(numbers(node, size, dtype)) for size in SIZES]


def sums_in_blocks() -> list[Tensor]:
    with patch.object(communicate, "BLOCK", 64):
        return sums(torch.float32)


def sums_in_the_background() -> list[Tensor]:
    """Sum some while others are under way, of which the last is asked for first."""
    with peers() as node:
        flats = [numbers(node, size, torch.float32) for size in SIZES]
        begun = [communicate.begin_all_reduce(flat) for flat in flats[::2]]
        for flat in flats[1::2]:
            communicate.sum_among(flat, range(NODES))
    for wait in reversed(begun):
        wait()
    return flats


def sums_of_both() -> tuple[Tensor, Tensor]:
    """Sum numbers, and most of them in another tensor."""
    with peers() as node:
        whole = numbers(node, SIZES[-1], torch.float32)
        part = whole[FIRST:].clone()
        return communicate.all_reduce(whole), communicate.all_reduce(part)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (partial(sums, torch.float32), torch.float32),
        (partial(sums, torch.bfloat16), torch.bfloat16),
        (sums_in_blocks, torch.float32),
        (sums_in_the_background, torch.float32),
    ],
)
def test_a_sum_is_made_in_the_order_of_the_nodes(
    cluster: EngineCluster, make: Callable[[], list[Tensor]], dtype: torch.dtype
) -> None:
    expected = [added(size, dtype) for size in SIZES]
    for found in cluster.run(make, world_size=NODES):
        assert all(map(torch.equal, found, expected))


def test_numbers_have_the_same_sum_at_any_place(cluster: EngineCluster) -> None:
    for whole, part in cluster.run(sums_of_both, world_size=NODES):
        assert torch.equal(whole[FIRST:], part)


def test_who_waits_for_a_sum_is_told_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(communicate, "_sum_in_parts", fail)
    with pytest.raises(RuntimeError, match="closed by peer"):
        communicate.UnderWay([communicate._begin_sum(torch.ones(3), tag=1)])()


class _Done:
    def wait(self) -> None:
        """Wait for nothing."""


class _GroupOfTwo:
    """A group of gloo whose other node sends zeros; keeps the devices of what this one sends."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0

    def send(self, tensors: list[Tensor], member: int, tag: int) -> _Done:
        self.devices.append(tensors[0].device)
        return _Done()

    def recv(self, tensors: list[Tensor], member: int, tag: int) -> _Done:
        tensors[0].zero_()
        return _Done()


def test_bytes_of_a_gpu_are_swapped_by_gloo_from_the_host() -> None:
    group = _GroupOfTwo()
    with two_devices(), communicate.among(group):
        communicate.start_ledger()
        packed = torch.ones(4, 8, dtype=torch.uint8, device=DEVICE)
        found = communicate.low_bit_sum(packed, range(2), 16, lambda parts: parts[0] + parts[1])
        devices = [part.device for part in found]
    assert devices == [DEVICE, DEVICE]
    assert group.devices == [HOST, HOST]
    assert [float(part.sum()) for part in found] == [16.0, 0.0]
