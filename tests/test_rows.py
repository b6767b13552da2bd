"""A row that fails is told by its name, and the rows after it run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each, rows


class Told:
    """Stands in for `subtests`, and keeps the names of what fails."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    @contextlib.contextmanager
    def test(self, name: str) -> Iterator[None]:
        try:
            yield
        except AssertionError:
            self.failed.append(name)


def test_each_wrong_row_is_told() -> None:
    told: Any = Told()
    table = {"right": (1, 1), "wrong": (1, 2), "wrong too": (2, 3), "right too": (2, 2)}

    def check(one: int, other: int) -> None:
        assert one == other

    each(told, table, check)
    assert told.failed == ["wrong", "wrong too"]
    with pytest.raises(AssertionError):
        each(told, {}, check)


def test_a_test_of_rows_is_given_its_fixtures() -> None:
    seen: list[tuple[int, str, str]] = []

    @rows("number, word", (1, "a"), (2, "b"), (3, "c"))
    def check(number: int, word: str, fixture: str) -> None:
        seen.append((number, word, fixture))
        assert number != 2

    told: Any = Told()
    check(subtests=told, fixture="x")
    assert seen == [(1, "a", "x"), (2, "b", "x"), (3, "c", "x")]
    assert told.failed == ["1: (2, 'b')"]


@rows("number", 1, 2)
def test_pytest_collects_rows_once(number: int, request: pytest.FixtureRequest) -> None:
    assert number in (1, 2)
    assert request.node.name == "test_pytest_collects_rows_once"


@rows("number", 1, 2)
def test_each_row_has_a_folder_of_its_own(number: int, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]
