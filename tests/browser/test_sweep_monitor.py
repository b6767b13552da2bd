"""The sweep monitor in JupyterLab: buttons, themes, and what a saved notebook shows."""

from pathlib import Path

from playwright.sync_api import Page, expect

from make.notebooks.page import to_page
from make.site.check import external_references
from tests.browser.notebook_page import DARK, SCREENSHOTS, OpenNotebook

CELL = """
import tempfile
from pathlib import Path
from mimokit_widgets import SweepMonitor
from tests.widgets.fake_sweep import sweep_in_progress

run = sweep_in_progress(Path(tempfile.mkdtemp()))
SweepMonitor(run)
"""
VIEW = ".mimokit-sweep:not(.mimokit-saved *)"


def test_a_sweep_is_followed_steered_and_kept(
    open_notebook: OpenNotebook, browser_page: Page, tmp_path: Path
) -> None:
    notebook = open_notebook(CELL)
    notebook.run_all()
    view = notebook.page.locator(VIEW)
    view.get_by_text("4 of 6 experiments have ended").wait_for()
    expect(notebook.page.locator(".mimokit-saved")).to_be_hidden()
    notebook.screenshot("sweep light", view)
    view.get_by_role("button", name="Skip last").click()
    view.locator("tr.skipped:not(.message)").wait_for()
    notebook.wait_until("run.skipped == ['last']")
    notebook.execute("run.change('heterogeneous', iteration=21)")
    view.get_by_text("21 of 30").wait_for()
    notebook.choose_theme(DARK)
    notebook.page.wait_for_selector(f'{VIEW}[data-theme="dark"]')
    expect(notebook.page.locator("#jupyterlab-splash")).to_have_count(0)
    notebook.screenshot("sweep dark", view)
    view.get_by_role("button", name="Stop").click()
    notebook.execute("run.change('heterogeneous', status='stopped'); run.end()")
    view.get_by_text("Sweep ended").wait_for()
    notebook.wait_until("run.stopped == 1")
    notebook.wait_for_output("Sweep ended", "text/html")
    file = tmp_path / "page.html"
    file.write_text(to_page(notebook.save(), "sweep"), encoding="utf-8")
    assert external_references(file.read_text(encoding="utf-8")) == []
    browser_page.goto(file.as_uri())
    expect(browser_page.get_by_text("rank 2 raised KeyError: <'image'> in step 7")).to_be_visible()
    expect(browser_page.get_by_text("Sweep ended")).to_be_visible()
    browser_page.screenshot(path=SCREENSHOTS / "sweep_kept.png")
