"""Arithmetic of a device that tests do not have."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mimokit.config import ConfigError
from mimokit.engine import device
from mimokit.engine.megatron.cpu import share_cores
from mimokit.engine.verify import compare, oracle
from mimokit.extras.strategies.fits import node
from mimokit.extras.strategies.fits.job import FitError

SWITCHES: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
_STATED = [switch.allow_tf32 for switch in SWITCHES]


@pytest.fixture
def with_tf32() -> Iterator[None]:
    before = [switch.allow_tf32 for switch in SWITCHES]
    for switch in SWITCHES:
        switch.allow_tf32 = True
    yield
    for switch, allowed in zip(SWITCHES, before, strict=True):
        switch.allow_tf32 = allowed


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has this policy")
def test_threads_that_a_rank_on_a_cpu_starts_interrupt_no_other() -> None:
    def policies() -> tuple[int, int]:
        share_cores()
        with ThreadPoolExecutor(1) as started:
            return os.sched_getscheduler(0), started.submit(os.sched_getscheduler, 0).result()

    with ThreadPoolExecutor(1) as rank:  # threads of other tests stay as they are
        assert rank.submit(policies).result() == (os.SCHED_BATCH, os.SCHED_BATCH)


@pytest.mark.usefixtures("with_tf32")
@pytest.mark.parametrize(
    "checker",
    [lambda run: compare.compare_on_rank(run, []), lambda run: oracle.run_oracle(run, 1, None)],
    ids=["compare_on_rank", "run_oracle"],
)
def test_what_verifies_computes_without_tf32_and_leaves_the_switches(checker: Any) -> None:
    seen: list[list[bool]] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            seen.append([switch.allow_tf32 for switch in SWITCHES])
            raise RuntimeError("stopped at the first look")

    with pytest.raises(RuntimeError, match="stopped"):
        checker(Watched())
    assert seen[0] == [False, False]
    assert [switch.allow_tf32 for switch in SWITCHES] == [True, True]


def test_a_run_in_tf32_has_it_for_products_and_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with device.products_of("bf16"), device.products_of(None):
        assert [switch.allow_tf32 for switch in SWITCHES] == _STATED
    with pytest.raises(ConfigError, match="precision is tf32, in which GPUs alone compute, and"):
        device.products_of("tf32")
    monkeypatch.setattr(device, "rank_device", lambda: torch.device("cuda"))
    with device.products_of("tf32"):
        assert [switch.allow_tf32 for switch in SWITCHES] == [True, True]
    assert [switch.allow_tf32 for switch in SWITCHES] == _STATED


def test_a_node_of_a_fit_keeps_to_the_gpu_with_which_its_engine_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    bound = SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=torch.device("cuda", 1)))
    monkeypatch.setattr(node.dist, "group", bound)
    monkeypatch.setenv("LOCAL_RANK", "1")
    choices: list[Any] = [None, [3, 1]]
    for devices in choices:
        job: Any = SimpleNamespace(device=None, devices=devices)
        assert node.device_of(job, 5) == torch.device("cuda", 1)
    with pytest.raises(
        FitError, match=r"node 4: devices names GPU 3, .* with GPU 1; leave devices"
    ):
        node.device_of(job, 4)
