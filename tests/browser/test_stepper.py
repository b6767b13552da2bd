"""The stepper's view in JupyterLab: buttons, keys, themes, and what stays without a kernel."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.notebook_page import DARK, LIGHT, OpenNotebook

CELL = """
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster, other_values

stepper = Stepper(FakeCluster({plant}), apart_config((1, 1, 4), (2, 1, 2), 2))
StepperView(stepper)
"""
VIEW = ".mimokit.stepper:not(.mimokit-saved *)"


def test_clicking_through_steps(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL.format(plant=""))
    notebook.run_all()
    view = notebook.page.locator(VIEW)
    view.get_by_role("button", name="Next transfer").click()
    view.locator("b", has_text="Step 2").wait_for()
    assert view.locator(".arrow.moved").count() == 4
    assert notebook.page.locator(".mimokit-saved").is_hidden()
    notebook.screenshot("stepper light", view)
    view.get_by_role("button", name="Back").click()
    view.locator("b", has_text="Step 1").wait_for()
    view.focus()
    notebook.page.keyboard.press("ArrowRight")
    view.locator("b", has_text="Step 2").wait_for()
    view.locator('.rank[data-rank="5"]').click()
    view.get_by_text("loaded.input_ids").wait_for()
    notebook.choose_theme(DARK)
    notebook.page.wait_for_selector(f'{VIEW}[data-theme="dark"]')
    notebook.screenshot("stepper dark", view)
    notebook.wait_until("stepper.now.number == 2")
    # A cell moves the same view.
    notebook.execute("stepper.next(3)")
    view.locator("b", has_text="Step 5").wait_for()


def test_a_difference_is_red_and_a_error_is_told(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL.format(plant="other_values"))
    notebook.choose_theme(LIGHT)
    notebook.run_all()
    view = notebook.page.locator(VIEW)
    view.get_by_role("button", name="Next transfer").click()
    view.locator("tr.wrong").first.wait_for()
    wrong = view.locator("g.arrow.wrong path").first
    red, green, blue = wrong.evaluate(
        "node => getComputedStyle(node).stroke.match(/[0-9]+/g).slice(0, 3).map(Number)"
    )
    assert red > 2 * max(green, blue)
    notebook.screenshot("stepper difference", view)
    # What was found is kept: a count, and a red tick for each step that differed.
    expect(view.locator(".found-differences")).to_have_text(re.compile(r"^\d+ differences? so far"))
    view.get_by_role("button", name="End of iteration").click()
    expect(view.locator(".tick.differs").first).to_be_attached()
    view.get_by_role("button", name="Next difference").click()
    view.locator("tr.wrong").first.wait_for()
    # A key that is a shortcut of the notebook stays in the view.
    cells = notebook.page.locator(".jp-Notebook .jp-Cell")
    before = cells.count()
    view.get_by_role("button", name="Back").focus()
    for key in ("a", "b"):
        notebook.page.keyboard.press(key)
    assert cells.count() == before
    notebook.execute("stepper.close()")
    view.get_by_role("button", name="Next ›").click()
    view.get_by_text("This stepper has ended: it was closed; open a new one.").wait_for()
