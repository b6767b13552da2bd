"""Runs to explore in a browser, on the page that needs no kernel, and as a widget."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from make.notebooks.page import to_page
from make.site.check import external_references
from mimokit.analysis import Runs, compare, load_runs
from mimokit.charts.runs_view.content import runs_content
from mimokit.charts.runs_view.page import runs_view, saved_runs, view_state
from tests.analysis.planted_runs import (
    Planted,
    write_run,
    write_trace_of_forwards,
    write_trace_of_steps,
)
from tests.browser.network import NetworkGuard
from tests.browser.notebook_page import SCREENSHOTS, OpenNotebook
from tests.browser.settled import before, settled

EVEN = Planted(iterations=60, warmup=5)
PAGE = '<!doctype html><meta charset="utf-8"><body>'
COUNT_STROKES = """() => {
  window.strokes = 0;
  const { stroke } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.stroke = function () {
    window.strokes += 1;
    return stroke.call(this);
  };
}"""
"""Count lines of canvases from now on."""
EXTENTS = """(canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const coloured = (x, y) => {
    const at = 4 * (y * width + x);
    const [red, green, blue, alpha] = data.slice(at, at + 4);
    return alpha > 128 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
  };
  const rows = [...Array(height).keys()];
  return [...Array(width).keys()].map((x) => rows.filter((y) => coloured(x, y)))
    .filter((found) => found.length).map((found) => [found[0], found.at(-1)]);
}"""
"""The highest and the lowest coloured pixel of every column that has one."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("results")
    for name, planted in {
        "baseline": EVEN,
        "slow_rank": replace(EVEN, slow={3: 1.6}, seed=1),
        "same": replace(EVEN, seed=2),
        "apart": replace(EVEN, mode="heterogeneous", seed=3),
    }.items():
        write_run(folder / name, planted)
    write_trace_of_forwards(folder / "slow_rank" / "trace.json")
    return load_runs(folder)


