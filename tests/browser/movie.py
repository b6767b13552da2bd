"""The moving picture of the planner in README and pages.

    python -m tests.browser.movie docs/planner.webp

Opens the planner in JupyterLab, edits a layout as a user would, and writes a frame after each edit.
"""

import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.chromium import find_chromium
from tests.browser.conftest import ARGUMENTS, shared_notebook
from tests.browser.planner_page import CELL, PlannerPage, show_planner
from tests.browser.server import running_lab

LAYOUT = "preset:llava_7b_heterogeneous"
WIDTH, HEIGHT = 1000, 640
"""Pixels of the picture; a page is 1,400 wide, and what is below is cut off."""
MILLISECONDS = 1400
"""How long a frame stays."""
QUALITY = 60
SETTLED = 700
"""Milliseconds until what an edit draws stands still."""

Edit = Callable[[PlannerPage], None]
EDITS: tuple[Edit, ...] = (
    lambda planner: None,
    lambda planner: planner.type("TP of language_module", "8"),  # slower
    lambda planner: planner.type("TP of language_module", "4"),
    lambda planner: planner.type("PP of language_module", "1"),  # faster, and needs less memory
    lambda planner: planner.field("Find ranks").fill("12"),
    lambda planner: planner.open_tab("Batch"),
    lambda planner: planner.open_tab("Traffic"),
    lambda planner: planner.open_tab("Memory"),
    lambda planner: planner.type("TP of language_module", "2"),
)
"""What is done before each frame; GPUs and global batch stay as they are."""


def record(target: Path) -> None:
    with _planner() as planner:
        frames = [_frame(planner, edit) for edit in EDITS]
    paper = [Image.new("RGB", (WIDTH, HEIGHT), "white") for _ in frames]
    for page, frame in zip(paper, frames, strict=True):
        page.paste(frame)
    paper[0].save(
        target, save_all=True, append_images=paper[1:], duration=MILLISECONDS, loop=0,
        quality=QUALITY, method=6,
    )  # fmt: skip


@contextmanager
def _planner() -> Iterator[PlannerPage]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_lab(Path(folder)) as lab,
        sync_playwright() as playwright,
    ):
        command = find_chromium()
        browser = playwright.chromium.launch(executable_path=command, args=list(ARGUMENTS))
        with shared_notebook(browser, lab, "movie", CELL) as notebook:
            yield show_planner(notebook, LAYOUT)
        browser.close()


def _frame(planner: PlannerPage, edit: Edit) -> Image.Image:
    edit(planner)
    planner.notebook.page.mouse.move(2, 2)
    planner.notebook.page.wait_for_timeout(SETTLED)
    picture = Image.open(io.BytesIO(planner.root.screenshot())).convert("RGB")
    return picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
