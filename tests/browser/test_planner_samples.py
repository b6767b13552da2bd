"""The planner's samples in JupyterLab: a tail is dragged, a modality dropped, a bar clicked."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import shared_notebook
from tests.browser.planner_page import CELL, PlannerPage, show_planner
from tests.browser.server import LabServer


@pytest.fixture(scope="module")
def planner(chromium: Browser, lab: LabServer) -> Iterator[PlannerPage]:
    with shared_notebook(chromium, lab, "samples", CELL) as opened:
        shown = show_planner(opened, "preset:llava_7b_colocated")
        shown.open_tab("Samples")
        yield shown


def test_steps_follow_what_is_dragged_dropped_and_clicked(planner: PlannerPage) -> None:
    view = planner.root.locator(".samples-view")
    expect(view.get_by_role("alert")).to_be_hidden()
    view.get_by_label("Samples of").select_option("interleaved_pages")
    expect(view.get_by_role("alert")).to_contain_text("more than the 4,096 tokens")
    planner.field("End of text").fill("1000")
    planner.field("End of vision.items").fill("3")
    rows = view.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(view.get_by_role("alert")).to_be_hidden()
    packed = rows.nth(3).locator("td").nth(1)
    before = packed.inner_text()
    planner.field("vision").set_checked(False)
    expect(packed).not_to_have_text(before)
    planner.field("vision").set_checked(True)
    expect(packed).to_have_text(before)
    view.locator(".column").nth(1).locator("button").nth(3).click()
    expect(view.locator("canvas.lanes")).to_have_accessible_name(
        re.compile("^Timeline of 16 lanes")
    )
    view.get_by_role("button", name="Find the best layout").click()
    expect(view.get_by_role("status").first).to_contain_text("for these samples is", timeout=60_000)
    planner.screenshot("samples")
