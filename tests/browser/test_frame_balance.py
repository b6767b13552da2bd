"""`FrameBalance` in JupyterLab: fields, a sample that is dragged, and loads that follow."""

from playwright.sync_api import expect

from tests.browser.notebook_page import DARK, LIGHT, OpenNotebook
from tests.browser.planner_page import LIVE

CELL = """
from mimokit_widgets import FrameBalance
view = FrameBalance("64 60 48 32 8 4 2 1 16 1 1 1 4 4 2 2", ranks=8)
view
"""
PLANNER_CELL = """
from mimokit.config_files import load_preset
from mimokit_widgets import LayoutPlanner
config = load_preset("llava_7b_colocated")
config.data.modality_frames = {"images": [1]}
planner = LayoutPlanner(config)
planner.show("frames")
planner
"""
VIEW = ".mimokit:has(> .frame-balance):not(.mimokit-saved *)"


def test_frames_are_typed_dragged_and_shared(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL, PLANNER_CELL)
    notebook.run_all()
    page, view = notebook.page, notebook.page.locator(VIEW)
    sliders = view.get_by_role("slider")
    expect(sliders).to_have_count(16)
    expect(page.locator(".mimokit-saved").first).to_be_hidden()
    expect(view.locator(".sentence")).to_contain_text("Frame parallel saves")
    notebook.screenshot("frame balance light", view)
    # The last sample is dragged to the top: more frames than any has.
    box = sliders.last.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 1, steps=4)
    page.mouse.up()
    expect(sliders.last).to_have_attribute("aria-valuenow", "79")
    expect(view.locator("textarea")).to_have_value("64 60 48 32 8 4 2 1 16 1 1 1 4 4 2 79")
    notebook.wait_until("len(view.plan.assignment) == 327")
    sliders.first.focus()
    page.keyboard.press("ArrowDown")
    expect(view.locator("textarea")).to_have_value("63 60 48 32 8 4 2 1 16 1 1 1 4 4 2 79")
    # Without a planner nothing travels; with slow links it is not worth it.
    view.get_by_label("none", exact=True).check()
    expect(view.get_by_text("no rank sends anything")).to_be_visible()
    view.get_by_label("LPT", exact=True).check()
    view.get_by_label("Bandwidth").fill("100 kbit/s")
    expect(view.locator(".sentence")).to_contain_text("Frame parallel is not worth it")
    notebook.choose_theme(DARK)
    page.wait_for_selector(f'{VIEW}[data-theme="dark"]')
    notebook.screenshot("frame balance dark", view)
    view.locator("textarea").fill("8 / nine")
    expect(view.get_by_role("alert")).to_contain_text("'nine' is not a number of frames")
    expect(view.locator("textarea")).to_have_attribute("aria-invalid", "true")
    notebook.screenshot("frame balance problem", view)
    notebook.wait_until("len(view.plan.assignment) == 326")
    notebook.choose_theme(LIGHT)
    # The tab of the planner is the same view.
    planner = page.locator(LIVE)
    bars = planner.get_by_role("slider")
    expect(bars).to_have_count(8)
    expect(planner.locator(".sentence")).to_contain_text("not worth it")
    bars.first.focus()
    page.keyboard.press("PageUp")
    expect(planner.locator("textarea")).to_have_value("9 / 1 / 1 / 1 / 1 / 1 / 1 / 1")
    expect(bars.first).to_be_focused()
    notebook.screenshot("frame balance in the planner", planner)
