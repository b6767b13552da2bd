"""How long the planner takes in a real browser: `python -m benchmarks.planner_speed`.

From the key press to the picture on the screen: the clock starts with the event's own time stamp
and stops in the first task after the frame that drew the new map.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.plan_speed import Row
from benchmarks.table import show
from tests.browser.chromium import find_chromium
from tests.browser.conftest import ARGUMENTS, VIEWPORT
from tests.browser.notebook_page import NotebookPage, write_notebook
from tests.browser.server import LabServer, running_lab

REPEATS = 24
OPENINGS = 8
IMPORTS = 7
EDIT_TARGETS = {8: 12.0, 1_024: 16.0, 16_384: 33.0}
"""Ranks -> milliseconds from key press to picture."""
MAP_TARGET = 50.0
OPEN_TARGET = 1500.0
IMPORT_TARGET = 1000.0
RANKS_OF_THE_MAP = 16_384
LOOK = 0.25
"""Seconds from a picture to the next key, in which Python tells ahead what that will show."""
SETTLED = 1.0
"""Seconds until all that follows from a key press is done, the saved picture too."""

LAYOUT = """
from mimokit.config import ModuleParallelismConfig
from mimokit.config_files import load_preset
def layout(ranks, tp=8):
    config = load_preset("llava_7b_colocated")
    config.model.module_parallelisms = {{
        "images": ModuleParallelismConfig(),
        "language_module": ModuleParallelismConfig(tensor_parallel=tp),
    }}
    return config
