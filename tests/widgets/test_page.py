"""The page asks no other machine for anything, and the check of that finds what it must."""

import base64

import nbformat

from make.notebooks.page import to_page
from make.site.check import external_references
from mimokit.charts import _renderer
from tests.charts.test_charts import MAKERS
from tests.rows import rows


def page_of(*outputs: nbformat.NotebookNode, text: str = "") -> str:
    cell = nbformat.v4.new_code_cell("1 + 1", outputs=list(outputs))
    return to_page(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text), cell]), "t")


def output(**data: object) -> nbformat.NotebookNode:
    named = {name.replace("__", "/").replace("_plus_", "+"): value for name, value in data.items()}
    return nbformat.v4.new_output("display_data", named)


def test_a_page_with_a_chart_needs_nothing_from_elsewhere() -> None:
    bundle = _renderer.bundle_of(MAKERS["sample_histograms"]())
    page = page_of(nbformat.v4.new_output("display_data", bundle), text="# A plan\n$a_b$")
    assert external_references(page) == []
    assert "data:image/svg+xml;base64," in page
    assert "Histogram of every column of the samples" in page  # text for screen readers


def test_a_widget_without_its_kernel_is_left_out() -> None:
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "a bar"}
    page = page_of(nbformat.v4.new_output("display_data", view))
    assert "a bar" not in page
    assert external_references(page) == []


def test_a_link_to_click_is_no_reference() -> None:
    assert external_references('<a href="https://example.org">read on</a>') == []


@rows(
    "planted",
    '<script src="https://cdn.example.org/require.js"></script>',
    '<img src="//cdn.example.org/x.png"/>',
    '<link rel="stylesheet" href="http://example.org/a.css">',
    '<style>@import "https://example.org/a.css";</style>',
    "<style>a { background: url(https://example.org/a.png) }</style>",
    "<p style=\"background: url('//example.org/a.png')\">",
    '<script type="module">import x from "https://example.org/x.mjs"</script>',
    '<script>import("https://example.org/x.mjs")</script>',
    '<script>fetch("https://example.org/data")</script>',
    '<img srcset="https://example.org/x.png 2x">',
)
def test_a_planted_reference_is_found(planted: str) -> None:
    page = page_of(output(text__html="<p>fine</p>"))
    assert external_references(page) == []
    assert len(external_references(page.replace("<p>fine</p>", planted))) == 1


def test_a_reference_within_a_picture_is_found() -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><image href="https://example.org/a"/></svg>'
    planted = base64.b64encode(svg.encode()).decode()
    assert external_references(f'<img src="data:image/svg+xml;base64,{planted}">') == [
        "https://example.org/a"
    ]
