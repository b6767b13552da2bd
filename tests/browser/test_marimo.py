"""The planner in marimo: the picture is whole, and cells that read it run again."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.notebook_page import SCREENSHOTS
from tests.browser.server import ROOT, SECONDS_TO_END
from tests.browser.settled import before, settled
from tests.browser.test_views import RECORD_TEXT
from tests.browser.test_what_if import TENSOR

NOTEBOOK = """
import marimo
app = marimo.App(width="full")

@app.cell
def _():
    import marimo as mo
    from mimokit_widgets import LayoutPlanner
    planner = mo.ui.anywidget(LayoutPlanner("preset:llava_7b_colocated"))
    planner
    return mo, planner

@app.cell
def _(mo, planner):
    now = planner.value
    samples = now["config"]["data"]["base_batch_size"]
    mo.md(f"step {now['prediction']['seconds']:.2f} s, {samples} samples")
    return

if __name__ == "__main__":
    app.run()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("marimo")
    (folder / "notebook.py").write_text(NOTEBOOK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marimo", "run", "notebook.py", "--headless", "--no-token"]
    options = ["--host", "127.0.0.1", "--port", str(port)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "widgets")])
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(folder)}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, *options], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        while server.poll() is None and not answers(port):
            time.sleep(0.1)
        assert server.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(SECONDS_TO_END)


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def test_an_edit_is_drawn_whole_and_told_to_other_cells(served: str, browser_page: Page) -> None:
    faults: list[str] = []
    browser_page.on("pageerror", lambda error: faults.append(str(error)))
    page = before(browser_page)
    page.add_init_script(RECORD_TEXT)
    page.goto(served)
    field = page.get_by_label(TENSOR, exact=True)
    expect(page.get_by_text("step 2.87 s, 8 samples")).to_be_visible()
    page.evaluate("window.texts = []")
    field.fill("4")
    expect(page.get_by_text("step 2.60 s, 4 samples")).to_be_visible()
    expect(page.get_by_role("region", name="Verdict")).to_contain_text("+11 %")
    texts = {each["text"] for each in settled(page).evaluate("window.texts")}
    assert {"tp0 dp0", "tp3 dp1"} <= texts
    assert not {"tp4 dp0", "tp7 dp0", "tp7"} & texts
    assert faults == []
    page.screenshot(path=SCREENSHOTS / "marimo.png", full_page=True)
