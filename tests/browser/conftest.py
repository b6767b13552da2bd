"""JupyterLab in a real browser, with the network cut off.

Fixtures:

- `open_notebook("first cell", "second cell", ...)` writes a notebook with these cells, opens it in
  JupyterLab and returns a `NotebookPage` (`notebook_page.py`): `.page` is Playwright's page, the
  same for all tests, as loading JupyterLab takes longer than most of them;
  `.run_all()`, `.wait_idle()`, `.choose_theme(DARK)`, `.save()`, `.open()` (again),
  `.command(...)`, `.execute(code)` and `.value(expression)` in its kernel, `.end_kernel()`, and
  `.screenshot("name", locator)`, which leaves a picture in `build/browser/`. No cell is run before
  `run_all()`. Cells import from `tests` as tests do.
- `shared_notebook(chromium, lab, "name", "first cell", ...)` is a context with such a notebook,
  for fixtures of a module: a page and a kernel take seconds to start.
- `browser_page` is an empty page, for files: `browser_page.goto(path.as_uri())`.
- `chromium_without_scripts` is an empty page that runs no JavaScript.
- `lab` is the server: `lab.folder` is where its notebooks are, and the folder that they run in.
- `network` lists requests that wanted to leave the machine. A test during which there was one
  fails; nothing is to be asked for.

One JupyterLab and one Chromium serve all tests here; pages of files are separate. They end with
the last test of this folder, since Playwright's event loop would be in the way of others.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.chromium import NoChromiumError, find_chromium
from tests.browser.lab_page import PATIENCE, VIEWPORT, LabPage
from tests.browser.network import CUT_OFF, NetworkGuard
from tests.browser.notebook_page import NotebookPage, OpenNotebook
from tests.browser.server import LabServer, running_lab

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    CUT_OFF,
)
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    with running_lab(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    try:
        command = find_chromium()
    except NoChromiumError as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=command, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def network() -> Iterator[NetworkGuard]:
    """What wanted to leave the machine during a test; nothing must."""
    guard = NetworkGuard()
    yield guard
    assert guard.requests == []


@pytest.fixture
def context(chromium: Browser, network: NetworkGuard) -> Iterator[BrowserContext]:
    context = chromium.new_context(viewport=VIEWPORT, service_workers="block")
    context.set_default_timeout(PATIENCE)
    network.watch(context)
    yield context
    context.close()


@pytest.fixture
def browser_page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def chromium_without_scripts(chromium: Browser, network: NetworkGuard) -> Iterator[Page]:
    """An empty page of a browser that runs no scripts, as the preview of a code host."""
    context = chromium.new_context(viewport=VIEWPORT, java_script_enabled=False)
    network.watch(context)
    yield context.new_page()
    context.close()


@contextmanager
def shared_notebook(
    chromium: Browser, lab: LabServer, name: str, *cells: str
) -> Iterator[NotebookPage]:
    """Open a notebook for several tests; each runs its cells again and ends what it starts."""
    with LabPage(chromium, lab) as page:
        yield page.open(name, cells)
    assert page.guard.requests == []


@pytest.fixture(scope="package")
def lab_page(chromium: Browser, lab: LabServer) -> Iterator[LabPage]:
    with LabPage(chromium, lab) as page:
        yield page


@pytest.fixture
def open_notebook(request: pytest.FixtureRequest, lab_page: LabPage) -> Iterator[OpenNotebook]:
    yield lambda *cells: lab_page.open(request.node.originalname, cells)
    lab_page.clear()
    assert lab_page.guard.requests == []
