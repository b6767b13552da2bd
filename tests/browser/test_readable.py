"""Texts of views can be read, in both themes and in narrow windows; planted faults are found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

import mimokit
import mimokit_widgets as mw
from mimokit.analysis import load_runs
from mimokit.charts.runs_view.page import runs_view
from mimokit.experiment import Stepper
from mimokit.planning import plan_layout
from tests.analysis.planted_runs import Planted, write_run
from tests.browser.notebook_page import SCREENSHOTS
from tests.browser.readable import unreadable, watched
from tests.charts.fakes import samples
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster
from tests.widgets.fake_run import FakeRun
from tests.widgets.fake_sweep import sweep_in_progress

PRESET = "preset:llava_7b_colocated"
THEMES = {"light": ("#ffffff", "#1f2933"), "dark": ("#111418", "#e4e7eb")}
FAULTS = """<!doctype html><meta charset="utf-8">
<canvas width="300" height="100" style="width: 300px; height: 100px"></canvas>
<p style="color: #9a9a9a">a pale sentence</p><p style="position: relative">
<span>one name</span><span style="position: absolute; left: 20px">another name</span></p>
<canvas aria-label="Loss, 3 runs" width="40" height="20"></canvas>
<svg width="200" height="40"><rect width="100" height="40" fill="#D55E00"></rect>
<text x="10" y="25" fill="#ffffff">a rank</text><text x="110" y="25">a pair</text>
<rect x="NaN" width="3" height="3"></rect><circle cx="230" cy="9" r="8"></circle></svg>
<p>1.806e+08 B</p><button disabled style="color: #ccc">exempt</button>
<script>
  const context = document.querySelector("canvas").getContext("2d");
  context.clearRect(0, 0, 300, 100);
  context.font = "12px sans-serif";
  context.fillStyle = "#D55E00";
  context.fillRect(0, 0, 100, 40);
  context.fillStyle = "#ffffff";
  context.fillText("rank 0", 10, 20);
  context.fillStyle = "#000000";
  context.fillText("rank 1", 10, 70);
  context.fillText("rank 2", 20, 72);
  context.fillText("cut off", 280, 50);
</script>"""


def test_every_planted_fault_is_found(browser_page: Page, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(FAULTS, encoding="utf-8")
    page = watched(browser_page)
    page.goto((tmp_path / "page.html").as_uri())
    assert unreadable(page) == [
        "'rank 0' has a contrast of 3.9 : 1",
        "'cut off' is cut off by its canvas",
        "'rank 1' lies on 'rank 2'",
        "the canvas 'Loss' is blank",
        "x of a rect is NaN",
        "a circle lies 38 pixels outside of its picture",
        "'a pale sentence' has a contrast of 2.8 : 1",
        "'a rank' has a contrast of 3.9 : 1",
        "'one name' lies on 'another name'",
        "1.806e+08 in '1.806e+08 B' has too many digits",
    ]


def opened(page: Page, views: str, folder: Path, width: int, theme: str) -> Page:
    watched(page).set_viewport_size({"width": width, "height": 1600})
    paper, ink = THEMES[theme]
    body = f'<body style="background: {paper}; color: {ink}">'
    text = f'<!doctype html><meta charset="utf-8">{body}{views}'
    (folder / "page.html").write_text(text, encoding="utf-8")
    page.goto((folder / "page.html").as_uri())
    return page


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return all views below each other, as pages without a kernel have them."""
    folder = tmp_path_factory.mktemp("results")
    even = Planted(iterations=30, warmup=3)
    write_run(folder / "baseline", even)
    write_run(folder / "slow_rank", replace(even, slow={3: 1.6}, seed=1))
    write_run(folder / "apart", replace(even, mode="heterogeneous", seed=3))
    run = FakeRun()
    run.give(samples())
    monitor = mw.LiveMonitor(run)
    run.end()
    monitor.wait()
    plans = [
        kind(PRESET)._in_html()
        for kind in (mw.RankMap, mw.BatchSplit, mw.TrafficMap, mw.LayoutPlanner)
    ]
    return "".join([runs_view(load_runs(folder)), monitor._in_html(), *plans])


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> str:
    stepper = Stepper(FakeCluster(), apart_config((1, 1, 4), (2, 1, 2), 2))
    stepper.next(3)
    plan = plan_layout(apart_config((1, 1, 4), (2, 2, 2), 4))
    folder = tmp_path_factory.mktemp("others")
    widgets: list[Any] = [
        mw.StepperView(stepper),
        mw.FrameBalance("64 60 48 32 8 4 2 1 16 1 1 1 4 4 2 2", ranks=8),
        mw.ParetoView(mimokit.search(PRESET, gpus=8), mw.LayoutPlanner(PRESET)),
        mw.SweepMonitor(sweep_in_progress(folder)),
        mw.TimelineView(plan=plan),
        mw.ScheduleView(),
    ]
    return "".join(widget._in_html() for widget in widgets)


@pytest.mark.parametrize(("width", "theme"), [(1200, "dark"), (800, "light")])
def test_texts_and_marks_of_other_views_can_be_read(
    browser_page: Page, others: str, tmp_path: Path, width: int, theme: str
) -> None:
    page = opened(browser_page, others, tmp_path, width, theme)
    page.locator("canvas.lanes").last.wait_for()
    found = unreadable(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"other views {theme}.png", full_page=True)
    assert found == []


@pytest.mark.parametrize(("width", "theme"), [(1200, "light"), (600, "dark")])
def test_texts_of_views_can_be_read(
    browser_page: Page, views: str, tmp_path: Path, width: int, theme: str
) -> None:
    page = opened(browser_page, views, tmp_path, width, theme)
    page.locator(".mimokit-runs[data-drawn]").wait_for()
    page.locator(".mimokit-live[data-rows]").wait_for()
    page.locator(".mimokit-runs").get_by_role("button", name="slow_rank").first.click()
    assert unreadable(page) == []
