"""Tests that share something dear run in one worker; every other file is free."""

import os
import sys
from pathlib import Path

import pytest

from tests.commands import run_to_end
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


def test_a_killed_worker_costs_the_test_that_it_ran(tmp_path: Path) -> None:
    """The last test kills it, when the other worker has been told to end."""
    files = {
        "conftest.py": "from tests import scheduling\n"
        "scheduling.group_of = lambda file: file\n"
        "pytest_xdist_make_scheduler = scheduling.GroupScheduling\n",
        "test_0.py": "def test(): pass\n",
        "test_1.py": "def test(): pass\n",
        "test_2.py": "import os, signal\n"
        "def test_first(): pass\n"
        "def test_killed(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "def test_last(): pass\n",
    }
    for name, text in files.items():
        tmp_path.joinpath(name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-n2", "-q", "-p", "no:cacheprovider", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = run_to_end(command, cwd=tmp_path, env=environment, timeout=120)
    assert "crashed while running 'test_2.py::test_killed'" in done.stdout
    assert "1 failed, 4 passed" in done.stdout
