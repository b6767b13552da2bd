"""A cluster lasts: runs of changing layouts add neither files nor threads nor memory."""

import os
import threading

from tests.footprint import footprints, grown, own_footprint, soak, soak_runs

EARLY, LATE = 7, 12
"""Numbers of runs of the same layouts, after each has run; `benchmarks.soak` takes 200."""


def test_twelve_runs_of_changing_layouts_leave_nothing(cluster, tmp_path):
    looks = {}
    for number in soak(cluster, soak_runs(iterations=1), LATE, tmp_path):
        if number in (EARLY, LATE):
            looks[number] = footprints(cluster)
    assert grown(looks[EARLY], looks[LATE]) == []


def test_what_is_left_is_named():
    before = {"client": own_footprint()}
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(5 + before["client"].threads)]
    for thread in threads:
        thread.start()
    files = [open(os.devnull) for _ in range(2 + before["client"].files // 2)]  # noqa: SIM115
    memory = bytearray(os.urandom(1) * (before["client"].memory // 4))
    found = grown(before, {"client": own_footprint()})
    end.set()
    for file in files:
        file.close()
    assert memory
    assert [one.split(" of client: ")[0] for one in found] == ["files", "threads", "memory"]
