"""What views draw, by its places and sizes: nothing cut, on top of each other, or out of date."""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

import mimokit
from mimokit.config import ModuleParallelismConfig
from mimokit.config_files import load_preset
from mimokit.experiment import Stepper
from mimokit.planning.types import LayoutPlan
from mimokit_widgets import (
    BatchSplit,
    FrameBalance,
    LayoutPlanner,
    RankMap,
    StepperView,
    TrafficMap,
)
from mimokit_widgets.modules import joined_styles
from tests.browser.settled import before, settled
from tests.browser.view_page import BLACK, shown
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster

RECORD_TEXT = """
const own = CanvasRenderingContext2D.prototype.fillText;
const clear = CanvasRenderingContext2D.prototype.clearRect;
window.texts = [];
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  window.texts = [];
  clear.apply(this, box);
};
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const width = this.measureText(text).width;
  const left = { left: x, right: x - width, center: x - width / 2 }[this.textAlign];
  window.texts.push({ text: String(text), left, right: left + width, y, ink: this.fillStyle });
  own.call(this, text, x, y);
};
"""
LOSE_A_FRAME = """() => {
  const own = window.requestAnimationFrame;
  window.requestAnimationFrame = () => { window.requestAnimationFrame = own; return 1; };
}"""
MEASURE_PLACEHOLDER = """(input) => {
  const context = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(input);
  context.font = style.font;
  return input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
    - context.measureText(input.placeholder).width - 16; // the sign that empties it
}"""
KEEP_VALUES = """() => {
  window.values = [];
  new MutationObserver(([{ target }]) => window.values.push(target.ariaValueNow))
    .observe(document.querySelector("[role=slider]"), { attributeFilter: ["aria-valuenow"] });
}"""
PRESS_UP = """async (slider) => {
  slider.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
LATE_STYLES = """(css) => {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = URL.createObjectURL(new Blob([css], { type: "text/css" }));
  document.head.append(link);
}"""


def colocated(ranks: int, tensor_parallel: int = 8) -> LayoutPlan:
    config = load_preset("llava_7b_colocated")
    config.model.module_parallelisms = {
        "images": ModuleParallelismConfig(data_parallel=ranks),
        "language_module": ModuleParallelismConfig(
            tensor_parallel=tensor_parallel, data_parallel=ranks // tensor_parallel
        ),
    }
    return mimokit.plan(config, ranks)


def drawn(page: Page) -> list[dict[str, Any]]:
    return list(settled(page).evaluate("window.texts"))


def test_all_ranks_have_coordinates_or_none_has(browser_page: Page, tmp_path: Path) -> None:
    before(browser_page).add_init_script(RECORD_TEXT)
    page = shown(browser_page, RankMap(colocated(64)), tmp_path, width="520px")
    texts = [each["text"] for each in drawn(page)]
    for own in (r"dp\d+", r"tp\d dp\d"):
        assert sum(bool(re.fullmatch(own, text)) for text in texts) in (0, 64)
    assert sum(text.isdigit() for text in texts) == 64


def test_a_zoomed_map_of_1024_ranks_names_nodes_and_keeps_text_in_cells(
    browser_page: Page, tmp_path: Path
) -> None:
    before(browser_page).add_init_script(RECORD_TEXT)
    page = shown(browser_page, RankMap(colocated(1024)), tmp_path, width="780px")
    assert {"node 0", "node 127"} <= {each["text"] for each in drawn(page)}
    for _ in range(4):
        page.get_by_label("Zoom in").click()
    texts = drawn(page)
    assert any(re.fullmatch(r"node \d+ · \d+–\d+", each["text"]) for each in texts)
    numbers = {int(each["text"]): each for each in texts if each["text"].isdigit()}
    beside = [(numbers[rank], numbers[rank + 1]) for rank in numbers if rank + 1 in numbers]
    rows = [(left, right) for left, right in beside if abs(left["y"] - right["y"]) < 1]
    words = [each for each in texts if re.match("[a-z]+[0-9]", each["text"])]
    assert rows
    assert words
    for left, right in rows:
        within = [each for each in words if left["left"] <= each["left"] < right["left"]]
        assert all(each["right"] < right["left"] - 6 for each in within)


def test_a_split_follows_styles_that_come_late_and_a_frame_that_is_lost(
    browser_page: Page, tmp_path: Path
) -> None:
    page = shown(before(browser_page), BatchSplit(colocated(8)), tmp_path)
    pale = "getComputedStyle(document.querySelector('[data-lane] > :nth-child(2)')).background"
    light = settled(page).evaluate(pale)
    dark = f"body {{ background: {BLACK} !important; --jp-ui-font-color1: #eeeeee; }}"
    page.evaluate(LATE_STYLES, dark)
    expect(page.locator(".mimokit")).to_have_attribute("data-theme", "dark")
    assert settled(page).evaluate(pale) != light
    expect(page.get_by_text("replica 7", exact=True)).to_be_visible()
    page.evaluate(LOSE_A_FRAME)
    page.locator("#host").evaluate("host => { host.style.width = '500px'; }")
    expect(page.get_by_text("replica 7", exact=True)).to_have_count(0)  # it has no room
    expect(page.locator("[data-lane='0']").get_by_text("7", exact=True)).to_be_visible()


def test_replicas_are_numbered_alike(browser_page: Page, tmp_path: Path) -> None:
    page = shown(before(browser_page), BatchSplit(colocated(32)), tmp_path, width="780px")
    numbers = [*map(str, range(32))]
    for row in (".samples > *", "[data-lane='0'] > *"):
        expect(page.locator(row)).to_have_text(numbers)


def test_bars_of_a_rank_stand_under_its_samples(browser_page: Page, tmp_path: Path) -> None:
    frames = " / ".join(str(1 + 7 * rank % 64) for rank in range(64))
    view = FrameBalance(frames, planner="none", fixed_time="100 ms")
    page = shown(browser_page, view, tmp_path, width="900px", answered=True)
    columns = page.locator(".rank-column")
    expect(columns).to_have_count(64)
    edges = (
        "nodes => nodes.map(n => [n.getBoundingClientRect().x, n.getBoundingClientRect().right])"
    )
    boxes = columns.evaluate_all(edges)
    for part in (".slider", ".rank", ".load"):
        for (left, right), column in zip(
            columns.locator(part).evaluate_all(edges), boxes, strict=True
        ):
            assert column[0] - 1 <= left <= right <= column[1] + 1
    labels = columns.locator(".rank").evaluate_all(
        "nodes => nodes.every(node => node.scrollWidth <= node.clientWidth)"
    )
    assert labels
    expect(page.locator("canvas.traffic")).to_be_hidden()  # nothing travels
    expect(page.get_by_text("no rank sends anything")).to_be_visible()
    fixed = columns.first.locator(".after .fixed")
    share = fixed.evaluate("node => parseFloat(node.style.height)")
    page.get_by_label("Fixed time").fill("0 ms")
    expect(fixed).to_have_attribute("style", re.compile(r"height: 0%"))
    assert share > 40
    slider = page.get_by_role("slider").nth(3)
    slider.press("End")
    expect(slider).to_have_attribute("aria-valuenow", "64")
    page.get_by_label("Ranks", exact=True).fill("32")
    expect(page.locator("textarea")).to_have_value(re.compile(r"^(\d+ \d+ / ){31}\d+ \d+$"))
    page.get_by_label("Ranks", exact=True).fill("64")
    expect(page.locator("textarea")).to_have_value(re.compile(r"^(\d+ / ){63}\d+$"))


def test_the_scale_of_traffic_is_that_of_its_cells(browser_page: Page, tmp_path: Path) -> None:
    before(browser_page).add_init_script(RECORD_TEXT)
    plan = mimokit.load_experiment_config("configs/digits_colocated.yaml")
    page = shown(browser_page, TrafficMap(plan), tmp_path)
    values = {each["text"] for each in drawn(page) if each["text"].endswith("B")}
    ends = page.locator(".scale").inner_text().replace("\n", " ")
    assert "logarithmic" in ends
    assert all(end in values for end in re.findall(r"[\d.]+ [kM]B", ends))
    canvas = page.locator("canvas.traffic")
    canvas.press("ArrowDown")
    canvas.press("ArrowRight")
    expect(page.get_by_text(re.compile("^rank 0 → rank 1: "))).to_be_visible()


def test_quick_keys_on_a_slider_of_the_planner_all_count(
    browser_page: Page, tmp_path: Path
) -> None:
    config = load_preset("llava_7b_colocated")
    config.data.modality_frames = {"images": [1]}
    planner = LayoutPlanner(config)
    planner.show("frames")
    page = shown(browser_page, planner, tmp_path, answered=True)
    slider = page.get_by_role("slider").first
    expect(slider).to_have_attribute("aria-valuenow", "1")
    page.evaluate(KEEP_VALUES)
    for _ in range(4):
        slider.evaluate(PRESS_UP)
    expect(page.locator("textarea")).to_have_value(re.compile("^5 / 1 "))
    assert page.evaluate("window.values") == ["2", "3", "4", "5"]  # it never went back


def test_the_planner_keeps_its_looks_whatever_styles_come_after(
    browser_page: Page, tmp_path: Path
) -> None:
    twice = joined_styles("shared.css", "layout_planner.css", "shared.css")
    page = shown(browser_page, LayoutPlanner(), tmp_path, styles=twice)
    style = page.get_by_label("Name of the layout").evaluate(
        "node => [getComputedStyle(node).fontSize, getComputedStyle(node).fontWeight]"
    )
    assert style == ["16px", "600"]


def test_nothing_of_a_planner_is_cut_off_at_600_pixels(browser_page: Page, tmp_path: Path) -> None:
    browser_page.set_viewport_size({"width": 600, "height": 900})
    planner = LayoutPlanner("preset:llava_7b_heterogeneous")
    page = shown(browser_page, planner, tmp_path, width="auto", answered=True)
    for name in ("Ranks", "Batch", "Memory", "Search"):
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        beyond = page.evaluate("document.documentElement.scrollWidth")
        assert beyond <= 600, name


def test_tabs_are_on_one_line_and_modules_stay_in_their_column(
    browser_page: Page, tmp_path: Path
) -> None:
    config = load_preset("llava_7b_heterogeneous")
    language = config.model.module_parallelisms["language_module"]
    language.virtual_pipeline_model_parallel_size = 16
    language.recompute_granularity = "full"
    planner = LayoutPlanner(config)
    planner.compare_with()
    page = shown(browser_page, planner, tmp_path, width="1360px", answered=True)
    tabs = page.get_by_role("tab")
    expect(tabs).to_have_count(7)
    # All at once: a picture that arrives above moves them.
    tops = tabs.evaluate_all("nodes => nodes.map((node) => node.getBoundingClientRect().y)")
    assert len({*tops}) == 1
    expect(page.locator(".module .where").last).to_contain_text("VPP 16")
    ends = page.locator(".asks :is(.where, .row, input, select)").evaluate_all(
        "nodes => Math.max(...nodes.map((node) => node.getBoundingClientRect().right))"
    )
    follows = page.locator(".follows").bounding_box()
    assert follows is not None
    assert ends <= follows["x"]
    page.get_by_role("tab", name="Ranks").click()
    room = page.get_by_label("Find ranks").evaluate(MEASURE_PLACEHOLDER)
    assert room > 0


def test_a_stepper_is_not_shrunk_below_what_can_be_read(browser_page: Page, tmp_path: Path) -> None:
    stepper = Stepper(FakeCluster(), apart_config((1, 1, 4), (2, 2, 2), 2))
    page = shown(browser_page, StepperView(stepper), tmp_path, width="600px")
    scale = page.locator("svg:has(.rank)").first.evaluate(
        "svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
    )
    assert scale >= 0.89  # text of 11 pixels, and the page scrolls