from mimokit_widgets import LayoutPlanner, RankMap
RANKS = {ranks}
"""
PLANNER = "LayoutPlanner(layout(RANKS), world_size=RANKS)"
MAP = """
import ipywidgets
import mimokit
plans = [mimokit.plan(layout(RANKS, tp), RANKS) for tp in (8, 4)]
ranks = RankMap(plans[0])
slider = ipywidgets.IntSlider(max=1000, description="plan")
slider.observe(lambda change: setattr(ranks, "plan", plans[change["new"] % 2]), "value")
ipywidgets.VBox([slider, ranks])
"""

ECHO = '''
import anywidget
import traitlets
class Echo(anywidget.AnyWidget):
    _esm = """
    export default { render({ model, el }) {
      el.innerHTML = '<div class="mimokit"><input aria-label="echo"><canvas class="ranks">';
      const canvas = el.querySelector("canvas");
      canvas.dataset.drawn = 0;
      el.querySelector("input").addEventListener("keydown", () => model.send({}));
      model.on("change:count", () =>
        requestAnimationFrame(() => { canvas.dataset.drawn = model.get("count"); }));
    } };
    """
    count = traitlets.Int(0).tag(sync=True)
def count_up(echo, *_):
    echo.count += 1
echo = Echo()
echo.on_msg(count_up)
echo
'''
"""What a notebook takes by itself: a widget that is told of a key and answers with a number."""

WATCH = """() => {
  const canvas = document.querySelector(".mimokit canvas.ranks");
  window.pictures = [];
  window.watching?.disconnect();
  let start = 0;
  let told = null;
  window.picturesAre = (count) => new Promise((resolve) => {
    told = () => window.pictures.length >= count && resolve();
    told();
  });
  const stop = () => {
    window.pictures.push(performance.now() - start);
    told?.();
  };
  const channel = new MessageChannel();
  channel.port1.onmessage = stop;
  addEventListener("keydown", (event) => { start = event.timeStamp; }, true);
  window.watching = new MutationObserver(() => channel.port2.postMessage(0));
  window.watching.observe(canvas, { attributes: true, attributeFilter: ["data-drawn"] });
}"""
OPENING = """async () => {
  for (const old of document.querySelectorAll(".mimokit")) old.remove();
  const began = performance.now();
  await window.jupyterapp.commands.execute("notebook:run-cell");
  return new Promise((resolve) => {
    const look = () => {
      const drawn = [...document.querySelectorAll(".mimokit canvas.ranks")]
        .some((canvas) => Number(canvas.dataset.drawn) > 0);
      if (!drawn) return requestAnimationFrame(look);
      return requestAnimationFrame(() => resolve(performance.now() - began));
    };
    look();
  });
}"""


def rows() -> list[Row]:
    """Measure medians of single actions."""
    found = [_row("import mimokit_widgets with LayoutPlanner", _import(), IMPORT_TARGET)]
    with tempfile.TemporaryDirectory() as folder, running_lab(Path(folder)) as lab:
        for ranks, target in EDIT_TARGETS.items():
            with _notebook(lab, [LAYOUT.format(ranks=ranks), PLANNER]) as notebook:
                opened = _opening(notebook)
                found.append(_row(f"opening the planner, {ranks:,} ranks", opened, OPEN_TARGET))
                field = "[aria-label='TP of language_module']"
                page_clock = _page_clock(notebook)
                before = page_clock()
                edits = _keys(notebook, field, ["Shift+ArrowDown", "Shift+ArrowUp"])
                page = [(page_clock() - before) / REPEATS]
                found.append(_row(f"key press to picture, planner, {ranks:,} ranks", edits, target))
                name = f"the same, the next key at once, {ranks:,} ranks"
                fast = _keys(notebook, field, ["Shift+ArrowDown", "Shift+ArrowUp"], LOOK / 10)
                found.append(_row(name, fast, target))
                name = f"the same, CPU time of the page, mean, {ranks:,} ranks"
                found.append(_row(name, page, target))
                name = f"the same, CPU time of the kernel, mean, {ranks:,} ranks"
                found.append(_row(name, [_cpu_time(notebook)], target))
        with _notebook(lab, [ECHO]) as notebook:
            answers = _keys(notebook, "[aria-label='echo']", ["ArrowDown"])
            name = "key press to the frame after an answer of the kernel, widget without a picture"
            found.append(_row(name, answers, min(EDIT_TARGETS.values())))
        with _notebook(lab, [LAYOUT.format(ranks=RANKS_OF_THE_MAP), MAP]) as notebook:
            plans = _keys(notebook, ".noUi-handle", ["ArrowRight"])
            name = f"{RANKS_OF_THE_MAP:,} ranks"
            found.append(
                _row(f"key press to another plan, rank map alone, {name}", plans, MAP_TARGET)
            )
            walks = _keys(notebook, "canvas.ranks", ["ArrowRight"])
            found.append(
                _row(f"key press to the next rank, rank map alone, {name}", walks, MAP_TARGET)
            )
    return found


def _row(name: str, times: list[float], target: float) -> Row:
    median = statistics.median(times)
    return {
        "name": f"{name} (median of {len(times)})",
        "measured": median,
        "target": target,
        "unit": "ms",
        "ok": median <= target,
    }


def _import() -> list[float]:
    script = (
        "import time; began = time.perf_counter(); import mimokit_widgets; "
        "mimokit_widgets.LayoutPlanner; print(time.perf_counter() - began)"
    )
    return [
        1000 * float(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
        for _ in range(IMPORTS)
    ]


@contextlib.contextmanager
def _notebook(lab: LabServer, cells: list[str]) -> Iterator[NotebookPage]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        page = browser.new_context(viewport=VIEWPORT).new_page()
        file = write_notebook(lab.folder / f"speed_{time.monotonic_ns()}.ipynb", cells)
        notebook = NotebookPage(page, file, lab)
        notebook.open()
        notebook.run_all()
        page.wait_for_selector(".mimokit canvas.ranks[data-drawn]")
        yield notebook
        notebook.end_kernel()
        browser.close()


def _opening(notebook: NotebookPage) -> list[float]:
    """Run the cell that opens the planner again and again; the kernel is warm."""
    notebook.page.locator(".jp-Cell").nth(1).locator(".cm-content").click()
    return [float(notebook.page.evaluate(OPENING)) for _ in range(OPENINGS)]


def _keys(
    notebook: NotebookPage, field: str, keys: list[str], seconds: float = LOOK
) -> list[float]:
    """Press keys in turn, each some seconds after the picture of the one before."""
    page = notebook.page
    page.evaluate(WATCH)
    page.locator(field).focus()
    for press in range(REPEATS):
        page.keyboard.press(keys[press % len(keys)])
        # wait_for_function would ask in every frame, and have the page draw frames for that.
        page.evaluate("(count) => window.picturesAre(count)", press + 1)
        time.sleep(seconds)
    found: list[Any] = page.evaluate("window.pictures")
    assert len(found) == REPEATS, f"{len(found)} pictures for {REPEATS} key presses"
    return [float(each) for each in found[2:]]


def _page_clock(notebook: NotebookPage) -> Callable[[], float]:
    """Return what tells the milliseconds of CPU time that the page's thread has taken from now."""
    session = notebook.page.context.new_cdp_session(notebook.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * sum(each["value"] for each in metrics if each["name"] == "TaskDuration")

    return spent


def _cpu_time(notebook: NotebookPage) -> float:
    """Return the mean milliseconds of the kernel's CPU time per key press and what follows it.

    Every press makes a layout that was not planned before.
    """
    page = notebook.page

    def spent() -> float:
        return 1000 * float(notebook.value("__import__('time').process_time()"))

    page.locator("[aria-label='micro-batches']").focus()
    time.sleep(SETTLED)  # what came before leaves to do
    before = spent()
    for _ in range(REPEATS):
        page.keyboard.press("ArrowUp")
        time.sleep(SETTLED)
    return (spent() - before) / REPEATS


def main() -> None:
    """Print the measurements as a table."""
    show("The planner in Chromium", rows())


if __name__ == "__main__":
    main()
