"""Parts of a step are timed on a GPU without waiting for it."""

from typing import Any

import pytest
import torch

from mimokit.engine import part_times
from mimokit.engine.part_times import DeviceMarks, PartTimes, StepPart


class Device:
    """A stand-in for CUDA: its clock runs on as the host waits for it, to the end of its work."""

    def __init__(self) -> None:
        self.queued = 0.0
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1

    def event(self, **_: Any) -> Any:
        device = self

        class Event:
            def record(self) -> None:
                self.at = device.queued

            def synchronize(self) -> None:
                device.waits += 1

            def elapsed_time(self, later: Any) -> float:
                return (later.at - self.at) * 1e3  # type: ignore[no-any-return]

        return Event()


def test_parts_on_a_gpu_are_times_of_its_work_and_wait_for_it_once_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    monkeypatch.setattr(part_times.time, "perf_counter", lambda: 100.0)
    marks, times = DeviceMarks(), PartTimes()
    monkeypatch.setattr(part_times, "set_mark", marks.set)
    monkeypatch.setattr(part_times, "seconds_at", marks.seconds)
    device.queued = 5.0
    assert marks.begin() == 100.0
    before = device.waits
    for _ in range(3):
        with times.part(StepPart.PEER):
            device.queued += 0.25
        with times.part(StepPart.GROUP):
            device.queued += 0.5
    end = marks.set()
    assert device.waits == before
    taken = times.take()
    assert (taken[StepPart.PEER], taken[StepPart.GROUP]) == pytest.approx((0.75, 1.5))
    assert times.take()[StepPart.PEER] == 0
    assert marks.seconds(end) == pytest.approx(102.25)
