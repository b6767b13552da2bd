"""An executed notebook as one HTML page that asks no other machine for anything."""

import base64
import copy
import re
from html.parser import HTMLParser
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

FETCHED = {"src", "href", "xlink:href", "srcset", "poster", "data", "action", "background"}
ELSEWHERE = re.compile(r"^\s*(https?:|wss?:|ftp:|//)", re.IGNORECASE)
FETCHED_BY_STYLE = re.compile(
    r"""url\(\s*['"]?\s*((?:https?:)?//[^'")\s]+)|@import\s+['"]?([^'";\s]+)""", re.IGNORECASE
)
FETCHED_BY_SCRIPT = re.compile(
    r"""(?:\bimport\s*\(?|\bfrom|\bfetch\s*\(|\.src\s*=|\brequire\s*\()\s*['"`]"""
    r"""((?:https?:)?//[^'"`]+)""",
    re.IGNORECASE,
)


def to_page(notebook: Any, title: str) -> str:
    """Return the notebook as an HTML page without references to anything outside of it."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    exporter = HTMLExporter(
        config=Config({"NbConvertBase": {"display_data_priority": SHOWN}}), raw_template=TEMPLATE
    )
    page, _ = exporter.from_notebook_node(_without_widgets(notebook), {"metadata": {"name": title}})
    return str(page)


def _without_widgets(notebook: Any) -> Any:
    shown = copy.deepcopy(notebook)
    for cell in shown.cells:
        if "outputs" in cell:
            cell.outputs = [
                output for output in cell.outputs if WIDGET not in output.get("data", {})
            ]
    return shown


def external_references(page: str) -> list[str]:
    """Return what a browser would fetch from elsewhere to show the page.

    A link that a reader may click is none; pictures within the page are looked into as well.
    """
    finder = _Finder()
    finder.feed(page)
    finder.close()
    return finder.found


class _Finder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("style", "script") else ""
        for name, value in attrs:
            if value is None or (tag == "a" and name in ("href", "xlink:href")):
                continue
            if name == "style":
                self._look_into_style(value)
            elif name in FETCHED:
                self._look_at_address(value)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self._look_into_style(data)
        elif self._inside == "script":
            self.found += FETCHED_BY_SCRIPT.findall(data)

    def _look_into_style(self, style: str) -> None:
        self.found += [address or imported for address, imported in FETCHED_BY_STYLE.findall(style)]

    def _look_at_address(self, address: str) -> None:
        svg = "data:image/svg+xml;base64,"
        if address.startswith(svg):
            self.found += external_references(base64.b64decode(address[len(svg) :]).decode())
        elif ELSEWHERE.match(address):
            self.found.append(address)
