"""The live monitor in JupyterLab: it moves, stops, stays, and dies with dignity."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import mimokit
from make.notebooks.page import to_page
from make.site.check import external_references
from mimokit.analysis import samples_to_steps
from tests.browser.conftest import shared_notebook
from tests.browser.notebook_page import DARK, LIGHT, SCREENSHOTS, NotebookPage
from tests.browser.server import LabServer
from tests.charts.fakes import samples

LIVE = ".mimokit-live:not(.mimokit-saved *)"
STAYS = ".mimokit-saved .mimokit-live"
FAKE = """
from dataclasses import replace
from mimokit_widgets import LiveMonitor
from tests.charts.fakes import samples
from tests.widgets.fake_run import FakeRun
run, made = FakeRun(120), samples(iterations=120)
monitor = LiveMonitor(run)
monitor
"""
SLOW_END = "made[-9:-1] = [replace(each, total_time=9.0) for each in made[-9:-1]]"
TO_TRAIN = 420_000
"""Milliseconds until engines that start must train; a busy machine takes minutes."""
REAL = """
from mimokit.cluster import EngineCluster
from mimokit.experiment import train
from mimokit_widgets import LiveMonitor
from tests.evaluations import QUICK
from tests.layouts import digits_config
if "cluster" not in globals():
    cluster = EngineCluster(n=2, progress=False)
