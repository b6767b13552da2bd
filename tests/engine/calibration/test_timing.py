"""Laps of a stopwatch, and whom the seconds of other threads are charged to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mimokit.engine.calibration import collectives
from mimokit.engine.calibration.collectives import CpuCharges, TimedCollective
from mimokit.engine.calibration.timing import Stopwatch, Timing
from mimokit.prediction.calibration.measurements import IN_A_ROW


def a_collective() -> TimedCollective:
    return TimedCollective("all-reduce", 2, 512, False, 1, 1e-3, lambda: None)


def test_a_few_long_laps_count() -> None:
    watch = Stopwatch()
    watch.laps = [Timing(9.0, 9.0), *[Timing(1.0, 0.5)] * 9, Timing(6.0, 5.5)]
    assert watch.mean(uncounted=1) == Timing(pytest.approx(1.5), pytest.approx(1.0))


def test_other_threads_are_charged_to_the_collective_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they do while the next piece is computed as well; what they did before nobody is."""
    clock = iter([100.0, 103.0, 103.0, 110.0])
    monkeypatch.setattr(collectives, "others_seconds", lambda: next(clock))
    ledger, first, second = CpuCharges(), a_collective(), a_collective()
    ledger.call(first)
    ledger.call(second)
    ledger.close()
    ledger.close()
    assert (first.others, second.others) == ([3.0], [7.0])
    second.watch.laps = [Timing(0.0, 2.0)]
    assert second.time(uncounted=0).cpu_seconds == pytest.approx((2.0 + 7.0) / IN_A_ROW)


def test_all_reduces_are_called_in_a_row_and_others_once() -> None:
    called: list[str] = []
    ledger = CpuCharges()
    for kind in ("all-reduce", "all-gather"):
        ledger.call(replace(a_collective(), kind=kind, call=lambda kind=kind: called.append(kind)))
    ledger.close()
    assert called == ["all-reduce"] * IN_A_ROW + ["all-gather"]
