"""The notebook about prediction and search, run in JupyterLab as its reader would."""

from __future__ import annotations

from pathlib import Path

import nbformat
from playwright.sync_api import expect

from tests.browser.notebook_page import DARK, LIGHT, OpenNotebook
from tests.browser.planner_page import LIVE, PlannerPage

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06_predict_and_search.ipynb"


def test_a_reader_goes_from_a_model_to_a_chosen_layout(open_notebook: OpenNotebook) -> None:
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, 4).cells if cell.cell_type == "code"]
    notebook = open_notebook(*cells)
    notebook.run_all()
    view = notebook.page.get_by_role("region", name="Found layouts")
    view.scroll_into_view_if_needed()
    planner = PlannerPage(notebook, notebook.page.locator(LIVE))
    points = view.locator(".pareto .point")
    slowest = points.nth(points.count() - 1)
    slowest.click()
    expect(slowest).to_have_attribute("aria-pressed", "true")
    third = view.locator(".best tbody button").nth(2)
    third.click()
    expect(third).to_have_attribute("aria-pressed", "true")
    notebook.screenshot("notebook 06 front", view)
    planner.root.scroll_into_view_if_needed()
    assert notebook.value("planner.loaded_layout == result.finalists[2].layout")
    for theme, shade in ((LIGHT, "light"), (DARK, "dark")):
        notebook.choose_theme(theme)
        expect(planner.root).to_have_attribute("data-theme", shade)
        planner.open_tab("Memory and time")
        expect(planner.root.locator(".outcome > p")).to_contain_text("a step")
        planner.screenshot(f"notebook 06 {shade}")
    notebook.choose_theme(LIGHT)
