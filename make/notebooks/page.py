"""An executed notebook as one HTML page that asks no other machine for anything."""

import copy
import functools
from typing import Any

# nbconvert's own pages fetch require.js, MathJax, Mermaid and a widget manager from the network.
TEMPLATE = """
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block jupyter_widgets -%}{%- endblock jupyter_widgets -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block html_head_js_mermaidjs -%}{%- endblock html_head_js_mermaidjs -%}
{%- block html_head_css -%}
<style>
  body.jp-Notebook { overflow: auto; padding: 32px 16px 64px; }
  main { max-width: 1120px; margin: 0 auto; }
  .jp-RenderedMarkdown pre, .jp-RenderedMarkdown pre span {
    font-family: var(--jp-code-font-family); font-style: normal;
    font-size: var(--jp-code-font-size); line-height: var(--jp-code-line-height); }
  .jp-RenderedSVG img { max-width: 100%; height: auto; }
  @media (max-width: 1000px) { /* the room of prompts and margins is for the views */
    body.jp-Notebook { margin: 0; padding: 32px 4px 64px; }
    .jp-Cell { padding: 5px 0; }
    .jp-Cell :is(.jp-InputPrompt, .jp-OutputPrompt) { display: none; }
    .jp-RenderedHTMLCommon.jp-OutputArea-output { padding-right: 0; }
  }
</style>
{%- endblock html_head_css -%}
{%- block data_svg scoped -%}
<div class="jp-RenderedSVG jp-OutputArea-output {{ extra_class }}" data-mime-type="image/svg+xml">
<img alt="{{ output.data.get('text/plain', 'a chart') | escape_html }}"
 src="data:image/svg+xml;base64,{{ output.data['image/svg+xml'] | text_base64 | escape_html }}">
</div>
{%- endblock data_svg -%}
"""
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
"""What a page shows of an output, best first."""
WIDGET = "application/vnd.jupyter.widget-view+json"


def to_page(notebook: Any, title: str) -> str:
    """Return the notebook as an HTML page without references to anything outside of it."""
    named = {"metadata": {"name": title}}
    page, _ = exporter().from_notebook_node(_without_widgets(notebook), named)
    return str(page)


@functools.cache
def exporter() -> Any:
    """Return what makes pages, once it has made one, which takes half a second."""
    from nbconvert import HTMLExporter
    from nbformat import v4
    from traitlets.config import Config

    shown = Config({"NbConvertBase": {"display_data_priority": SHOWN}})
    made = HTMLExporter(config=shown, raw_template=TEMPLATE)
    made.from_notebook_node(
        v4.new_notebook(cells=[v4.new_markdown_cell("*first*"), v4.new_code_cell("first")])
    )
    return made


def _without_widgets(notebook: Any) -> Any:
    shown = copy.deepcopy(notebook)
    for cell in shown.cells:
        if "outputs" in cell:
            cell.outputs = [
                output for output in cell.outputs if WIDGET not in output.get("data", {})
            ]
    return shown
