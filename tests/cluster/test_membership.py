"""What an engine keeps of a world that has failed."""

from __future__ import annotations

import threading

import pytest

from mimokit.cluster.worker import membership
from mimokit.cluster.worker.membership import Membership


def timers() -> list[threading.Timer]:
    return [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_an_engine_waits_once_for_the_others_of_a_failed_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "SILENCE_AFTER", 0.05)
    before = timers()
    member = Membership()
    member.break_off()
    member.leave()
    assert len(timers()) == len(before) + 1
    for one in timers():
        one.join()
    member.leave()
    assert timers() == [], "of later worlds, too"
    member.break_off()
    member.leave()
    assert timers(), "another one that fails"
