"""The what-if at a field, and the verdict that stays in view, on a page without a notebook."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from mimokit_widgets import LayoutPlanner, layout_planner
from mimokit_widgets.planner import advice, ahead
from tests.browser.settled import before, settled
from tests.browser.test_views import RECORD_TEXT
from tests.browser.view_page import shown, wait_for_answers

TENSOR = "TP of language_module"


def test_values_are_taken_by_click_drag_and_key(browser_page: Page, tmp_path: Path) -> None:
    planner = LayoutPlanner("preset:llava_7b_colocated")
    page = shown(browser_page, planner, tmp_path, width="842px", answered=True)
    page.get_by_label(TENSOR, exact=True).focus()
    row = page.get_by_role("group", name=f"Values of {TENSOR}")
    expect(row.get_by_role("button")).to_have_text(
        ["1+16 %46.8 GiB", "2+12 %36.8 GiB", "4+11 %31.9 GiB", "8now29.5 GiB"]
    )
    row.get_by_role("button").nth(2).click()
    expect(row.get_by_role("button", pressed=True)).to_have_text("4now31.9 GiB")
    expect(page.get_by_label(TENSOR, exact=True)).to_be_focused()
    assert planner.plan.modules["language_module"].tensor_parallel == 4
    boxes = [chip.bounding_box() for chip in row.get_by_role("button").all()]
    middles = [(box["x"] + box["width"] / 2, box["y"] + 9) for box in boxes if box]
    page.mouse.move(*middles[2])
    page.mouse.down()
    page.mouse.move(*middles[1], steps=4)
    page.mouse.move(*middles[0], steps=4)
    page.mouse.up()
    page.mouse.move(*middles[3])
    expect(row.get_by_role("button", pressed=True)).to_have_text("1now46.8 GiB")
    page.keyboard.press("ArrowUp")
    expect(row.get_by_role("button", pressed=True)).to_have_text("2now36.8 GiB")
    page.keyboard.press("Escape")
    expect(row).to_have_count(0)


def test_two_views_ask_for_their_fields_once_each(browser_page: Page, tmp_path: Path) -> None:
    """Each asked again when it heard of the other's field, and so without end."""
    planner = LayoutPlanner("preset:llava_7b_colocated")
    asked: list[str] = []
    page = shown(browser_page, planner, tmp_path, width="842px", answered=True)
    page.evaluate("void window.show(document.body.appendChild(document.createElement('div')))")
    planner.observe(lambda change: asked.append(change["new"][2]), "_asked")
    for view, module in enumerate(("language_module", "images")):
        page.get_by_label(f"TP of {module}", exact=True).nth(view).focus()
        expect(page.get_by_role("group", name=f"Values of TP of {module}")).to_have_count(1)
    page.wait_for_timeout(1000)  # eight times as long as a view waits before it asks
    assert asked == ["language_module", "images"]


def test_what_does_not_fit_is_marked(browser_page: Page, tmp_path: Path) -> None:
    planner = LayoutPlanner("preset:three_encoders_7b_heterogeneous")
    page = shown(browser_page, planner, tmp_path, width="1400px", answered=True)
    page.get_by_label("PP of language_module", exact=True).focus()
    row = page.get_by_role("group", name="Values of PP of language_module")
    chip = row.get_by_role("button").filter(has_text="✗")
    expect(chip).to_have_count(1)
    assert "does not fit" in str(chip.get_attribute("title"))


def test_the_verdict_stays_in_view_where_an_output_scrolls(
    browser_page: Page, tmp_path: Path
) -> None:
    browser_page.set_viewport_size({"width": 900, "height": 500})
    scrolled = "#host { height: 450px; overflow: auto }"
    planner = LayoutPlanner("preset:llava_7b_colocated")
    page = shown(browser_page, planner, tmp_path, width="842px", answered=True, styles=scrolled)
    strip = page.get_by_role("region", name="Verdict")
    page.locator("#host").evaluate("host => host.scrollTo(0, 400)")
    page.wait_for_function("document.querySelector('.verdict').matches('.stuck')")
    box = strip.bounding_box()
    assert box is not None
    assert abs(box["y"] - 8) < 2
    page.locator("#host").evaluate("host => host.scrollTo(0, 0)")
    expect(strip).not_to_have_class("verdict stuck")


