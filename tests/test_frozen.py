"""Shipped configs and presets plan, predict and refuse as they did before."""

from __future__ import annotations

import json

import pytest

from tests.frozen.answers import FROZEN, answers, as_frozen, rounded, sources

KEPT = json.loads(FROZEN.read_text())


def test_every_source_is_frozen() -> None:
    assert set(KEPT) == set(sources())


@pytest.mark.parametrize("source", KEPT)
def test_a_source_answers_as_before(source: str) -> None:
    """To see what differs, write both checkouts whole with `python -m tests.frozen FOLDER`."""
    assert as_frozen(answers(source)) == KEPT[source]


def test_a_changed_number_is_seen() -> None:
    source = "preset:llava_7b_colocated"
    answer = answers(source)
    memory = next(key for key, value in answer["h100"].items() if isinstance(value, float))
    answer["h100"][memory] *= 1.0001
    assert as_frozen(answer)["h100"] != KEPT[source]["h100"]
    assert as_frozen(rounded(answer))["plan"] == KEPT[source]["plan"]
