"""A page of JupyterLab on which one notebook after the other is opened."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from playwright.sync_api import Browser, Error

from tests.browser.network import NetworkGuard
from tests.browser.notebook_page import LIGHT, NotebookPage, write_notebook
from tests.browser.server import LabServer

VIEWPORT = {"width": 1400, "height": 1600}
"""Tall, since JupyterLab draws only the cells that are seen."""
PATIENCE = 120_000
"""Milliseconds until something that does not come is a failure; a busy machine is none."""


class LabPage(AbstractContextManager["LabPage"]):
    """A browser session in which JupyterLab is loaded once, which takes seconds.

    Attributes:
        guard: what wanted to leave the machine.
    """

    def __init__(self, chromium: Browser, lab: LabServer) -> None:
        self.guard = NetworkGuard()
        self._lab = lab
        self._context = chromium.new_context(viewport=VIEWPORT, service_workers="block")
        self._context.set_default_timeout(PATIENCE)
        self.guard.watch(self._context)
        self._notebook: NotebookPage | None = None
        self._loaded = False

    def __exit__(self, *exception: object) -> None:
        self.clear()
        self._context.close()

    def open(self, name: str, cells: Sequence[str]) -> NotebookPage:
        self.clear()
        file = write_notebook(self._lab.folder / f"{name}.ipynb", cells)
        page = self._context.pages[0] if self._loaded else self._context.new_page()
        self._notebook = NotebookPage(page, file, self._lab)
        if self._loaded:
            self._notebook.open_in_lab()
        else:
            self._notebook.open()
            self._loaded = True
        return self._notebook

    def clear(self) -> None:
        notebook, self._notebook = self._notebook, None
        if notebook is None:
            return
        try:
            notebook.end_kernel()
            notebook.close()
            notebook.choose_theme(LIGHT)
            notebook.page.set_viewport_size(VIEWPORT)  # type: ignore[arg-type]
        except Error:  # a test has left the page beyond use
            notebook.page.close()
            self._loaded = False
