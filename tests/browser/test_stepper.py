"""The stepper's view in JupyterLab: buttons, keys, themes, and what stays without a kernel."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from mimokit.cluster import EngineCluster
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView
from mimokit_widgets.view_models import step_arrows, step_picture
from tests.browser.notebook_page import DARK, LIGHT, SCREENSHOTS, OpenNotebook
from tests.browser.step_faults import FAULTS, StepFault
from tests.browser.view_page import click, shown, wait_for_answers
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.planted import planted
from tests.widgets.fake_cluster import FakeCluster

CELL = """
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster, other_values

stepper = Stepper(FakeCluster({plant}), apart_config((1, 1, 4), (2, 1, 2), 2))
StepperView(stepper)
"""
VIEW = ".mimokit.stepper:not(.mimokit-saved *)"
CUT_OFF = """picture => {
  const seen = picture.getBoundingClientRect();
  const over = picture.scrollWidth - picture.clientWidth;
  const found = over > 0 ? [`the picture by ${over} px`] : [];
  const outside = (text, { left, right }) => {
    const box = text.getBoundingClientRect();
    if (box.left < left - 1 || box.right > right + 1) found.push(text.textContent);
  };
  const boxes = [...picture.querySelectorAll(".rank")];
  for (const rank of boxes) {
    const edges = rank.querySelector(".box").getBoundingClientRect();
    rank.querySelectorAll("text").forEach((text) => outside(text, edges));
  }
  picture.querySelectorAll(".heading").forEach((text) => outside(text, seen));
  for (const label of picture.querySelectorAll(".label")) {
    const { left, right } = label.getBoundingClientRect();
    const columns = boxes.map((rank) => rank.querySelector(".box").getBoundingClientRect());
    if (columns.some((box) => left < box.right - 1 && right > box.left + 1)) {
      found.push(`${label.textContent} lies on a rank`);
    }
  }
  return found;
}"""
"""What of the picture of a step cannot be seen without scrolling, or lies on other things."""
MOVES = """sample => {
  const name = getComputedStyle(sample).animationName;
  sample.style.animation = "none";
  const [begin, end] = ["10%", "90%"].map((distance) => {
    sample.style.offsetDistance = distance;
    return sample.getBoundingClientRect().x;
  });
  return name.startsWith("mimokit-travel") && begin + 100 < end;
}"""
THREE_CLICKS = "button => [1, 2, 3].forEach(() => button.click())"
SECONDS = 300
"""Until a thread that does not answer is a failure."""


def settled(view: Locator) -> None:
    expect(view).not_to_have_attribute("aria-busy", "true")


def test_clicking_through_steps(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL.format(plant=""))
    notebook.run_all()
    view = notebook.page.locator(VIEW)
    view.get_by_role("button", name="Next transfer").click()
    view.locator("b", has_text="Step 2").wait_for()
    settled(view)
    assert view.locator(".arrow.moved").count() == 4
    assert notebook.page.locator(".mimokit-saved").is_hidden()
    notebook.screenshot("stepper light", view)
    view.get_by_role("button", name="‹ Back").click()
    view.locator("b", has_text="Step 1").wait_for()
    settled(view)
    view.focus()
    notebook.page.keyboard.press("ArrowRight")
    view.locator("b", has_text="Step 2").wait_for()
    settled(view)
    view.locator('.rank[data-rank="5"]').click()
    view.get_by_text("loaded.input_ids").first.wait_for()
    notebook.choose_theme(DARK)
    notebook.page.wait_for_selector(f'{VIEW}[data-theme="dark"]')
    notebook.screenshot("stepper dark", view)
    notebook.wait_until("stepper.now.number == 2")
    # A cell moves the same view.
    notebook.execute("stepper.next(3)")
    view.locator("b", has_text="Step 5").wait_for()


def test_a_difference_is_red_and_a_error_is_told(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(CELL.format(plant="other_values"))
    notebook.choose_theme(LIGHT)
    notebook.run_all()
    view = notebook.page.locator(VIEW)
    view.get_by_role("button", name="Next transfer").click()
    view.locator("tr.wrong").first.wait_for()
    wrong = view.locator("g.arrow.wrong path").first
    red, green, blue = wrong.evaluate(
        "node => getComputedStyle(node).stroke.match(/[0-9]+/g).slice(0, 3).map(Number)"
    )
    assert red > 2 * max(green, blue)
    notebook.screenshot("stepper difference", view)
    settled(view)
    # What was found is kept: a count, and a red tick for each step that differed.
    expect(view.locator(".found-differences")).to_have_text(re.compile(r"^\d+ differences? so far"))
    view.get_by_role("button", name="End of iteration").click()
    expect(view.locator(".tick.differs").first).to_be_attached()
    settled(view)
    view.get_by_role("button", name="Next difference").click()
    view.locator("tr.wrong").first.wait_for()
    # A key that is a shortcut of the notebook stays in the view.
    cells = notebook.page.locator(".jp-Notebook .jp-Cell")
    before = cells.count()
    settled(view)
    view.get_by_role("button", name="Next ›").focus()
    for key in ("a", "b"):
        notebook.page.keyboard.press(key)
    assert cells.count() == before
    notebook.execute("stepper.close()")
    view.get_by_role("button", name="Next ›").click()
    view.get_by_text("This stepper has ended: it was closed; open a new one.").wait_for()


@pytest.fixture(scope="module")
def python() -> Iterator[ThreadPoolExecutor]:
    """A thread without Playwright's event loop, for clusters and widgets."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(int).result()  # it begins now, so that no test is said to leave it
        yield thread


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_view_alone_finds_and_names_a_planted_fault(
    cluster: EngineCluster,
    browser_page: Page,
    tmp_path: Path,
    python: ThreadPoolExecutor,
    fault: StepFault,
) -> None:
    fan_out = digits_config((2, 2), (1, 4), 2)
    block = planted(cluster, fault.target, fault.make, 4)
    python.submit(block.__enter__).result(SECONDS)
    stepper = python.submit(Stepper, cluster, fan_out).result(SECONDS)
    try:
        view = StepperView(stepper)
        shown(browser_page, view, tmp_path, answered=True, python=python)
        click(browser_page, "First difference")
        expect(browser_page.locator(".findings")).to_have_text(re.compile(fault.words))
        expect(browser_page.locator(".tick.differs").first).to_be_attached()
        wrong = browser_page.locator(".rank.wrong")
        modules = wrong.evaluate_all("ranks => ranks.map((rank) => rank.dataset.module)")
        assert set(modules) == {fault.module}
        expect(browser_page.locator(".finding")).to_have_count(fault.pictures)
        images = browser_page.locator(".finding").first.locator(".images canvas")
        assert (images.count() > 0) is (fault.name == "images reversed")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        browser_page.screenshot(path=SCREENSHOTS / f"stepper {fault.name}.png", full_page=True)
    finally:
        python.submit(stepper.close).result(SECONDS)
        python.submit(block.__exit__, None, None, None).result(SECONDS)


