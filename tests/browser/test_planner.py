"""The planner in JupyterLab, in a real browser, without a network."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

import mimokit
from mimokit.config_files import load_preset
from tests.browser.conftest import shared_notebook
from tests.browser.notebook_page import DARK, LIGHT, NotebookPage, OpenNotebook
from tests.browser.planner_page import CELL, HOLD, LIVE, PlannerPage, show_planner
from tests.browser.server import LabServer

HETEROGENEOUS = "preset:llava_7b_heterogeneous"
RECORD_NUMBERS = r"""() => {
  const own = CanvasRenderingContext2D.prototype.fillText;
  window.drawnNumbers = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    const width = this.measureText(text).width;
    if (/^\d+$/.test(String(text))) window.drawnNumbers.push([Number(text), x, y, width]);
    own.call(this, text, x, y, ...more);
  };
}"""

TWO_FRAMES = """() => new Promise((done) => {
  requestAnimationFrame(() => requestAnimationFrame(() => done()));
})"""

WIDE = "([planner, width]) => document.querySelector(planner).offsetWidth === width"

HOLD_FRAMES = """() => {
  const own = window.requestAnimationFrame;
  const held = [];
  window.requestAnimationFrame = (call) => held.push(call);
  window.releaseFrames = () => {
    window.requestAnimationFrame = own;
    held.forEach((call) => own(call));
  };
}"""


@pytest.fixture(scope="module")
def notebook(chromium: Browser, lab: LabServer) -> Iterator[NotebookPage]:
    """One notebook for all planners that leave page and kernel as they were."""
    with shared_notebook(chromium, lab, "planners", CELL) as opened:
        yield opened


def test_tp_is_edited_with_the_keyboard_and_the_rank_map_follows(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    planner.hold(on=False)
    keyboard = planner.notebook.page.keyboard
    planner.expect_map("24 ranks on 3 nodes")
    planner.expect_map("language_module on ranks 8–23: TP 4, CP 1, DP 2, PP 2")
    planner.button("CP, EP").click()
    planner.field("TP of language_module").focus()
    keyboard.press("Shift+ArrowUp")  # doubles
    planner.expect_map("40 ranks on 5 nodes")
    planner.expect_map("language_module on ranks 8–39: TP 8, CP 1, DP 2, PP 2")
    keyboard.press("Tab")
    expect(planner.field("PP of language_module")).to_be_focused()
    keyboard.press("Tab")
    keyboard.press("ArrowUp")
    planner.expect_map("TP 8, CP 2, DP 2, PP 2")
    planner.notebook.wait_until("planner.plan.world_size == 72")
    sizes = "planner.config.model.module_parallelisms['language_module']"
    planner.notebook.wait_until(f"{sizes}.context_parallel == 2")
    keyboard.press("Control+z")
    planner.expect_map("40 ranks on 5 nodes")
    keyboard.press("Control+z")
    planner.expect_map("24 ranks on 3 nodes")
    keyboard.press("Control+Shift+Z")
    planner.expect_map("40 ranks on 5 nodes")
    planner.button("↶ Undo").click()
    planner.expect_map("24 ranks on 3 nodes")
    expect(planner.field("TP of language_module")).to_have_value("4")


def test_a_size_keeps_gpus_and_batch_and_says_what_gave_way(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    box, size = planner.field(HOLD), planner.field("DP of language_module")
    expect(box).to_be_checked()
    planner.type("TP of language_module", "4")
    expect(planner.root.locator(".gave")).to_have_text(
        "DP 1 → 2 and micro-batch size 8 → 4, to keep 8 GPUs and 64 samples."
    )
    expect(size).to_have_value("2")
    expect(size).to_have_class(re.compile("given"))
    change = planner.root.locator("[data-key='seconds'] .change")
    expect(change).to_have_text("−10 %")
    expect(change).to_have_attribute("title", "2.87 → 2.60 s (−10 %)")
    expect(change).not_to_have_class(re.compile("better|worse"))
    expect(planner.root.locator("[data-key='tokens'] .change")).to_have_class(re.compile("better"))
    planner.screenshot("held")
    other = "three_encoders_7b_heterogeneous"
    planner.root.get_by_label("Open a preset").select_option(other)
    expect(planner.root.locator(".against")).to_contain_text("Not compared")
    expect(change).to_have_text("")
    planner.button("↶ Undo").click()
    expect(planner.field("TP of language_module")).to_have_value("4")
    planner.hold(on=False)
    planner.type("TP of language_module", "1")
    expect(planner.root).to_have_class(re.compile("invalid"))
    expect(planner.root.locator(".fix").first).to_contain_text("DP 8, keeps 8 ranks")
    expect(box).to_be_enabled()
    planner.screenshot("not held")
    planner.root.locator(".fix").first.click()
    planner.expect_map("TP 1, CP 1, DP 8")
    planner.notebook.wait_until("planner.plan.batch.global_batch_size == 64")


def test_an_invalid_edit_is_explained_and_righted_with_one_click(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    planner.type("DP of language_module", "3")
    field = planner.field("DP of language_module")
    expect(field).to_have_attribute("aria-invalid", "true")
    told = field.get_attribute("aria-describedby")
    expect(planner.root.locator(f"#{told}")).to_have_text(
        "Module 'language_module': data_parallel 3 does not go with the rest; 4 does, with TP 4 → "
        "2 and micro-batch size 4 → 2."
    )
    expect(planner.root).to_have_class(re.compile("invalid"))
    planner.expect_map("24 ranks on 3 nodes")  # the last valid layout
    planner.screenshot("invalid")
    planner.notebook.wait_until("len(planner.problems) > 0")
    planner.root.locator(".fix", has_text="DP 3 → 4").click()
    planner.expect_map("language_module on ranks 8–23: TP 2, CP 1, DP 4, PP 2")
    planner.expect_valid()
    expect(field).to_have_value("4")
    expect(field).not_to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()


def test_a_click_on_a_rank_tells_all_about_it(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    details = planner.root.locator(".details")
    planner.map.click(position={"x": 20, "y": 40})
    expect(details).to_contain_text("Rank 0 on node 0")
    expect(details).to_contain_text("layers 0–11 of 24")
    for name, members in (("TP", "ranks 0–1"), ("DP", "ranks 0, 2"), ("PP", "ranks 0, 4")):
        expect(details.locator(f"[data-group='images {name.lower()}']")).to_contain_text(members)
    planner.map.press("ArrowRight")
    expect(details).to_contain_text("Rank 1 on node 0")
    chip = details.locator("[data-group='images dp']")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    planner.screenshot("rank")
    planner.map.press("Escape")
    expect(details).to_contain_text("Click a rank")
    planner.field("Find ranks").fill("17")
    expect(details).to_contain_text("Rank 17 on node 2")
    planner.field("Find ranks").fill("tp1 dp0")
    expect(planner.root.locator(".tools [role=status]")).to_have_text("4 ranks")


def test_a_number_typed_before_its_rank_is_drawn_is_not_lost(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    page, details = notebook.page, planner.root.locator(".details")
    search = planner.field("Find ranks")
    planner.hold(on=False)
    search.fill("30")  # before the map has such a rank
    expect(planner.root.locator(".tools [role=status]")).to_have_text("no such rank")
    planner.type("DP of language_module", "4")
    expect(details).to_contain_text("Rank 30 on node 3")
    page.evaluate(HOLD_FRAMES)
    answered = str(planner.root.get_attribute("data-serial"))
    search.focus()  # leaves the field, so that Python sends the map again
    expect(planner.root).not_to_have_attribute("data-serial", answered)
    search.fill("17")
    planner.button("Zoom in").click()
    page.evaluate("() => window.releaseFrames()")
    expect(details).to_contain_text("Rank 17 on node 2")


def test_every_picture_opens_in_both_themes(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    for theme in ("light", "dark"):
        if theme == "dark":
            planner.notebook.choose_theme(DARK)
        expect(planner.root).to_have_attribute("data-theme", theme)
        planner.open_tab("Ranks")
        planner.screenshot(f"ranks {theme}")
        planner.open_tab("Batch")
        planner.button("Next sample").click()
        planner.button("Next sample").click()
        expect(planner.root.locator(".steps li").first).to_contain_text("read it")
        expect(planner.root.locator(".batch")).to_have_accessible_name(
            re.compile("8 samples per micro-batch")
        )
        planner.screenshot(f"batch {theme}")
        planner.open_tab("Traffic")
        expect(planner.root.locator("canvas.traffic")).to_have_accessible_name(
            re.compile("Traffic per step: bridge")
        )
        planner.screenshot(f"traffic {theme}")
        planner.open_tab("Memory")
        expect(planner.root.locator(".clock h4")).to_contain_text("1F1B over 4 stages")
        planner.field("GPU to predict for").select_option("h200")
        planner.type("Price per GPU-hour", "2.5")
        expect(planner.root.locator(".outcome > p")).to_contain_text("GiB: fits")
        expect(planner.root.locator(".outcome > p")).to_contain_text("dollars per million tokens")
        expect(planner.root.locator(".prediction canvas.lanes")).to_have_accessible_name(
            re.compile("^Timeline of 4 lanes")
        )
        expect(planner.root.locator(".verdict .supposed")).to_contain_text("was fitted")
        work = planner.root.locator(".prediction .work details").first
        if work.get_attribute("open") is None:
            work.locator("summary").click()
        expect(work.locator("tbody tr").first).to_contain_text("per second")
        planner.screenshot(f"prediction {theme}")
    notebook.choose_theme(LIGHT)


def test_a_colocated_pipeline_is_planned_with_one_click(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    planner.type("PP of language_module", "2")
    planner.root.locator(".fix", has_text="colocated → three_phase").click()
    planner.expect_valid()
    planner.open_tab("Memory")
    expect(planner.root.locator(".clock h4")).to_contain_text("images run forward before it")
    expect(planner.root.locator(".prediction canvas.lanes")).to_have_accessible_name(
        re.compile("^Timeline of 2 lanes")
    )
    planner.screenshot("three phases")


def test_a_layout_is_saved_and_loaded_again(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    planner.hold(on=False)
    planner.type("DP of language_module", "4")
    planner.expect_map("40 ranks")
    planner.button("Save …").click()
    planner.field("File to save to").fill("mine.yaml")
    planner.root.locator(".popover").get_by_role("button", name="Save").click()
    expect(planner.root.locator(".notice")).to_have_text("Written to mine.yaml.")
    file = planner.notebook.server.folder / "mine.yaml"
    assert mimokit.plan(file).world_size == 40
    planner.root.locator("select[aria-label='Open a preset']").select_option("llava_7b_homogeneous")
    planner.expect_map("homogeneous")
    planner.root.locator("input[type=file]").set_input_files(file)
    planner.expect_map("40 ranks on 5 nodes")
    planner.notebook.wait_until("planner.plan.deployment_mode == 'heterogeneous'")


def test_the_file_to_save_to_is_that_of_the_layout_that_is_shown(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    opener, file = planner.button("Save …"), planner.field("File to save to")
    opener.click()
    file.press("Escape")
    expect(file).to_be_hidden()
    expect(opener).to_be_focused()
    preset = "llava_7b_heterogeneous"
    for other in (
        lambda: planner.open_tab("Traffic"),
        lambda: planner.type("TP of language_module", "4"),
        lambda: notebook.execute("planner.config = 'preset:llava_7b_homogeneous'"),
        lambda: planner.root.get_by_label("Open a preset").select_option(preset),
    ):
        opener.click()
        expect(file).to_be_visible()
        other()
        expect(file).to_be_hidden()
    expect(planner.field("Name of the layout")).to_have_value(preset)
    opener.click()
    expect(file).to_have_value(f"{preset}.yaml")
    file.fill("other.yaml")  # may be named otherwise
    planner.root.locator(".popover").get_by_role("button", name="Download").click()
    expect(file).to_have_value("other.yaml")
    file.press("Escape")


def test_a_yaml_with_unknown_keys_is_dropped_on_it(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    text = load_preset("llava_7b_heterogeneous").to_yaml()
    planner.drop(
        "mine.yaml", text.replace("  base_batch_size:", "  batchsize: 3\n  base_batch_size:")
    )
    expect(planner.root.locator(".field-error")).to_contain_text("unknown key batchsize")
    planner.expect_map("8 ranks on 1 node")
    planner.button("Remove batchsize").click()
    planner.expect_map("24 ranks on 3 nodes")


def test_ten_thousand_modules_pasted_are_refused_in_a_sentence(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    modules = "".join(f"    m{n}: {{tensor_parallel: 1}}\n" for n in range(10_000))
    planner.paste("model:\n  module_parallelisms:\n" + modules)
    expect(planner.root.locator(".notice")).to_contain_text("the planner reads at most 100,000")
    planner.expect_valid()
    planner.expect_map("8 ranks on 1 node")


def test_two_planners_in_one_notebook_know_nothing_of_each_other(
    open_notebook: OpenNotebook,
) -> None:
    cell = "LayoutPlanner('preset:llava_7b_heterogeneous')"
    twice = f"planner = {cell}\ndisplay(planner)\nplanner"
    notebook = open_notebook("from mimokit_widgets import LayoutPlanner", cell, twice)
    notebook.run_all()
    roots = notebook.page.locator(LIVE)
    expect(roots.nth(2).locator("canvas.ranks[data-drawn]")).to_be_visible()
    one, other, again = (PlannerPage(notebook, roots.nth(place)) for place in range(3))
    for each in (one, other, again):  # the radio buttons of both are groups of their own
        expect(each.root.get_by_role("radio", name="heterogeneous")).to_be_checked()
    ids = notebook.page.locator("[id^='mimokit-']").evaluate_all("all => all.map((e) => e.id)")
    assert len(ids) == len(set(ids))
    for view, rank in ((other, 5), (again, 5), (again, 6)):  # two views of one planner
        view.field("Find ranks").fill(str(rank))
        for each in (other, again):
            expect(each.root.locator(".details")).to_contain_text(f"Rank {rank} on node 0")
    one.hold(on=False)
    one.type("DP of language_module", "4")
    one.expect_map("40 ranks")
    other.type("TP of images", "0")
    expect(other.root).to_have_class(re.compile("invalid"))
    one.expect_valid()
    other.expect_map("24 ranks")
    one.button("↶ Undo").click()
    one.expect_map("24 ranks")
    expect(other.root).to_have_class(re.compile("invalid"))


def test_sixteen_thousand_ranks_are_drawn_searched_and_looked_at(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    planner.hold(on=False)
    planner.type("DP of images", "16384")
    planner.type("DP of language_module", "2048")
    planner.expect_map("16,384 ranks on 2,048 nodes")
    planner.screenshot("16384 ranks")
    planner.field("Find ranks").fill("12345")
    details = planner.root.locator(".details")
    expect(details).to_contain_text("Rank 12345 on node 1543")
    expect(details).to_contain_text("2,048 ranks 1, 9, 17, 25 … 16,377, every 8")
    planner.screenshot("16384 ranks zoomed")
    for tab in ("Batch", "Traffic"):
        planner.open_tab(tab)
    planner.screenshot("16384 ranks traffic")


def test_numbers_of_ranks_are_whole_however_far_one_zooms(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    planner.hold(on=False)
    planner.type("DP of images", "16384")
    planner.type("DP of language_module", "2048")
    planner.expect_map("16,384 ranks on 2,048 nodes")
    page = notebook.page
    page.evaluate(RECORD_NUMBERS)
    seen = 0
    for _ in range(12):
        page.evaluate("() => { window.drawnNumbers = []; }")
        planner.button("Zoom in").click()
        page.evaluate(TWO_FRAMES)
        drawn = page.evaluate("() => window.drawnNumbers")
        places = {rank: (left, top) for rank, left, top, _ in drawn}
        for rank, left, top, width in drawn:
            neighbour, level = places.get(rank + 1, (left + 1000, top))
            if level == top and neighbour > left:
                seen += 1
                assert left + width < neighbour - 6, f"{rank} reaches into its neighbour"
    assert seen > 100
    planner.field("Find ranks").fill("12345")
    planner.screenshot("16384 ranks zoomed")


def test_two_layouts_stand_side_by_side(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    planner.button("Compare").click()
    expect(planner.root.get_by_text("The layouts are the same.")).to_be_visible()
    planner.type("DP of language_module", "4")
    expect(planner.root.get_by_text(re.compile(r"\d+ of \d+ lines are equal"))).to_be_visible()
    expect(planner.root.get_by_text("deployment mode", exact=True)).to_be_hidden()
    line = planner.root.get_by_role("row", name="language_module: sizes")
    expect(line).to_contain_text("TP 4 · PP 2 · DP 2TP 2 · PP 2 · DP 4")
    # The number one decides by stands where one edits, and in the comparison.
    strip = planner.root.get_by_role("region", name="Verdict")
    expect(strip).to_contain_text(re.compile(r"tokens/s per GPU[\d,]+[+−]\d+ %"))
    decided = planner.root.get_by_role("row", name="tokens/s per GPU")
    expect(decided).to_contain_text(re.compile(r"[\d,]+ \([+−]\d"))
    expect(planner.root.get_by_role("row", name="time per step")).to_contain_text(
        re.compile(r"s to .*s to ")
    )
    bars = planner.root.get_by_role("row", name="fullest GPU").get_by_role("img")
    expect(bars).to_have_count(2)
    assert min(bars.evaluate_all("all => all.map((bar) => bar.firstChild.offsetWidth)")) > 5
    bar = strip.get_by_role("img")
    shares = bar.locator("i").evaluate_all("all => all.map((each) => each.offsetWidth)")
    assert sum(shares) > 5
    planner.screenshot("comparison")
    planner.button("End comparison").click()
    planner.expect_map("24 ranks")


def test_each_number_has_its_formula(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    planner.root.get_by_text("more numbers").click()
    number = planner.root.locator("[title^='samples per micro-batch =']")
    formula = "samples per micro-batch = base_batch_size 4 × DP 2 of language_module = 8"
    expect(number).to_have_attribute("title", formula)
    planner.type("micro-batch size", "16")
    formula = "samples per micro-batch = base_batch_size 16 × DP 2 of language_module = 32"
    expect(number).to_have_attribute("title", formula)


def test_it_is_copied_as_a_command(notebook: NotebookPage) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    planner.notebook.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    planner.button("Copy torchrun command").click()
    expect(planner.root.locator(".notice[data-copied=torchrun]")).to_be_visible()
    command = planner.notebook.page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("torchrun --nnodes 3")


def test_code_in_other_cells_sees_and_sets_it(notebook: NotebookPage) -> None:
    planner = show_planner(notebook)
    planner.notebook.execute(
        "heard = []\nplanner.observe(lambda change: heard.append(change['new'].world_size), 'plan')"
    )
    planner.notebook.execute("planner.config = 'preset:llava_7b_heterogeneous'")
    planner.expect_map("24 ranks on 3 nodes")
    expect(planner.field("TP of language_module")).to_have_value("4")
    planner.hold(on=False)
    planner.type("DP of language_module", "4")
    planner.expect_map("40 ranks")
    planner.notebook.wait_until("heard == [24, 40]")


def test_reopened_without_its_kernel_the_last_layout_stands_there(
    open_notebook: OpenNotebook,
) -> None:
    planner = show_planner(open_notebook(CELL), HETEROGENEOUS)
    planner.hold(on=False)
    planner.type("DP of language_module", "4")
    planner.expect_map("40 ranks")
    page = planner.notebook.page
    saved = page.locator(".mimokit-saved")
    expect(saved).to_be_hidden()  # the widget is there
    expect(saved).to_contain_text("heterogeneous on 40 ranks")
    planner.notebook.save()
    planner.notebook.end_kernel()
    planner.notebook.open()
    expect(page.locator(LIVE)).to_have_count(0)
    expect(page.locator(".mimokit-saved")).to_be_visible()
    kept = page.locator(".mimokit-saved .mimokit-planner")
    expect(kept.get_by_label("DP of language_module", exact=True)).to_be_disabled()
    kept.get_by_role("tab", name="Batch").click()
    expect(kept.locator(".batch")).to_be_visible()
    expect(page.locator(".mimokit-saved")).to_contain_text("heterogeneous on 40 ranks")
    missing = page.get_by_text("Error displaying widget: model not found")
    expect(missing).to_be_attached()  # so JupyterLab has looked for it, and shows no message
    expect(missing).to_be_hidden()
    planner.notebook.screenshot("planner without kernel")


@pytest.mark.parametrize("width", [680, 842, 1300])
def test_what_follows_stands_next_to_the_fields_unless_narrow(
    notebook: NotebookPage, width: int
) -> None:
    planner = show_planner(notebook, HETEROGENEOUS)
    root, page = planner.root, notebook.page
    assert page.viewport_size is not None
    beside = page.viewport_size["width"] - root.evaluate("node => node.offsetWidth")
    page.set_viewport_size({"width": width + beside, "height": 900})
    page.wait_for_function(WIDE, arg=[LIVE, width])
    root.evaluate("node => node.scrollIntoView()")
    planner.screenshot(f"{width} wide")
    assert root.evaluate("node => node.scrollWidth <= node.clientWidth + 1")
    fields, verdict = root.locator(".asks").bounding_box(), root.locator(".verdict").bounding_box()
    ranks = planner.map.bounding_box()
    assert fields is not None
    assert verdict is not None
    assert ranks is not None
    assert verdict["y"] + verdict["height"] <= fields["y"]
    if width < 760:
        assert ranks["y"] > fields["y"] + fields["height"]
    else:
        assert ranks["x"] > fields["x"] + fields["width"]
        assert ranks["y"] + 100 < 900


def test_the_pictures_are_widgets_of_their_own(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(
        "from mimokit_widgets import BatchSplit, RankMap, TrafficMap",
        "ranks = RankMap('preset:llava_7b_colocated'); ranks",
        "batch = BatchSplit('preset:llava_7b_colocated', sample=3); batch",
        "TrafficMap('preset:llava_7b_heterogeneous', by_node=True)",
    )
    notebook.run_all()
    page = notebook.page
    page.locator("canvas.ranks").click(position={"x": 20, "y": 40})
    expect(page.locator(".details")).to_contain_text("Rank 0 on node 0")
    notebook.wait_until("ranks.selected == 0")
    expect(page.locator(".steps")).to_contain_text("piece 4 of 8")
    page.get_by_role("button", name="Next sample").click()
    expect(page.locator(".steps")).to_contain_text("piece 5 of 8")
    notebook.wait_until("batch.sample == 4")
    page.get_by_role("radio", name="backward").check()
    expect(page.locator(".steps")).to_contain_text("its gradient is cut")
    expect(page.locator("canvas.traffic")).to_have_accessible_name(re.compile("from node"))
    notebook.execute("ranks.plan = 'preset:llava_7b_heterogeneous'")
    expect(page.locator("canvas.ranks")).to_have_accessible_name(re.compile("24 ranks"))
    notebook.screenshot("views")
