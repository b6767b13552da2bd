"""Tests that share something dear run in one worker; every other file is free."""

from __future__ import annotations

import pytest

from tests.scheduling import group_of


def test_all_users_of_the_shared_cluster_are_one_group(request: pytest.FixtureRequest) -> None:
    users = {
        item.nodeid.split("::")[0]
        for item in request.session.items
        if "shared_cluster" in getattr(item, "fixturenames", ())
    }
    assert {group_of(file) for file in users} <= {"cluster"}
    assert group_of("tests/cluster/test_failures.py") == "cluster"
    assert group_of("tests/experiment/test_calibrate.py") == "cluster"
    file = "tests/config/test_files.py"
    assert group_of(file) == file


def test_the_browser_is_one_group() -> None:
    assert group_of("tests/browser/test_planner.py") == "browser"
    assert group_of("tests/browser/test_monitor.py") == "browser"
