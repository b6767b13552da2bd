"""Pages in whose texts there is HTML: of no text becomes an element, and none runs."""

import json
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

import mimokit
import mimokit_widgets as mw
from mimokit import charts
from mimokit.analysis import compare, load_runs
from mimokit.experiment import Stepper
from mimokit.experiment.restarts import Restart
from mimokit.samples import StepSample
from tests.analysis.planted_runs import Planted, write_run
from tests.charts.fakes import samples
from tests.charts.plans import plan
from tests.charts.test_charts import REPORT
from tests.experiment.culprit.reports import CULPRIT
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster, other_values
from tests.widgets.fake_run import FakeRun
from tests.widgets.fake_sweep import FakeSweep

HOSTILE = "<img src=x onerror=attacked=1>"
MODULE = "language_module"
PRESET = "preset:llava_7b_colocated"
FOUND = """() => ({
  attacked: window.attacked ?? 0,
  elements: document.querySelectorAll('img[src="x"]').length,
  shown: document.documentElement.innerHTML.includes("&lt;img src=x"),
})"""


def renamed(value: Any) -> Any:
    """Return a value in which the language model, or what is called like it, has a hostile name."""
    if type(value) is str:
        return value.replace(MODULE, HOSTILE)
    if is_dataclass(value) and not isinstance(value, type):
        given = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: renamed(getattr(value, name)) for name in given})
    if isinstance(value, dict):
        return {renamed(key): renamed(each) for key, each in value.items()}
    if type(value) in (list, tuple, frozenset):
        return type(value)(map(renamed, value))
    return value


def renamed_in_state(page: str, name: str = MODULE) -> str:
    """Return a page whose view is told of a hostile name, as JSON has it."""
    hostile = json.dumps(HOSTILE)[1:-1].replace("<", "\\u003c")
    changed, count = re.subn(
        r"^show\(.*$", lambda line: line[0].replace(name, hostile), page, flags=re.MULTILINE
    )
    assert count == 1
    return changed


def looked_at(page: Page, folder: Path, parts: Iterable[str]) -> dict[str, Any]:
    """Open a page with some parts, press the keys that views know, and return what is found."""
    file = folder / "page.html"
    file.write_text('<!doctype html><meta charset="utf-8">' + "".join(parts), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_load_state("networkidle")
    for canvas in page.locator("canvas[tabindex]").all():
        if canvas.is_visible():
            canvas.focus()
            canvas.press("ArrowRight")
    found: dict[str, Any] = page.evaluate(FOUND)
    return found


NOTHING = {"attacked": 0, "elements": 0, "shown": True}


def test_an_element_made_of_a_text_is_found(browser_page: Page, tmp_path: Path) -> None:
    found = looked_at(browser_page, tmp_path, [f"<p>{HOSTILE}</p>"])
    assert (found["attacked"], found["elements"]) == (1, 1)


def test_names_of_modules_in_views_of_plans(browser_page: Page, tmp_path: Path) -> None:
    hostile = renamed(plan())
    apart = mimokit.plan(apart_config((1, 1, 4), (2, 1, 2), 2))
    views = [mw.RankMap(hostile), mw.BatchSplit(hostile), mw.TimelineView(plan=renamed(apart))]
    for part in [hostile._repr_html_(), *(view._in_html() for view in views)]:
        assert looked_at(browser_page, tmp_path, [part]) == NOTHING


def test_names_in_reports(browser_page: Page, tmp_path: Path) -> None:
    verified = {"layout": {HOSTILE: "DP 8"}} | {
        kind: tuple({HOSTILE: one["images"]} for one in getattr(REPORT, kind))
        for kind in ("gradient_differences", "weight_differences")
    }
    found = renamed(CULPRIT)
    assert HOSTILE in {one.seam.module for one in found.compared}
    named = replace(found, name=HOSTILE, not_compared=(found.compared[-1].seam,))
    for report in (replace(REPORT, **verified), named):
        assert looked_at(browser_page, tmp_path, [report._repr_html_()]) == NOTHING


@pytest.mark.parametrize("view", ["traffic", "planner", "found"])
def test_names_in_the_state_of_views(browser_page: Page, tmp_path: Path, view: str) -> None:
    """Their Python takes no such name: what their scripts do with one."""
    if view == "found":
        shown = mw.ParetoView(mimokit.search(PRESET, gpus=16), mw.LayoutPlanner())
    else:
        shown = {"traffic": mw.TrafficMap, "planner": mw.LayoutPlanner}[view](PRESET)
    page = renamed_in_state(shown._in_html(), MODULE)
    found = looked_at(browser_page, tmp_path, [page])
    assert found | {"shown": True} == NOTHING
    assert found["shown"] == (view != "traffic"), "which has names on its canvas"


def test_what_ranks_say_in_a_monitor(browser_page: Page, tmp_path: Path) -> None:
    run = FakeRun()
    run.plan = renamed(plan())
    monitor = mw.LiveMonitor(run)
    run.restarts = (Restart(2, 0, f"rank 1 raised {HOSTILE}", 1.5),)
    run.wrong = (f"Ranks 0 and 1 have different bits of {HOSTILE}.",)
    steps = [one for one in samples() if isinstance(one, StepSample)]
    run.give([replace(one, modules=renamed(dict(one.modules))) for one in steps])
    while_it_goes_on = monitor._in_html()
    run.end(RuntimeError(f"rank 2 raised {HOSTILE}"))
    monitor.wait()
    for page in (while_it_goes_on, monitor._in_html()):
        assert looked_at(browser_page, tmp_path, [page]) == NOTHING


def test_names_and_errors_of_experiments(browser_page: Page, tmp_path: Path) -> None:
    sweep = FakeSweep(HOSTILE, "other")
    sweep.change("other", status="failed", message=f"rank 2 raised {HOSTILE}")
    page = mw.SweepMonitor(sweep)._in_html()
    assert looked_at(browser_page, tmp_path, [page]) == NOTHING


def test_names_and_errors_of_runs(browser_page: Page, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in (HOSTILE, "other"):
        write_run(results / name, Planted(iterations=12, warmup=2), hosts=[HOSTILE])
    broken = results / "broken"
    broken.mkdir()
    error = {"type": HOSTILE, "message": HOSTILE}
    (broken / "error.json").write_text(json.dumps(error), encoding="utf-8")
    runs = load_runs(results)
    view = mw.RunsView(runs)._in_html()
    words = [runs._repr_html_(), compare(runs, "other")._repr_html_()]
    for part in (view, *words, charts.report(runs, "other")):
        assert looked_at(browser_page, tmp_path, [part]) == NOTHING


def test_what_ranks_say_in_a_stepper(browser_page: Page, tmp_path: Path) -> None:
    stepper = Stepper(FakeCluster(other_values), apart_config((1, 1, 4), (2, 1, 2), 2))
    view = mw.StepperView(stepper)
    stepper.next(5)
    view.selected = 0
    page = renamed_in_state(view._in_html(), "output.tensor")
    assert looked_at(browser_page, tmp_path, [page])["attacked"] == 0
