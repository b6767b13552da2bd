"""Tests that share something dear run in one worker; every other file is free."""

import pytest

from tests.scheduling import LONGEST_FIRST, ROOT, group_of, order


def test_all_users_of_the_shared_cluster_are_in_few_groups(request: pytest.FixtureRequest) -> None:
    users = {
        item.nodeid.split("::")[0]
        for item in request.session.items
        if "shared_cluster" in getattr(item, "fixturenames", ())
    }
    assert {group_of(file) for file in users} <= {"browser", "cluster", "experiment", "training"}
    assert group_of("tests/engine/verify/test_expert_invariance.py") == "cluster"
    assert group_of("tests/cluster/test_failures.py") == "training"
    assert group_of("tests/experiment/test_calibrate.py") == "experiment"
    file = "tests/config_files/test_files.py"
    assert group_of(file) == file


def test_the_browser_is_one_group() -> None:
    assert group_of("tests/browser/test_planner.py") == "browser"
    assert group_of("tests/browser/test_monitor.py") == "browser"


def test_the_longest_groups_come_first(request: pytest.FixtureRequest) -> None:
    files = [item.nodeid.split("::")[0] for item in request.session.items]
    assert [order(file) for file in files] == sorted(order(file) for file in files)
    assert order("tests/test_claims.py") == 0
    assert order("tests/test_units.py") == len(LONGEST_FIRST)
    known = [name for name in LONGEST_FIRST if name.startswith("tests/")]
    assert [name for name in known if not (ROOT / name).is_file()] == []
    assert [name for name in known if group_of(name) != name] == []
