"""What an engine keeps of a world that has failed."""

import threading

import pytest

from mimokit.cluster.worker import membership
from mimokit.cluster.worker.membership import Membership


def timers() -> list[threading.Timer]:
    return [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_an_engine_waits_once_for_the_others_of_a_failed_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "SILENCE_AFTER", 600.0)
    before = timers()
    member = Membership()
    member.break_off()
    member.leave()
    assert len(timers()) == len(before) + 1
    later = member._later
    assert later is not None
    later.cancel()
    later.join()
    monkeypatch.setattr(membership, "SILENCE_AFTER", 0.0)
    later.function()  # as if the time were over
    member.leave()
    assert len(timers()) == len(before), "of later worlds, too"
    monkeypatch.setattr(membership, "SILENCE_AFTER", 600.0)
    member.break_off()
    member.leave()
    assert len(timers()) == len(before) + 1, "another one that fails"
    assert member._later is not None
    member._later.cancel()
