"""A run whose process was killed is not "running" for whoever looks next."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from mimokit.analysis import load_runs
from mimokit.result_files import RunFile
from tests.analysis.planted_runs import Planted, write_run
from tests.rows import rows


def gone() -> tuple[int, float]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    began = psutil.Process(process.pid).create_time()
    process.wait()
    return process.pid, began


HERE = (os.getpid(), psutil.Process().create_time())


@rows(
    "host, processes, status",
    (None, ["gone"], "ended"),
    (None, ["gone", HERE], "running"),
    (None, [(HERE[0], 5.0)], "ended"),
    ("another", ["gone"], "running"),
    (None, None, "running"),
    (None, [("1", None)], "running"),
    (None, ["x"], "running"),
)
def test_the_status_is_that_of_the_processes_that_write(
    tmp_path: Path, host: str | None, processes: list[Any] | None, status: str
) -> None:
    """On their host: the client, and the server of a cluster that stays, which goes on alone."""
    folder = write_run(tmp_path / "run", Planted(iterations=8))
    info = json.loads((folder / RunFile.INFO).read_text())
    known = processes and [gone() if one == "gone" else one for one in processes]
    info["writer"] = {"host": host or socket.gethostname(), "processes": known}
    (folder / RunFile.INFO).write_text(json.dumps({**info, "status": "running"}))
    assert load_runs(folder).runs["status"].tolist() == [status]
