"""A notebook that is open in JupyterLab, driven as its user would drive it."""

import ast
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page

from tests.browser.server import LabServer

SCREENSHOTS = Path(__file__).parents[2] / "build" / "browser"
"""Where the pictures of the tests are left to be looked at; git ignores it."""
SECONDS_TO_OPEN = 180
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"

_KERNEL_ANSWERS = """() => {
  const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""

_CLOSE = """() => {
  const notebook = window.jupyterapp.shell.currentWidget;
  notebook.context.model.dirty = false; // or it asks
  notebook.close();
}"""

_ERRORS = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
  .flatMap((cell) => cell.outputs?.toJSON() ?? [])
  .filter((output) => output.output_type === "error")
  .map((output) => `${output.ename}: ${output.evalue}`)"""

_OUTPUT_HOLDS = """([text, kind]) => [...window.jupyterapp.shell.currentWidget.content.model.cells]
  .flatMap((cell) => cell.outputs?.toJSON() ?? [])
  .some((output) => String(output.data?.[kind]).includes(text))"""

_RUN_IN_KERNEL = """async ([code, wanted]) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const request = { code, silent: true, store_history: false, stop_on_error: false,
    user_expressions: wanted ? { value: wanted } : {} };
  const reply = await kernel.requestExecute(request).done;
  if (reply.content.status !== "ok") throw new Error(reply.content.evalue);
  return reply.content.user_expressions.value;
}"""


@dataclass(frozen=True)
class NotebookPage:
    """A notebook in JupyterLab, alone on its page.

    Attributes:
        page: Playwright's page; `page.locator(...)`, `page.keyboard` and the like.
        file: the notebook.
        server: the JupyterLab.
    """

    page: Page
    file: Path
    server: LabServer

    def open(self) -> None:
        self.page.goto(
            f"{self.server.url}lab/tree/{self.file.name}?token={self.server.token}&reset"
        )
        self._wait_for_kernel()
        if self.page.locator("#jp-left-stack").is_visible():
            self.command("application:toggle-left-area")

    def open_in_lab(self) -> None:
        self.command("docmanager:open", path=self.file.name, factory="Notebook")
        self._wait_for_kernel()

    def open_again(self) -> None:
        """Close the notebook and open what its file holds, without loading JupyterLab again."""
        self.close()
        self.open_in_lab()

    def close(self) -> None:
        self.page.evaluate(_CLOSE)

    def _wait_for_kernel(self) -> None:
        self.page.wait_for_function(_KERNEL_ANSWERS, timeout=SECONDS_TO_OPEN * 1000)
        self.wait_idle()

    def kernel_answers(self) -> bool:
        return bool(self.page.evaluate(_KERNEL_ANSWERS))

    def wait_idle(self, seconds: float = SECONDS_TO_OPEN) -> None:
        self.page.wait_for_selector(
            ".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=seconds * 1000
        )

    def run_all(self) -> None:
        """Run all cells and wait for the end of the last one.

        Raises:
            AssertionError: if a cell raises; with what it raised.
        """
        self.command("notebook:run-all-cells")
        self.wait_idle()
        self.check_cells()

    def start_all(self) -> None:
        self.page.evaluate(
            "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
        )

    def check_cells(self) -> None:
        errors = self.page.evaluate(_ERRORS)
        assert not errors, errors[0]

    def command(self, name: str, **arguments: Any) -> None:
        """Execute one of JupyterLab's commands and wait until it is done."""
        self.page.evaluate(
            "async ([name, given]) => { await window.jupyterapp.commands.execute(name, given); }",
            [name, arguments],
        )

    def choose_theme(self, name: str) -> None:
        self.command("apputils:change-theme", theme=name)
        light = "false" if name == DARK else "true"
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")

    def save(self) -> Any:
        """Save the notebook as JupyterLab does and return what the file holds then."""
        self.command("docmanager:save")
        return nbformat.read(self.file, 4)

    def execute(self, code: str) -> None:
        """Run code in the notebook's kernel, outside its cells.

        Raises:
            playwright.sync_api.Error: if the code raises.
        """
        self.page.evaluate(_RUN_IN_KERNEL, [code, None])

    def value(self, expression: str) -> Any:
        """Return what an expression is in the notebook's kernel; a literal of Python."""
        # IPython shortens long lists, but no text.
        told = self.page.evaluate(_RUN_IN_KERNEL, ["", f"repr({expression})"])
        assert told["status"] == "ok", f"{expression}: {told.get('evalue')}"
        return ast.literal_eval(ast.literal_eval(told["data"]["text/plain"]))

    def wait_until(self, expression: str) -> None:
        deadline = time.monotonic() + SECONDS_TO_OPEN
        while not self.value(f"bool({expression})"):
            assert time.monotonic() < deadline, f"{expression} stays false"
            self.page.wait_for_timeout(50)

    def wait_for_output(self, text: str, kind: str = "text/plain") -> None:
        """Wait until an output, shown or hidden, contains a text; saved, it holds the same."""
        self.page.wait_for_function(_OUTPUT_HOLDS, arg=[text, kind])

    def end_kernel(self) -> None:
        """End the kernel, as if the machine had been switched off since."""
        self.page.evaluate(
            "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown(); }"
        )

    def screenshot(self, name: str, of: Locator | None = None) -> Path:
        """Leave a picture of an element, or of all that is seen, to be looked at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{re.sub(r'[^a-z0-9]+', '_', name.lower())}.png"
        (of or self.page).screenshot(path=path)
        return path


def write_notebook(file: Path, cells: Sequence[str]) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, file)
    return file


OpenNotebook = Callable[..., NotebookPage]
"""`open_notebook("cell", "cell", ..., name="planner")`, see `conftest.py`."""
