"""How late a sample is on the screen, whether one is lost, and what watching costs a training.

All of it on this machine: eight engines, JupyterLab, Chromium. The lag of a sample runs from the
moment that its rank sends it to the first task after the frame in which it was drawn.
`python -m benchmarks.monitor_lag [--seconds 120] [--pairs 5]`.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from playwright.sync_api import sync_playwright

from benchmarks.paced_run import RANKS
from benchmarks.training_speed import CONFIG, ITERATIONS, steps_per_second
from tests.browser.chromium import find_chromium
from tests.browser.conftest import ARGUMENTS, VIEWPORT
from tests.browser.notebook_page import NotebookPage, write_notebook
from tests.browser.server import running_lab

RATE = 10.0
MOST_LAG = 0.25
MOST_SLOWDOWN = 0.01
CLUSTER = "from mimokit.cluster import EngineCluster\ncluster = EngineCluster(n=8, progress=False)"
WATCH_PACED = """
from mimokit_widgets import LiveMonitor
from benchmarks.paced_run import PacedRun
run = PacedRun(cluster, {count}, {rate})
monitor = LiveMonitor(run)
monitor
"""
TRAIN = """
import time
from IPython.display import clear_output, display
import mimokit
from mimokit.experiment import train
from mimokit.samples import StepSample
from mimokit_widgets import LiveMonitor
config = mimokit.load_experiment_config({config!r})
shorter = config.runtime.model_copy(update={{"num_iterations": {iterations}, "log_interval": 1}})
config = config.model_copy(update={{"runtime": shorter}})
def rate_of(run):
    run.result()
    return [s.time for s in run.samples if isinstance(s, StepSample) and s.rank == 0]
def unwatched():
    return rate_of(train(cluster, config, directory="runs"))
def watched():
    run = train(cluster, config, directory="runs")
    monitor = LiveMonitor(run)
    display(monitor)
    times = rate_of(run)
    monitor.wait()
    clear_output()
    return times
pairs = []
for pair in range({pairs}):
    order = [unwatched, watched] if pair % 2 else [watched, unwatched]
    times = {{each.__name__: each() for each in order}}
    pairs.append((times["watched"], times["unwatched"]))
"""
NOTE_PICTURES = """() => {
  window.pictures = [];
  const now = () => (performance.timeOrigin + performance.now()) / 1000;
  let last = 0;
  const note = () => {
    const rows = Number(document.querySelector(".mimokit-live")?.dataset.rows ?? 0);
    if (rows <= last) return;
    last = rows;
    setTimeout(() => window.pictures.push([rows, now()]));
  };
  new MutationObserver(note).observe(document.body,
    { subtree: true, attributes: true, attributeFilter: ["data-rows"] });
}"""


@contextlib.contextmanager
def opened(*cells: str) -> Iterator[NotebookPage]:
    """Open a notebook with these cells in a separate JupyterLab."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_lab(Path(folder)) as lab,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        page = browser.new_context(viewport=VIEWPORT).new_page()
        notebook = NotebookPage(page, write_notebook(lab.folder / "lag.ipynb", cells), lab)
        notebook.open()
        try:
            yield notebook
        finally:
            notebook.execute("cluster.close()")
            browser.close()


def lags(sent: Sequence[float], pictures: Sequence[Sequence[float]]) -> list[float]:
    """Return the seconds from sending to drawing of every sample that was drawn.

    Args:
        sent: when each sample was sent, in the order of arrival.
        pictures: how many samples a picture held, and when it was drawn; both rise.
    """
    counts = [int(count) for count, _ in pictures]
    drawn = counts[-1] if counts else 0
    return [pictures[bisect_left(counts, at + 1)][1] - sent[at] for at in range(drawn)]


def watch_paced(seconds: float) -> tuple[list[float], int]:
    """Return the lag of every sample drawn, and how many were sent."""
    count = round(seconds * RATE)
    with opened(CLUSTER, WATCH_PACED.format(count=count, rate=RATE)) as notebook:
        notebook.page.evaluate(NOTE_PICTURES)
        notebook.run_all()
        deadline = (seconds + 60) * 1000
        notebook.page.get_by_role("heading", name="Training finished").wait_for(timeout=deadline)
        sent = notebook.value("[sample.time for sample in run.samples]")
        pictures = notebook.page.evaluate("window.pictures")
        return lags(sent, pictures), sum(notebook.value("run.result()"))


def slowdowns(pairs: int) -> list[float]:
    """Return by which share watched trainings were slower than unwatched ones, per pair."""
    train = TRAIN.format(config=str(CONFIG), iterations=ITERATIONS, pairs=pairs)
    with opened(CLUSTER, train) as notebook:
        notebook.run_all()
        measured = notebook.value("pairs")
    return [1 - steps_per_second(watched) / steps_per_second(alone) for watched, alone in measured]


def rows(seconds: float = 120.0, pairs: int = 5) -> list[dict[str, Any]]:
    """Return the figures of the table."""
    late, sent = watch_paced(seconds)
    cost = slowdowns(pairs)
    p99 = statistics.quantiles(late, n=100)[98]
    slower = statistics.median(cost)
    what = f"{RANKS} ranks, {RATE:g} samples/s each, {seconds:g} s"
    return [
        {
            "name": f"samples lost of {sent} ({what})",
            "measured": sent - len(late),
            "target": 0,
            "unit": "",
            "ok": len(late) == sent,
        },
        {
            "name": "lag from rank to screen, median",
            "measured": 1000 * statistics.median(late),
            "target": None,
            "unit": "ms",
            "ok": True,
        },
        {
            "name": "lag from rank to screen, 99th percentile",
            "measured": 1000 * p99,
            "target": 1000 * MOST_LAG,
            "unit": "ms",
            "ok": p99 <= MOST_LAG,
        },
        {
            "name": "training slowed, browser on the same machine, "
            f"median of {pairs} pairs ({100 * min(cost):.1f} to {100 * max(cost):.1f} %)",
            "measured": 100 * slower,
            "target": 100 * MOST_SLOWDOWN,
            "unit": "%",
            "ok": slower <= MOST_SLOWDOWN,
        },
    ]


def main(
    seconds: Annotated[float, typer.Option(min=5)] = 120.0,
    pairs: Annotated[int, typer.Option(min=1)] = 5,
) -> None:
    """Print the table."""
    from benchmarks.table import show

    show("Watching a run", rows(seconds, pairs))


if __name__ == "__main__":
    typer.run(main)