def test_the_band_opens_what_widens_it(browser_page: Page, tmp_path: Path) -> None:
    planner = LayoutPlanner("preset:llava_7b_colocated")
    page = shown(browser_page, planner, tmp_path, width="842px", answered=True)
    expect(page.locator(".supposed").first).to_be_hidden()
    page.get_by_role("button", name="±15 %").click()
    expect(page.locator(".supposed").first).to_contain_text("was fitted")
    wait_for_answers(page)


def test_a_rank_map_is_whole_where_traits_arrive_one_by_one(
    browser_page: Page, tmp_path: Path
) -> None:
    """As in marimo; cells and sizes of different layouts once made a map that was wrong."""
    faults: list[str] = []
    browser_page.on("pageerror", lambda error: faults.append(str(error)))
    before(browser_page).add_init_script(RECORD_TEXT)
    planner = LayoutPlanner("preset:llava_7b_colocated")
    page = shown(browser_page, planner, tmp_path, width="842px", answered=True)
    page.get_by_label(TENSOR, exact=True).fill("4")
    wait_for_answers(page)
    texts = [each["text"] for each in settled(page).evaluate("window.texts")]
    assert {"tp0 dp0", "tp3 dp1"} <= set(texts)
    assert not {"tp4 dp0", "tp7 dp0", "tp7"} & set(texts)
    assert faults == []


def _in_jupyter(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Open a planner that is told of the next key ahead, with the focus in a field of TP 8."""
    before(page)
    monkeypatch.setattr(advice, "get_ipython", object)
    planner = LayoutPlanner("preset:llava_7b_colocated")
    shown(page, planner, folder, width="842px", answered=True)
    page.get_by_label(TENSOR, exact=True).focus()
    expect(page.get_by_role("group", name=f"Values of {TENSOR}")).to_have_count(1)
    return page


def test_a_key_is_shown_before_python_answers(
    browser_page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _in_jupyter(browser_page, tmp_path, monkeypatch)
    page.evaluate("void (window.answer = () => new Promise(() => {}))")
    page.keyboard.press("ArrowDown")
    expect(page.locator("canvas.ranks")).to_have_accessible_name(re.compile("TP 4"))
    expect(page.get_by_label(TENSOR, exact=True)).to_have_value("4")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("window.unanswered === 1")
    expect(page.get_by_label(TENSOR, exact=True)).to_have_value("4")


def test_a_field_without_values_is_told_of_too(
    browser_page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _in_jupyter(browser_page, tmp_path, monkeypatch)
    batches = page.get_by_label("micro-batches", exact=True)
    batches.focus()
    settled(page)  # the page asks about the field only after a pause
    wait_for_answers(page)
    expect(page.get_by_role("group", name=f"Values of {TENSOR}")).to_have_count(1)
    page.evaluate("void (window.answer = () => new Promise(() => {}))")
    before = int(batches.input_value())
    page.keyboard.press("ArrowUp")
    expect(batches).to_have_value(str(before + 1))


def test_what_python_answers_holds(
    browser_page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: what is told ahead of a key is the screen of another one."""

    def of_another_key(*of: Any) -> dict[str, Any]:
        told = ahead.screens_ahead(*of)
        return {**told, "screens": told["screens"][::-1]}

    monkeypatch.setattr(layout_planner, "screens_ahead", of_another_key)
    page = _in_jupyter(browser_page, tmp_path, monkeypatch)
    page.keyboard.press("ArrowDown")
    expect(page.locator("canvas.ranks")).to_have_accessible_name(re.compile("TP 4"))
    expect(page.get_by_label(TENSOR, exact=True)).to_have_value("4")
