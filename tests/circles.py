"""What `make test` takes of the tests: `pytest --suite`. `make test-all` takes all of them.

Rooms that compute without engines are in the suite. Of the rooms with engines it has the claims
(`tests/test_claims.py`), what runs without the shared engines, and the tests that are named here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE_ROOMS = ("tests/engine/", "tests/cluster/", "tests/experiment/")
PAGE_ROOMS = ("tests/browser/", "tests/notebooks/")
CLUSTERS = {"cluster", "shared_cluster"}

TAKEN: tuple[str, ...] = ()
"""Files and tests of rooms with engines and pages that are in the suite."""
LEFT_OUT: tuple[str, ...] = ()
"""Files and tests that would be in the suite by the rule above, and cost more than they add."""


def in_the_suite(test: str, fixtures: frozenset[str] = frozenset()) -> bool:
    """Return whether a test is in the suite.

    Args:
        test: its node id.
        fixtures: the names of those that it asks for.
    """
    if _named(test, LEFT_OUT):
        return False
    if _named(test, TAKEN):
        return True
    if test.startswith(ENGINE_ROOMS):
        return CLUSTERS.isdisjoint(fixtures)
    return not test.startswith(PAGE_ROOMS)


def is_left_out(file: str) -> bool:
    """Return whether no test of a file is in the suite, so that it need not be imported."""
    if any(name.startswith(file) for name in TAKEN):
        return False
    return file in LEFT_OUT or file.startswith(PAGE_ROOMS)


def _named(test: str, names: tuple[str, ...]) -> bool:
    """Return whether a test is named, or its file, its folder or its test without parameters."""
    return any(
        test == name
        or test.startswith((f"{name}[", f"{name}::"))
        or (name.endswith("/") and test.startswith(name))
        for name in names
    )


class SuitePlugin:
    """Deselects what is not in the suite, where the suite is asked for."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Do not import files of which nothing is in the suite."""
        if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
            return None
        return is_left_out(collection_path.relative_to(ROOT).as_posix()) or None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave the others out."""
        taken, others = [], []
        for item in items:
            fixtures = frozenset(getattr(item, "fixturenames", ()))
            (taken if in_the_suite(item.nodeid, fixtures) else others).append(item)
        items[:] = taken
        config.hook.pytest_deselected(items=others)
