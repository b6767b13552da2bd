"""No view cuts off, sticks out of its cell or breaks a line, at four widths of a cell."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.overflow import overflowing
from tests.browser.settled import before, settled
from tests.browser.test_readable import others as others
from tests.browser.test_readable import views as views

VIEWS = 11
WIDTHS = (842, 900, 1400, 1800)
EXPORTED = ".jp-RenderedHTMLCommon table { table-layout: fixed; width: 100% }"
"""What a notebook's exported page does to tables."""
FAULTS = """<!doctype html><meta charset="utf-8"><div class="mimokit" style="width: 200px">
<div style="width: 240px">a wide part</div>
<p style="width: 60px; overflow: hidden; white-space: nowrap">a sentence that is long</p>
<select style="width: 50px"><option>heterogeneous</option></select>
<button style="width: 60px">Copy the command</button>
<div role="tablist" style="width: 60px"><button>Ranks</button> <button>Batch</button></div>
<table style="table-layout: fixed; width: 60px"><tr><td>a_name_that_is_long</td></tr></table>
<div style="width: 100px; overflow-x: auto"><div style="width: 300px">may be scrolled</div></div>
</div>"""


def test_planted_faults_are_found(browser_page: Page, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(FAULTS, encoding="utf-8")
    browser_page.goto((tmp_path / "page.html").as_uri())
    assert overflowing(browser_page) == [
        "'a wide part' sticks out",
        "'a sentence that is long' is cut off",
        "'heterogeneous' is cut off in its field",
        "'Copy the command' takes two lines",
        "'Ranks Batch' takes two lines",
        "'a_name_that_is_long' sticks out of its column",
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_view_overflows(
    browser_page: Page, views: str, others: str, tmp_path: Path, width: int
) -> None:
    page = before(browser_page)
    page.set_viewport_size({"width": width + 40, "height": 1200})
    cell = f'<div class="jp-RenderedHTMLCommon" style="width: {width}px">{views}{others}</div>'
    text = f'<!doctype html><meta charset="utf-8"><style>{EXPORTED}</style>{cell}'
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    page.locator(".mimokit-runs[data-drawn]").wait_for()
    page.locator(".mimokit-live[data-rows]").wait_for()
    found = overflowing(settled(page))
    assert page.locator(".mimokit").count() == VIEWS
    assert found == []
