"""Lists of what runs send: whole, in order, and small."""

import gc
import pickle
import tracemalloc

import pytest

from mimokit import packed_list
from mimokit.cluster.sample_log import SampleLog
from mimokit.packed_list import TOGETHER, PackedList
from mimokit.samples import StepSample, to_wire
from tests.charts.fakes import samples


@pytest.mark.parametrize("disk", ["not needed", "taken", "full"])
@pytest.mark.parametrize("count", [0, 1, TOGETHER - 1, TOGETHER, TOGETHER + 1, 3 * TOGETHER + 7])
def test_every_item_is_there_from_any_place_on(
    count: int, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if disk != "not needed":
        monkeypatch.setattr(packed_list, "BYTES_IN_MEMORY", 0)
    if disk == "full":
        monkeypatch.setattr(packed_list.os, "pwrite", lambda *written: 1)
    numbers = PackedList[int]()
    for number in range(count):
        numbers.append(number)
    assert len(numbers) == count
    for place in (0, 1, TOGETHER - 1, TOGETHER, count - 1, count, count + TOGETHER):
        assert list(numbers.from_place(max(place, 0))) == list(range(max(place, 0), count))
    kept = [type(one) for one in numbers._packed]
    assert kept == [tuple if disk == "taken" else bytes] * (count // TOGETHER)


def test_a_log_takes_a_fifth_of_its_samples() -> None:
    sent = [to_wire(one) for one in samples(1000, 4) if isinstance(one, StepSample)]
    blobs = [pickle.dumps(message) for message in sent]
    del sent
    gc.collect()
    tracemalloc.start()
    log = SampleLog()
    for blob in blobs:
        log.receive(0, [bytes(bytearray(blob))])  # a copy, as one that has come
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    unpacked = list(log)
    whole = tracemalloc.get_traced_memory()[0] - kept
    tracemalloc.stop()
    assert [one.sequence for one in unpacked] == list(range(4000))
    assert kept < whole / 5
