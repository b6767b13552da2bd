"""A widget on a page of its own, without a notebook: answered by this process, or by nobody.

It opens in a tenth of the time that a notebook takes. What concerns Jupyter (its themes, its
shortcuts, a saved notebook) is tested in a notebook.
"""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

PAGE = """<!doctype html><meta charset="utf-8"><style>{styles}</style>
<body style="margin: 8px; background: {paper}">
<div id="host" style="width: {width}"></div><script type="module">
const decoded = (value) => {{
  if (value?.base64 !== undefined) {{
    const bytes = Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
    return new DataView(bytes.buffer);
  }}
  if (Array.isArray(value)) return value.map(decoded);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, decoded(each)]));
}};
const state = decoded({state});
const heard = new Map();
const tell = (event) =>
  (heard.get(event) ?? []).forEach((listener) => listener({{ type: "done" }}));
window.unanswered = 0;
let unsaved = {{}};
const ask = (message) => {{
  window.unanswered += 1;
  window.answer(JSON.stringify(message)).then((text) => {{
    const news = decoded(JSON.parse(text));
    for (const [name, value] of Object.entries(news).reverse()) {{ // as marimo hands them on
      state[name] = value;
      tell(`change:${{name}}`);
    }}
    if (message.method === "custom") tell("msg:custom");
    window.unanswered -= 1;
  }});
}};
const model = {{
  get: (name) => state[name],
  set(name, value) {{
    if (JSON.stringify(state[name]) === JSON.stringify(value)) return;
    unsaved[name] = state[name] = value;
    tell(`change:${{name}}`);
  }},
  save_changes() {{
    if (window.answer && Object.keys(unsaved).length) ask({{ method: "update", state: unsaved }});
    unsaved = {{}};
  }},
  on: (events, listener) => events.split(" ").forEach((event) =>
    heard.set(event, [...heard.get(event) ?? [], listener])),
  off: (event, listener) =>
    heard.set(event, (heard.get(event) ?? []).filter((each) => each !== listener)),
  send(message) {{
    if (!window.answer) throw new Error("Cannot send");
    ask({{ method: "custom", content: message }});
  }},
}};
{module}
const made = typeof widget === "function" ? widget() : widget;
made.initialize?.({{ model }});
window.show = (el) => made.render({{ model, el }});
window.show(document.getElementById("host"));
</script>"""
OF_JUPYTER = ("layout", "tabbable", "tooltip")
"""Traits of every widget that no view reads."""
WHITE, BLACK = "#ffffff", "#111111"


def shown(
    page: Page,
    widget: Any,
    folder: Path,
    *,
    width: str = "1200px",
    paper: str = WHITE,
    styles: str = "",
    answered: bool = False,
    python: ThreadPoolExecutor | None = None,
) -> Page:
    """Open a page with a widget.

    Args:
        width: of the cell that it is in.
        paper: colour of the page.
        styles: style sheets that the page has loaded after the widget's.
        answered: messages and traits of the browser reach the widget; else its kernel has ended.
        python: handles the messages, where Playwright's event loop would be in the way.
    """
    known = _state(widget)
    if answered:

        def answer(text: str) -> str:
            message = {"content": {"data": json.loads(text)}, "buffers": []}
            if python is None:
                widget._handle_msg(message)
            else:
                python.submit(widget._handle_msg, message).result()
            news = {name: value for name, value in _state(widget).items() if known[name] != value}
            known.update(news)
            return json.dumps(news)

        page.expose_function("answer", answer)
    module = str(widget._esm).replace("export default", "const widget =")
    file = folder / "view.html"
    file.write_text(
        PAGE.format(
            styles=str(widget._css) + styles,
            state=json.dumps(known),
            module=module,
            width=width,
            paper=paper,
        ),
        encoding="utf-8",
    )
    page.goto(file.as_uri())
    return page


def click(page: Page, button: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()
    wait_for_answers(page)


def wait_for_answers(page: Page) -> None:
    page.wait_for_function("window.unanswered === 0")


def _state(widget: Any) -> dict[str, Any]:
    left_out = ("_esm", "_css", "_model_", "_view_", "_dom_", *OF_JUPYTER)
    state = widget.get_state().items()
    return {name: _plain(value) for name, value in state if not name.startswith(left_out)}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | memoryview):
        return {"base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
