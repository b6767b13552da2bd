"""The planner's search in JupyterLab: progress, the end of it, and layouts that load."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import shared_notebook
from tests.browser.notebook_page import DARK, LIGHT, NotebookPage, OpenNotebook
from tests.browser.planner_page import CELL, PlannerPage, show_planner
from tests.browser.server import LabServer

HETEROGENEOUS = "preset:llava_7b_heterogeneous"
# A search that has begun stays where it is until `go_on` is set.
HELD = """
import importlib, threading
from mimokit_widgets.planner.background_search import BackgroundSearch
searches = importlib.import_module("mimokit.layout_search.search")
between, go_on = searches.BETWEEN_REPORTS, threading.Event()
quick = BackgroundSearch._progress
def held(searching, progress):
    quick(searching, progress)
    if progress.share >= 0.01:
        go_on.wait()
searches.BETWEEN_REPORTS = 0.0
BackgroundSearch._progress = held
"""
QUICK_AGAIN = """
if "quick" in globals():
    searches.BETWEEN_REPORTS = between
    BackgroundSearch._progress = quick
    go_on.set()
"""
BESIDE = """
import mimokit
from mimokit_widgets import ParetoView
result = mimokit.search("preset:llava_7b_colocated", gpus=16)
ParetoView(result, planner)
"""


@pytest.fixture(scope="module")
def shared(chromium: Browser, lab: LabServer) -> Iterator[NotebookPage]:
    with shared_notebook(chromium, lab, "searches", CELL) as opened:
        yield opened


@pytest.fixture
def planner(shared: NotebookPage) -> Iterator[PlannerPage]:
    """A planner with the tab of its search open; JupyterLab keeps its theme for other tests."""
    shown = show_planner(shared, HETEROGENEOUS)
    shown.open_tab("Search")
    yield shown
    shown.notebook.execute(QUICK_AGAIN)
    shown.notebook.choose_theme(LIGHT)


def search(planner: PlannerPage, gpus: str = "") -> Locator:
    planner.field("GPUs to search for").fill(gpus)
    planner.button("Search").click()
    expect(planner.root.locator(".search")).to_have_attribute("data-status", "done")
    return planner.root.locator(".pareto .point")


def test_a_search_shows_how_far_it_is_and_can_be_cancelled(planner: PlannerPage) -> None:
    notebook = planner.notebook
    notebook.execute(HELD)
    planner.field("GPUs to search for").fill("512")
    planner.field("GPUs to search for").press("Enter")
    bar = planner.root.get_by_role("progressbar", name="Search")
    expect(bar).to_have_attribute("aria-valuenow", re.compile(r"^[1-9]"))
    expect(planner.root.locator(".so-far")).to_have_text(re.compile(r"[\d,]+ layouts evaluated"))
    expect(planner.button("Search")).to_be_hidden()
    planner.screenshot("search running")
    # Neither the view nor the kernel waits for it.
    planner.hold(on=False)
    planner.type("DP of language_module", "4")
    expect(planner.root.locator(".headline")).to_contain_text("40 ranks")
    notebook.wait_until("planner.plan.world_size == 40")
    expect(planner.root.locator(".search")).to_have_attribute("data-status", "running")
    planner.button("Cancel").click()
    expect(planner.root.locator(".search")).to_have_attribute("data-status", "cancelling")
    notebook.execute("go_on.set()")
    expect(planner.root.locator(".search")).to_have_attribute("data-status", "done")
    expect(planner.root.locator(".found-title")).to_contain_text("stopped before its end")
    expect(planner.button("Search")).to_be_visible()
    expect(bar).to_be_hidden()


def test_a_click_on_a_point_or_a_row_loads_its_layout_and_undo_goes_back(
    planner: PlannerPage,
) -> None:
    keyboard = planner.notebook.page.keyboard
    points = search(planner, "16")
    assert points.count() > 8
    expect(planner.root.locator(".telling button")).to_have_count(3)
    headline = planner.root.locator(".headline")
    expect(headline).to_contain_text("24 ranks")
    planner.screenshot("search found light")
    best = planner.root.locator(".pareto .best")
    best.click()
    expect(best).to_have_attribute("aria-pressed", "true")
    expect(headline).to_contain_text("16 ranks")
    expect(planner.root.locator(".best tr.loaded")).to_have_attribute("data-index", "0")
    planner.screenshot("search loaded light")
    keyboard.press("Control+z")
    expect(headline).to_contain_text("24 ranks")
    expect(best).not_to_have_attribute("aria-pressed", "true")
    # With the keyboard: from point to point in the order of time, then down the table.
    best.focus()
    expect(planner.root.locator(".pareto .point:focus")).to_have_attribute("data-index", "0")
    keyboard.press("End")
    slowest = planner.root.locator(".pareto .point:focus")
    expect(slowest).not_to_have_attribute("data-index", "0")
    expect(planner.root.locator(".found .tip")).to_contain_text("a step")
    keyboard.press("Enter")
    expect(slowest).to_have_attribute("aria-pressed", "true")
    told = re.search(r"([\d,]+) GPUs?,", slowest.get_attribute("aria-label") or "")
    assert told is not None
    planner.notebook.wait_until(f"planner.plan.world_size == {int(told[1])}")
    planner.button("↶ Undo").click()
    expect(headline).to_contain_text("24 ranks")
    expect(planner.root.locator(".best tbody tr").first).to_contain_text(re.compile("s to .*GiB"))
    rows = planner.root.locator(".best tbody button")
    rows.first.focus()
    keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    keyboard.press("Enter")
    expect(rows.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(headline).not_to_contain_text("24 ranks")
    planner.notebook.choose_theme(DARK)
    expect(planner.root).to_have_attribute("data-theme", "dark")
    rows.nth(2).press("Enter")
    expect(rows.nth(2)).to_have_attribute("aria-pressed", "true")
    planner.field("GPU to search for").select_option("b200")
    planner.button("Search").click()
    expect(planner.root.locator(".found-title")).to_contain_text("B200")
    rows.nth(1).click()
    expect(rows.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(planner.notebook.page.locator("#jupyterlab-splash")).to_be_hidden()
    planner.screenshot("search loaded dark")


def test_what_cannot_be_searched_is_said_in_the_view(planner: PlannerPage) -> None:
    said = planner.root.locator(".refused")
    planner.field("GPUs to search for").fill("many")
    planner.button("Search").click()
    expect(said).to_have_text(re.compile(r"^Search: GPUs is the text 'many'; write a whole number"))
    planner.type("DP of language_module", "x")
    planner.field("GPUs to search for").fill("")
    planner.button("Search").click()
    expect(said).to_contain_text("right it first")
    assert said.evaluate("node => getComputedStyle(node.closest('.undimmed')).opacity") == "1"
    planner.screenshot("search refused")
    planner.root.locator(".fix").first.click()
    planner.expect_valid()
    planner.button("Search").click()
    expect(said).to_be_hidden()


def test_a_view_of_a_result_loads_into_the_planner_beside_it(open_notebook: OpenNotebook) -> None:
    planner = show_planner(open_notebook(CELL, BESIDE))
    headline = planner.root.locator(".headline")
    expect(headline).to_contain_text("8 ranks")
    view = planner.notebook.page.get_by_role("region", name="Found layouts")
    best = view.locator(".pareto .best")
    best.click()
    expect(best).to_have_attribute("aria-pressed", "true")
    expect(headline).to_contain_text("16 ranks")
    planner.notebook.page.mouse.move(2, 2)
    planner.notebook.screenshot("pareto view light", view)
    planner.button("↶ Undo").click()
    expect(headline).to_contain_text("8 ranks")
    expect(best).not_to_have_attribute("aria-pressed", "true")
    planner.notebook.choose_theme(DARK)
    expect(view).to_have_attribute("data-theme", "dark")
    planner.notebook.screenshot("pareto view dark", view)
    planner.notebook.choose_theme(LIGHT)
