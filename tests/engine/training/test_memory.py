"""Memory of a process without a GPU."""

import sys
from pathlib import Path

import psutil
import pytest

from mimokit.engine.training import memory
from mimokit.engine.training.memory import ProcessMemory

SIZE = 2**26


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_a_step_is_not_that_of_the_step_before() -> None:
    meter = ProcessMemory()
    meter.start()
    before = meter.read()
    meter.start()
    large = bytearray(b"1") * SIZE
    del large
    after = meter.read()
    meter.start()
    quiet = meter.read()
    assert after.peak >= after.allocated + SIZE // 2
    assert after.allocated < before.allocated + SIZE // 2
    assert quiet.peak < quiet.allocated + SIZE // 2


@pytest.mark.parametrize("share", [1e9, 1e-9], ids=["walked", "inferred"])
def test_private_memory_is_what_a_walk_over_all_pages_finds(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SHARE_OF_WALKS", share)
    meter = ProcessMemory()
    meter.start()
    meter.read()
    kept = bytearray(b"1") * SIZE
    found = meter.read()
    walked = psutil.Process().memory_full_info().uss
    assert abs(found.allocated - walked) < SIZE // 8
    assert found.allocated <= found.reserved
    del kept


def test_where_the_kernel_does_not_reset_the_peak_the_ends_of_a_step_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_CLEAR_REFS", Path("/proc/self/absent"))
    monkeypatch.setattr(memory, "_STATM", Path("/proc/self/absent"))
    large = bytearray(b"1") * SIZE
    meter = ProcessMemory()
    meter.start()
    del large
    found = meter.read()
    assert found.peak >= found.allocated + SIZE // 2
