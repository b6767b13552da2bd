"""Static charts where they are read: JupyterLab, the exported page, nbconvert's own page."""

from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, expect

from make.notebooks.page import to_page
from make.site.check import external_references
from mimokit.charts import _renderer
from tests.browser.network import NetworkGuard
from tests.browser.notebook_page import DARK, LIGHT, SCREENSHOTS, OpenNotebook
from tests.charts.test_charts import MAKERS

CELLS = (
    """
from mimokit import charts
from mimokit.analysis import samples_to_steps
from tests.charts.fakes import samples
from mimokit.workload import named_mix
charts.sample_histograms(named_mix("videos"))
""",
    "charts.loss(samples_to_steps(samples()))",
    "charts.stragglers(samples_to_steps(samples()))",
)


def check_size(picture: Locator) -> None:
    """A picture that could not be drawn is an icon, or nothing."""
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    assert box is not None
    assert box["width"] > 300
    assert box["height"] > 80


def text_color(chart: Locator) -> str:
    color: str = chart.locator(".role-title-text text").first.evaluate(
        "text => getComputedStyle(text).fill"
    )
    return color


def test_jupyterlab_and_the_exported_page_show_them_without_a_network(
    open_notebook: OpenNotebook, browser_page: Page, tmp_path: Path
) -> None:
    notebook = open_notebook(*CELLS)
    notebook.run_all()
    drawn = notebook.page.locator(".vega-embed svg.marks")
    expect(drawn).to_have_count(len(CELLS))
    for chart in drawn.all():
        check_size(chart)
    notebook.screenshot("charts in jupyterlab")
    assert text_color(drawn.first) == "rgba(0, 0, 0, 0.87)"
    notebook.choose_theme(DARK)
    assert text_color(drawn.first) == "rgba(255, 255, 255, 0.87)"
    notebook.screenshot("charts in jupyterlab, dark")
    notebook.choose_theme(LIGHT)
    file = tmp_path / "page.html"
    file.write_text(to_page(notebook.save(), "charts"), encoding="utf-8")
    assert external_references(file.read_text(encoding="utf-8")) == []
    browser_page.goto(file.as_uri())
    pictures = browser_page.locator(".jp-RenderedSVG img")
    expect(pictures).to_have_count(len(CELLS))
    for picture in pictures.all():
        check_size(picture)
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
    expect(browser_page.get_by_alt_text("Histogram of every column")).to_be_visible()
    browser_page.screenshot(path=SCREENSHOTS / "charts_exported.png", full_page=True)


def test_the_page_that_nbconvert_makes_shows_them_too(
    browser_page: Page, network: NetworkGuard, tmp_path: Path
) -> None:
    from nbconvert import HTMLExporter

    bundle = _renderer.bundle_of(MAKERS["sample_histograms"]())
    cell = nbformat.v4.new_code_cell(
        outputs=[nbformat.v4.new_output("display_data", bundle)], source="1 + 1"
    )
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    browser_page.goto(file.as_uri())
    check_size(browser_page.locator(".jp-RenderedSVG img"))
    # Its own template asks for these; they were refused, and the charts are there all the same.
    template = ("require.js", "require.min.js", "mathjax", "mermaid")
    assert all(any(part in asked.lower() for part in template) for asked in network.requests)
    network.requests.clear()
