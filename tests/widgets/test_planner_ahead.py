"""What a planner tells ahead of a key is what that key then shows."""

import json
from typing import Any

import pytest

from mimokit_widgets.planner.ahead import screens_ahead
from mimokit_widgets.planner.draft import History
from mimokit_widgets.planner.session import Session
from tests.rows import rows
from tests.widgets.planner_sessions import LANGUAGE, Driver

PATH = f"{LANGUAGE}tensor_parallel".split(".")


def _typed(text: str) -> dict[str, Any]:
    return {"type": "edit", "path": PATH, "text": text}


def check_ahead(source: str, *before: dict[str, Any]) -> None:
    """Take every key once after some messages, and compare the screen with what was told."""

    def prepared() -> Driver:
        driver = Driver(f"preset:{source}")
        for message in before:
            driver.session.handle(message)
        return driver

    driver = prepared()
    ahead = screens_ahead(driver.session, PATH)
    assert driver.screen == prepared().screen
    assert len(ahead["after"]) == 4
    for key, place in ahead["after"].items():
        pressed = prepared()
        pressed.session.handle(json.loads(key))
        assert pressed.screen == ahead["screens"][place]


@rows("source", "digits_colocated", "llava_7b_colocated", "llava_7b_heterogeneous")
def test_a_key_shows_what_was_told(source: str) -> None:
    check_ahead(source)


@rows(
    "before",
    [_typed("4"), {"type": "settle"}, _typed("2"), {"type": "undo"}],
    [_typed("3")],
    [{"type": "hold", "on": False}],
    [{"type": "for_all", "on": True}],
    [{"type": "select", "rank": 5}],
    [{"type": "tab", "name": "batch"}, {"type": "sample", "sample": 1, "backward": True}],
    [{"type": "tab", "name": "traffic"}],
    [{"type": "tab", "name": "frames"}],
    [{"type": "tab", "name": "samples"}],
    [{"type": "tab", "name": "prediction"}],
    [{"type": "pin"}, _typed("4")],
)
def test_whatever_came_before_a_key_is_told(before: list[dict[str, Any]]) -> None:
    check_ahead("llava_7b_colocated", *before)


def test_a_step_back_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: what goes ahead begins with the draft that is shown."""
    at_rest = Session.at_rest

    def forgetful(session: Session) -> Session:
        still = at_rest(session)
        still.history = History(session.draft)
        return still

    monkeypatch.setattr(Session, "at_rest", forgetful)
    with pytest.raises(AssertionError):
        check_ahead("llava_7b_colocated", _typed("4"))
