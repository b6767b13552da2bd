"""The harness finds what it is to find: requests that leave, errors, a Chromium that is missing."""

from pathlib import Path

import pytest
from playwright.sync_api import Error, Page

from tests.browser import chromium
from tests.browser.network import NetworkGuard, leaves_the_machine
from tests.browser.notebook_page import DARK, OpenNotebook
from tests.rows import rows

PLANTED = """
<p>A page that asks for much.</p>
<img src="https://example.org/picture.png">
<img src="http://93.184.216.34/address.png">
<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">
<script>
  new WebSocket("wss://example.org/socket");
  window.answer = fetch("https://example.org/data").then(() => "came", () => "refused");
</script>
"""


def test_a_request_that_leaves_the_machine_is_noted_and_refused(
    browser_page: Page, network: NetworkGuard, tmp_path: Path
) -> None:
    page = tmp_path / "planted.html"
    page.write_text(PLANTED)
    browser_page.goto(page.as_uri())
    assert browser_page.evaluate("window.answer") == "refused"
    for _ in range(600):  # a socket opens when the page gets to it
        if len(network.requests) == 4:
            break
        browser_page.wait_for_timeout(50)
    assert sorted(network.requests) == [
        "http://93.184.216.34/address.png",
        "https://example.org/data",
        "https://example.org/picture.png",
        "wss://example.org/socket",
    ]
    network.requests.clear()  # or the fixture fails this very test


@rows(
    "address, leaves",
    ("https://example.org/a", True),
    ("wss://example.org", True),
    ("http://127.0.0.1:8888/lab", False),
    ("ws://localhost:8888/api", False),
    ("http://127.0.0.1.example.org/", True),
    ("data:image/png;base64,AA==", False),
    ("blob:http://127.0.0.1/1", False),
)
def test_what_leaves_the_machine(address: str, leaves: bool) -> None:
    assert leaves_the_machine(address) is leaves


def test_a_notebook_runs_and_is_asked_for_values(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook(
        "from IPython.display import HTML\nnumber = 6 * 7", "HTML('<b>42</b>')"
    )
    notebook.run_all()
    assert notebook.page.locator(".jp-OutputArea b").text_content() == "42"
    assert notebook.value("number") == 42
    notebook.execute("number += 1")
    assert notebook.value("number") == 43
    assert notebook.value("list(range(5000))") == list(range(5000))
    with pytest.raises(Error, match="division by zero"):
        notebook.execute("1 / 0")
    assert notebook.save().cells[1].outputs[0].data["text/html"] == "<b>42</b>"
    notebook.choose_theme(DARK)
    assert notebook.screenshot("harness").is_file()


def test_a_cell_that_raises_fails_the_test(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("1 / 0")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        notebook.run_all()


def test_lag_runs_to_the_first_picture_that_holds_a_sample() -> None:
    from benchmarks.monitor_lag import lags

    pictures = [(2, 10.5), (3, 11.25)]
    assert lags([10.0, 10.25, 11.0, 11.5], pictures) == [0.5, 0.25, 0.25]  # the last was lost
    assert lags([10.0], []) == []


def test_without_chromium_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(chromium.os, "geteuid", lambda: 1000)
    assert chromium.main() == 1
    told = capsys.readouterr().err.strip()
    assert told.endswith("install it with: apt-get install chromium")
    assert len(told.splitlines()) == 1
