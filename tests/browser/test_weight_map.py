"""`WeightMap` in JupyterLab: a rank shows its slices, by mouse and keyboard; other sizes replan."""

from playwright.sync_api import expect

from tests.browser.notebook_page import OpenNotebook

CELL = """
from pathlib import Path
from mimokit_widgets import WeightMap
from tests.sparse_weights import small_checkpoint
view = WeightMap(small_checkpoint(Path("tiny"), "llama", files=2), tensor_parallel=2)
view
"""


def test_sizes_and_a_rank_that_is_pointed_at(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL)
    notebook.run_all()
    page = notebook.page
    chart, sizes = page.locator(".jp-RenderedVegaCommon5"), page.locator(".mimokit-weight-map")
    expect(chart).to_contain_text("Weights of llama, TP 2, PP 1")
    faded = chart.locator("path[opacity='0.25']")
    expect(faded).to_have_count(0)
    chart.locator("path[aria-roledescription='bar']").first.hover()
    expect(faded.first).to_be_visible()
    notebook.screenshot("weight map", chart)
    page.mouse.move(0, 0)
    expect(faded).to_have_count(0)
    chart.get_by_role("textbox").press("1")
    expect(faded.first).to_be_visible()
    sizes.get_by_label("PP").select_option("2")
    expect(chart).to_contain_text("Weights of llama, TP 2, PP 2")
    notebook.wait_until("len(view.plan.ranks) == 4")
    notebook.execute("view.ask(tensor_parallel=3)")
    expect(sizes.get_by_role("alert")).to_contain_text("tensor_parallel 3 does not divide")
    expect(chart).to_contain_text("Weights of llama, TP 2, PP 2")
