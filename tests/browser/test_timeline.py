"""The timeline by pointer and keys, and what Perfetto is handed."""

import json
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from mimokit.planning import plan_layout
from mimokit_widgets import ScheduleView, TimelineView
from tests.browser.notebook_page import SCREENSHOTS
from tests.browser.view_page import shown
from tests.layouts_apart import apart_config

DRAWN = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colors = new Set();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 250) colors.add(data.slice(at, at + 3).join());
  }
  return [...colors];
}"""
PERFETTO = """() => {
  window.handed = [];
  window.open = () => ({ postMessage(message) {
    if (message === "PING") {
      window.dispatchEvent(new MessageEvent("message", { data: "PONG", source: null }));
    } else window.handed.push(new TextDecoder().decode(message.perfetto.buffer));
  } });
  const own = window.open();
  window.open = () => own;
  const listen = window.addEventListener.bind(window);
  window.addEventListener = (name, listener) => listen(name, name !== "message" ? listener
    : (event) => listener({ source: own, data: event.data }));
}"""


def channels(color: str) -> str:
    return ",".join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))


def test_the_timeline_is_drawn_zoomed_and_told_and_opens_in_perfetto(
    browser_page: Page, tmp_path: Path
) -> None:
    plan = plan_layout(apart_config((1, 1, 4), (2, 2, 2), 4))
    view = TimelineView(plan=plan)
    shown(browser_page, view, tmp_path)
    canvas = browser_page.locator("canvas.lanes")
    expect(canvas).to_have_accessible_name(re.compile("^Timeline of 3 lanes and 24 spans"))
    browser_page.wait_for_function("document.querySelector('canvas.lanes').width > 300")
    colors = [key["color"] for key in view._timeline["keys"]]
    assert len(colors) == 4
    assert {channels(color) for color in colors} <= set(canvas.evaluate(DRAWN))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser_page.screenshot(path=SCREENSHOTS / "timeline.png")
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "w"):
        browser_page.keyboard.press(key)
    told = browser_page.locator(".span-told")
    expect(told).to_have_text(re.compile("^language_module, ranks 4–7, planned, forward of .* to"))
    box = canvas.bounding_box()
    assert box is not None
    browser_page.mouse.move(box["x"] + box["width"] * 0.53, box["y"] + 47)
    expect(browser_page.locator(".tip")).to_contain_text("images, ranks 0–3")
    browser_page.evaluate(PERFETTO)
    browser_page.get_by_role("button", name="Open in Perfetto").click()
    browser_page.wait_for_function("window.handed.length === 1")
    events = json.loads(browser_page.evaluate("window.handed[0]"))["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == 24


def test_schedules_stand_side_by_side_with_sliders(browser_page: Page, tmp_path: Path) -> None:
    view = ScheduleView()
    page = shown(browser_page, view, tmp_path, answered=True)
    # One legend is for all, and what it names is drawn.
    expect(page.locator(".legend:visible span")).to_have_count(6)
    keys = view._timeline["keys"]
    assert len(keys) == 6
    lanes = page.locator("canvas.lanes")
    page.wait_for_function(
        f"([canvas, wanted]) => wanted.every((each) => ({DRAWN})(canvas).includes(each))",
        arg=[lanes.element_handle(), [channels(key["color"]) for key in keys]],
    )
    page.get_by_label("micro-batches").fill("12")
    expect(lanes).to_have_accessible_name(re.compile("^Timeline of 20 lanes and "))
    assert view.microbatches == 12
    page.screenshot(path=SCREENSHOTS / "schedules.png")