def shown_in_a_narrow_cell(
    page: Page, folder: Path, python: ThreadPoolExecutor, columns: int, **look: str
) -> list[str]:
    """Show a transfer in JupyterLab's cell next to its file browser; return what is cut off."""
    layout = apart_config((1, 1, 2), (1, columns - 1, 2), 2)
    view = StepperView(Stepper(FakeCluster(), layout))
    shown(page, view, folder, width="842px", answered=True, python=python, **look)
    for _ in range(2 * columns - 3):  # until the first stage sends to the next, if there is one
        click(page, "Next transfer")
    expect(page.locator(".arrow").first).to_be_attached()
    return list(page.locator(".mimokit.stepper .picture").evaluate(CUT_OFF))


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_all_columns_fit_a_narrow_cell(
    browser_page: Page, tmp_path: Path, python: ThreadPoolExecutor, columns: int
) -> None:
    cut_off = shown_in_a_narrow_cell(browser_page, tmp_path, python, columns)
    assert browser_page.locator(".picture text.heading").count() == columns
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser_page.screenshot(path=SCREENSHOTS / f"stepper {columns} columns.png", full_page=True)
    assert cut_off == []


@pytest.mark.parametrize(
    ("constant", "planted", "words"),
    [("NARROWEST_GUTTER", 124.0, "the picture by"), ("BOX_WIDTH", 100, "receive-forward")],
)
def test_what_is_cut_off_is_measured(
    browser_page: Page,
    tmp_path: Path,
    python: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    constant: str,
    planted: float,
    words: str,
) -> None:
    monkeypatch.setattr(step_arrows, constant, planted)
    monkeypatch.setattr(step_picture, constant, planted, raising=False)
    found = shown_in_a_narrow_cell(browser_page, tmp_path, python, 4)
    assert any(words in each for each in found)


