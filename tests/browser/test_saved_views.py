"""Views on a page without a kernel answer as Python did, and say where they cannot."""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

import mimokit
import mimokit_widgets as mw
from make.site.check import external_references
from mimokit.experiment import Stepper
from tests.browser.notebook_page import SCREENSHOTS
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster, other_values

PRESET = "preset:llava_7b_colocated"
WITHOUT_KERNEL = re.compile("without a kernel")


def opened(page: Page, views: dict[str, Any], folder: Path) -> list[str]:
    """Open a page with saved views; return the errors of its scripts, which follow."""
    parts = [f'<div id="{name}">{view._in_html()}</div>' for name, view in views.items()]
    text = '<!doctype html><meta charset="utf-8">' + "".join(parts)
    assert external_references(text) == []
    (folder / "page.html").write_text(text, encoding="utf-8")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((folder / "page.html").as_uri())
    return errors


def test_plan_views_and_the_planner_stay_alive(browser_page: Page, tmp_path: Path) -> None:
    views: dict[str, Any] = {
        "ranks": mw.RankMap(PRESET),
        "batch": mw.BatchSplit(PRESET),
        "traffic": mw.TrafficMap(PRESET),
        "planner": mw.LayoutPlanner(PRESET),
        "timeline": mw.TimelineView(plan=mimokit.plan(apart_config((1, 1, 4), (2, 1, 2), 2))),
    }
    errors = opened(browser_page, views, tmp_path)
    ranks, batch, traffic, planner, timeline = (
        browser_page.locator(f"#{name} .mimokit") for name in views
    )

    ranks.locator("canvas").focus()
    ranks.locator("canvas").press("ArrowRight")
    views["ranks"].selected = 0
    for place in views["ranks"]._looked_at["modules"]:
        expect(ranks.locator(".details")).to_contain_text(place["work"])
    batch.get_by_role("button", name="Next sample").click()
    views["batch"].sample = 0
    expect(batch.locator("ol.steps li")).to_have_text(views["batch"]._looked_at["steps"])
    traffic.get_by_role("radio", name="tensor").check(force=True)
    expect(traffic.get_by_text("four all-reduces")).to_be_visible()

    expect(planner.get_by_label("TP of language_module", exact=True)).to_be_disabled()
    expect(planner.locator(".notice")).to_contain_text("Run its cell to edit it")
    for tab in ("Batch", "Traffic", "Memory", "Ranks"):
        planner.get_by_role("tab", name=tab).click()
        expect(planner.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        expect(planner.locator(".kernel-ended")).to_be_hidden()
    planner.get_by_role("tab", name="Samples").click()
    expect(planner.get_by_role("button", name="Find the best layout")).to_be_disabled()
    planner.get_by_role("tab", name="Search").click()
    expect(planner.locator(".kernel-ended")).to_have_text(re.compile("without a kernel"))
    planner.get_by_role("tab", name="Traffic").click()
    expect(planner.locator(".kernel-ended")).to_be_hidden()
    picture = timeline.locator("canvas.lanes")
    before = picture.evaluate("canvas => canvas.toDataURL()")
    timeline.get_by_role("button", name="Zoom in (W)").click()
    browser_page.wait_for_function(
        "([canvas, before]) => canvas.toDataURL() !== before",
        arg=[picture.element_handle(), before],
    )
    browser_page.screenshot(path=SCREENSHOTS / "saved_views.png", full_page=True)
    assert errors == []

    hide = "(display) => { const at = document.querySelector('#ranks'); "
    hide += "at.className = 'mimokit-saved'; at.style.display = display; }"
    browser_page.evaluate(hide, "none")  # as next to the view itself
    expect(ranks).to_have_count(0)
    browser_page.evaluate(hide, "")
    expect(ranks.locator("canvas")).to_be_visible()


def test_frames_steps_and_what_was_found_stay_alive(browser_page: Page, tmp_path: Path) -> None:
    stepper = Stepper(FakeCluster(other_values), apart_config((1, 1, 4), (2, 1, 2), 2))
    steps = mw.StepperView(stepper)
    stepper.next(5)
    steps.selected = 0
    steps.opened = "microbatch.0.output.tensor"
    views: dict[str, Any] = {
        "frames": mw.FrameBalance("64 64 48 32 8 4 2 1", ranks=4),
        "steps": steps,
        "found": mw.ParetoView(mimokit.search(PRESET, gpus=16), mw.LayoutPlanner()),
    }
    errors = opened(browser_page, views, tmp_path)
    frames, stepped, found = (browser_page.locator(f"#{name} .mimokit").first for name in views)
    frames.get_by_role("radio", name="LPT").check(force=True)
    views["frames"].ask(planner="lpt")
    expect(frames.locator(".sentence")).to_have_text(views["frames"]._picture["sentence"])
    frames.get_by_role("slider").first.press("ArrowUp")
    expect(frames.locator(".kernel-ended")).to_have_text(WITHOUT_KERNEL)
    expect(frames.get_by_role("slider").first).to_have_attribute("aria-valuenow", "64")

    expect(stepped.locator(".tensor-view canvas.cells")).to_be_visible()
    stepped.get_by_role("button", name="‹ Back").click()
    expect(stepped.locator(".told")).to_contain_text("Step 3")
    expect(stepped.locator(".tensor-view")).to_be_hidden()  # tensors are those of one step
    stepped.get_by_role("button", name=re.compile("^step 4, images")).first.click()
    expect(stepped.locator(".tensor-view canvas.cells")).to_be_visible()
    stepped.get_by_role("button", name="‹ Back").click()
    play = stepped.get_by_role("button", name="▶ Play")
    play.click()  # to the last step that the page has
    expect(stepped.locator(".told")).to_contain_text("Step 4")
    expect(stepped.locator(".kernel-ended")).to_have_text(WITHOUT_KERNEL)
    expect(play).to_be_visible()

    found.locator(".point").first.focus()
    found.locator(".point").first.press("ArrowRight")
    expect(found.locator(".point").nth(0)).to_be_visible()
    found.get_by_role("button", name=re.compile("^Load layout 1")).click()
    expect(found.locator(".kernel-ended")).to_have_text(WITHOUT_KERNEL)
    browser_page.screenshot(path=SCREENSHOTS / "saved_views_2.png", full_page=True)
    assert errors == []
