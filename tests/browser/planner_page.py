"""A planner in a notebook, used as its user would."""

import re
from dataclasses import dataclass

from playwright.sync_api import Locator, expect

from tests.browser.notebook_page import NotebookPage

LIVE = ".mimokit-planner:not(.mimokit-saved *)"
"""What is saved of a planner is drawn too until the planner itself is there."""

HOLD = "hold GPUs and batch"

DROP = """([selector, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "text/yaml" }));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(selector).dispatchEvent(event);
}"""
PASTE = """([selector, text]) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const event = new ClipboardEvent("paste",
    { clipboardData: data, bubbles: true, cancelable: true });
  document.querySelector(selector).dispatchEvent(event);
}"""


@dataclass(frozen=True)
class PlannerPage:
    """The only planner of a notebook, or one of several."""

    notebook: NotebookPage
    root: Locator

    def field(self, name: str) -> Locator:
        return self.root.get_by_label(name, exact=True)

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def type(self, name: str, text: str) -> None:
        self.field(name).focus()
        self.notebook.page.keyboard.press("Control+a")
        self.notebook.page.keyboard.type(text)

    def hold(self, *, on: bool) -> None:
        self.field(HOLD).set_checked(on)

    def open_tab(self, title: str) -> None:
        self.root.get_by_role("tab", name=title).click()
        expect(self.root.get_by_role("tab", name=title)).to_have_attribute("aria-selected", "true")

    @property
    def map(self) -> Locator:
        return self.root.locator("canvas.ranks").first

    def expect_map(self, words: str) -> None:
        expect(self.map).to_have_accessible_name(_containing(words))

    def expect_valid(self) -> None:
        expect(self.root).not_to_have_class(_containing("invalid"))

    def drop(self, name: str, text: str) -> None:
        self.notebook.page.evaluate(DROP, [".mimokit-planner .modules", name, text])

    def paste(self, text: str) -> None:
        self.notebook.page.evaluate(PASTE, [".mimokit-planner .modules", text])

    def screenshot(self, name: str) -> None:
        self.notebook.page.mouse.move(2, 2)
        self.notebook.screenshot(f"planner {name}", self.root)


CELL = "from mimokit_widgets import LayoutPlanner\nplanner = LayoutPlanner(source)\nplanner"


def show_planner(notebook: NotebookPage, source: str | None = None) -> PlannerPage:
    """Run the notebook's cell `CELL`, so that it shows a new planner of a layout."""
    notebook.execute(f"source = {source!r}")
    notebook.run_all()
    root = notebook.page.locator(LIVE)
    expect(root.locator("canvas.ranks[data-drawn]")).to_be_visible()
    return PlannerPage(notebook, root)


def _containing(words: str) -> re.Pattern[str]:
    return re.compile(re.escape(words))