@pytest.fixture(scope="module")
def page(runs: Runs, chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page with runs, on which nothing may go wrong and nothing is asked for."""
    file = tmp_path_factory.mktemp("page") / "runs.html"
    file.write_text(PAGE + runs_view(runs, "baseline"), encoding="utf-8")
    guard, context = NetworkGuard(), chromium.new_context(viewport={"width": 1200, "height": 2000})
    guard.watch(context)
    page = before(context.new_page())
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    expect(page.locator(".mimokit-runs")).to_have_attribute("data-drawn", "4")
    yield page
    context.close()
    assert errors == []
    assert guard.requests == []


def names(page: Page) -> Locator:
    return page.locator(".rows tbody button.name")


def row(page: Page, name: str) -> Locator:
    return page.locator(".rows tbody tr").filter(has=page.get_by_role("button", name=name))


def canvas(page: Page, title: str) -> Locator:
    return (
        page.locator("figure").filter(has=page.locator(f"b:text-is('{title}')")).locator("canvas")
    )


def test_the_table_sorts_filters_and_closes_eyes(page: Page) -> None:
    page.locator("th button", has_text="run").click()
    expect(names(page)).to_have_text(["apart", "baseline", "same", "slow_rank"])
    page.locator("th button", has_text="run").click()
    expect(names(page)).to_have_text(["slow_rank", "same", "baseline", "apart"])
    page.get_by_label("Filter runs").fill("heterogeneous")
    expect(names(page)).to_have_text(["apart"])
    expect(page.locator(".mimokit-runs")).to_have_attribute("data-drawn", "1")
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Show apart", exact=True).uncheck()
    expect(page.locator(".mimokit-runs")).to_have_attribute("data-drawn", "3")
    expect(page.locator(".run-row button", has_text="apart")).to_have_count(0)
    page.get_by_label("Show apart", exact=True).check()
    expect(page.locator(".mimokit-runs")).to_have_attribute("data-drawn", "4")


@pytest.mark.parametrize("baseline", ["baseline", "slow_rank"])
def test_differences_from_any_baseline_are_those_of_the_analysis(
    page: Page, runs: Runs, baseline: str
) -> None:
    page.get_by_label("Baseline", exact=True).select_option(baseline)
    expect(row(page, baseline).locator(".value")).to_contain_text("baseline")
    for found in compare(runs, baseline, "tokens_per_sec").table.itertuples():
        if found.name == baseline:
            continue
        words = row(page, found.name).locator(".value").inner_text()
        assert float(words.split()[0].replace(",", "")) == pytest.approx(found.median, rel=1e-3)
        change = float(re.sub("[^0-9.−]", "", words.split("  ")[1]).replace("−", "-"))
        assert change == pytest.approx(100 * found.change, abs=0.51)
        marked = row(page, found.name).get_attribute("class") or ""
        assert ("same" in marked) != found.significant
    page.get_by_label("Baseline", exact=True).select_option("baseline")


def test_one_cross_hair_gives_the_values_of_all_runs(page: Page, runs: Runs) -> None:
    step = canvas(page, "Step time")
    step.scroll_into_view_if_needed()
    box = step.bounding_box()
    assert box is not None
    step.hover(position={"x": box["width"] / 3, "y": 60})
    expect(page.locator(".cross .read", has_text="slow_rank").first).to_be_visible()
    settled(page).evaluate(COUNT_STROKES)
    step.hover(position={"x": box["width"] / 2, "y": 60})
    expect(page.locator(".tip")).to_contain_text("slow_rank")
    iteration = int(re.search(r"iteration (\d+)", page.locator(".tip").inner_text())[1])
    expect(page.get_by_role("button", name=f"loss, {iteration}")).to_be_visible()
    steps = runs["slow_rank"].iterations.set_index("iteration")
    cells = row(page, "slow_rank").locator("td").all_inner_texts()
    assert any(f"{1e3 * steps['total_time'][iteration]:.0f} ms" == text for text in cells)
    assert page.evaluate("window.strokes") == 0  # what follows the pointer draws no chart anew
    page.mouse.move(0, 0)
    expect(page.get_by_role("button", name="loss, last")).to_be_visible()


def test_a_drag_zooms_all_charts(page: Page) -> None:
    step, loss = canvas(page, "Step time"), canvas(page, "Loss")
    step.scroll_into_view_if_needed()
    before = loss.evaluate("canvas => canvas.toDataURL()")
    box = step.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 80, steps=4)
    page.mouse.up()
    page.mouse.move(0, 0)
    page.wait_for_function(
        "([canvas, before]) => canvas.toDataURL() !== before", arg=[loss.element_handle(), before]
    )
    step.dblclick()


def test_it_begins_with_what_makes_a_run_slower_and_lights_what_grew(
    browser_page: Page, tmp_path: Path
) -> None:
    for name, slow in (("quick", {}), ("late", {3: 1.6})):
        folder = write_run(tmp_path / name, replace(EVEN, slow=slow))
        write_trace_of_steps(folder / "trace.json", slow)
    file = tmp_path / "runs.html"
    file.write_text(PAGE + runs_view(load_runs([tmp_path / "quick", tmp_path / "late"])))
    browser_page.goto(file.as_uri())
    first = browser_page.locator("section.difference")
    expect(first.locator(".headline")).to_contain_text(
        re.compile(r"^late is \d+ ms slower per step than quick: waiting \+\d+ ms")
    )
    expect(first).to_contain_text("Rank 3 works")
    expect(first.locator(".picture svg")).to_contain_text("Why late is slower than quick")
    lanes = first.locator("canvas.lanes")
    high = [bottom - top for top, bottom in lanes.evaluate(EXTENTS)]
    assert sum(each < 20 for each in high) > 0.98 * len(high)  # one lane is lit, others are pale
    browser_page.screenshot(path=SCREENSHOTS / "runs_difference.png", full_page=True)


def test_a_click_on_a_bar_tells_of_the_run(page: Page) -> None:
    row(page, "slow_rank").locator("td.median").click()
    looked = page.locator("section.look")
    expect(looked).to_contain_text("Rank 3 is the slowest")
    expect(looked.locator(".plan")).to_contain_text("colocated on 8 ranks")
    expect(looked.locator("canvas.lanes")).to_have_accessible_name(
        re.compile("of 8 lanes and 8 spans")
    )
    page.screenshot(path=SCREENSHOTS / "runs_page.png", full_page=True)
    looked.get_by_role("button", name="Close").click()
    expect(looked).to_be_hidden()


@pytest.mark.parametrize("ratio", [1, 2])
def test_many_runs_are_drawn_as_few_are(
    runs: Runs, chromium: Browser, tmp_path: Path, ratio: int
) -> None:
    """Of more runs than are stroked, lines are written as pixels: they lie in the same places."""
    content = runs_content(runs)
    extents = []
    for copies in (6, 7):  # 24 lines are stroked, 28 are not
        described = [
            {**run, "name": f"{run['name']} {number}"}
            for number in range(copies)
            for run in content.about["runs"]
        ]
        many = replace(
            content,
            about={
                **content.about,
                "runs": described,
                "baseline": described[0]["name"],
                "hues": ["#d62728"],  # so that it does not matter which line lies on which
            },
            tables=content.tables * copies,
        )
        state = view_state(many) | {"shown": [run["name"] for run in described]}
        file = tmp_path / "many.html"
        file.write_text(PAGE + saved_runs(state), encoding="utf-8")
        page = chromium.new_page(viewport={"width": 1200, "height": 900}, device_scale_factor=ratio)
        page.goto(file.as_uri())
        expect(page.locator(".mimokit-runs")).to_have_attribute("data-drawn", str(4 * copies))
        extents.append(canvas(page, "Step time").evaluate(EXTENTS))
        page.close()
    stroked, written = extents
    assert len(stroked) > 300 * ratio
    assert reaches(stroked, written, 3 * ratio)
    assert reaches(written, stroked, 3 * ratio)
    assert not reaches(written, [(low + 10 * ratio, high) for low, high in stroked], 3 * ratio)


def reaches(ends: list[list[int]], others: Sequence[Sequence[int]], slack: int) -> bool:
    """Return whether others go as far up and down, within some pixels to each side."""
    for column, (low, high) in enumerate(ends):
        near = others[max(0, column - slack) : column + slack + 1]
        if min(top for top, _ in near) > low + slack or max(end for _, end in near) < high - slack:
            return False
    return True


def test_a_saved_notebook_keeps_the_view_alive(
    runs: Runs, open_notebook: OpenNotebook, browser_page: Page, tmp_path: Path
) -> None:
    folder = next(iter(runs.folders.values())).parent
    notebook = open_notebook(
        f"from mimokit_widgets import RunsView\nview = RunsView({str(folder)!r})\nview"
    )
    notebook.run_all()
    shown = notebook.page.locator(".mimokit-runs:visible")
    expect(shown).to_have_attribute("data-drawn", "4")
    shown.get_by_label("Show same", exact=True).uncheck()
    expect(shown).to_have_attribute("data-drawn", "3")
    row(notebook.page, "apart").locator("td.median").first.click()
    expect(shown.locator("section.look .plan")).to_contain_text("heterogeneous")
    assert notebook.value("view.selected") == "apart"
    assert "same" not in notebook.value("view.shown")
    notebook.screenshot("runs in jupyterlab", shown)
    notebook.wait_for_output('"selected":"apart"', "text/html")
    saved = notebook.save()
    file = tmp_path / "page.html"
    file.write_text(to_page(saved, "runs"), encoding="utf-8")
    assert external_references(file.read_text(encoding="utf-8")) == []
    browser_page.goto(file.as_uri())
    kept = browser_page.locator(".mimokit-runs")
    expect(kept).to_have_attribute("data-drawn", "3")
    expect(kept.locator("section.look .plan")).to_contain_text("heterogeneous")
    kept.get_by_label("Show same", exact=True).check()
    expect(kept).to_have_attribute("data-drawn", "4")
