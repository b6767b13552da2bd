"""One JupyterLab for the browser tests: in separate folders, without network access."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
SECONDS_TO_START = 120.0
SECONDS_TO_END = 60.0
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--ServerApp.port=0",
    # A TCP port that is free can be another test's before the kernel binds it.
    "--KernelManager.transport=ipc",
    "--LabApp.expose_app_in_browser=True",
    # What a JupyterLab asks the network for by itself:
    "--LabApp.news_url=",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)


@dataclass(frozen=True)
class LabServer:
    """A JupyterLab that is running.

    Attributes:
        url: where it answers, with a slash at the end.
        token: what it wants to see in a request.
        folder: where its notebooks are.
    """

    url: str
    token: str
    folder: Path


@contextlib.contextmanager
def running_lab(folder: Path) -> Iterator[LabServer]:
    # Short: it holds sockets, whose names have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="lab") as runtime:
        yield from _running(folder, Path(runtime))


def _running(folder: Path, runtime: Path) -> Iterator[LabServer]:
    notebooks = folder / "notebooks"
    notebooks.mkdir(parents=True)
    _refuse_news(folder / "config")
    log = folder / "lab.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *OPTIONS, f"--ServerApp.root_dir={notebooks}"],
            env=_environment(folder, runtime),
            cwd=notebooks,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _wait_until_it_answers(process, runtime, notebooks, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:  # its kernels notice, and end as well
        process.kill()
        process.wait()


def _refuse_news(config: Path) -> None:
    """Answer the question that a new JupyterLab asks, which would cover a corner of the page."""
    settings = config / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    answers = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(answers))


def _environment(folder: Path, runtime: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "widgets"))),
        # Its warning that sockets on this machine are not encrypted is no output of a cell.
        "PYTHONWARNINGS": "ignore",
    }


def _wait_until_it_answers(
    process: subprocess.Popen[bytes], runtime: Path, notebooks: Path, log: Path
) -> LabServer:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, URLError, OSError):
                told: dict[str, Any] = json.loads(file.read_text())
                urlopen(f"{told['url']}api/status?token={told['token']}", timeout=60).close()
                return LabServer(told["url"], told["token"], notebooks)
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not answer. It said:\n{log.read_text()[-2000:]}")
