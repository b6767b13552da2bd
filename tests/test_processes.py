"""The check that no process outlives the tests finds one that does."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.processes import MARK, nothing_left_behind

SLEEP = "import time; time.sleep(600)"
ORPHAN = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}], stdout=subprocess.DEVNULL).pid)"
)


def test_a_process_whose_parent_is_gone_is_found_and_ended() -> None:
    before = os.environ.get(MARK)
    with (
        pytest.raises(AssertionError, match="left behind: process") as caught,
        nothing_left_behind(patience=0.2),
    ):
        told = subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=True)
    pid = int(told.stdout)
    assert f"process {pid} of tests/test_processes.py" in str(caught.value)
    assert "time.sleep(600)" in str(caught.value)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert os.environ.get(MARK) == before


def test_processes_that_end_are_not_left() -> None:
    with nothing_left_behind():
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    child.wait()
