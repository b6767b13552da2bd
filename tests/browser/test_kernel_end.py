"""What views say once their kernel is gone, and how they look next to each other."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.notebook_page import OpenNotebook

CELLS = (
    "from mimokit_widgets import BatchSplit, LayoutPlanner\nLayoutPlanner()",
    "import mimokit\nBatchSplit(mimokit.plan('preset:llava_7b_colocated'))",
    """
from mimokit.experiment import Stepper
from mimokit_widgets import StepperView
from tests.layouts_apart import apart_config
from tests.widgets.fake_cluster import FakeCluster
StepperView(Stepper(FakeCluster(), apart_config((1, 1, 4), (2, 1, 2), 2)))
""",
)
RESTART = """async () => {
  await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart();
}"""


def test_views_say_that_their_kernel_has_ended(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(*CELLS)
    notebook.run_all()
    page = notebook.page
    views = page.locator(".mimokit:has(> .kernel-ended)")
    expect(views).to_have_count(len(CELLS))
    # The sheet of a view that was shown later changes nothing of an earlier one.
    title = page.locator(".mimokit-planner .titles input")
    assert title.evaluate("node => getComputedStyle(node).fontSize") == "16px"
    page.evaluate(RESTART)
    for view in views.all():
        expect(view.locator("> .kernel-ended")).to_have_text(re.compile("^The kernel has ended"))
    notebook.screenshot("kernel ended")
