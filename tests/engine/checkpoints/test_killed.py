"""A process that is killed while it saves leaves the checkpoint before, whole."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from mimokit.engine.checkpoints.files import read_whole
from mimokit.planning.checkpoints import steps_in
from tests.engine.checkpoints import savers

KILLS = 12


def test_killed_at_any_moment_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, KILLS)


def kill_while_saving(folder: Path, kills: int) -> None:
    """Kill a process that saves so many times; `benchmarks.checkpoints` does 100."""
    server = subprocess.Popen(
        [sys.executable, "-m", savers.__name__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    draw, step = random.Random(0), 0
    try:
        for _ in range(kills):
            step = _step_after_a_kill(server, folder, step, draw.uniform(0, 0.05))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def _step_after_a_kill(
    server: subprocess.Popen[str], folder: Path, step: int, seconds: float
) -> int:
    """Kill a process so long after it has saved; return the step of the newest checkpoint."""
    assert server.stdin is not None
    assert server.stdout is not None
    print(file=server.stdin, flush=True)
    process = int(server.stdout.readline())
    deadline = time.monotonic() + 600
    while max(steps_in(folder), default=0) <= step and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    assert int(server.stdout.readline()) == -signal.SIGKILL, "it had ended by itself"
    found = savers.newest(folder)
    assert found is not None
    assert found.step == max(steps_in(folder)) > step, "the newest one is not whole"
    assert (read_whole(found, ["weights/m/0"])["weights/m/0"] == found.step).all()
    return found.step