def test_keys_and_a_screen_reader_reach_ranks_ticks_breakpoints_and_numbers(
    browser_page: Page, tmp_path: Path, python: ThreadPoolExecutor
) -> None:
    layout = apart_config((1, 1, 4), (2, 1, 2), 2)
    view = StepperView(Stepper(FakeCluster(), layout))
    shown(browser_page, view, tmp_path, answered=True, python=python)
    keys = browser_page.keyboard
    breakpoint_at = browser_page.get_by_role("checkbox", name="breakpoint at step 0: none")
    breakpoint_at.focus()
    for _ in range(3):
        keys.press("ArrowRight")
    keys.press("Enter")
    wait_for_answers(browser_page)
    expect(browser_page.get_by_role("checkbox", name="breakpoint at step 3")).to_be_checked()
    click(browser_page, "Go on")
    assert view.stepper.now is not None
    assert view.stepper.now.number == 3
    # Of what is asked while the ranks step, the last is done next.
    browser_page.get_by_role("button", name="‹ Back", exact=True).evaluate(THREE_CLICKS)
    wait_for_answers(browser_page)
    assert view.stepper.now.number == 1
    browser_page.get_by_role("button", name="Next ›", exact=True).evaluate(THREE_CLICKS)
    wait_for_answers(browser_page)
    assert view.stepper.now.number == 3
    browser_page.get_by_role("button", name=re.compile("^step 3, images")).focus()
    keys.press("ArrowLeft")
    keys.press("Enter")
    wait_for_answers(browser_page)
    assert view.stepper.now.number == 2
    rank = browser_page.get_by_role("button", name=re.compile("^rank 0 of images.*its tensors"))
    rank.focus()
    keys.press("ArrowDown")
    keys.press("Enter")
    wait_for_answers(browser_page)
    assert view.selected == 1
    click(browser_page, "Next ›")
    browser_page.get_by_role("button", name=re.compile(r"^microbatch\.0\.output")).click()
    wait_for_answers(browser_page)
    cells = browser_page.locator(".tensor-view canvas.cells")
    cells.focus()
    keys.press("ArrowRight")
    expect(browser_page.locator(".tensor-view .cell-told")).to_have_text(
        re.compile(r"^row 0 \(sample 2\), column 1: -?\d")
    )
    keys.press("Enter")
    expect(browser_page.get_by_label("Number in the cell")).to_be_focused()
    keys.type("1.5")
    keys.press("Enter")
    wait_for_answers(browser_page)
    assert view.stepper.inspect(1, "microbatch.0.output.tensor")[0, 1] == 1.5
    # The cell of one tensor is none of another's.
    editor = browser_page.get_by_label("Number in the cell")
    expect(editor).to_have_value("1.5")
    browser_page.get_by_role("button", name=re.compile("^loaded.input_ids")).click()
    wait_for_answers(browser_page)
    expect(browser_page.locator(".tensor-view h4")).to_contain_text("loaded.input_ids")
    expect(editor).to_be_hidden()
    # In a narrow cell nothing reaches over the edge.
    browser_page.locator("#host").evaluate("node => { node.style.width = '560px'; }")
    view_of = browser_page.locator(".mimokit.stepper")
    assert view_of.evaluate("node => node.scrollWidth") <= 560


def test_play_follows_the_samples_and_stops_at_a_breakpoint(
    browser_page: Page, tmp_path: Path, python: ThreadPoolExecutor
) -> None:
    view = StepperView(Stepper(FakeCluster(), digits_config((1, 8), (4, 2))))
    shown(browser_page, view, tmp_path, answered=True, python=python)
    browser_page.get_by_role("checkbox", name="breakpoint at step 5: none").click()
    wait_for_answers(browser_page)
    browser_page.get_by_role("radio", name="2½×").check(force=True)
    browser_page.get_by_role("button", name="▶ Play").click()
    expect(browser_page.locator(".told")).to_contain_text("Step 5")
    expect(browser_page.get_by_role("button", name="▶ Play")).to_be_visible()
    wait_for_answers(browser_page)
    assert view.stepper.now is not None
    assert view.stepper.now.number == 5
    browser_page.get_by_role("button", name=re.compile("^step 3, all ranks")).click()
    wait_for_answers(browser_page)
    assert browser_page.locator(".traveller").first.evaluate(MOVES)
    browser_page.get_by_role("button", name=re.compile("^step 5, all ranks")).click()
    wait_for_answers(browser_page)
    # An edit has a cross, which takes it back.
    python.submit(view.stepper.edit, 0, "loaded.input_ids", 1, (0, 0)).result(SECONDS)
    click(browser_page, "Next ›")
    click(browser_page, "✕ Take back")
    assert view.stepper.edits == ()
    expect(browser_page.locator(".edited")).to_have_count(0)
