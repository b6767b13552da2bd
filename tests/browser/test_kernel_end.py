"""What views say once nobody answers them: the model is one of an ended kernel."""

import re
from pathlib import Path

from anywidget import AnyWidget
from playwright.sync_api import Page, expect

import mimokit
import mimokit_widgets as mw
from mimokit.experiment import Stepper
from tests.analysis.planted_runs import Planted, write_run
from tests.browser.view_page import shown
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster
from tests.widgets.fake_run import FakeRun
from tests.widgets.fake_sweep import FakeSweep

PRESET = "preset:llava_7b_colocated"


def expect_told(page: Page) -> None:
    expect(page.locator(".mimokit > .kernel-ended")).to_have_text(
        re.compile("^The kernel has ended")
    )
    expect(page.locator(".mimokit > .kernel-ended")).to_be_visible()


def test_what_a_user_does_is_answered_by_a_sentence(browser_page: Page, tmp_path: Path) -> None:
    page = shown(browser_page, mw.LayoutPlanner(), tmp_path)  # asks for what is one step away
    page.get_by_label("DP of images", exact=True).fill("2")
    expect_told(page)
    stepper = Stepper(FakeCluster(), apart_config((1, 1, 4), (2, 1, 2), 2))
    shown(page, mw.StepperView(stepper), tmp_path)
    expect(page.locator(".kernel-ended")).to_be_hidden()
    page.get_by_role("button", name="Next ›").click()
    expect_told(page)
    expect(page.get_by_role("button", name="Next ›")).to_be_disabled()


def test_every_widget_says_that_its_kernel_has_ended(browser_page: Page, tmp_path: Path) -> None:
    """Jupyter marks their views; the pointer on one of them is enough."""
    config = apart_config((1, 1, 4), (2, 1, 2), 2)
    stepper = Stepper(FakeCluster(), config)
    run = write_run(tmp_path / "run", Planted(iterations=8, warmup=2))
    views = [
        mw.RankMap(PRESET), mw.BatchSplit(PRESET), mw.TrafficMap(PRESET), mw.LayoutPlanner(PRESET),
        mw.ParetoView(mimokit.search(PRESET, gpus=8), mw.LayoutPlanner()), mw.RunsView(run),
        mw.FrameBalance("4 2 1", ranks=2),
        mw.TimelineView(plan=mimokit.plan(config)), mw.ScheduleView(), mw.StepperView(stepper),
        mw.SweepMonitor(FakeSweep("one")), mw.LiveMonitor(FakeRun()),
    ]  # fmt: skip
    exported = [getattr(mw, name) for name in mw.__all__]
    public = {each.__name__ for each in exported if is_widget(each)}
    assert {type(view).__name__ for view in views} == public
    errors: list[str] = []
    browser_page.on("pageerror", lambda error: errors.append(str(error)))
    for view in views:
        shown(browser_page, view, tmp_path)
        browser_page.evaluate(
            "document.getElementById('host').className = 'jupyter-widgets-disconnected'"
        )
        browser_page.locator(".mimokit").first.hover(position={"x": 4, "y": 4})
        expect_told(browser_page)
    assert errors == []


def is_widget(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, AnyWidget)
