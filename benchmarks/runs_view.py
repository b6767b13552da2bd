"""How long 200 runs of 1,000 iterations take to explore: `python -m benchmarks.runs_view`.

The runs are those of `load_runs`, numbers of full length. Times in Chromium are from the call to
the first task after the frame that drew it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Page, sync_playwright

from benchmarks.load_runs import write
from benchmarks.table import show
from mimokit.analysis import Runs, load_runs
from mimokit.charts import report
from mimokit.charts.runs_view.content import runs_content
from mimokit.charts.runs_view.page import runs_view
from mimokit_widgets import BatchSplit, LayoutPlanner, RankMap, TrafficMap
from tests.browser.chromium import find_chromium
from tests.browser.conftest import ARGUMENTS

REPEATS = 9
FEW = 7
PRESET = "preset:llava_7b_colocated"
DRAWN = """(act) => new Promise((resolve) => {
  const root = document.querySelector(".mimokit-runs");
  const began = performance.now();
  const before = root.dataset.version;
  const look = () => {
    if (act && root.dataset.version === before) return requestAnimationFrame(look);
    return setTimeout(() => resolve(performance.now() - began));
  };
  if (act === "all") document.querySelector("th input").click();
  if (act === "smooth") {
    const slider = document.querySelector("input[type=range]");
    slider.value = slider.value === "0" ? 0.9 : 0;
    slider.dispatchEvent(new Event("input"));
  }
  look();
})"""
HOVER = """() => {
  const view = [...document.querySelectorAll(".panels canvas")].find((each) => each.tabIndex === 0);
  const box = view.getBoundingClientRect();
  const began = performance.now();
  view.dispatchEvent(new PointerEvent("pointermove",
    { clientX: box.left + 100 + 200 * Math.random(), clientY: box.top + 60, bubbles: true }));
  return new Promise((resolve) => requestAnimationFrame(() =>
    setTimeout(() => resolve(performance.now() - began))));
}"""


def rows() -> list[dict[str, Any]]:
    """Measure Python's half, the page, and what the browser does with all runs shown."""
    with TemporaryDirectory() as folder:
        names = write(Path(folder))
        runs = load_runs(folder)
        content, seconds = timed(lambda: runs_content(runs))
        page, whole = timed(lambda: runs_view(runs))
        found = [
            row(f"medians and curves of {len(names)} runs × 1,000 iterations", seconds, None, "s"),
            row("the page with them, files of 40 runs' ranks read", whole, None, "s"),
            row("curves in a notebook", len(content.curves) / 1e6, None, "MB"),
            row("the page", len(page) / 1e6, None, "MB"),
            *in_chromium(page, Path(folder) / "page.html"),
        ]
        found += sizes(runs.only(names[:FEW]))
    return found


def in_chromium(text: str, file: Path) -> Iterator[dict[str, Any]]:
    """Yield medians of single actions on the page."""
    file.write_text(text, encoding="utf-8")
    with opened(file) as page:
        yield row("opened in Chromium, until 12 runs are drawn", loaded(page, file), None, "ms")
        page.evaluate(DRAWN, "all")
        yield row("all 200 runs drawn, on a change", each(page, DRAWN, "smooth"), 200.0, "ms")
        yield row("cross-hair over 200 runs, all charts", each(page, HOVER), 33.0, "ms")


@contextmanager
def opened(file: Path) -> Iterator[Page]:
    """Open a page in a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def loaded(page: Page, file: Path) -> float:
    """Return the milliseconds from opening a page to its first picture."""
    begin = time.perf_counter()
    page.goto(file.as_uri())
    page.wait_for_selector(".mimokit-runs[data-drawn]")
    return 1000 * (time.perf_counter() - begin)


def each(page: Page, code: str, argument: str | None = None) -> float:
    """Return the median milliseconds of an action."""
    return statistics.median(float(page.evaluate(code, argument)) for _ in range(REPEATS))


def sizes(runs: Runs) -> Iterator[dict[str, Any]]:
    """Yield the sizes of what is exported."""
    yield row(f"report.html of {FEW} runs", len(report(runs)) / 1e6, None, "MB")
    for view in (RankMap, BatchSplit, TrafficMap, LayoutPlanner):
        size = len(view(PRESET)._in_html()) / 1e3
        yield row(f"a saved {view.__name__} of 8 ranks", size, None, "kB")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its seconds."""
    begin = time.perf_counter()
    found = call()
    return found, time.perf_counter() - begin


def row(name: str, measured: float, target: float | None, unit: str) -> dict[str, Any]:
    """Return one measurement against its target."""
    reached = target is None or measured <= target
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": reached}


if __name__ == "__main__":
    show("Runs to explore", rows())