config = digits_config((1, 2), (2, 1), num_iterations=20_000)
run = train(cluster, config, evaluations=QUICK)
monitor = LiveMonitor(run)
monitor
"""
RANKS = 2
SEVERAL_ITERATIONS = re.compile(r"iteration ([3-9]|\d\d+) ")


@pytest.fixture(scope="module")
def shared(chromium: Browser, lab: LabServer) -> Iterator[NotebookPage]:
    """One notebook for all monitors, since a page and a kernel take seconds to start."""
    with shared_notebook(chromium, lab, "monitors", FAKE) as opened:
        yield opened


@pytest.fixture
def notebook(shared: NotebookPage) -> NotebookPage:
    """A notebook with a new monitor of a run that trains when the test says so."""
    if not shared.kernel_answers():
        shared.open()
    shared.run_all()
    shared.execute("run.give(made[:500])")
    expect(shared.page.locator(LIVE)).to_have_attribute("data-rows", "500")
    return shared


@pytest.fixture(scope="module")
def real(chromium: Browser, lab: LabServer) -> Iterator[NotebookPage]:
    """A notebook whose first cell trains on engines, and whose second waits if `waits`."""
    cells = (REAL, "result = run.result() if waits else None")
    with shared_notebook(chromium, lab, "real_runs", *cells) as opened:
        yield opened
        opened.execute("if 'cluster' in globals(): cluster.close()")


def canvas(view: Locator, title: str) -> Locator:
    return view.locator(f'canvas[aria-label^="{title}"]')


def drag(chart: Locator, start: float, end: float) -> None:
    box = chart.bounding_box()
    assert box is not None
    mouse, y = chart.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] * start, y)
    mouse.down()
    mouse.move(box["x"] + box["width"] * end, y, steps=4)
    mouse.up()


def test_it_moves_freezes_and_follows_again(notebook: NotebookPage) -> None:
    view = notebook.page.locator(LIVE)
    loss = canvas(view, "Loss")
    before = loss.get_attribute("aria-label")
    acts = view.get_by_role("group", name="the run").get_by_role("button")
    expect(acts).to_have_text(["Stop", "Abort"])  # freezing is of the view
    view.get_by_role("button", name="Freeze view").click()
    notebook.execute("run.give(made[500:700])")
    expect(view).to_have_attribute("data-rows", "700")
    frozen = re.compile("The view is frozen at iteration 61; 25 newer")
    expect(view.get_by_text(frozen)).to_be_visible()
    assert loss.get_attribute("aria-label") == before
    view.get_by_role("button", name="Follow again").click()
    expect(loss).not_to_have_attribute("aria-label", before or "")
    expect(view.get_by_text("iteration 87 of 120")).to_be_visible()
    bar = view.get_by_role("progressbar")
    assert (bar.get_attribute("aria-valuenow"), bar.get_attribute("aria-valuemax")) == ("87", "120")
    expect(view.get_by_text(re.compile(r"about .* left"))).to_be_visible()
    notebook.screenshot("monitor live light", view)


def test_zoom_mark_and_zoom_back(notebook: NotebookPage) -> None:
    view = notebook.page.locator(LIVE)
    whole = view.get_by_role("button", name="Whole run")
    expect(whole).to_be_hidden()
    drag(canvas(view, "Loss"), 0.3, 0.5)
    expect(whole).to_be_visible()
    expect(view.get_by_text(re.compile("mean of 2. steps"))).to_be_visible()
    canvas(view, "Memory").click()
    expect(whole).to_be_visible()
    notebook.wait_until("monitor.marks")
    marked = notebook.value("monitor.marks")
    assert len(marked) == 1
    assert 20 < marked[0] < 50
    notebook.screenshot("monitor zoomed marked", view)
    whole.click()
    expect(view.get_by_text("mean of 20 steps")).to_be_visible()
    expect(whole).to_be_hidden()


def test_the_keyboard_reaches_all_of_it(notebook: NotebookPage) -> None:
    view = notebook.page.locator(LIVE)
    whole = view.get_by_role("button", name="Whole run")
    view.get_by_role("button", name="Freeze view").focus()
    for key in ("Tab", "Tab", "Tab"):
        notebook.page.keyboard.press(key)
    focused = "document.activeElement.getAttribute('aria-label')"
    assert str(notebook.page.evaluate(focused)).startswith("Loss")
    notebook.page.keyboard.press("+")
    expect(whole).to_be_visible()
    notebook.page.keyboard.press("m")
    notebook.page.keyboard.press("0")
    expect(whole).to_be_hidden()
    notebook.wait_until("monitor.marks")
    notebook.wait_until("monitor.marks == [61]")


def test_the_theme_is_followed(notebook: NotebookPage) -> None:
    view = notebook.page.locator(LIVE)
    paper = "getComputedStyle(document.querySelector('.mimokit-live')).backgroundColor"
    notebook.choose_theme(LIGHT)
    expect(view).to_have_attribute("data-theme", "light")
    light = notebook.page.evaluate(paper)
    notebook.choose_theme(DARK)
    expect(view).to_have_attribute("data-theme", "dark")
    assert notebook.page.evaluate(paper) != light
    notebook.screenshot("monitor live dark", view)
    notebook.choose_theme(LIGHT)


def test_saved_in_the_middle_and_opened_without_its_kernel(notebook: NotebookPage) -> None:
    notebook.execute("monitor._saved.draw_now()")
    notebook.wait_for_output(notebook.value("monitor._in_words()"))
    expect(notebook.page.locator(".mimokit-saved")).to_be_hidden()  # next to the live one
    notebook.save()
    notebook.end_kernel()
    notebook.open()
    view = notebook.page.locator(STAYS)
    expect(view).to_have_attribute("data-rows", "500")
    expect(view.get_by_role("heading")).to_have_text("Training, when this page was saved")
    expect(view.get_by_role("button", name="Stop")).to_be_hidden()
    missing = notebook.page.get_by_text("Error displaying widget: model not found")
    expect(missing).to_be_attached()  # so JupyterLab has looked for it, and shows no message
    expect(missing).to_be_hidden()
    notebook.screenshot("monitor saved in the middle")


def test_a_finished_run_stays_as_it_was_zoomed_in_the_notebook_and_on_an_exported_page(
    notebook: NotebookPage, browser_page: Page, chromium_without_scripts: Page, tmp_path: Path
) -> None:
    drag(canvas(notebook.page.locator(LIVE), "Loss"), 0.3, 0.5)
    expect(notebook.page.locator(LIVE).get_by_text(re.compile("mean of 2. steps"))).to_be_visible()
    notebook.wait_until("monitor._zoomed")
    first, last = notebook.value("monitor._zoomed")
    zoomed = f"mean of {last - first + 1} steps"
    notebook.execute(f"monitor.mark(50); {SLOW_END}; run.give(made[500:]); run.end()")
    notebook.execute("monitor.wait()")
    ended = notebook.page.locator(LIVE)
    expect(ended.get_by_role("heading")).to_have_text("Training finished")
    expect(ended.get_by_text(zoomed)).to_be_visible()
    notebook.wait_for_output(notebook.value("monitor._in_words()"))
    saved = notebook.save()
    notebook.end_kernel()
    notebook.open_again()
    view = notebook.page.locator(STAYS)
    expect(view).to_have_attribute("data-rows", "972")
    expect(view.get_by_text(zoomed)).to_be_visible()
    notebook.screenshot("monitor reopened")
    page = tmp_path / "page.html"
    page.write_text(to_page(saved, "run"), encoding="utf-8")
    assert external_references(page.read_text(encoding="utf-8")) == []
    browser_page.goto(page.as_uri())
    exported = browser_page.locator(STAYS)
    expect(exported).to_have_attribute("data-rows", "972")
    expect(exported.get_by_text(zoomed)).to_be_visible()
    exported.get_by_role("button", name="Whole run").click()
    expect(exported.get_by_text("mean of 20 steps")).to_be_visible()
    assert "loss 0.1" in str(canvas(exported, "Loss").get_attribute("aria-label"))
    times = samples_to_steps(samples(iterations=120)).groupby("iteration")["total_time"].max()
    tile = exported.locator(".number").filter(has_text="step time, median").locator("b")
    median = times[2:].median()  # of the run, not its last step
    assert float(tile.inner_text().split()[0]) == pytest.approx(1000 * median, rel=0.01)
    exported.screenshot(path=SCREENSHOTS / "monitor_exported.png")
    chromium_without_scripts.goto(page.as_uri())
    said = chromium_without_scripts.locator(".mimokit-saved")
    expect(said).to_have_text(re.compile(r"Training finished\. 120 iterations in \d+ s\."))


def test_a_real_run_is_stopped_from_its_button_while_a_cell_waits_for_it(
    real: NotebookPage,
) -> None:
    real.execute("waits = True")
    real.start_all()
    view = real.page.locator(LIVE)
    expect(view.get_by_text(SEVERAL_ITERATIONS)).to_be_visible(timeout=TO_TRAIN)
    real.screenshot("monitor real run", view)
    view.get_by_role("button", name="Stop").click()
    expect(view.get_by_role("heading")).to_have_text("Training stopped", timeout=TO_TRAIN)
    real.wait_idle()
    real.check_cells()
    done = real.value("int(result.steps.iteration.max()) + 1")
    expect(view.get_by_text(f"iteration {done} of 20000")).to_be_visible()


def test_a_cluster_that_dies_is_told_and_what_came_is_kept(real: NotebookPage) -> None:
    real.execute("if 'run' in globals(): run.abort()\nwaits = False")
    real.run_all()
    view = real.page.locator(LIVE)
    expect(view.get_by_text(SEVERAL_ITERATIONS)).to_be_visible(timeout=TO_TRAIN)
    real.execute("import os, signal\nfor pid in cluster.pids: os.kill(pid, signal.SIGKILL)")
    expect(view.get_by_role("heading")).to_have_text("Training failed", timeout=TO_TRAIN)
    sentence = view.locator(".sentence")
    expect(sentence).to_have_text(
        re.compile(r"After \d+ iterations: rank \d .* was killed by SIGKILL")
    )
    rows = real.value("monitor._rows.count")
    assert rows >= 3 * RANKS
    expect(view).to_have_attribute("data-rows", str(rows))
    real.screenshot("monitor dead cluster", view)


READ = "source => import('data:text/javascript,' + encodeURIComponent(source))"
"""What evaluates a module of JavaScript without a server."""


def test_elapsed_time_is_read_in_whole_minutes(browser_page: Page) -> None:
    words = Path(mimokit.__file__).parent / "charts" / "browser" / "words.js"
    each = f"{READ}.then(words => [59.4, 59.6, 3580, 10_799].map(words.duration))"
    found = browser_page.evaluate(each, words.read_text(encoding="utf-8"))
    assert found == ["59 s", "1 min 00 s", "59 min 40 s", "2 h 59 min"]


@pytest.mark.parametrize(
    ("values", "top"),
    [
        ([3000, 400, 410, 390], 630),  # one slow first step of four
        ([3000, 2500, *[400] * 8], 630),  # two of ten
        ([400, 500, 450], 525),  # no step is far from the others
        ([None, 400], 420),
        ([], 0.001),
    ],
)
def test_slow_first_steps_do_not_flatten_a_scale(
    browser_page: Page, values: list[float | None], top: float
) -> None:
    file = Path(mimokit.__file__).parent / "charts" / "browser" / "words.js"
    words = file.read_text(encoding="utf-8").replace("export function", "function")
    found = browser_page.evaluate(f"values => {{ {words}; return reach(values, 0.001); }}", values)
    assert found == pytest.approx(top, rel=0.06)
